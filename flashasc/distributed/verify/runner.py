"""All checks on one rank, and the gathering of what every rank found.

Outcomes travel through the store that the process group was made with, not through the
communication under test: they arrive also where that hangs or a rank is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .._transport import CommunicationError, timeout_error
from .communication import communication_checks
from .computation import computation_checks
from .faults import with_fault
from .outcomes import LAYERS, OPS, Check, Finding, Layer, Op, Outcome, Report
from .reach import heads_of, require_reach
from .setting import Setting
from .whole import whole_checks

_CHECKS: dict[Layer, Callable[[Setting, tuple[Op, ...]], Iterator[Check]]] = {
    "comm": communication_checks,
    "compute": computation_checks,
    "fused": whole_checks,
}


@dataclass(frozen=True)
class Request:
    """What to verify.

    Attributes:
        layers, ops: which.
        dtypes: of the data.
        timeout: seconds that a transfer may take.
        inject, at: a fault, and the rank that has it; see `faults`.
        runs: how often; each with other data.
    """

    layers: tuple[Layer, ...] = LAYERS
    ops: tuple[Op, ...] = OPS
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    timeout: float = 30.0
    inject: str | None = None
    at: int = 0
    runs: int = 1


def verification_mesh(device: torch.device) -> DeviceMesh:
    """A mesh of all ranks, ring and heads; made once, as making groups is slow.

    Heads are shared by as few ranks as make it a mesh, but by all where their number is prime.
    """
    world = dist.get_world_size()
    heads = heads_of(world)
    return init_device_mesh(device.type, (world // heads, heads))


def verify(
    request: Request, store: Store, device: torch.device, mesh: DeviceMesh, name: str = ""
) -> Report:
    """Run the checks on this rank, and gather what all ranks found.

    Args:
        request: the same on all ranks.
        store: that all ranks can reach; of the process group.
        device: of this rank's tensors.
        mesh: of `verification_mesh`.
        name: of this call, another one for each on one store.

    Returns:
        The report, the same on every rank that answers in time.

    Raises:
        ValueError: the request is wrong.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if error := timeout_error(request.timeout):
        raise error
    if request.inject is not None:
        require_reach(request.inject, request.layers, request.ops, world)

    def on_step(what: str) -> None:
        store.set(f"flashasc/{name}/at/{rank}", what)

    outcomes: list[Outcome] = []
    broken = ""
    for run in range(request.runs):
        for dtype in request.dtypes:
            setting = Setting(device, dtype, mesh, request.timeout, on_step, seed=run)
            if request.inject is not None:
                setting = with_fault(setting, request.inject, request.at, request.ops)
            label = str(dtype).removeprefix("torch.")
            for layer in request.layers:
                for check, perform in _CHECKS[layer](setting, request.ops):
                    begun = Outcome(rank, layer, f"{check}, {label}", None, broken, len(outcomes))
                    if broken and layer != "compute":
                        outcomes.append(begun)
                        continue
                    on_step(begun.check)
                    outcomes.append(_performed(perform, begun))
                    if outcomes[-1].detail.startswith(_BROKEN):
                        others = _elsewhere(store, name, rank, world)
                        outcomes[-1] = replace(outcomes[-1], detail=outcomes[-1].detail + others)
                        broken = "not run: communication broke before"
    on_step("done")
    store.set(f"flashasc/{name}/found/{rank}", json.dumps([asdict(o) for o in outcomes]))
    # who waits for a lost rank is stuck for one deadline at most
    return _gathered(store, name, world, 2 * request.timeout + 2)


_BROKEN = "communication failed: "


def _performed(perform: Callable[[], Finding], begun: Outcome) -> Outcome:
    step = 0
    try:
        found = perform()
        detail, step = (found, 0) if isinstance(found, str) else found
    except CommunicationError as error:
        detail = f"{_BROKEN}{error}"
    except Exception as error:
        # a crash of a check is a finding, and must not keep others waiting
        detail = f"{type(error).__name__}: {error}"
    return replace(begun, ok=not detail, detail=detail, step=step)


def _gathered(store: Store, name: str, world: int, patience: float) -> Report:
    """What all ranks put into the store, waiting for those that get on with it."""
    missing = set(range(world))
    outcomes: list[Outcome] = []
    seen: dict[int, str] = {}
    moved = time.monotonic()
    while missing and time.monotonic() < moved + patience:
        for rank in sorted(missing):
            at = _last_at(store, name, rank)
            if seen.get(rank) != at:
                seen[rank], moved = at, time.monotonic()
            if store.check([f"flashasc/{name}/found/{rank}"]):
                found: list[dict[str, Any]] = json.loads(store.get(f"flashasc/{name}/found/{rank}"))
                outcomes += [Outcome(**fields) for fields in found]
                missing.remove(rank)
        time.sleep(0.01)
    outcomes.sort(key=lambda outcome: outcome.rank)
    return Report(world, outcomes, {rank: _last_at(store, name, rank) for rank in sorted(missing)})


def _elsewhere(store: Store, name: str, rank: int, world: int) -> str:
    """Which ranks are not where this one is."""
    here = _last_at(store, name, rank)
    places = {other: _last_at(store, name, other) for other in range(world)}
    found = [f"; rank {other}: {at}" for other, at in places.items() if at != here]
    return "".join(found)


def _last_at(store: Store, name: str, rank: int) -> str:
    key = f"flashasc/{name}/at/{rank}"
    if not store.check([key]):
        return "it never started"
    return f"it was last at: {store.get(key).decode()}"
