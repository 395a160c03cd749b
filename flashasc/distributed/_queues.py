"""A device's queues: work beside the current stream, and small tensors that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def is_queued(device: torch.device) -> bool:
    """Whether the host goes on while a device computes."""
    return device.type != "cpu"


@contextmanager
def beside(device: torch.device, after: Any = None) -> Iterator[Any]:
    """Queue what follows on a stream of its own, beside the current one.

    Args:
        device: an accelerator.
        after: an event that the stream waits for first, from `mark`; None: nothing.

    Yields:
        The stream.
    """
    stream = _side_stream(device)
    with torch.get_device_module(device).stream(stream):
        if after is not None:
            stream.wait_event(after)
        yield stream


def mark(device: torch.device) -> Any:
    """An event at the end of what a device's current stream has been given so far."""
    module = torch.get_device_module(device)
    event = module.Event()
    event.record(module.current_stream(device))
    return event


def on_device(x: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host's, through pinned memory: the host does not wait."""
    return x.pin_memory().to(device, non_blocking=True) if is_queued(device) else x


@lru_cache
def _side_stream(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)
