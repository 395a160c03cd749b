"""blocks.softmax, one step at a time, against exact arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from block_device import Device
from hostile_numbers import U, below_last_bit, normals, uniforms
from softmax_kernels import (
    exponential_kernel,
    finalize_kernel,
    init_kernel,
    merge_kernel,
    pivot_kernel,
    weights_kernel,
)
from softmax_states import (
    DTYPES,
    NEG_INF,
    Dv,
    M,
    N,
    State,
    drop,
    outputs,
    random_state,
    run_update,
    step,
)


def test_exponential(device: Device) -> None:
    score = torch.cat([-uniforms(240, seed=1) * 80, torch.tensor([0.0, -0.0, NEG_INF, -1e30] * 4)])
    natural, log2 = device.run(
        exponential_kernel, {"score_ptr": score}, {"natural_ptr": (256,), "log2_ptr": (256,)}, N=256
    )
    assert (natural[240:242] == 1).all()
    assert (natural[242:244] == 0).all()
    for found, exact in ((natural, score.double().exp()), (log2, score.double().exp2())):
        # the argument is rounded once more where one is made of the other
        bound = (4 + 2 * score.double().abs().clamp(max=200)) * U * exact
        assert ((found - exact).abs() <= bound).all()


PIVOTS = {"whole_ptr": (3, 256), "general_ptr": (3, 256), "natural_ptr": (3, 256)}
EXPONENTIALS = (torch.exp2, torch.exp2, torch.exp)


def test_raise_pivot(device: Device) -> None:
    levels = [
        NEG_INF,
        -3e38,
        -1e30,
        -1000.0,
        -127.0,
        -126.0,
        -3.0,
        -0.0,
        0.0,
        7.0,
        126.0,
        1e4,
        3e38,
    ]
    grid = torch.tensor([(p, c) for p in levels for c in levels] + [(0.0, 0.0)] * 87)
    pivot, candidate = grid.T.contiguous()
    # three of them: whole numbers, any numbers, and any in natural units
    results = device.run(
        pivot_kernel, {"pivot_ptr": pivot, "candidate_ptr": candidate}, PIVOTS, M=256
    )
    for (raised, base, rescale), exponential in zip(results, EXPONENTIALS, strict=True):
        assert torch.equal(raised, torch.maximum(pivot, candidate))
        assert torch.equal(base, torch.where(raised == NEG_INF, 0.0, raised))
        exact = exponential(pivot.double() - base.double())
        # below the smallest normal number a factor may be 0
        assert ((rescale - exact).abs() <= 2.0**-126 + 200 * U * exact * (exact != 1)).all()
        assert (rescale[pivot == raised] == 1)[raised[pivot == raised] != NEG_INF].all()
    (_, base, whole) = results[0]
    exact = torch.exp2(pivot.double() - base.double())
    assert torch.equal(whole, torch.where(exact >= 2.0**-126, exact, 0.0).float())


def test_raise_pivot_between_whole_numbers(device: Device) -> None:
    pivot = normals(256, seed=1) * 10
    candidate = pivot + uniforms(256, seed=2) * 20
    results = device.run(
        pivot_kernel, {"pivot_ptr": pivot, "candidate_ptr": candidate}, PIVOTS, M=256
    )
    for (raised, base, rescale), exponential in list(zip(results, EXPONENTIALS, strict=True))[1:]:
        assert torch.equal(raised, torch.maximum(pivot, candidate))
        assert torch.equal(base, raised)
        # exact up to the rounding of the difference, and of its product with ln 2 or log2(e)
        distance = (pivot.double() - base.double()).abs()
        exact = exponential(-distance)
        assert ((rescale - exact).abs() <= (4 + 2 * distance) * U * exact).all()


def test_add_weights(device: Device) -> None:
    total = 2.0**14 * (1 + uniforms(M, seed=1))
    total[0] = 0.0
    comp = below_last_bit(total, seed=2)
    rescale = torch.tensor([1.0, 1.0, 0.5, 0.25, 2.0**-10, 2.0**-20, 0.0, 1.0] * 2)
    # sums of these are exact in any order
    weights = (uniforms(M, N, seed=3) * 1024).round() / 1024
    weights[3], weights[4] = 0.0, 1.0
    args = {"total_ptr": total, "comp_ptr": comp, "rescale_ptr": rescale, "weights_ptr": weights}
    shapes = {"plain_ptr": (2, M), "kahan_ptr": (2, M)}
    plain, kahan = device.run(weights_kernel, args, shapes, M=M, N=N)
    added = weights.double().sum(1)
    exact = (total.double() + comp.double()) * rescale + added
    assert ((kahan.double().sum(0) - exact).abs() <= 2 * U * added + 2 * U**2 * exact).all()
    assert torch.equal(plain[1], comp)
    exact_plain = total.double() * rescale + added
    assert ((plain[0] - exact_plain).abs() <= 2 * U * exact_plain).all()


@pytest.mark.parametrize("COMP_DTYPE", ["float32", "bfloat16"])
def test_the_first_state(fast_device: Device, COMP_DTYPE: str) -> None:
    rows, acc, comp = fast_device.run(
        init_kernel, {}, outputs(""), M=M, Dv=Dv, COMP_DTYPE=getattr(tl, COMP_DTYPE)
    )
    assert (rows[0] == NEG_INF).all()
    assert rows[1:].count_nonzero() + acc.count_nonzero() + comp.count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("METHOD", ["kahan", "plain"])
def test_one_update(device: Device, METHOD: str, dtype: torch.dtype) -> None:
    if METHOD == "plain" and device.route == "hfusion" and dtype != torch.float32:
        pytest.skip("one plain variant is enough at hfusion")
    COMP_DTYPE = "bfloat16" if dtype == torch.bfloat16 else "float32"
    state = random_state(pivot=torch.full((M,), -drop(dtype)))
    # a row that has seen nothing, and one that never will
    state.rows[:, 14:] = state.acc[14:] = state.comp[14:] = 0.0
    state.rows[0, 14:] = NEG_INF
    compensated = METHOD == "kahan"
    if not compensated:
        # never read
        state.rows[2], state.rows[4], state.comp[:] = math.nan, math.nan, math.nan
    top, scores, values = step()
    new = run_update(device, state, scores, values.to(dtype), METHOD, COMP_DTYPE)

    seen = scores > NEG_INF
    pivot = torch.where(seen.any(1), top - drop(dtype), NEG_INF).maximum(state.pivot)
    assert torch.equal(new.pivot, pivot)
    base = torch.where(pivot == NEG_INF, 0.0, pivot).double()
    rescale = torch.exp2(state.pivot.double() - base)
    weights = torch.where(seen, torch.exp2(scores.double() - base[:, None]), 0.0)
    added = weights.sum(1)
    product, size = weights @ values.double(), weights @ values.double().abs()
    if compensated:
        # sums of a tile are exact here: one rounding with the old compensation, one of Kahan's
        error = (new.row_sum - state.row_sum * rescale - added).abs()
        assert (error <= 2 * U * added + 4 * U**2 * state.row_sum * rescale + 2.0**-126).all()
        error = (new.total - state.total * rescale[:, None] - product).abs()
        kept = 2.0**-33 if COMP_DTYPE == "bfloat16" else 4 * U**2
        held = new.acc.double().abs()
        assert (error <= 2 * U * size + kept * held + 2.0**-126).all()
    else:
        exact = state.rows[1].double() * rescale + added
        assert ((new.rows[1] - exact).abs() <= 3 * U * exact + 2.0**-126).all()
        exact = state.acc.double() * rescale[:, None] + product
        whole = state.acc.double().abs() * rescale[:, None] + size
        assert ((new.acc - exact).abs() <= N * 2 * U * whole + 2.0**-126).all()
        assert new.rows[2].isnan().all()
        assert new.comp.isnan().all()
    if compensated and dtype != torch.float32:
        error = (new.lse_sum - state.lse_sum * rescale - added).abs()
        off = 0.0 if device.exact_exp2 else 16 * U
        bound = (2 * U + off) * added + 4 * U**2 * state.lse_sum * rescale
        assert (error <= bound + 2.0**-126).all()
    else:
        assert torch.equal(new.rows[3:].nan_to_num(7.0), state.rows[3:].nan_to_num(7.0))


def test_16_bit_weights_are_summed_as_rounded(fast_device: Device) -> None:
    state = random_state(pivot=torch.zeros(M))
    state.rows[1:] = state.acc[:] = state.comp[:] = 0.0
    scores = -uniforms(M, N, seed=5) * 6
    scores[:, 0] = 0.0
    values = torch.ones(N, Dv).bfloat16()
    new = run_update(fast_device, state, scores, values, "kahan", "bfloat16")
    weights = torch.exp2(scores)
    rounded = weights.bfloat16().double().sum(1)
    exact = torch.exp2(scores.double()).sum(1)
    assert ((rounded - exact).abs() > 64 * N * U * exact).sum() > M / 2, (
        "rounding made no difference"
    )
    assert ((new.row_sum - rounded).abs() <= N * U * rounded).all()
    assert ((new.total - rounded[:, None]).abs() <= N * 2 * U * rounded[:, None]).all()
    assert ((new.lse_sum - exact).abs() <= (N + 20) * U * exact).all()


@pytest.mark.parametrize("WHOLE, NATURAL", [(True, False), (False, False), (False, True)])
def test_merge_of_two_states(device: Device, WHOLE: bool, NATURAL: bool) -> None:
    a = random_state(
        torch.tensor([0.0, 0, 3, -5, 40, 200, NEG_INF, 9, 1, -200] + [1.0] * 6), seed=1
    )
    b = random_state(torch.tensor([0.0, 3, 0, -9, -40, 0, 4, NEG_INF, 1, 0] + [-2.0] * 6), seed=20)
    for state, row in ((a, 6), (b, 7), (a, 8), (b, 8)):
        # rows that have seen nothing: in one state, and in both
        state.rows[0, row] = NEG_INF
        state.rows[1:, row] = 0.0
        state.acc[row] = state.comp[row] = 0.0
    COMP_DTYPE = tl.float32 if WHOLE else tl.bfloat16
    both = State(
        *(torch.stack(pair) for pair in ((a.rows, b.rows), (a.acc, b.acc), (a.comp, b.comp)))
    )
    merged = State(
        *device.run(
            merge_kernel, both.arguments(), outputs(lead=(2,)), M=M, Dv=Dv, WHOLE=WHOLE,
            NATURAL=NATURAL, COMP_DTYPE=COMP_DTYPE,
        )
    )  # fmt: skip
    for tiles in (merged.rows, merged.acc, merged.comp):
        assert torch.equal(*tiles.view(torch.int32)), "merge depends on the order"

    pivot = a.pivot.maximum(b.pivot)
    assert torch.equal(merged.pivot[0], pivot)
    base = torch.where(pivot == NEG_INF, 0.0, pivot).double()
    exponential = torch.exp if NATURAL else torch.exp2
    rescale_a, rescale_b = (exponential(x.pivot.double() - base) for x in (a, b))
    # both factors are exact where the compiler's exp2 of a whole number is
    off = 4 * U**2 if WHOLE or (device.exact_exp2 and not NATURAL) else 30 * U
    for name in ("row_sum", "lse_sum"):
        exact = getattr(a, name) * rescale_a + getattr(b, name) * rescale_b
        assert ((getattr(merged, name)[0] - exact).abs() <= off * exact + 2.0**-110).all(), name
    part_a, part_b = a.total * rescale_a[:, None], b.total * rescale_b[:, None]
    off = max(off, 0.0 if WHOLE else 2.0**-32)
    bound = off * (part_a.abs() + part_b.abs()) + 2.0**-110
    assert ((merged.total[0] - part_a - part_b).abs() <= bound).all()


@pytest.mark.parametrize(
    "SEPARATE_LSE, LOWERED, NATURAL",
    [
        (False, False, False),
        (True, False, False),
        (True, False, True),
        (True, True, False),
        (True, True, True),
    ],
)
def test_finalize(device: Device, SEPARATE_LSE: bool, LOWERED: bool, NATURAL: bool) -> None:
    pivot = normals(M, seed=30) * (0.5 if LOWERED else 50)
    drop = (14.0 * (math.log(2.0) if NATURAL else 1.0)) if LOWERED else 0.0
    state = random_state(pivot=pivot - drop)
    # compensations that show in the result
    state.rows[2] *= 2.0**10
    state.rows[4] *= -(2.0**10)
    state.comp.mul_(2.0**10)
    state.rows[0, 0] = NEG_INF
    state.rows[1:, 0] = state.acc[0] = state.comp[0] = 0.0
    # hidden keys of weight 0 with a NaN beside them
    state.acc[0, 2] = math.nan
    state.rows[1, 1] = state.rows[3, 1] = state.acc[1, 3] = math.nan
    state.acc[2, 5], state.comp[2, 5] = math.inf, 0.0
    state.rows[0, 3], state.rows[0, 4] = 1e30, -3e38
    out, lse = device.run(
        finalize_kernel, state.arguments(), {"out_ptr": (M, Dv), "lse_ptr": (M,)},
        M=M, Dv=Dv, SEPARATE_LSE=SEPARATE_LSE, LOWERED=LOWERED, NATURAL=NATURAL,
    )  # fmt: skip
    assert (out[0] == 0).all()
    assert lse[0] == NEG_INF
    assert out[1].isnan().all()
    assert lse[1].isnan()
    assert out[2, 5] == math.inf
    exact = state.total / state.row_sum[:, None]
    finite = exact.isfinite()
    assert finite.sum() == (M - 2) * Dv - 1
    assert ((out - exact).abs() <= 3 * U * (1 + U) * exact.abs())[finite].all()
    logarithm = (state.lse_sum if SEPARATE_LSE else state.row_sum).log()
    # lowered pivots and what they add to the sums are of the same size and cancel: the error may
    # not be theirs
    pivot = (state.pivot.double() + drop) * (1.0 if NATURAL else math.log(2.0))
    logarithm -= math.log(2.0) * 14.0 if LOWERED else 0.0
    exact = pivot + logarithm
    bound = 3 * U * (pivot.abs() + logarithm.abs()) + 4 * U
    assert ((lse - exact).abs() <= bound)[2:].all()
