"""The helper itself: it finds what it is meant to find."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from compile_only import SHARED_BYTES, compile_only


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, K, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + offs[:, None] * stride + (k + offs)[None, :])
        b = tl.load(b_ptr + (k + offs)[:, None] * stride + offs[None, :])
        acc += tl.dot(a, b)
    tl.store(c_ptr + offs[:, None] * stride + offs[None, :], acc)


SIGNATURE = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": "i32", "stride": "i32"}


@pytest.mark.parametrize("capability", [80, 90])
def test_machine_code_comes_out(capability: int) -> None:
    built = compile_only(
        multiply, SIGNATURE, {"BLOCK": 64}, capability, divisible_by_16=SIGNATURE, num_warps=4
    )
    assert f".target sm_{capability}" in built.ptx
    assert built.cubin.startswith(b"\x7fELF")
    assert 16 < built.registers <= 255
    assert built.stack_bytes == 0
    # two operands of 64 x 64 fp16, in at least two stages
    assert 2 * 2 * 64 * 64 * 2 <= built.shared_bytes <= SHARED_BYTES[capability]


def test_alignment_reaches_the_code() -> None:
    aligned = compile_only(multiply, SIGNATURE, {"BLOCK": 64}, 80, divisible_by_16=SIGNATURE)
    unknown = compile_only(multiply, SIGNATURE, {"BLOCK": 64}, 80)
    assert "cp.async" in aligned.ptx
    assert "cp.async" not in unknown.ptx


def test_a_constant_argument_leaves_the_signature() -> None:
    runtime = {name: kind for name, kind in SIGNATURE.items() if name != "stride"}
    fixed = compile_only(multiply, runtime, {"BLOCK": 64, "stride": 1}, 80)
    whole = compile_only(multiply, SIGNATURE, {"BLOCK": 64}, 80)
    parameters = [built.ptx.count(".param .") for built in (fixed, whole)]
    assert parameters[0] == parameters[1] - 1


def test_spilling_shows_up() -> None:
    # the accumulator alone takes 256 registers a thread
    crowded = compile_only(multiply, SIGNATURE, {"BLOCK": 128}, 80, num_warps=2)
    assert crowded.stack_bytes > 0


def test_a_tile_that_is_too_large_shows_up() -> None:
    large = compile_only(
        multiply, SIGNATURE, {"BLOCK": 64}, 80, divisible_by_16=SIGNATURE, num_stages=16
    )
    assert large.shared_bytes > SHARED_BYTES[80]


def test_a_name_that_does_not_fit_the_kernel_is_refused() -> None:
    with pytest.raises(AssertionError, match="a name in both"):
        compile_only(multiply, SIGNATURE, {"BLOCK": 64, "stride": 1}, 80)


def test_a_kernel_that_is_wrong_raises() -> None:
    with pytest.raises(Exception, match="tl.dot|shape|16"):
        compile_only(multiply, SIGNATURE, {"BLOCK": 4}, 80)
