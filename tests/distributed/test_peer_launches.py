"""What kernels that store with peers are told, when it's worked out and when it's remembered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashasc._arguments import Arguments
from flashasc._configs import nvidia
from flashasc._dispatch import Plan
from flashasc._repeat import Launch, record
from flashasc._target import Target
from flashasc.distributed._device_memory import DeviceBuffers
from flashasc.distributed._parcel import Parcel, Pieces
from flashasc.distributed._placement import shards

pytest.importorskip("triton")

ROWS, HEADS, HEAD = 200, 4, 64


class Alone(DeviceBuffers):
    """Rank 1 of two, the other of which is not there."""

    def shared(self, transport: Any, size: int) -> tuple[Tensor, list[int]]:
        memory = torch.zeros(size, dtype=torch.uint8)
        return memory, [memory.data_ptr()] * 2

    @classmethod
    def plan(cls, problem: Any, impl: Any) -> Any:
        row = next(r for r in nvidia.TILES if r.dtype == problem.dtype and not r.descriptors)
        return Plan("device", "a test", Target("nvidia", "sm_90", 132), row)

    def begin(self) -> None: ...

    def finish(self, *, wait: bool) -> None: ...

    def quiesce(self) -> None: ...

    @classmethod
    def check(cls, device: torch.device) -> dict[str, Any]:
        return {}


class Ranks:
    rank, world = 1, 2


Told = dict[str, Any]


def numbers(names: list[str], values: list[Any]) -> Told:
    values = [x.data_ptr() if isinstance(x, Tensor) else x for x in values]
    return dict(zip(names, values, strict=True))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Told], list[Told]]:
    """Launches that were worked out, and those that were remembered."""
    from flashasc.kernels import attention_launch

    worked_out: list[Told] = []
    remembered: list[Told] = []

    def start(kernel: Any, programs: int, args: Told, constants: Told, **_: Any) -> None:
        names = [p.name for p in kernel.params]
        assert {*args, *constants} == {*names}
        values = [{**args, **constants}[name] for name in names]
        worked_out.append(numbers(names, values))

        def again(*values: Any) -> None:
            remembered.append(numbers(names, list(values)))

        record(lambda: Launch(again, values, names))

    monkeypatch.setattr(attention_launch, "launch", start)
    return worked_out, remembered


def arguments(sinks: bool) -> Arguments:
    q, k, v = torch.randn(3, 1, HEADS, ROWS, HEAD).bfloat16()
    return Arguments(
        q, k, v, causal=True, return_lse=True, sinks=torch.zeros(HEADS) if sinks else None
    )


@pytest.mark.parametrize("sinks", [False, True])
def test_a_remembered_launch_is_what_would_be_worked_out(
    starts: tuple[list[Told], list[Told]], sinks: bool
) -> None:
    worked_out, remembered = starts
    first = arguments(sinks)
    parcel = Parcel(
        1, HEADS, 2, HEAD, torch.bfloat16, True, True,
        Pieces.of(shards([ROWS], 2, "contiguous")), Alone.tile_rows(first),
    )  # fmt: skip
    memory = Alone(Ranks(), torch.device("cpu"), parcel.bytes)  # type: ignore[arg-type]
    for slot in (0, 1):
        memory.attend(first, parcel, slot, memory.result(parcel))
    assert len(worked_out) == 2 and not remembered
    for slot in (0, 1):
        other, found = arguments(sinks), memory.result(parcel)
        memory.attend(other, parcel, slot, found)
        memory.starts._found, kept = {}, memory.starts._found
        memory.attend(other, parcel, slot, found)
        memory.starts._found = kept
        assert remembered[slot] == worked_out[2 + slot]
        assert remembered[slot]["q_ptr"] == other.q.data_ptr()
        assert remembered[slot]["out_ptr"] == found[0].data_ptr()
        assert found[1] is not None and remembered[slot]["lse_ptr"] == found[1].data_ptr()
    assert len(remembered) == 2
    assert remembered[1]["out_at"] - remembered[0]["out_at"] == memory.slot_bytes


def test_other_calls_are_worked_out(starts: tuple[list[Told], list[Told]]) -> None:
    worked_out, remembered = starts
    first = arguments(False)
    pieces = Pieces.of(shards([ROWS], 2, "contiguous"))
    others = Pieces.of(shards([ROWS], 2, "contiguous", [50, 150]))
    rows = Alone.tile_rows(first)
    parcels = [
        Parcel(1, HEADS, 2, HEAD, torch.bfloat16, True, heads_first, cut, rows)
        for heads_first, cut in ((True, pieces), (False, pieces), (True, others))
    ]
    most = max(parcel.bytes for parcel in parcels)
    memory = Alone(Ranks(), torch.device("cpu"), most)  # type: ignore[arg-type]
    calls = [(first, parcel) for parcel in parcels]
    calls += [(first._replace(scale=0.5), parcels[0]), (first._replace(window=(9, 0)), parcels[0])]
    for given, parcel in calls:
        memory.attend(given, parcel, 0, memory.result(parcel))
    assert len(worked_out) == len(calls) and not remembered
