"""How `bench.fused_figures` works out what is hidden: from made-up kernels and rounds."""

from __future__ import annotations

import pytest

from bench.fused_figures import Kernel, hidden, of_calls, per_call


def kernels(calls: int, late: float, idle: float) -> list[Kernel]:
    """A profile: a peer is late in the last call alone."""
    found: list[Kernel] = [("spin_kernel", 0.0, 50.0), ("meet_kernel", 50.0, 53.0)]
    at = 60.0
    for call in range(calls):
        waits = 4.0 + (late if call == calls - 1 else 0.0)
        for name, us in (("attention_peers_kernel", 100.0), ("meet_kernel", waits)):
            found.append((name, at, at + us))
            at += us
        at += idle
        found.append(("take_kernel", at, at + 8.0))
        at += 8.0
    return found


def test_a_call_is_what_lies_between_two_ends() -> None:
    first, second = per_call([of_calls(kernels(5, late, 2.0), 5) for late in (0.0, 20.0)])
    assert first == pytest.approx(
        {"attention": 100, "signal and wait": 4, "copy": 8, "gaps": 2, "span": 114, "late": 0}
    )
    # of the four calls behind the first
    assert second["late"] == pytest.approx(20 / 4) and second["span"] == pytest.approx(119)


def test_calls_that_are_not_alike_are_refused() -> None:
    with pytest.raises(RuntimeError, match="14 kernels in 5 calls"):
        of_calls(kernels(5, 0.0, 2.0)[:-1], 5)


def test_hidden_is_of_paired_rounds() -> None:
    drift = [0.0, 1.0, 2.0, 3.0, 4.0]
    events = {
        name: [ms + d for d in drift]
        for name, ms in (("compute", 10.0), ("unfused", 10.2), ("fused", 10.05))
    }
    found = hidden(events, "compute")
    assert found["communication"] == pytest.approx(0.2)
    assert found["exposed"] == pytest.approx(0.05)
    assert found["hidden"] == pytest.approx(0.75)
    assert found["range"] == pytest.approx([0.75, 0.75])
    assert found["quartiles"] == pytest.approx([0.75] * 3)
