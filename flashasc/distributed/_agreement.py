"""One exchange of facts before anything is moved: ranks agree, or all raise.

A rank whose own arguments are wrong takes part too, and says so: nobody waits for it in vain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ._transport import Transport

# a character of text takes at most six
_LONGEST_TEXT = 600
_BYTES = 4096
# instead of a number of queries, from a rank that cannot take part
_UNABLE = -1

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

    What moves is a digest and the sizes in which ranks may differ. Where digests differ, or a rank
    cannot take part, all of them know, and exchange the facts themselves to say what it is.
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
    told = {"operator": operator, **facts}
    own = [_UNABLE] * len(OWN) if error else [told[name] for name in OWN]
    found = _all_numbers(transport, [_digest(told), *own], operator)
    if all(theirs[0] == found[0][0] and theirs[1] != _UNABLE for theirs in found):
        return [{**facts, **dict(zip(OWN, theirs[1:], strict=True))} for theirs in found], None
    gathered = _all_facts(transport, told)
    names = [transport.name(rank) for rank in range(transport.world)]
    for rank, theirs in zip(names, gathered, strict=True):
        if "error" in theirs:
            return [], error or PeerError(
                f"{operator}: rank {rank} cannot take part, so no rank computes: {theirs['error']}"
            )
    if problem := disagreement(gathered, names):
        return [], ValueError(f"{operator}: {problem}")
    # numbers that are equal and written differently, 1 and 1.0
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


def _digest(facts: Facts) -> int:
    """64 bits of the facts that must be the same on all ranks."""
    shared = [(name, value) for name, value in facts.items() if name not in OWN]
    found = hashlib.blake2b(json.dumps(shared).encode(), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True)


def _all_numbers(transport: Transport, numbers: Sequence[int], operator: str) -> list[list[int]]:
    mine = torch.tensor(numbers, dtype=torch.int64)
    found: list[list[int]] = transport.all_gather_on_host(mine, f"facts of {operator}").tolist()
    return found


def _all_facts(transport: Transport, facts: Facts) -> list[Facts]:
    text = json.dumps(facts).encode()
    assert len(text) <= _BYTES, f"{len(text)} bytes of facts"
    # JSON may end with any number of blanks
    mine = torch.frombuffer(bytearray(text.ljust(_BYTES)), dtype=torch.uint8)
    found = transport.all_gather_on_host(mine, f"facts of {facts['operator']}, in full")
    return [json.loads(bytes(row.tolist()).decode()) for row in found]
