"""From what the search for tiles found to the table: no compiler and no estimate take part."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

BUCKETS = (32, 64, 80, 96, 128, 192, 256)
"""Head sizes that get a row of their own."""

SEARCHED: Mapping[str, tuple[str, ...]] = {
    "Ascend910B3": ("Ascend910_9392",),
    "Ascend950PR_9589": (),
}
"""Processor that is searched -> those with the same memories, on which the choice is verified."""

DTYPES = ("float16", "bfloat16", "float32")
# a segment is compared with the plain sum at the same tile, which comes first
PRECISIONS = ("standard", "compensated", "high")

OPTION_BUCKETS: Mapping[str, tuple[int, ...]] = {
    "none": BUCKETS,
    "all": (64, 128, 256),
}
"""Set of score options, see `_configs.ascend.OPTION_SETS` -> head sizes with a row of their own."""


@dataclass(frozen=True, order=True)
class Slot:
    """A row of the table that a tile is to be chosen for."""

    arch: str
    dtype: str
    precision: str
    max_head: int
    options: str = "none"

    def __str__(self) -> str:
        options = "" if self.options == "none" else f", options: {self.options}"
        return f"{self.arch} {self.dtype} {self.precision} D<={self.max_head}{options}"


ALL_SLOTS = tuple(
    Slot(arch, dtype, precision, max_head, options)
    for options, buckets in OPTION_BUCKETS.items()
    for arch, dtype, precision, max_head in product(SEARCHED, DTYPES, PRECISIONS, buckets)
    if not (precision == "high" and dtype == "float32")
)
"""In the order of the table, of which the first row that serves a call is taken."""


@dataclass(frozen=True)
class Record:
    """A candidate tile for a slot, and what was found.

    Attributes:
        slot: what it was tried for.
        block_m, block_n, segment: fields of the row; see `TileConfig`.
        verdict: "fits", "overflows UB", "retried", ...: of the plain use, causal with D = Dv =
            max_head; or "skipped: why".
        memory: "UB", "L1", "L0C" -> per cent in use.
        repeats: vector repeats per iteration outside branches; inside them.
        doubled: buffers kept twice; those of the loop's transfers that are not.
        buffers_kept: double buffers are kept wherever the target has them on by default.
        estimate_ps: estimated picoseconds of one core per query row and key. Not measured.
        serial_ps: the same if nothing within an iteration overlaps.
        bound_by: "cube", "vector" or "transfer", in that estimate.
        uses: "processor, use" -> verdict of each further use that was tried.
        compiler: name and version.
    """

    slot: Slot
    block_m: int
    block_n: int
    segment: int
    verdict: str
    memory: Mapping[str, float] = field(default_factory=dict)
    repeats: tuple[int, int] | None = None
    doubled: tuple[int, int] | None = None
    buffers_kept: bool = False
    estimate_ps: float | None = None
    serial_ps: float | None = None
    bound_by: str = ""
    uses: Mapping[str, str] = field(default_factory=dict)
    compiler: str = ""

    @property
    def eligible(self) -> bool:
        """Whether the plain use fits with its double buffers, so that the rest is worth trying."""
        return self.verdict == "fits" and self.buffers_kept and self.estimate_ps is not None

    @property
    def chosen_if_best(self) -> bool:
        """Whether it was tried in every use on every processor, and fits in all."""
        return (
            self.eligible
            and bool(self.uses)
            and all(verdict == "fits" for verdict in self.uses.values())
        )

    @property
    def rank(self) -> tuple[float, float, float]:
        """Order of preference: fastest by estimate, then fastest if nothing overlaps, then room."""
        assert self.estimate_ps is not None and self.serial_ps is not None
        return (self.estimate_ps, self.serial_ps, self.memory.get("UB", 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON types."""
        data = dataclasses.asdict(self)
        return {**data.pop("slot"), **{k: v for k, v in data.items() if v not in (None, {}, "")}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Rebuild a record from `to_json`'s answer."""
        rest = dict(data)
        slot = Slot(**{item.name: rest.pop(item.name) for item in dataclasses.fields(Slot)})
        for name in ("repeats", "doubled"):
            if name in rest:
                rest[name] = tuple(rest[name])
        return cls(slot=slot, **rest)


def select(records: Iterable[Record]) -> dict[Slot, Record]:
    """Choose the best tile of each slot that has one, in the order of the table."""
    found: dict[Slot, Record] = {}
    for record in records:
        if record.chosen_if_best:
            best = found.get(record.slot)
            if best is None or record.rank < best.rank:
                found[record.slot] = record
    return {slot: found[slot] for slot in ALL_SLOTS if slot in found}


def missing(chosen: Mapping[Slot, Record]) -> list[Slot]:
    """Slots that no tile was found for."""
    return [slot for slot in ALL_SLOTS if slot not in chosen]


def merged(chosen: Mapping[Slot, Record]) -> dict[Slot, Record]:
    """Drop the rows that the row of the next larger head size can stand for: it has their tile."""

    def tile(slot: Slot) -> tuple[int, int, int]:
        record = chosen[slot]
        return record.block_m, record.block_n, record.segment

    return {
        slot: record
        for slot, record in chosen.items()
        if (larger := _next_larger(slot)) not in chosen or tile(larger) != tile(slot)
    }


def _next_larger(slot: Slot) -> Slot:
    """The same slot for the next head size; itself with no head size after the last."""
    buckets = OPTION_BUCKETS[slot.options]
    following = dict(zip(buckets, (*buckets[1:], 0), strict=True))
    return dataclasses.replace(slot, max_head=following[slot.max_head])


def table_text(chosen: Mapping[Slot, Record]) -> str:
    """The source of `flashasc/_configs/ascend_tiles.py`."""
    lines = [_HEAD]
    for slot, record in merged(chosen).items():
        targets = (slot.arch, *SEARCHED[slot.arch])
        names = ", ".join(f'"{name}"' for name in targets) + ("," if len(targets) == 1 else "")
        lines += [
            f'    Row(({names}), "{slot.dtype}", "{slot.precision}", {slot.max_head}, '
            f'"{slot.options}",',
            f"        {record.block_m}, {record.block_n}, {record.memory.get('UB', 0):g}, "
            f'{record.estimate_ps:.4g}, "{record.compiler}"),',
        ]
    return "\n".join([*lines, ")  # fmt: skip", ""])


_HEAD = '''"""Tiles for Ascend NPUs, as `python -m flashasc ascend tiles` writes them.

Each is the tile with the least estimated time per query row and key among those tried that compile
without a retry, double buffers kept, in the uses that the evidence names; every candidate is in
bench/results/ascend_tiles.json. A row whose tile the next larger head size shares is left to that
row. The times are estimates on paper: no NPU measured them.
"""

from __future__ import annotations

from typing import NamedTuple

from flashasc._problem import Precision


class Row(NamedTuple):
    """A tile, and what its compiler and the estimate say of it."""

    targets: tuple[str, ...]
    dtype: str
    precision: Precision
    max_head: int
    options: str
    """A key of `OPTION_SETS` in `ascend.py`."""
    block_m: int
    block_n: int
    ub_percent: float
    estimate_ps: float
    """Picoseconds of one core per query row and key: an estimate."""
    compiler: str


ROWS: tuple[Row, ...] = ('''


def read_evidence(path: Path) -> list[Record]:
    """Read an evidence file; nothing where there is none.

    Raises:
        ValueError: the file is not one.
    """
    try:
        data = json.loads(path.read_text())
        return [Record.from_json(record) for record in data["records"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"evidence: {path} cannot be read ({type(error).__name__}: {error}); delete it to "
            "begin anew"
        ) from error


def write_evidence(path: Path, records: Sequence[Record], versions: Mapping[str, str]) -> None:
    """Write an evidence file, a line a record, in the order of the table."""
    ordered = sorted(
        records,
        key=lambda r: (ALL_SLOTS.index(r.slot), r.block_m, r.block_n, r.segment),
    )
    lines = ",\n".join(json.dumps(record.to_json()) for record in ordered)
    head = json.dumps({"command": "python -m flashasc ascend tiles", "versions": dict(versions)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-1]}, "records": [\n{lines}\n]}}\n')
