"""Run a function on several ranks: processes of a gloo group, started from one warm server."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

# a server that has imported this starts a process in milliseconds
_PRELOADED = [
    "torch",
    "torch.distributed.tensor.debug",
    "flashasc.distributed",
    "flashasc.distributed.verify",
]


class Died(RuntimeError):
    """A rank that ended without a result, or not at all."""


def on_ranks(
    world: int, function: Callable[..., Any], *args: Any, patience: float = 120.0
) -> list[Any]:
    """What `function(*args)` returns on each rank; exceptions are returned, not raised.

    Args:
        world: how many ranks.
        function: of a module; called in a process whose default group is all ranks, gloo.
        patience: seconds before the processes are ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        processes = [
            context.Process(
                target=_rank, args=(rank, world, store, sender, function, args), daemon=True
            )
            for rank, (_, sender) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        results = _collect([receiver for receiver, _ in pipes], patience)
        for process in processes:
            process.join(1)
            if process.is_alive():
                process.kill()
    return results


def _collect(receivers: list[Connection], patience: float) -> list[Any]:
    results: list[Any] = [Died("no result in time")] * len(receivers)
    waiting = dict(zip(receivers, range(len(receivers))))
    deadline = time.monotonic() + patience
    while waiting and (left := deadline - time.monotonic()) > 0:
        for ready in wait(list(waiting), left):
            rank = waiting.pop(ready)
            try:
                results[rank] = ready.recv()
            except EOFError:
                results[rank] = Died("ended without a result")
    return results


def _rank(
    rank: int, world: int, store: str, sender: Connection, function: Any, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    try:
        result = function(*args)
    except Exception as error:
        error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
        result = error
    sender.send(result)
    sender.close()
    # without goodbyes: a peer may be gone
    os._exit(0)


def returned(results: list[Any]) -> list[Any]:
    """The results, of which none may be an exception."""
    for rank, result in enumerate(results):
        if isinstance(result, BaseException):
            notes = "\n".join(getattr(result, "__notes__", []))
            raise AssertionError(f"rank {rank}: {type(result).__name__}: {result}\n{notes}")
    return results
