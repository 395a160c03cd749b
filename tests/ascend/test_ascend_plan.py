from __future__ import annotations

import pytest

from flashasc.ascend.plan import MemoryUse, memory_use

HEAD = (
    '#dlti.dl_entry<"UB_SIZE", 1572864 : i32>, #dlti.dl_entry<"L1_SIZE", 4194304 : i32>, '
    '#dlti.dl_entry<"L0C_SIZE", 1048576 : i32>, #dlti.dl_entry<"UB_ALIGN_SIZE", 256 : i32>\n'
)
KIB = 1024


def plan(*lines: str) -> str:
    return HEAD + "func.func @k() {\n" + "\n".join(lines) + "\n}"


def buffer(offsets: str, kind: str, space: str = "ub") -> str:
    return f"%b = hivm.hir.pointer_cast({offsets}) : memref<{kind}, #hivm.address_space<{space}>>"


@pytest.mark.parametrize(
    "kind, size",
    [
        ("64xf32", 256),
        ("f32", 4),
        ("64x64xf16", 8192),
        ("4x4x16x16xbf16", 8192),
        ("256xi1", 32),
        ("3xi1", 1),
        ("16xi64", 128),
        ("64xf8E4M3FN", 64),
        # 63 rows of 256 bits, and 64 bits of the last
        ("64x64xi1, strided<[256, 1]>", 63 * 32 + 8),
        ("4x8xf32, strided<[16, 1], offset: 0>", (3 * 16 + 8) * 4),
    ],
)
def test_the_size_of_a_buffer(kind: str, size: int) -> None:
    text = plan("%c128_i64 = arith.constant 128 : i64", buffer("%c128_i64", kind))
    assert memory_use(text) == {"UB": MemoryUse(128 + size, 192 * KIB)}


def test_the_highest_buffer_counts_in_each_memory() -> None:
    text = plan(
        "%0 = arith.constant 0 : i64",
        "%1 = llvm.mlir.constant(4096 : i64) : i64",
        buffer("%1", "64xf32"),
        buffer("%0", "512xf32"),
        buffer("%0, %1", "1024xf32", "cbuf"),
        buffer("%0", "16x16xf32", "cc"),
    )
    assert memory_use(text) == {
        "L0C": MemoryUse(KIB, 128 * KIB),
        "L1": MemoryUse(8 * KIB, 512 * KIB),
        "UB": MemoryUse(4 * KIB + 256, 192 * KIB),
    }


def test_a_name_means_what_its_own_function_says() -> None:
    text = plan("%0 = arith.constant 65536 : i64") + "\nfunc.func @other() {\n"
    with pytest.raises(ValueError, match="a buffer without a fixed place"):
        memory_use(text + buffer("%0", "64xf32") + "\n}")


@pytest.mark.parametrize(
    "line", [buffer("%arg0", "64xf32"), buffer("%0", "?xf32"), buffer("%0", "64xf32", "ssbuf")]
)
def test_a_buffer_that_cannot_be_placed_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="a buffer without a fixed place: %b = hivm"):
        memory_use(plan("%0 = arith.constant 0 : i64", line))


def test_a_text_without_a_device_is_an_error() -> None:
    with pytest.raises(ValueError, match="no size for UB, L1, L0C"):
        memory_use("module {}")


def test_a_kernel_without_buffers_uses_none() -> None:
    assert memory_use(plan()) == {}
