"""Tiles and schedules of reductions that might be better, for `bench.reduction_speed --tune`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

from torch import Tensor

from flashasc._configs.reduce import (
    NORMALIZE,
    REDUCE,
    NormalizeConfig,
    ReduceConfig,
    Schedule,
)

Run = Callable[[], Tensor]

(_NORMALIZE,) = (row for row in NORMALIZE if "sm_90" in row.targets)
_LONG_ROWS = next(
    row for row in REDUCE if "sm_90" in row.targets and row.along and row.max_length is None
)
# block_n, steps, num_warps, stages
_OF_A_LONG_ROW = (
    (4096, 32, 8, 1), (4096, 32, 8, 2), (4096, 32, 8, 3), (4096, 32, 8, 4),
    (4096, 16, 8, 1), (4096, 16, 8, 3), (4096, 64, 8, 1), (4096, 64, 8, 3),
    (2048, 64, 8, 1), (2048, 64, 8, 3), (2048, 64, 4, 1), (2048, 64, 4, 3),
    (2048, 32, 4, 4), (8192, 16, 8, 1), (8192, 16, 16, 1), (8192, 16, 16, 2),
    (1024, 64, 4, 4), (1024, 64, 2, 4),
)  # fmt: skip
# block_m, block_n, num_warps, stages
_OF_ROWS = (
    (1, 512, 1, 1), (1, 512, 1, 3), (1, 512, 1, 4), (1, 512, 1, 6),
    (1, 1024, 1, 3), (1, 1024, 2, 1), (1, 1024, 2, 3), (1, 1024, 2, 4),
    (1, 1024, 4, 1), (1, 1024, 4, 3), (1, 1024, 4, 4), (1, 1024, 4, 6),
    (1, 2048, 4, 1), (1, 2048, 4, 2), (1, 2048, 4, 3), (1, 2048, 4, 4),
    (1, 2048, 8, 1), (1, 2048, 8, 3), (1, 4096, 8, 1), (1, 4096, 8, 2),
    (1, 8192, 8, 1), (2, 1024, 4, 4), (4, 512, 4, 4), (2, 512, 2, 4),
)  # fmt: skip
# num_warps, programs a core, stages, registers
_OF_NORMS = (
    *((4, None, 1, r) for r in (None, 128)),
    *((8, None, 1, r) for r in (None, 64)),
    *((16, None, 1, r) for r in (None, 40, 64)),
    *((4, p, s, r) for p, r in ((2, None), (3, 168), (4, 128)) for s in (1, 2, 3)),
    *((8, p, s, r) for p, r in ((2, None), (3, 80), (4, 64)) for s in (1, 2, 3, 4)),
    *((16, p, s, r) for p, r in ((1, None), (2, 64), (3, 40)) for s in (1, 2, 3, 4)),
    *((32, 1, s, None) for s in (1, 2, 3)),
)


def tuned(name: str, run: Run) -> Iterator[tuple[str, Run]]:
    """A case under each candidate that is for it.

    Args:
        name: of a case of `bench.reduction_speed`.
        run: the case as it is shipped.
    """
    yield f"{name}: shipped", run
    if name.startswith("sum") and "rows" in name:
        for block_m, block_n, num_warps, stages in _OF_ROWS:
            row = replace(
                _LONG_ROWS,
                block_m=block_m,
                block_n=block_n,
                steps=8192 // block_n,
                num_warps=num_warps,
                stages=stages,
            )
            said = f"{block_m}x{block_n} {num_warps} warps {stages} stages"
            yield f"{name}: {said}", _reducing(run, row)
    elif name.startswith("sum"):
        for block_n, steps, num_warps, stages in _OF_A_LONG_ROW:
            row = replace(
                _LONG_ROWS, block_n=block_n, steps=steps, num_warps=num_warps, stages=stages
            )
            said = f"{block_n} x{steps} {num_warps} warps {stages} stages"
            yield f"{name}: {said}", _reducing(run, row)
    else:
        for num_warps, programs, stages, registers in _OF_NORMS:
            # one is tuned closely; the others show whether what suits it suits them
            if name != "rms_norm" and stages in (2, 4):
                continue
            schedule = Schedule(
                _NORMALIZE.max_tile,
                "a candidate",
                num_warps=num_warps,
                programs=programs,
                stages=stages,
                held=programs is not None,
                registers=registers,
            )
            said = f"{num_warps} warps {programs} programs {stages} stages {registers} registers"
            yield (
                f"{name}: {said}",
                _normalizing(run, replace(_NORMALIZE, schedules=(schedule,))),
            )


def _reducing(run: Run, row: ReduceConfig) -> Run:
    def with_row() -> Tensor:
        with mock.patch("flashasc.kernels.reduce_launch.choose_reduce", return_value=row):
            return run()

    return with_row


def _normalizing(run: Run, row: NormalizeConfig) -> Run:
    def with_row() -> Tensor:
        with mock.patch("flashasc.kernels.normalize_launch.choose_normalize", return_value=row):
            return run()

    return with_row
