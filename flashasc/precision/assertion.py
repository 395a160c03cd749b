"""One entry for tests: two tensors are close enough, or an error says everything."""

from __future__ import annotations

import torch
from torch import Tensor

from .elementwise import agree, bits, chunks, unravel
from .tolerances import EXACT_DTYPES, TOLERANCES, name_of, tolerance_for


def compare_precision(
    cal: Tensor,
    ref: Tensor,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
) -> None:
    """Fail unless two tensors are alike, by the tolerance table of their dtype.

    Args:
        cal: [...] what was calculated; float32, float16, bfloat16, int8/16/32/64 or bool, on any
            device.
        ref: [...] what it should be; the same shape and dtype.
        rtol, atol: accept floats where |cal - ref| <= atol + rtol * |ref|. None: the table's,
            1e-5 for float32, 1e-3 for float16, 5e-3 for bfloat16. Integers and bool must be equal
            whatever is given.
        equal_nan: whether NaN equals NaN.

    Raises:
        ValueError: dtypes or shapes differ, the dtype is not in the table, or a tolerance is
            negative or not finite.
        TypeError: not tensors.
        AssertionError: the values differ; the message has the count, the worst element, and the
            NaN and infinities of both.

    An infinity equals itself alone. For inputs whose result is exact there is `compare_bitwise`.
    """
    _check_pair(cal, ref)
    tolerance = (0.0, 0.0)
    if cal.is_floating_point():
        tolerance = tolerance_for(cal.dtype, rtol, atol)
    else:
        # a wrong tolerance is a wrong call whatever the dtype
        tolerance_for(torch.float32, rtol, atol)
    _assert_alike(cal, ref, *tolerance, equal_nan=equal_nan, bitwise=False)


def compare_bitwise(cal: Tensor, ref: Tensor) -> None:
    """Fail unless two tensors have the same bits: the strict threshold, for exact results.

    Args:
        cal, ref: as for `compare_precision`.

    Raises:
        ValueError, TypeError, AssertionError: as `compare_precision` does.

    -0.0 is unlike 0.0; a NaN equals a NaN of the same bits.
    """
    _check_pair(cal, ref)
    _assert_alike(cal, ref, 0.0, 0.0, equal_nan=True, bitwise=True)


def _check_pair(cal: Tensor, ref: Tensor) -> None:
    for name, value in (("cal", cal), ("ref", ref)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    facts = (
        f"cal is {name_of(cal.dtype)} {tuple(cal.shape)}, "
        f"ref is {name_of(ref.dtype)} {tuple(ref.shape)}"
    )
    if cal.dtype != ref.dtype:
        raise ValueError(f"dtypes differ: {facts}; cast the golden result to cal's dtype first")
    if cal.shape != ref.shape:
        raise ValueError(f"shapes differ: {facts}")
    if cal.dtype not in TOLERANCES and cal.dtype not in EXACT_DTYPES:
        known = ", ".join([*map(name_of, TOLERANCES), *sorted(map(name_of, EXACT_DTYPES))])
        raise ValueError(f"unsupported dtype: {facts}; expected one of {known}")


def _assert_alike(
    cal: Tensor, ref: Tensor, rtol: float, atol: float, *, equal_nan: bool, bitwise: bool
) -> None:
    wrong, at, first = 0, -1, 0
    worst = -1.0
    counts = dict.fromkeys(("cal NaN", "cal inf", "ref NaN", "ref inf"), 0)
    for c, r in chunks(cal, ref):
        good = bits(c) == bits(r) if bitwise else agree(c, r, rtol, atol, equal_nan)
        for name, x in (("cal", c), ("ref", r)):
            counts[f"{name} NaN"] += int(x.isnan().sum())
            counts[f"{name} inf"] += int(x.isinf().sum())
        if not bool(good.all()):
            wrong += int((~good).sum())
            error = (c.double() - r.double()).abs().nan_to_num(torch.inf, torch.inf)
            # the worst of those that differ: equal infinities are an error of NaN here
            error = error.masked_fill(good, -1.0)
            place = int(error.argmax())
            if error[place].item() > worst:
                worst, at = error[place].item(), first + place
        first += c.numel()
    if not wrong:
        return
    place_ = unravel(at, tuple(cal.shape))
    c_bad, r_bad = cal[place_].item(), ref[place_].item()
    rule = "bit for bit"
    if not bitwise:
        rule = f"rtol {rtol:g}, atol {atol:g}, NaN {'equals' if equal_nan else 'differs from'} NaN"
        if not cal.is_floating_point():
            rule = "must be equal"
    relative = abs(c_bad - r_bad) / abs(r_bad) if r_bad else float("inf")
    special = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    raise AssertionError(
        f"{wrong} of {cal.numel()} elements differ ({wrong / cal.numel():.3%}); "
        f"{name_of(cal.dtype)} {tuple(cal.shape)}, {rule}\n"
        f"worst at {place_}: cal {c_bad!r}, ref {r_bad!r}, "
        f"off by {abs(c_bad - r_bad):.4g}, relative {relative:.4g}"
        + (f"\nnot finite: {special}" if special else "")
    )
