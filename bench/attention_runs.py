"""Who computes attention: this package, and the others it is measured beside.

A builder takes a case and its inputs, brings them into the form that its library likes best, and
returns a call that does nothing but compute. It raises `Unavailable` with the reason where the
library is not installed or has no such call. A run's result has the layout of the inputs.

`fa4` and `npu_fusion_attention` are written from their documentation and have not run yet: no
machine with them was at hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashasc
from flashasc._dispatch import Impl
from flashasc._problem import Precision

from .cases import AttentionCase
from .gate import AttentionInputs

Run = Callable[[], Tensor]
Build = Callable[[AttentionCase, AttentionInputs], Run]


class Unavailable(Exception):
    """An implementation is not here, or has no such call; the message is the reason."""


def ours(precision: Precision, impl: Impl) -> Build:
    """`flashasc.attention`, or `flashasc.decode` where a cache is read."""

    def build(case: AttentionCase, inputs: AttentionInputs) -> Run:
        q, k, v, cu_seqlens = inputs
        if precision == "high" and case.dtype == torch.float32:
            raise Unavailable('precision "high" is for 16-bit inputs')
        if case.decode:
            cache = cache_of(k, v, case.page)
            return lambda: flashasc.decode(q, cache, precision=precision, impl=impl)
        options = case.options
        if cu_seqlens is not None:
            options.update(
                layout="TND",
                cu_seqlens_q=cu_seqlens,
                cu_seqlens_k=cu_seqlens,
                max_seqlen_q=case.keys,
                max_seqlen_k=case.keys,
            )
        return lambda: flashasc.attention(q, k, v, precision=precision, impl=impl, **options)

    return build


def cache_of(k: Tensor, v: Tensor, page: int = 0) -> flashasc.KVCache | flashasc.PagedKVCache:
    """A full cache of k and v, in one piece or in pages that lie in no order."""
    B, Hk, Sk, D = k.shape
    lens = torch.full((B,), Sk, dtype=torch.int32, device=k.device)
    if not page:
        return flashasc.KVCache(k, v, lens)
    table = torch.randperm(B * Sk // page, device=k.device).to(torch.int32).view(B, -1)

    def in_pages(x: Tensor) -> Tensor:
        pages = x.view(B, Hk, -1, page, D).transpose(1, 2).flatten(0, 1)
        scattered = torch.empty_like(pages)
        scattered[table.flatten().long()] = pages
        return scattered

    return flashasc.PagedKVCache(in_pages(k), in_pages(v), table, lens)


def sdpa(backend: SDPBackend | None) -> Build:
    """`F.scaled_dot_product_attention` on one backend, or on PyTorch's choice."""

    def build(case: AttentionCase, inputs: AttentionInputs) -> Run:
        _no_pages(case)
        if case.window is not None:
            raise Unavailable("SDPA has no window, short of a mask of all scores")
        q, k, v, cu_seqlens = inputs
        options: dict[str, Any] = {"is_causal": case.causal, "enable_gqa": case.Hq != case.Hk}
        if cu_seqlens is not None:
            nested = torch.nested.nested_tensor_from_jagged
            longest, shortest = max(case.lengths), min(case.lengths)
            q, k, v = (
                nested(
                    x, cu_seqlens.long(), min_seqlen=shortest, max_seqlen=longest
                ).transpose(1, 2)
                for x in (q, k, v)
            )  # fmt: skip

        def run() -> Tensor:
            if backend is None:
                out = F.scaled_dot_product_attention(q, k, v, **options)
            else:
                with sdpa_kernel(backend):
                    out = F.scaled_dot_product_attention(q, k, v, **options)
            return out if cu_seqlens is None else out.transpose(1, 2).values()

        return run

    return build


def flex(compiled: bool = True) -> Build:
    """FlexAttention, with a block mask where something is hidden."""

    def build(case: AttentionCase, inputs: AttentionInputs) -> Run:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        _no_pages(case)
        q, k, v, cu_seqlens = inputs
        if cu_seqlens is not None:
            q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (q, k, v))
        mask_of: Any = create_block_mask
        attend: Any = flex_attention
        if compiled:
            # every case is another graph, and from the eighth on it would run uncompiled
            torch.compiler.reset()
            mask_of, attend = torch.compile(create_block_mask), torch.compile(flex_attention)
        block_mask = None
        if case.causal or case.window is not None or cu_seqlens is not None:
            sizes = (q.shape[2], k.shape[2])
            rule = _rule(case, cu_seqlens, *sizes)
            block_mask = mask_of(rule, None, None, *sizes, q.device)

        def run() -> Tensor:
            out: Any = attend(q, k, v, block_mask=block_mask, enable_gqa=case.Hq != case.Hk)
            result: Tensor = out if cu_seqlens is None else out[0].transpose(0, 1)
            return result

        return run

    return build


