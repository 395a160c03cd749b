"""blocks.layout: which elements a tile reads and writes, and which it leaves alone."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from hostile_numbers import normals
from layout_kernels import (
    begin_kernel,
    block_kernel,
    copy_kernel,
    load_kernel,
    offsets_kernel,
    rows_kernel,
    sequence_kernel,
    spread_kernel,
    store_kernel,
)
from torch import Tensor

ROWS, COLS = 16, 32


@pytest.mark.parametrize(
    "stride_row, stride_col, wide",
    [
        (32, 1, False),
        (1, 16, False),
        (0, 1, False),
        # the last offset that fits in 32 bits
        ((2**31 - 1) // 15, 0, False),
        (2**27 - 3, 1, False),
        # past 32 bits from row 8, 4, 2 and 1 on; a stride that does not fit in 32 bits itself
        (2**28, 1, True),
        (2**29 + 1, 2, True),
        (2**30, 1, True),
        (2**31 + 8, 1, True),
        (3, 2**40 + 1, True),
    ],
)
def test_offsets(device: Device, stride_row: int, stride_col: int, wide: bool) -> None:
    (offsets,) = device.run(
        offsets_kernel, {"stride_row": stride_row, "stride_col": stride_col},
        {"out_ptr": (ROWS, COLS)}, dtype=torch.int64, ROWS=ROWS, COLS=COLS, WIDE=wide,
    )  # fmt: skip
    rows, cols = torch.arange(ROWS)[:, None], torch.arange(COLS)[None, :]
    assert torch.equal(offsets, rows * stride_row + cols * stride_col)


def poisoned(device: Device, rows: int, cols: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A [rows, cols] view into the middle of memory full of NaN, and all of that memory."""
    memory = torch.full((rows + 40, cols + 48), math.nan, dtype=dtype, device=device.place)
    return memory[20 : 20 + rows, 24 : 24 + cols], memory


@pytest.mark.parametrize(
    "check_rows, cols, dtype, by_columns",
    [
        *(
            (check_rows, cols, torch.float32, by_columns)
            for check_rows in (True, False)
            for cols in (COLS, 19)
            for by_columns in (False, True)
        ),
        (True, 1, torch.float32, False),
        (True, 19, torch.float16, False),
        (True, 19, torch.bfloat16, True),
    ],
    ids=str,
)
def test_a_load_reads_its_tile_and_zeros(
    fast_device: Device, check_rows: bool, cols: int, dtype: torch.dtype, by_columns: bool
) -> None:
    rows = 3 * ROWS
    view, _ = poisoned(fast_device, *((cols, rows) if by_columns else (rows, cols)), dtype)
    view = view.T if by_columns else view
    view.copy_(normals(rows, cols).to(dtype))
    # within a tile, at its end, past it, and with nothing to read
    ends = [(0, 48), (16, 32), (16, 25), (30, 31), (32, 48), (16, 16), (20, 3)]
    for start, end in ends if check_rows else [(0, 48), (16, 48), (32, 48)]:
        out = torch.full((ROWS, COLS), math.nan, dtype=dtype, device=fast_device.place)
        args = {
            "x_ptr": view, "out_ptr": out, "row_start": start, "row_end": end,
            "stride_row": view.stride(0), "stride_col": view.stride(1),
        }  # fmt: skip
        constants = {
            "COLS": cols,
            "BLOCK_ROWS": ROWS,
            "BLOCK_COLS": COLS,
            "CHECK_ROWS": check_rows,
            "WIDE": False,
            "BY_COLUMNS": by_columns,
        }
        fast_device.launch(load_kernel, args, constants)
        expected = torch.zeros(ROWS, COLS, dtype=dtype, device=fast_device.place)
        there = view[start : max(min(start + ROWS, end), start)]
        expected[: there.shape[0], :cols] = there
        assert torch.equal(out, expected), (start, end)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cols", [COLS, 19])
def test_a_store_writes_its_tile_and_nothing_else(
    fast_device: Device, cols: int, dtype: torch.dtype
) -> None:
    rows = 3 * ROWS
    x = normals(ROWS, COLS).to(fast_device.place)
    for start, end in [(0, 48), (16, 32), (16, 25), (30, 31), (16, 16), (20, 3)]:
        view, memory = poisoned(fast_device, rows, cols, dtype)
        expected = memory.clone()
        there = max(min(ROWS, end - start), 0)
        expected[20 + start : 20 + start + there, 24 : 24 + cols] = x[:there, :cols].to(dtype)
        args = {
            "x_ptr": x, "out_ptr": view, "row_start": start, "row_end": end,
            "stride_row": view.stride(0), "stride_col": view.stride(1),
        }  # fmt: skip
        constants = {"COLS": cols, "BLOCK_ROWS": ROWS, "BLOCK_COLS": COLS, "WIDE": False}
        fast_device.launch(store_kernel, args, constants)
        assert_same_bits(memory, expected)


