"""A function of the compiler's text as nested regions, and the work counted in each."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flashasc.ascend import _mlir
from flashasc.ascend._mlir import Values

_UNROLLED = re.compile(r"multibuffer_unroll_factor = (\d+)")
_FOR = re.compile(r"scf\.for (%[\w-]+) = (%[\w-]+) to (%[\w-]+) step (%[\w-]+)")
_HIVM = re.compile(r"(?:%\S+ = )?hivm\.hir\.(\w+)")
_CALL = re.compile(r"(?:%\S+ = )?(?:func\.)?call @([\w.$-]+)\(")
_SCALAR = re.compile(r"(?:%\S+ = )?memref\.(load|store)\b")
_REGISTER = re.compile(r"(?:%\S+ = )?((?:arith|math|vector|hivm|hfusion|ave)[\w.]*)")

_TRANSFERS = {"load", "store", "nd2nz", "nz2nd", "fixpipe", "copy"}
_CORE_WAITS = {"sync_block_wait"}
_LOCAL_WAITS = {"wait_flag", "pipe_barrier"}
_NO_WORK = {
    *("pointer_cast", "get_block_idx", "get_sub_block_idx", "get_block_num", "set_ctrl"),
    *("set_ffts_base_addr", "set_mask_norm", "set_flag", "sync_block_set", "sync_block"),
    *("debug", "init_debug", "finish_debug", "bitcast", "convert_layout"),
}

Tally = Counter[tuple[int | str, ...]]
"""What runs, by kind: ("repeats",), ("op", name), ("bytes", route), ("product", m, n, k, dtype),
("core wait",), ("local wait",), ("single", buffer): how often, or how much."""


@dataclass
class Region:
    """A function, loop or branch: what it does itself, and the regions in it."""

    kind: str  # "func", "loop", "if", "else", "other"
    trips: int | None = 1
    step: int | None = None
    tiles: int = 1  # iterations of the source's loop in one of this
    unlikely: bool = False
    own: Tally = field(default_factory=Counter)
    inner: list[Region] = field(default_factory=list)

    @property
    def runtime_loop(self) -> bool:
        return self.kind == "loop" and self.trips is None


@dataclass
class Function:
    name: str
    core: str  # "AIC", "AIV"
    body: Region
    doubled: list[str]


def sum_of(region: Region, *, into_runtime_loops: bool = True) -> tuple[Tally, Tally]:
    """Return what one pass through a region does (always, at most besides)."""
    always, extra = Counter(region.own), Tally()
    for index, inner in enumerate(region.inner):
        if inner.kind == "else" or inner.unlikely:
            continue
        if inner.runtime_loop and not into_runtime_loops:
            continue
        one, more = sum_of(inner, into_runtime_loops=into_runtime_loops)
        if inner.kind == "if":
            following = region.inner[index + 1 : index + 2]
            other, other_more = (
                sum_of(following[0], into_runtime_loops=into_runtime_loops)
                if following and following[0].kind == "else"
                else (Tally(), Tally())
            )
            most = (one + more) | (other + other_more)
            least = one & other
            one, more = least, most - least
        if inner.runtime_loop:
            always[("op", "loop of unknown length, counted once")] += 1
        times = inner.trips if inner.trips is not None else 1
        always.update({key: n * times for key, n in one.items()})
        extra.update({key: n * times for key, n in more.items()})
    return always, extra


def parse(name: str, text: str, registers: Mapping[str, Region]) -> Function:
    """Read one function; `registers` are the A5 vector functions that it may call."""
    header, *lines = text.splitlines()
    values = Values(header)
    in_registers = "hivm.vector_function" in header
    core = "AIC" if "func_core_type<AIC>" in header or name.endswith("_aic") else "AIV"
    open_regions = [Region("func")]
    for raw in lines:
        line = raw.strip()
        values.define(line)
        if line.startswith("}"):
            closed = open_regions.pop()
            if unrolled := _UNROLLED.search(line):
                closed.trips = open_regions[-1].tiles = int(unrolled[1])
            if "unlikely_condition" in line:
                closed.unlikely = True
                _if_of(closed, open_regions[-1]).unlikely = True
            if not open_regions:
                return Function(name, core, closed, values.doubled)
            if line.endswith("{") and "else" in line:
                _enter(open_regions, Region("else"))
            elif line.endswith("{"):
                # "} do {": what came before is the loop's condition, what follows its body
                closed.kind, closed.trips = "other", 1
                _enter(open_regions, Region("loop", None))
        elif line.endswith("{"):
            _enter(open_regions, _region(line, values))
        elif in_registers:
            _count_register(line, open_regions[-1].own)
        else:
            _count(line, values, registers, core, open_regions[-1])
    raise ValueError(f"the text of {name} ends in the middle")


def _enter(open_regions: list[Region], region: Region) -> None:
    open_regions[-1].inner.append(region)
    open_regions.append(region)


def _if_of(closed: Region, parent: Region) -> Region:
    """Return the `if` that an `else` belongs to; anything else itself."""
    return parent.inner[-2] if closed.kind == "else" else closed


def _region(line: str, values: Values) -> Region:
    if bounds := _FOR.search(line):
        low, high, step = (values.constants.get(bounds[i]) for i in (2, 3, 4))
        if low is None or high is None or not step:
            return Region("loop", None, step)
        return Region("loop", max(0, -(-(high - low) // step)), step)
    if "scf.while" in line:
        return Region("loop", None)
    return Region("if" if "scf.if" in line else "other")


def _count_register(line: str, own: Tally) -> None:
    """Count an operation of an A5 vector function: register by register, reads and writes too."""
    name = _REGISTER.match(line)
    if name is None or "vector<" not in line or ".constant" in name[1]:
        return
    size = max((_mlir.size_of(t) or 0 for t in _mlir.vector_types(line)), default=0)
    repeats = math.ceil(size / 256)
    own[("repeats",)] += repeats
    own[("op", name[1])] += repeats


def _count(
    line: str, values: Values, registers: Mapping[str, Region], core: str, region: Region
) -> None:
    """Add one operation of a core's function to the region that it is in."""
    own = region.own
    if call := _CALL.match(line):
        if call[1] in registers:
            # as a region of its own, so that its branches stay branches
            region.inner.append(Region("other", inner=[registers[call[1]]]))
        own[("op", "vector function" if call[1] in registers else f"call {call[1]}")] += 1
    elif scalar := _SCALAR.match(line):
        own[("op", f"scalar {scalar[1]}")] += 1
    elif operation := _HIVM.match(line):
        name = operation[1]
        if name in _CORE_WAITS:
            own[("core wait",)] += 1
        elif name in _LOCAL_WAITS:
            own[("local wait",)] += 1
        elif name == "mmadL1":
            m, n, k, dtype = _mlir.product(line, values)
            own[("product", m, n, k, dtype)] += 1
        elif name in _TRANSFERS:
            route, size, buffers = _mlir.transfer(line, values)
            own[("bytes", route)] += size
            own.update({("single", b): 1 for b in buffers if not values.is_doubled(b)})
        elif name not in _NO_WORK and core == "AIV":
            sizes = [values.size(*operand) for operand in _mlir.operands(line)]
            own[("repeats",)] += math.ceil(max((s or 0 for s in sizes), default=0) / 256)
            kind = re.search(r"vreduce .*?(<\w+>)", line)
            own[("op", f"{name} {kind[1]}" if kind else name)] += 1
