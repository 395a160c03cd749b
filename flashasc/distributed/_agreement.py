"""One exchange of facts before anything is moved: ranks agree, or all raise.

A rank whose own arguments are wrong takes part too, and says so: nobody waits for it in vain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ._transport import Transport, metadata_device

# a character of text takes at most six
_LONGEST_TEXT = 600
_BYTES = 4096

Facts = dict[str, Any]
"""Of one rank; what JSON can hold."""

OWN = ("Sq", "Sk")
"""Facts in which ranks may differ."""


class PeerError(RuntimeError):
    """Another rank could not take part; the message names it and says why."""


def agree(
    transport: Transport, describe: Callable[[], Facts], *, operator: str
) -> tuple[list[Facts], Exception | None]:
    """Exchange facts with all ranks of a group.

    Args:
        transport: the group.
        describe: returns this rank's facts; what it raises is passed on to all ranks.
        operator: named in messages.

    Returns:
        (facts of each rank, None), or ([], what to raise): on every rank one or the other.
    """
    error: Exception | None = None
    facts: Facts = {}
    try:
        facts = describe()
    except Exception as raised:
        error = raised
        facts = {"error": f"{type(raised).__name__}: {raised}"[:_LONGEST_TEXT]}
    if transport.world == 1:
        return ([], error) if error else ([facts], None)
    gathered = _exchange(transport, {"operator": operator, **facts})
    names = [transport.name(rank) for rank in range(transport.world)]
    for rank, theirs in zip(names, gathered, strict=True):
        if "error" in theirs:
            return [], error or PeerError(
                f"{operator}: rank {rank} cannot take part, so no rank computes: {theirs['error']}"
            )
    if problem := disagreement(gathered, names):
        return [], ValueError(f"{operator}: {problem}")
    return gathered, None


def disagreement(gathered: Sequence[Mapping[str, Any]], names: Sequence[int]) -> str | None:
    """What ranks disagree about, in words; `names` are the ranks' numbers."""
    first = gathered[0]
    for field in first:
        if field in OWN:
            continue
        for rank, theirs in zip(names, gathered, strict=True):
            if theirs.get(field) != first[field]:
                return (
                    f"{field} must be the same on all ranks of the group; rank {names[0]} has "
                    f"{first[field]!r}, rank {rank} has {theirs.get(field)!r}"
                )
    return None


def _exchange(transport: Transport, facts: Facts) -> list[Facts]:
    text = json.dumps(facts).encode()
    assert len(text) <= _BYTES, f"{len(text)} bytes of facts"
    # JSON may end with any number of blanks
    payload = torch.frombuffer(bytearray(text.ljust(_BYTES)), dtype=torch.uint8)
    device = metadata_device(transport.group)
    found = transport.all_gather(payload.to(device), f"facts of {facts['operator']}").cpu()
    return [json.loads(bytes(row.tolist()).decode()) for row in found]
