"""The public call: heads exchanged in rows of a mesh, keys going round its columns."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from .._arguments import Arguments, Window
from .._dispatch import Impl
from .._problem import Layout, Precision
from ._groups import mesh_groups
from ._placement import Placement
from ._run import run_hybrid
from ._transport import Transport

__all__ = ["hybrid_attention"]


@overload
def hybrid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: DeviceMesh,
    placement: Placement = ...,
    layout: Layout = ...,
    causal: bool = ...,
    causal_align: Literal["bottom_right", "top_left"] = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[False] = ...,
    impl: Impl = ...,
    timeout: float | None = ...,
) -> Tensor: ...


@overload
def hybrid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: DeviceMesh,
    placement: Placement = ...,
    layout: Layout = ...,
    causal: bool = ...,
    causal_align: Literal["bottom_right", "top_left"] = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[True],
    impl: Impl = ...,
    timeout: float | None = ...,
) -> tuple[Tensor, Tensor]: ...


def hybrid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: DeviceMesh,
    placement: Placement = "contiguous",
    layout: Layout = "BNSD",
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
    timeout: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Both at once: heads are exchanged within a mesh's rows, and keys go round its columns.

    Args:
        mesh: a DeviceMesh of two dimensions: (ring, heads). Ranks that share heads, neighbours in
            the mesh, exchange the most: put them on one host.
        q, k, v, placement, layout, causal, causal_align, scale, window, softcap, sinks,
            cu_seqlens_q, cu_seqlens_k, precision, out_dtype, return_lse, impl, timeout: as for
            `ring_attention`. The query heads must be a multiple of the second dimension. Ranks of a
            row together hold what `placement` gives a rank of the ring, one run after another, as
            shard_sequence(x, mesh, ...) cuts it.

    Returns:
        As `ring_attention`.

    Raises:
        As `ring_attention`.

    Ranks agree by one small exchange in each dimension.
    """
    arguments = Arguments(
        q,
        k,
        v,
        layout=layout,
        causal=causal,
        causal_align=causal_align,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        precision=precision,
        out_dtype=out_dtype,
        return_lse=return_lse,
        impl=impl,
    )
    ring, heads = mesh_groups(mesh)
    return run_hybrid(arguments, placement, Transport(ring, timeout), Transport(heads, timeout))