def test_a_block_is_stored_where_it_belongs_and_nothing_else(fast_device: Device) -> None:
    rows, cols = 3 * ROWS, 3 * COLS
    x = normals(ROWS, COLS).to(fast_device.place)
    spans = [(0, 3, 0, 7), (16, 25, 64, 90), (30, 48, 5, 96), (16, 16, 0, 96), (0, 48, 40, 9)]
    for (row, row_end, col, col_end), wide in itertools.product(spans, (False, True)):
        view, memory = poisoned(fast_device, rows, cols, torch.bfloat16)
        expected = memory.clone()
        there = (max(min(ROWS, row_end - row), 0), max(min(COLS, col_end - col), 0))
        inner = expected[20 + row :, 24 + col :][: there[0], : there[1]]
        inner.copy_(x[: there[0], : there[1]])
        args = {
            "x_ptr": x, "out_ptr": view, "row_start": row, "row_end": row_end,
            "col_start": col, "col_end": col_end,
            "stride_row": view.stride(0), "stride_col": view.stride(1),
        }  # fmt: skip
        constants = {"BLOCK_ROWS": ROWS, "BLOCK_COLS": COLS, "WIDE": wide}
        fast_device.launch(block_kernel, args, constants)
        assert_same_bits(memory, expected)


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    ints = {2: torch.int16, 4: torch.int32}[found.dtype.itemsize]
    assert torch.equal(found.view(ints), expected.view(ints))


def test_rows_are_stored_up_to_the_end(device: Device) -> None:
    x = normals(ROWS).to(device.place)
    for start, end in [(0, 16), (5, 12), (8, 40), (7, 7), (9, 2)]:
        memory = torch.full((64,), math.nan, device=device.place)
        expected = memory.clone()
        there = max(min(ROWS, end - start), 0)
        expected[16 + start : 16 + start + there] = x[:there]
        args = {"x_ptr": x, "out_ptr": memory[16:], "row_start": start, "row_end": end}
        device.launch(rows_kernel, args, {"N": ROWS})
        assert_same_bits(memory, expected)


B, H, S, D = 2, 3, 21, 19


def views(device: Device) -> dict[str, Tensor]:
    """[B, H, S, D] tensors whose strides differ in every way."""
    x = normals(B, H, S, D).to(device.place)
    spaced = torch.full((B, 2 * H, 3 * S, 2 * D), math.nan, device=device.place)
    spaced[:, 1::2, ::3, ::2] = x
    return {
        "BNSD": x,
        "BSND": normals(B, S, H, D, seed=1).to(device.place).transpose(1, 2),
        "SBND": normals(S, B, H, D, seed=2).to(device.place).permute(1, 2, 0, 3),
        "transposed": normals(B, H, D, S, seed=3).to(device.place).mT,
        "packed qkv": normals(B, S, 3, H, D, seed=4).to(device.place)[:, :, 1].transpose(1, 2),
        "every other element": spaced[:, 1::2, ::3, ::2],
        "expanded batch": normals(1, H, S, D, seed=5).to(device.place).expand(B, -1, -1, -1),
        "expanded heads": normals(B, 1, S, D, seed=6).to(device.place).expand(-1, H, -1, -1),
        "expanded rows": normals(B, H, 1, D, seed=7).to(device.place).expand(-1, -1, S, -1),
        "expanded columns": normals(B, H, S, 1, seed=8).to(device.place).expand(-1, -1, -1, D),
    }


