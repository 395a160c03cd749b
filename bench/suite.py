"""One measurement, the same for every suite: gate, time, and what is written beside the times."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

import pytest
import torch
from torch import Tensor

from .attention_runs import Unavailable
from .cases import AttentionCase, Bound
from .gate import Expected, Quality
from .timing import CLOCKS, cool, copy_bandwidth, matmul_rate, median_time, missing

Run = Callable[[], Tensor]
ROUNDS = 30
"""At most, of a call; `--benchmark-max-time` and `--benchmark-min-rounds` bound them too."""
OURS = ("flashasc", "reference", "native")
"""How this package's implementations are called. A fault of theirs fails, a peer's is skipped."""

MARKS = {"cpu": (), "cuda": (pytest.mark.gpu,), "npu": (pytest.mark.npu,)}


class Case(Protocol):
    """What the rows of every table have."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def bound(self) -> Bound: ...
    def flops(self) -> int: ...
    def moved(self) -> int: ...


def parameters(
    tables: Mapping[str, Iterable[Case]], implementations: Callable[[str, Any], Iterable[str]]
) -> pytest.MarkDecorator:
    """Every device, case and implementation, as a decorator of a test."""
    rows = [
        pytest.param(
            device,
            case.name,
            name,
            id=f"{device}-{case.name}-{name}",
            marks=(*MARKS[device], pytest.mark.benchmark(timer=CLOCKS[device])),
        )
        for device, cases in tables.items()
        for case in cases
        for name in implementations(device, case)
    ]
    return pytest.mark.parametrize(("device", "case", "implementation"), rows)


def need(device: str) -> None:
    """Skip the test on a machine without the device."""
    if reason := missing(device):
        pytest.skip(reason)


class Session:
    """What belongs to a whole run: the roofs of its machine, and what was not timed."""

    def __init__(self) -> None:
        self.roofs: dict[str, float] = {}
        self.not_timed: dict[str, str] = {}

    def roof(self, case: Case, device: str) -> float:
        """FLOP/s or bytes/s that the machine reaches in what bounds the case, measured once."""
        if case.bound == "bytes":
            name, rate = f"{device} copy, B/s", copy_bandwidth(device)
        else:
            # a CPU multiplies 16-bit numbers in float32, or not in earnest
            dtype = torch.float32 if device == "cpu" else case.dtype
            kind = str(dtype).removeprefix("torch.")
            name, rate = f"{device} {kind} matmul, FLOP/s", matmul_rate(dtype, device)
        self.roofs[name] = rate
        return rate


class Measure:
    """Checks and times one implementation of one case."""

    def __init__(self, benchmark: Any, request: pytest.FixtureRequest, session: Session) -> None:
        self._benchmark, self._request, self._session = benchmark, request, session

    def __call__(
        self, device: str, case: Case, implementation: str, build: Callable[[], Run], want: Expected
    ) -> None:
        """Fail or skip unless the result is right, then time it and note what it means."""
        run, quality = self._right(implementation, build, want)
        config = self._request.config
        seconds = median_time(run, 1, device, warmup=1)
        most = min(ROUNDS, int(float(config.getoption("benchmark_max_time")) / seconds))
        self._benchmark.group = f"{device} {case.name}"
        self._benchmark.pedantic(
            run,
            setup=lambda: cool(device),
            rounds=max(int(config.getoption("benchmark_min_rounds")), most),
            warmup_rounds=1,
        )
        self._benchmark.extra_info.update(
            suite=self._request.node.originalname.removeprefix("test_"),
            device=device,
            case=case.name,
            implementation=implementation,
            dtype=str(case.dtype).removeprefix("torch."),
            **quality._asdict(),
        )
        if isinstance(case, AttentionCase):
            self._benchmark.extra_info.update(keys=case.keys)
        if self._benchmark.stats is not None:
            self._benchmark.extra_info.update(self._rates(case, device))

    def _right(self, name: str, build: Callable[[], Run], want: Expected) -> tuple[Run, Quality]:
        """A call that passed the gate, and how well."""
        try:
            with warnings.catch_warnings(record=True) as said:
                # SDPA gives the reasons why a backend does not run as warnings
                warnings.simplefilter("always")
                run = build()
                return run, want.check(run())
        except Unavailable as reason:
            self._skip(str(reason))
        except Exception as failure:
            if name.startswith(OURS):
                raise
            reasons = [str(failure), *(str(warning.message) for warning in said)]
            self._skip("; ".join(reason.splitlines()[0] for reason in reasons if reason))

    def _skip(self, reason: str) -> NoReturn:
        self._session.not_timed[self._request.node.name] = reason
        pytest.skip(reason)

    def _rates(self, case: Case, device: str) -> dict[str, float]:
        stats = self._benchmark.stats.stats
        found = {"spread": stats.iqr / stats.median}
        roof = self._session.roof(case, device)
        if case.bound == "bytes":
            rate = case.moved() / stats.median
            return {**found, "gb_per_s": rate / 1e9, "of_copy": rate / roof}
        rate = case.flops() / stats.median
        return {**found, "tflops": rate / 1e12, "of_matmul": rate / roof}


def speeds_over(output: dict[str, Any]) -> None:
    """Note with each benchmark how many times faster it is than the others of its case."""
    medians: dict[str, dict[str, float]] = {}
    for one in output["benchmarks"]:
        name = one["extra_info"]["implementation"]
        medians.setdefault(one["group"], {})[name] = one["stats"]["median"]
    for one in output["benchmarks"]:
        others = medians[one["group"]]
        mine = one["extra_info"]["implementation"]
        one["extra_info"]["speed_over"] = {
            name: median / others[mine] for name, median in others.items() if name != mine
        }
