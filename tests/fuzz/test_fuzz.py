"""A small run of the fuzzer; `--budget N` makes it a large one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.attention.routes import prepare
from tests.fuzz import judge
from tests.fuzz.calls import CALLS_PER_MOULD, draw, places
from tests.fuzz.judge import check_call
from tests.fuzz.oracle import expected


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("route", "level", "moulds", "share", "seed"),
    [
        pytest.param("reference", "", 30, 1.0, 0, id="reference"),
        pytest.param("native", "linalg", 20, 1.0, 0, id="linalg"),
        pytest.param("native", "hfusion", 4, 0.2, 0, id="hfusion"),
        *(
            # apart, for processes side by side
            pytest.param("cuda", "", 6, 0.3, seed, marks=pytest.mark.gpu, id=f"cuda-{seed}")
            for seed in range(16)
        ),
    ],
)
def test_random_calls(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, route: str, level: str,
    moulds: int, share: float, seed: int,
) -> None:  # fmt: skip
    """Spread over few specialisations, as each takes a kernel seconds to compile; to the end."""
    if route == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    if route == "native":
        prepare(f"native-{level}", monkeypatch)
    budget = int(share * request.config.getoption("--budget"))
    moulds = max(min(moulds, budget), budget // CALLS_PER_MOULD)
    wrong = []
    for place in places(budget, moulds):
        try:
            check_call(route, seed, place)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} of {budget} calls:\n" + "\n".join(wrong)


def test_same_number_same_call() -> None:
    first, second = (draw("reference", 3, 77) for _ in range(2))
    assert first.mould == second.mould
    assert torch.equal(first.q.nan_to_num(), second.q.nan_to_num())


def test_calls_of_a_mould_take_few_kernels() -> None:
    """What a kernel is specialised for is settled, but for moulds that are left free."""
    kinds, free = [], 0
    for mould in range(30):
        calls = [draw("cuda", 0, mould * CALLS_PER_MOULD + i) for i in range(10)]
        free += calls[0].mould.settled is None
        kinds.append(
            len({tuple(step % 16 == 0 for x in (c.q, c.k, c.v) for step in x.stride())
                 for c in calls if c.q.numel() and c.k.numel()})
        )  # fmt: skip
    assert 0 < free < 10
    assert sorted(kinds)[15] == 1 and sum(kinds) < 80


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that finds nothing in a run whose results are off is no judge."""
    right = judge._run

    def wrong(call: Any, route: str) -> Any:
        out, lse = right(call, route)
        return out * 1.01 + 0.001, lse

    monkeypatch.setattr(judge, "_run", wrong)
    found = 0
    for number in range(0, 40 * CALLS_PER_MOULD, CALLS_PER_MOULD):
        call = draw("reference", 0, number)
        if not call.q.numel() or not expected(call, torch.float64).out.isfinite().any():
            continue
        try:
            check_call("reference", 0, number)
        except AssertionError:
            found += 1
    assert found > 25


@pytest.mark.parametrize(("offset", "right"), [(0.0, True), (2.0**-17, False)])
def test_float32_results_of_16_bit_inputs_are_judged_as_float32(
    monkeypatch: pytest.MonkeyPatch, offset: float, right: bool
) -> None:
    """Of a constant V, 16-bit arithmetic makes exactly that by rounding its result."""
    number = 1699
    call = draw("reference", 302, number)
    assert call.hostile == "constant v" and call.q.dtype == torch.float16
    assert call.options["out_dtype"] == torch.float32
    eager, exact = (expected(call, dtype).out for dtype in (torch.float16, torch.float64))
    assert (eager - exact).abs().max() < 1e-14
    right_run = judge._run

    def run(call: Any, route: str) -> Any:
        out, lse = right_run(call, route)
        return out + offset, lse

    monkeypatch.setattr(judge, "_run", run)
    if right:
        check_call("reference", 302, number)
    else:
        with pytest.raises(AssertionError, match="over the budget"):
            check_call("reference", 302, number)
