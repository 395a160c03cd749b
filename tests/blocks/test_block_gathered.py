"""Blocks that gather: a block, rows that lie in pages, heads of a row, numbers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from gathered_kernels import (
    anywhere_kernel,
    load_grouped_kernel,
    numbers_kernel,
    paged_kernel,
    store_grouped_kernel,
)
from hostile_numbers import normals
from torch import Tensor

ROWS, COLS = 16, 32
# numbers of pages that there are not count as the nearest that there is
TABLE = [3, -7, 1, 99, 2, 0, 4, 1]
PAGES = 5


def sparse(path: Path, elements: int) -> Tensor:
    """Memory of which only what is touched exists, fp16."""
    memory = torch.from_file(str(path), shared=True, size=elements, dtype=torch.float16)
    path.unlink()
    return memory


def load_pages(
    device: Device, x: Tensor, span: tuple[int, int, int], *, cols: int, wide: bool = False,
    check_rows: bool = True,
) -> Tensor:  # fmt: skip
    """Rows [start, start + ROWS) of x [pages, page, cols] by TABLE, from begin to end."""
    start, begin, end = span
    out = torch.full((ROWS, COLS), math.nan, dtype=x.dtype, device=device.place)
    args = {
        "x_ptr": x, "table_ptr": torch.tensor(TABLE, dtype=torch.int32, device=device.place),
        "out_ptr": out, "pages": x.shape[0], "row_start": start, "row_end": end,
        "row_begin": begin, "stride_page": x.stride(0), "stride_row": x.stride(1),
        "stride_col": x.stride(2),
    }  # fmt: skip
    constants = {
        "COLS": cols, "BLOCK_ROWS": ROWS, "BLOCK_COLS": COLS, "PAGE": x.shape[1],
        "CHECK_ROWS": check_rows, "WIDE": wide, "CHECK_BEGIN": begin > 0,
    }  # fmt: skip
    device.launch(paged_kernel, args, constants)
    return out.cpu()


def expected_rows(x: Tensor, span: tuple[int, int, int], cols: int) -> Tensor:
    start, begin, end = span
    tile = torch.zeros(ROWS, COLS, dtype=x.dtype)
    for i, row in enumerate(range(start, start + ROWS)):
        if begin <= row < end:
            page = min(max(TABLE[row // x.shape[1]], 0), x.shape[0] - 1)
            tile[i, :cols] = x[page, row % x.shape[1], :cols].cpu()
    return tile


@pytest.mark.parametrize("page", [32, 16, 4])
def test_rows_in_pages(fast_device: Device, page: int) -> None:
    """Of pages as long as a tile, longer, and shorter, by tables with numbers out of range."""
    for cols in (COLS, 19):
        # a page of NaN before the first and behind the last
        memory = torch.full((PAGES + 2, page + 3, 2 * COLS), math.nan, device=fast_device.place)
        memory = memory[1:-1]
        x = memory[:, :page, 1 : 1 + 2 * cols : 2] if cols < COLS else memory[:, :page, :cols]
        x.copy_(normals(PAGES, page, cols, seed=page))
        last = ROWS * (len(TABLE) * page // ROWS - 1)
        beyond = page * TABLE.index(99) // ROWS * ROWS
        # whole, begun late, ended early, both, at the table's end, with nothing to read, and from
        # a page beyond the last
        for span in [(0, 0, 99), (16, 21, 99), (0, 0, 9), (16, 18, 27), (last, 0, last + 3),
                     (16, 0, 16), (0, 14, 11), (beyond, 0, beyond + 99)]:  # fmt: skip
            found = load_pages(fast_device, x, span, cols=cols)
            assert torch.equal(found, expected_rows(x, span, cols)), (cols, span)
    whole = memory[:, :page, :COLS].copy_(normals(PAGES, page, COLS))
    found = load_pages(fast_device, whole, (16, 0, 32), cols=COLS, check_rows=page < ROWS)
    assert torch.equal(found, expected_rows(whole, (16, 0, 32), COLS))


@pytest.mark.parametrize("far", ["rows", "columns"])
@pytest.mark.parametrize("page", [32, 8])
def test_pages_across_more_than_32_bits(
    fast_device: Device, tmp_path: Path, page: int, far: str
) -> None:
    """The last row of a page, or the last column, is 2**31 elements from its first."""
    if fast_device.route == "gpu":
        pytest.skip("needs 80 GiB of GPU memory")
    if far == "rows":
        stride_row, stride_col = 2**31 // (page - 1) + 64, 1
        stride_page = stride_row * page + 64
    else:
        stride_row, stride_col, stride_page = 1, 2**31 // (COLS - 1) + 64, page
    size = PAGES * stride_page + page * stride_row + COLS * stride_col
    x = sparse(tmp_path / "sparse", size).as_strided(
        (PAGES, page, COLS), (stride_page, stride_row, stride_col)
    )
    x.copy_(normals(PAGES, page, COLS, seed=3))
    for span in [(16, 0, 64), (32, 35, 41), (48, 0, 64)]:
        found = load_pages(fast_device, x, span, cols=COLS, wide=True)
        assert torch.equal(found, expected_rows(x, span, COLS)), span


@pytest.mark.parametrize(
    "check_rows, check_cols, by_columns",
    [(True, True, False), (True, False, False), (False, True, True), (False, False, True)],
)
def test_a_block_from_anywhere(
    fast_device: Device, check_rows: bool, check_cols: bool, by_columns: bool
) -> None:
    """What lies outside is 0 where it is checked; where it is not, nothing does."""
    rows, cols = 3 * ROWS, 3 * COLS
    memory = torch.full((cols + 9, rows + 9), math.nan, device=fast_device.place)
    x = (memory.T if by_columns else memory.view(rows + 9, cols + 9))[4 : 4 + rows, 3 : 3 + cols]
    x.copy_(normals(rows, cols, seed=5))
    ends = [(16, 48), (20, 29), (40, 48), (30, 30)] if check_rows else [(16, 48), (19, 35)]
    sides = [(32, 96), (37, 51), (70, 96), (50, 40)] if check_cols else [(32, 96), (51, 83)]
    for (row, row_end), (col, col_end) in itertools.product(ends, sides):
        out = torch.full((ROWS, COLS), math.nan, device=fast_device.place)
        args = {
            "x_ptr": x, "out_ptr": out, "row_start": row, "row_end": row_end, "col_start": col,
            "col_end": col_end, "stride_row": x.stride(0), "stride_col": x.stride(1),
        }  # fmt: skip
        constants = {
            "ROWS": ROWS, "COLS": COLS, "CHECK_ROWS": check_rows, "CHECK_COLS": check_cols,
            "WIDE": False, "BY_COLUMNS": by_columns,
        }  # fmt: skip
        fast_device.launch(anywhere_kernel, args, constants)
        expected = torch.zeros(ROWS, COLS, device=fast_device.place)
        there = x[
            row : max(min(row + ROWS, row_end), row), col : max(min(col + COLS, col_end), col)
        ]
        expected[: there.shape[0], : there.shape[1]] = there
        assert torch.equal(out, expected), (row, row_end, col, col_end)


GROUP, TALL = 4, 8


def grouped_arguments(x: Tensor, span: tuple[int, int], heads: int) -> dict[str, object]:
    """Arguments for x [rows, heads, cols]."""
    return {
        "row_start": span[0], "row_end": span[1], "heads": heads, "stride_row": x.stride(0),
        "stride_head": x.stride(1), "stride_col": x.stride(2),
    }  # fmt: skip


@pytest.mark.parametrize("heads, cols, wide", [(4, COLS, False), (3, 19, False), (3, 19, True)])
def test_heads_of_a_row(fast_device: Device, heads: int, cols: int, wide: bool) -> None:
    """They come below each other, and go back to where they were and nowhere else."""
    rows = 3 * TALL
    constants = {"COLS": cols, "BLOCK_ROWS": TALL, "GROUP": GROUP, "BLOCK_COLS": COLS, "WIDE": wide}
    for dims in ((0, 1, 2), (1, 0, 2)):
        memory = torch.full((rows + 2, rows + 1, 2 * COLS + 3), math.nan, device=fast_device.place)
        x = memory.permute(dims)[:rows, 1 : 1 + heads, 2 : 2 + 2 * cols : 2]
        x.copy_(normals(rows, heads, cols, seed=heads))
        for start, end in [(0, rows), (8, 13), (13, 14), (16, 16), (5, 2)]:
            args = grouped_arguments(x, (start, end), heads)
            out = torch.full((TALL * GROUP, COLS), math.nan, device=fast_device.place)
            fast_device.launch(load_grouped_kernel, {"x_ptr": x, "out_ptr": out, **args}, constants)
            there = max(min(end - start, TALL), 0)
            expected = torch.zeros(TALL, GROUP, COLS, device=fast_device.place)
            expected[:there, :heads, :cols] = x[start : start + there]
            assert torch.equal(out, expected.view(-1, COLS)), (dims, start, end)

            tile = normals(TALL, GROUP, COLS, seed=1).to(fast_device.place)
            written = memory.clone()
            copy = written.permute(dims)[:rows, 1 : 1 + heads, 2 : 2 + 2 * cols : 2]
            fast_device.launch(
                store_grouped_kernel,
                {"x_ptr": tile.view(-1, COLS), "out_ptr": copy, **args}, constants,
            )  # fmt: skip
            after = memory.clone()
            there_too = after.permute(dims)[:rows, 1 : 1 + heads, 2 : 2 + 2 * cols : 2]
            there_too[start : start + there] = tile[:there, :heads, :cols]
            assert torch.equal(written.view(torch.int32), after.view(torch.int32))


@pytest.mark.parametrize("far", ["rows", "heads", "columns"])
def test_groups_across_more_than_32_bits(fast_device: Device, tmp_path: Path, far: str) -> None:
    if fast_device.route == "gpu":
        pytest.skip("needs 8 GiB of GPU memory and more")
    heads, cols = 3, 5
    close = {"rows": (0, 64, 1), "heads": (16, 0, 1), "columns": (64, 16, 0)}[far]
    least = {"rows": 2 * TALL - 1, "heads": heads - 1, "columns": cols - 1}[far]
    strides = [step or 2**32 // least + 16 for step in close]
    shape = (2 * TALL, heads, cols)
    size = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    x = sparse(tmp_path / "sparse", size).as_strided(shape, strides)
    x.copy_(normals(*shape, seed=4))
    constants = {"COLS": cols, "BLOCK_ROWS": TALL, "GROUP": GROUP, "BLOCK_COLS": 8, "WIDE": True}
    out = torch.full((TALL * GROUP, 8), math.nan, dtype=torch.float16)
    args = grouped_arguments(x, (TALL, 2 * TALL), heads)
    fast_device.launch(load_grouped_kernel, {"x_ptr": x, "out_ptr": out, **args}, constants)
    expected = torch.zeros(TALL, GROUP, 8, dtype=torch.float16)
    expected[:, :heads, :cols] = x[TALL:]
    assert torch.equal(out, expected.view(-1, 8))
    tile = out.float() * 2
    fast_device.launch(store_grouped_kernel, {"x_ptr": tile, "out_ptr": x, **args}, constants)
    assert torch.equal(x[TALL:], 2 * expected[:, :heads, :cols])


@pytest.mark.parametrize("stride", [1, 3])
def test_one_number_a_row(fast_device: Device, stride: int) -> None:
    x = torch.full((64 * stride,), math.nan, device=fast_device.place)
    x[::stride] = normals(64, seed=2)
    for start, end in [(0, 16), (5, 12), (40, 64), (7, 7), (9, 2)]:
        out = torch.full((ROWS,), math.nan, device=fast_device.place)
        args = {"x_ptr": x, "out_ptr": out, "row_start": start, "row_end": end, "stride": stride}
        fast_device.launch(numbers_kernel, args, {"N": ROWS})
        expected = torch.zeros(ROWS, device=fast_device.place)
        there = max(min(end - start, ROWS), 0)
        expected[:there] = x[start * stride :: stride][:there]
        assert torch.equal(out, expected), (start, end)