def _rule(
    case: AttentionCase, cu_seqlens: Tensor | None, Sq: int, Sk: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Who sees whom, as FlexAttention asks it."""
    window = case.window
    number = None
    if cu_seqlens is not None:
        tokens = torch.arange(Sq, device=cu_seqlens.device, dtype=torch.int32)
        number = torch.searchsorted(cu_seqlens, tokens, right=True)

    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        at = i + (Sk - Sq)
        seen = j <= at if case.causal else j >= 0
        if window is not None:
            seen = seen & (j >= at - window)
        if number is not None:
            seen = seen & (number[i] == number[j])
        return seen

    return rule


def fa3(case: AttentionCase, inputs: AttentionInputs) -> Run:
    """FlashAttention-3: the package fa3-fwd, or one built from its sources."""
    _no_pages(case)
    module = _import("fa3_fwd_interface", "flash_attn_interface")
    return _flash_attn(module, case, inputs, (-1 if case.window is None else case.window, -1))


def fa4(case: AttentionCase, inputs: AttentionInputs) -> Run:
    """FlashAttention-4, which is written in CuTe."""
    _no_pages(case)
    return _flash_attn(_import("flash_attn.cute"), case, inputs, (case.window, None))


def _flash_attn(
    module: ModuleType, case: AttentionCase, inputs: AttentionInputs, window: tuple[Any, Any]
) -> Run:
    """A call of the flash-attn family, [B, S, H, D] or [tokens, H, D]."""
    q, k, v, cu_seqlens = inputs
    options: dict[str, Any] = {"causal": case.causal}
    if case.window is not None:
        options["window_size"] = window
    if cu_seqlens is not None:
        options.update(
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_k=cu_seqlens,
            max_seqlen_q=case.keys,
            max_seqlen_k=case.keys,
        )

        def packed() -> Tensor:
            return _first(module.flash_attn_varlen_func(q, k, v, **options))

        return packed
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    if case.decode and hasattr(module, "flash_attn_with_kvcache"):
        # the call that splits the keys of few queries
        lens = torch.full((case.B,), case.Sk, dtype=torch.int32, device=q.device)

        def from_cache() -> Tensor:
            out = module.flash_attn_with_kvcache(q, k, v, cache_seqlens=lens)
            return _first(out).transpose(1, 2)

        return from_cache
    return lambda: _first(module.flash_attn_func(q, k, v, **options)).transpose(1, 2)


def npu_fusion_attention(case: AttentionCase, inputs: AttentionInputs) -> Run:
    """CANN's fused attention, by its documented signature; docs/coming-from.md has its traps."""
    _no_pages(case)
    module = _import("torch_npu")
    q, k, v, cu_seqlens = inputs
    options: dict[str, Any] = {"scale": case.D**-0.5}
    if case.causal:
        upper = torch.ones(2048, 2048, dtype=torch.bool, device=q.device).triu(1)
        # 3: the last query is aligned with the last key; 4: the same, with a window
        options.update(atten_mask=upper, sparse_mode=3)
        if case.window is not None:
            options.update(sparse_mode=4, pre_tockens=case.window, next_tockens=0)
    layout = "BNSD"
    if cu_seqlens is not None:
        layout, ends = "TND", cu_seqlens[1:].tolist()
        options.update(actual_seq_qlen=ends, actual_seq_kvlen=ends)
    return lambda: _first(module.npu_fusion_attention(q, k, v, case.Hq, layout, **options))


def _first(result: Any) -> Tensor:
    """The output, of a call that may return more."""
    out: Tensor = result[0] if isinstance(result, (tuple, list)) else result
    return out


def _no_pages(case: AttentionCase) -> None:
    if case.page:
        raise Unavailable("the peers are measured on a cache in one piece")


def _import(*names: str) -> ModuleType:
    reasons = []
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as failure:
            # OSError: a library that the module is linked against is missing
            reasons.append(str(failure))
    raise Unavailable("; ".join(reasons))


OURS: tuple[Precision, ...] = ("standard", "compensated", "high")
_BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}

IMPLEMENTATIONS: dict[str, dict[str, Build]] = {
    "cpu": {
        **{f"reference_{precision}": ours(precision, "reference") for precision in OURS[:2]},
        **{f"native_{precision}": ours(precision, "triton") for precision in OURS[:2]},
        "sdpa": sdpa(None),
    },
    "cuda": {
        **{f"flashasc_{precision}": ours(precision, "triton") for precision in OURS},
        **{name: sdpa(backend) for name, backend in _BACKENDS.items()},
        "flex": flex(),
        "fa3": fa3,
        "fa4": fa4,
    },
    "npu": {
        **{f"flashasc_{precision}": ours(precision, "triton") for precision in OURS},
        "npu_fusion_attention": npu_fusion_attention,
    },
}
"""Device -> name -> how it is called."""
