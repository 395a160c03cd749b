"""Write new keys and values behind those that a cache holds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from blocks.layout import advance, load_tile, store_tile

from .._target import Target
from .launch import Route, launch


@triton.jit(
    do_not_specialize=["Hk", "S", "capacity", "pages", "tasks", "stride_table_b"],
)
def append_kv_kernel(
    k_ptr, v_ptr, new_k_ptr, new_v_ptr, lens_ptr, table_ptr,
    stride_kb, stride_kh, stride_kn, stride_kd, stride_vb, stride_vh, stride_vn, stride_vd,
    stride_nkb, stride_nkh, stride_nkn, stride_nkd, stride_nvb, stride_nvh, stride_nvn, stride_nvd,
    stride_table_b, Hk, S, capacity, pages, tasks,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Copy token t of sequence b, all its heads, to position lens[b] + t; task = b * S + t.

    What has no place is dropped: a position beyond the capacity, or a page that there is none of.
    """
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        batch = task // S
        token = task % S
        length = tl.load(lens_ptr + batch).to(tl.int64)
        position = length + token
        valid = (length >= 0) & (position < capacity)
        position = tl.where(valid, position, 0)
        if PAGE:
            page = tl.load(advance(table_ptr, batch, stride_table_b) + position // PAGE)
            valid = valid & ((page >= 0) & (page < pages))
            place = tl.where(valid, page, 0)
            row = position % PAGE
        else:
            place = batch
            row = position
        heads = tl.where(valid, Hk, 0)
        new_k = advance(advance(new_k_ptr, batch, stride_nkb), token, stride_nkn)
        tile_k = load_tile(
            new_k, 0, Hk, stride_nkh, stride_nkd, D, BLOCK_H, BLOCK_D, True, WIDE
        )  # [BLOCK_H, BLOCK_D]
        k_row = advance(advance(k_ptr, place, stride_kb), row, stride_kn)
        store_tile(k_row, tile_k, 0, heads, stride_kh, stride_kd, D, WIDE)
        new_v = advance(advance(new_v_ptr, batch, stride_nvb), token, stride_nvn)
        tile_v = load_tile(
            new_v, 0, Hk, stride_nvh, stride_nvd, Dv, BLOCK_H, BLOCK_DV, True, WIDE
        )  # [BLOCK_H, BLOCK_DV]
        v_row = advance(advance(v_ptr, place, stride_vb), row, stride_vn)
        store_tile(v_row, tile_v, 0, heads, stride_vh, stride_vd, Dv, WIDE)


def append_constants(Hk: int, D: int, Dv: int, *, page: int, wide: bool) -> dict[str, object]:
    """The constexpr arguments of `append_kv_kernel`, by name.

    Args:
        Hk, D, Dv: key heads, and numbers of a key and of a value.
        page: keys of a page; 0: they lie in one piece.
        wide: strides need 64 bits.
    """
    return {
        "D": D,
        "Dv": Dv,
        "BLOCK_H": triton.next_power_of_2(Hk),
        "BLOCK_D": max(16, triton.next_power_of_2(D)),
        "BLOCK_DV": max(16, triton.next_power_of_2(Dv)),
        "PAGE": page,
        "WIDE": wide,
    }


def launch_append_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    new_k: torch.Tensor,
    new_v: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor | None,
    target: Target,
    route: Route,
) -> None:
    """Write new tokens into a cache.

    Args:
        k, v: [B, Hk, capacity, D], [B, Hk, capacity, Dv]; with a table [pages, Hk, page, D], ...
        new_k, new_v: [B, Hk, S, D], [B, Hk, S, Dv], any strides.
        lens: [B] int32 or int64. Keys that each sequence has before.
        table: [B, pages of a sequence] int32.
        target, route: where the kernel runs.
    """
    B, Hk, S, D = new_k.shape
    Dv = new_v.shape[-1]
    page = 0 if table is None else k.shape[2]
    letters = (("k", k), ("v", v), ("nk", new_k), ("nv", new_v))
    strides = {
        f"stride_{letter}{dim}": 1 if dim == "d" and tensor.shape[-1] == 1 else step
        for letter, tensor in letters
        for dim, step in zip("bhnd", tensor.stride(), strict=True)
    }
    far = max(abs(x.stride(1)) for x in (k, v, new_k, new_v)) * triton.next_power_of_2(Hk)
    tasks = B * S
    launch(
        append_kv_kernel,
        min(tasks, 2 * target.cores) if target.family == "ascend" else tasks,
        {
            "k_ptr": k, "v_ptr": v, "new_k_ptr": new_k, "new_v_ptr": new_v,
            "lens_ptr": lens.contiguous(), "table_ptr": table, **strides,
            "stride_table_b": 0 if table is None else table.stride(0), "Hk": Hk, "S": S,
            "capacity": k.shape[2] if table is None else table.shape[1] * page,
            "pages": k.shape[0], "tasks": tasks,
        },
        append_constants(Hk, D, Dv, page=page, wide=far >= 2**30),
        route=route,
        device=k.device,
        arch=target.arch,
        options={},
    )  # fmt: skip
