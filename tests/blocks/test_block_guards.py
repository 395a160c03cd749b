"""What a block refuses when it is compiled, and that it takes what is beside it."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from block_device import Device
from guard_kernels import guarded_method, guarded_pivot, guarded_product, guarded_update

FITTING: dict[str, Any] = {
    "ROWS": 16, "COLS": 32, "VALUES": 32, "DTYPE": tl.bfloat16, "METHOD": "kahan", "SPLIT": False,
    "COMP_DTYPE": tl.float32,
}  # fmt: skip
SPLIT = "only compensated sums of 16-bit values split their weights"


def run(kernel: Any, **constants: Any) -> torch.Tensor:
    """On one route: a refusal comes before any route's own part."""
    device = Device("interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else "linalg")
    device.require()
    args = {"x_ptr": constants.pop("x_ptr")} if "x_ptr" in constants else {}
    (out,) = device.run(kernel, args, {"out_ptr": (16,)}, **constants)
    return out


def refusal(kernel: Any, **constants: Any) -> str:
    """All that is said when a kernel is refused: the reason may be some errors down."""
    with pytest.raises(Exception) as caught:
        run(kernel, **constants)
    said, error = "", caught.value
    while error is not None:
        said += f"{error} {getattr(error, 'log', '')} "
        error = error.__cause__ or error.__context__
    return re.sub(r"[\\'\"]", "", said)


def test_what_fits_is_taken() -> None:
    assert (run(guarded_update, **FITTING) == 32.0).all()
    split = {**FITTING, "SPLIT": True, "METHOD": "segment"}
    assert (run(guarded_update, **split) == 32.0).all()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ROWS": 32}, "one row of scores per row of the state"),
        ({"COLS": 16}, "one column of scores per value row"),
        ({"METHOD": "neumaier"}, "METHOD is plain, kahan or segment"),
        ({"METHOD": "plain", "SPLIT": True}, SPLIT),
        ({"DTYPE": tl.float32, "SPLIT": True}, SPLIT),
        ({"METHOD": "segment", "COMP_DTYPE": tl.bfloat16}, "it must be kept in fp32"),
    ],
    ids=str,
)
def test_an_update_refuses(change: dict[str, Any], message: str) -> None:
    assert message in refusal(guarded_update, **{**FITTING, **change})


def test_a_whole_pivot_in_natural_units_is_refused() -> None:
    for whole, natural in ((True, False), (False, True)):
        assert (run(guarded_pivot, WHOLE=whole, NATURAL=natural) == 0.0).all()
    said = refusal(guarded_pivot, WHOLE=True, NATURAL=True)
    assert "a whole pivot is one in log2 units" in said


@pytest.mark.parametrize("how", ["dot", "dot_add"])
def test_factors_that_do_not_match_are_refused(how: str) -> None:
    product = {"OTHER": how, "PRODUCT": "ieee"}
    assert (run(guarded_product, K=32, DTYPE=tl.float32, **product) == 0.0).all()
    said = refusal(guarded_product, K=16, DTYPE=tl.float32, **product)
    assert "inner sizes of a product must agree" in said
    said = refusal(guarded_product, K=32, DTYPE=tl.float16, **product)
    assert "both factors of a product must have one dtype" in said


def test_16_bit_factors_are_not_split() -> None:
    said = refusal(guarded_product, K=32, DTYPE=tl.float16, OTHER="half", PRODUCT="bf16x3")
    assert "only fp32 factors are split" in said


NAMES: dict[str, tuple[Any, Any, str]] = {
    # block: a name it takes, one that it does not, what it says
    "gemm_tile": ("kahan", "both", "METHOD is plain or kahan"),
    "accumulate_product": ("kahan", "segment", "METHOD is plain or kahan"),
    "accumulate": ("sum2", "both", "METHOD is plain, kahan or sum2"),
    "row_total": ("sum2", "both", "METHOD is plain, kahan or sum2"),
    "add_weights": ("segment", "sum2", "METHOD is plain, kahan or segment"),
    "load_spread": ("rows", "both", "SPREAD is full, columns, rows or one"),
    "online_init": (tl.bfloat16, tl.float16, "COMP_DTYPE is tl.float32 or tl.bfloat16"),
    "split": (tl.float16, tl.float32, "DTYPE is tl.float16 or tl.bfloat16"),
    "split_left": (tl.bfloat16, tl.float32, "DTYPE is tl.float16 or tl.bfloat16"),
    "split_dot_add": ("fp16x6", "bf16x9", "PRODUCT is bf16x3, bf16x6, fp16x3 or fp16x6"),
    # said by Triton, of which products there are on its target
    "product_add": ("ieee", "bf16x9", "input_precision must be one of"),
}


@pytest.mark.parametrize("what", NAMES)
def test_names_that_mean_nothing_are_refused(what: str) -> None:
    known, unknown, message = NAMES[what]
    x = torch.zeros(16, 16)
    first = -torch.inf if what == "online_init" else 0.0
    assert (run(guarded_method, x_ptr=x, WHAT=what, METHOD=known) == first).all()
    assert message in refusal(guarded_method, x_ptr=x, WHAT=what, METHOD=unknown)
