"""blocks.softmax: one step in a segment, with split weights, and in natural units."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from hostile_numbers import U, normals, uniforms
from softmax_kernels import fold_kernel
from softmax_states import DTYPES, NEG_INF, Dv, M, N, drop, random_state, run_update, step


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_update_within_a_segment(fast_device: Device, dtype: torch.dtype) -> None:
    state = random_state(pivot=torch.full((M,), -drop(dtype)))
    # the segment's products so far
    state.comp[:] = normals(M, Dv, seed=9) * 2.0**12
    top, scores, values = step()
    new = run_update(fast_device, state, scores, values.to(dtype), "segment", "float32")
    seen = scores > NEG_INF
    pivot = torch.where(seen.any(1), top - drop(dtype), NEG_INF).maximum(state.pivot)
    assert torch.equal(new.pivot, pivot)
    rescale = torch.exp2(state.pivot.double() - pivot.double())
    weights = torch.where(seen, torch.exp2(scores.double() - pivot.double()[:, None]), 0.0)
    assert torch.equal(new.acc, state.acc), "acc stays under the pivot of the last fold"
    held = state.comp.double() * rescale[:, None]
    size = held.abs() + weights @ values.double().abs()
    error = (new.comp - held - weights @ values.double()).abs()
    assert (error <= 2 * (N + 2) * U * size + 2.0**-126).all()
    added = weights.sum(1)
    error = (new.row_sum - state.row_sum * rescale - added).abs()
    assert (error <= 2 * U * added + 4 * U**2 * state.row_sum * rescale + 2.0**-126).all()


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("METHOD", ["kahan", "segment"])
def test_split_weights_keep_their_digits(
    fast_device: Device, METHOD: str, dtype: torch.dtype
) -> None:
    state = random_state(pivot=torch.full((M,), NEG_INF))
    state.rows[1:] = state.acc[:] = state.comp[:] = 0.0
    scores = normals(M, N, seed=5) * 4
    # each column of the product is one weight
    new = run_update(
        fast_device, state, scores, torch.eye(N).to(dtype), METHOD, "float32", SPLIT=True
    )
    assert torch.equal(new.pivot, scores.amax(1).ceil() - drop(dtype)), "not a whole number"
    weights = torch.exp2(scores.double() - new.pivot.double()[:, None])
    kept, smallest = (2.0**-22, 2.0**-24) if dtype == torch.float16 else (2.0**-16, 0.0)
    error = (new.total - weights).abs()
    assert (error <= (kept + 60 * U) * weights + smallest / 2).all()
    assert (new.row_sum - weights.sum(1)).abs().max() <= (N + 60) * U * weights.sum(1).max()
    assert new.rows[3:].count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_an_update_in_natural_units(device: Device, dtype: torch.dtype) -> None:
    state = random_state(pivot=normals(M, seed=8) - drop(dtype) * math.log(2.0))
    scores, values = normals(M, N, seed=5) * 3, normals(N, Dv, seed=6).to(dtype)
    new = run_update(device, state, scores, values, "kahan", "float32", NATURAL=True)
    lowest = scores.amax(1).double() - drop(dtype) * math.log(2.0)
    pivot = lowest.maximum(state.pivot.double())
    assert ((new.pivot - pivot).abs() <= 2 * U * (pivot.abs() + 10)).all()
    pivot = new.pivot.double()
    rescale, weights = (state.pivot.double() - pivot).exp(), (scores - pivot[:, None]).exp()
    roundoff = 2.0**-11 if dtype == torch.float16 else 2.0**-8
    # exp, and its argument
    off = 60 * U
    exact = state.lse_sum * rescale + weights.sum(1)
    assert ((new.lse_sum - exact).abs() <= (off + N * U) * exact).all()
    exact = state.row_sum * rescale + weights.sum(1)
    assert ((new.row_sum - exact).abs() <= (roundoff + off + N * U) * exact).all()
    held = state.total * rescale[:, None]
    size = weights @ values.double().abs()
    error = (new.total - held - weights @ values.double()).abs()
    assert (error <= (roundoff + off + 2 * N * U) * size + off * held.abs() + 2.0**-24).all()


@pytest.mark.parametrize("units", ["whole", "log2", "natural"])
def test_fold_segment(device: Device, units: str) -> None:
    acc_pivot = torch.tensor([0.0, 0, -3, 5, NEG_INF, NEG_INF, 0, -200] + [1.0] * 8)
    rise = torch.tensor([0.0, 1, 20, 3, 0, 0, 60, 201] + [2.0] * 8)
    if units != "whole":
        rise[8:] += uniforms(8, seed=1)
    # a row that has seen its first key, and one that has not yet
    pivot = torch.where(torch.arange(M) == 4, 7.0, acc_pivot + rise)
    acc = 2.0**14 * normals(M, Dv, seed=2)
    acc[4:6] = 0.0
    # larger and smaller than what it is added to
    comp = normals(M, Dv, seed=3) * 2.0 ** torch.linspace(-12, 18, Dv)
    comp[5] = 0.0
    acc[0, 0], comp[0, 1], comp[0, 2] = math.inf, -math.inf, math.nan
    args = {"acc_ptr": acc, "comp_ptr": comp, "acc_pivot_ptr": acc_pivot, "pivot_ptr": pivot}
    shapes = {"out_acc_ptr": (M, Dv), "out_comp_ptr": (M, Dv)}
    new_acc, new_comp = device.run(
        fold_kernel, args, shapes, M=M, Dv=Dv, WHOLE=units == "whole", NATURAL=units == "natural"
    )
    assert new_acc[0, 0] == math.inf
    assert new_acc[0, 1] == -math.inf
    assert new_acc[0, 2].isnan()
    assert (new_comp[0, :3] == 0).all()
    base = torch.where(pivot == NEG_INF, 0.0, pivot).double()
    exponential = torch.exp if units == "natural" else torch.exp2
    rescale = exponential(acc_pivot.double() - base)[:, None]
    held = acc.double() * rescale
    # Dekker's condition fails where the segment is the larger one; a factor that is no power of two
    # is off itself, and rounds what it multiplies
    lost = torch.where(held.abs() >= comp.double().abs(), 0.0, U * comp.double().abs())
    if units != "whole":
        lost = U * comp.double().abs() + 140 * U * held.abs()
    error = (new_acc.double() + new_comp.double() - held - comp.double()).abs()
    finite = error.isfinite()
    assert finite.sum() == M * Dv - 3
    assert (error <= lost + 2.0**-110)[finite].all()
    assert (new_comp.abs() <= U * (new_acc.abs() + comp.abs()))[finite].all()