def copy(device: Device, x: Tensor, out: Tensor, wide: bool = False) -> None:
    batch, heads, rows, cols = x.shape
    args = {"x_ptr": x, "out_ptr": out, "H": heads, "S": rows}
    for letter, tensor in (("x", x), ("o", out)):
        for dim, stride in zip("bhmd", tensor.stride(), strict=True):
            args[f"stride_{letter}{dim}"] = stride
    constants = {"D": cols, "BLOCK_M": ROWS, "BLOCK_D": COLS, "WIDE": wide}
    device.launch(copy_kernel, args, constants, grid=(batch * heads, -(-rows // ROWS)))


@pytest.mark.parametrize("name", views(Device("linalg")))
def test_any_strides(fast_device: Device, name: str) -> None:
    x = views(fast_device)[name]
    for out in (torch.empty(B, H, S, D), torch.empty(B, S, H, D).transpose(1, 2)):
        out = out.to(fast_device.place).fill_(math.nan)
        copy(fast_device, x, out)
        assert torch.equal(out, x)


@pytest.mark.parametrize("stride", [2**30, 2**31 + 16])
def test_tiles_across_more_than_32_bits(fast_device: Device, tmp_path: Path, stride: int) -> None:
    rows, cols = 4, 8
    elements = stride * (rows - 1) + cols
    if fast_device.route == "gpu":
        free, _ = torch.cuda.mem_get_info()
        if free < 2 * elements + 2**30:
            pytest.skip(f"needs {2 * elements >> 30} GiB of GPU memory")
        memory = torch.empty(elements, dtype=torch.float16, device="cuda")
    else:
        # a sparse file: the pages that nothing touches exist nowhere
        path = tmp_path / "sparse"
        memory = torch.from_file(str(path), shared=True, size=elements, dtype=torch.float16)
        path.unlink()
    huge = memory.as_strided((1, 1, rows, cols), (0, 0, stride, 1))
    huge.copy_(normals(1, 1, rows, cols))
    small = torch.full((1, 1, rows, cols), math.nan, dtype=torch.float16, device=huge.device)
    copy(fast_device, huge, small, wide=True)
    assert torch.equal(small, huge)
    huge.zero_()
    copy(fast_device, small, huge, wide=True)
    assert torch.equal(small, huge)
    # the first row of a later tile: whole tiles are always reached in 64 bits
    last = torch.full((ROWS, COLS), math.nan, dtype=torch.float16, device=huge.device)
    args = {
        "x_ptr": huge,
        "out_ptr": last,
        "row_start": rows - 1,
        "row_end": rows,
        "stride_row": stride,
        "stride_col": 1,
    }
    constants = {
        "COLS": cols,
        "BLOCK_ROWS": ROWS,
        "BLOCK_COLS": COLS,
        "CHECK_ROWS": True,
        "WIDE": False,
        "BY_COLUMNS": False,
    }
    fast_device.launch(load_kernel, args, constants)
    assert torch.equal(last[0, :cols], huge[0, 0, -1])


@pytest.mark.parametrize("row_begin", [0, 5, 8, 13, 40])
def test_rows_before_the_first_are_not_read(device: Device, row_begin: int) -> None:
    x = torch.full((64, COLS), math.nan)
    x[row_begin:20] = normals(max(20 - row_begin, 0), COLS, seed=1)
    (tile,) = device.run(
        begin_kernel,
        {"x_ptr": x, "row_start": 8, "row_begin": row_begin, "row_end": 20, "stride_row": COLS},
        {"out_ptr": (ROWS, COLS)}, COLS=COLS, BLOCK_ROWS=ROWS, BLOCK_COLS=COLS,
    )  # fmt: skip
    rows = torch.arange(8, 8 + ROWS)[:, None]
    seen = (rows >= row_begin) & (rows < 20)
    assert torch.equal(tile, torch.where(seen, x[8 : 8 + ROWS], 0.0))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("spread", ["full", "columns", "rows", "one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
def test_load_spread(device: Device, dtype: torch.dtype, spread: str, wide: bool) -> None:
    shape = {"full": (20, 40), "columns": (1, 40), "rows": (20, 1), "one": (1, 1)}[spread]
    x = (normals(*shape, seed=2) * 50).abs().to(dtype).expand(20, 40)
    stored = x[: shape[0], : shape[1]].contiguous()
    steps = [n if size > 1 else 0 for n, size in zip(stored.stride(), shape, strict=True)]
    args = {
        "x_ptr": stored, "row_start": 8, "row_end": 20, "col_start": 16, "col_end": 40,
        "stride_row": steps[0], "stride_col": steps[1],
    }  # fmt: skip
    (tile,) = device.run(
        spread_kernel, args, {"out_ptr": (ROWS, COLS)}, SPREAD=spread, ROWS=ROWS, COLS=COLS,
        WIDE=wide,
    )  # fmt: skip
    height, width = 20 - 8, 40 - 16
    assert torch.equal(tile[:height, :width], x[8:20, 16:40].float())
    if spread in ("full", "rows"):
        assert (tile[height:] == 0).all()
    if spread in ("full", "columns"):
        assert (tile[:, width:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sequences_stay_within_their_tokens(device: Device, dtype: torch.dtype) -> None:
    cu = torch.tensor([0, 7, 7, 30, 12, -5, 2**31 - 1, 40], dtype=dtype)
    if dtype == torch.int64:
        cu[-2] = 2**40 + 3
    tokens, longest, n = 50, 20, len(cu) - 1
    (found,) = device.run(
        sequence_kernel,
        {"cu_ptr": cu, "sequences": n, "tokens": tokens, "longest": longest},
        {"out_ptr": (n, 2)}, dtype=torch.int32,
    )  # fmt: skip
    inside = cu.clamp(0, tokens).tolist()
    expected = [[a, min(max(b - a, 0), longest)] for a, b in itertools.pairwise(inside)]
    assert found.tolist() == expected
