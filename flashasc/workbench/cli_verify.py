"""`torchrun --nproc_per_node=N -m flashasc verify`: context parallelism of a machine, by layers."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from flashasc.distributed.verify import (
    ALL_OPS,
    FAULTS,
    FUSED_FAULTS,
    LAYERS,
    OPS,
    Report,
    Request,
    require_reach,
    verification_mesh,
    verify,
)
from flashasc.workbench.console import print_table, usage_errors
from flashasc.workbench.verify_facts import facts
from flashasc.workbench.verify_table import failure_lines, verify_table

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


def verify_command(
    layer: Annotated[
        str, typer.Option(help="comm, compute, fused, or all: in this order.")
    ] = "all",
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="ring, ulysses, hybrid, ulysses-fused; repeatable. The first three by default."
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="float32, float16, bfloat16; repeatable. float32 and bfloat16 by default."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu (gloo), cuda (nccl), npu (hccl), or auto: what is there.")
    ] = "auto",
    timeout: Annotated[float, typer.Option(help="Seconds that one transfer may take.")] = 30.0,
    runs: Annotated[int, typer.Option(help="How often; with other data each time.")] = 1,
    inject: Annotated[
        str | None,
        typer.Option(help=f"A fault, to see it found: {', '.join((*FAULTS, *FUSED_FAULTS))}."),
    ] = None,
    at: Annotated[int, typer.Option(help="The rank that has the fault.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Write everything to one JSON file (rank 0 does).")
    ] = None,
) -> None:
    """Verify communication, then computation, then the fused operators, on every rank.

    Exit status, on every rank: 0 every check passed on every rank, 1 one failed, 2 a wrong call.
    """
    with usage_errors():
        request = Request(
            layers=LAYERS if layer == "all" else tuple(_known("layer", [layer], (*LAYERS, "all"))),
            ops=tuple(_known("op", op or list(OPS), ALL_OPS)),
            dtypes=tuple(_DTYPES[d] for d in _known("dtype", dtype or _DEFAULT, tuple(_DTYPES))),
            timeout=_seconds(timeout),
            inject=None
            if inject is None
            else _known("inject", [inject], (*FAULTS, *FUSED_FAULTS))[0],
            at=at,
            runs=int(_positive("runs", runs)),
        )
        where = _device(device)
        _started()
        if report is not None:
            _writable(report)
        if inject is not None:
            require_reach(inject, request.layers, request.ops, int(os.environ["WORLD_SIZE"]))
            if inject in FUSED_FAULTS and where.type != "cpu":
                raise ValueError(f"--inject: {inject} is a fault of the emulation, --device cpu")
        store = _joined(where, request.timeout)
        if not 0 <= at < dist.get_world_size():
            raise ValueError(f"--at: expected a rank below {dist.get_world_size()}, got {at}")
    # torchrun ends the others as soon as one rank has died; there is a report to be written first
    signal.signal(signal.SIGTERM, lambda *_: None)
    found = verify(request, store, where, verification_mesh(where))
    if dist.get_rank() == 0 or (0 in found.silent and dist.get_rank() == min(_speakers(found))):
        _tell(found, request, where, report)
    sys.stdout.flush()
    if not found.ok:
        # without goodbyes, which would wait for ranks that are gone
        os._exit(1)
    dist.destroy_process_group()


_DEFAULT = ["float32", "bfloat16"]


def _tell(found: Report, request: Request, device: torch.device, path: Path | None) -> None:
    """Print the table and what failed, and write the file."""
    print_table(verify_table(found))
    for line in failure_lines(found.failures):
        print(line)
    print(found.verdict)
    if path is not None:
        everything = {**found.to_json(), "facts": facts(request, device)}
        path.write_text(json.dumps(everything, indent=1) + "\n")


def _speakers(found: Report) -> list[int]:
    return [rank for rank in range(found.world) if rank not in found.silent]


def _known(option: str, values: list[str], allowed: tuple[Any, ...]) -> list[Any]:
    for value in values:
        if value not in allowed:
            raise ValueError(f"--{option}: expected {', '.join(allowed)}; got {value}")
    return values


def _positive(option: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"--{option}: expected more than 0, got {value}")
    return value


def _seconds(timeout: float) -> float:
    if not 0 < timeout <= 1e6:
        raise ValueError(f"--timeout: expected more than 0 and at most 1e6 seconds, got {timeout}")
    return timeout


def _writable(path: Path) -> None:
    """Refuse a report that could not be written after all the work; rank 0 writes it."""
    if os.environ["RANK"] != "0":
        return
    there = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ValueError(f"--report: cannot write {path}: {error.strerror}") from error
    if not there:
        path.unlink()


def _device(name: str) -> torch.device:
    """This rank's device."""
    if name == "auto":
        npu: Any = getattr(torch, "npu", None)
        there = {"cuda": torch.cuda.is_available(), "npu": npu is not None and npu.is_available()}
        name = next((kind for kind, found in there.items() if found), "cpu")
    if name not in _BACKENDS:
        raise ValueError(f"--device: expected auto, {', '.join(_BACKENDS)}; got {name}")
    if name == "cpu":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device(name, local)
    getattr(torch, name).set_device(device)
    return device


def _started() -> None:
    """Refuse to run alone."""
    if "RANK" not in os.environ:
        raise ValueError(
            "verify runs on several ranks; start it with: torchrun --nproc_per_node=N -m flashasc "
            "verify"
        )


def _joined(device: torch.device, timeout: float) -> Store:
    """Start the process group; its store."""
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=300)))
    dist.init_process_group(
        _BACKENDS[device.type],
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=max(60.0, 4 * timeout)),
    )
    return PrefixStore("verify", store)
