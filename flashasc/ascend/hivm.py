"""Count what a compiled kernel does, in the compiler's own text (HIVM, an MLIR dialect).

Read is the text after memory planning and synchronisation and before buffers are doubled
(`DUMP_FLAG`): operations still have their names and shapes there, and a buffer that will be
doubled shows two addresses. Every function is printed by itself: one for the cube core, one for
the vector cores, and on A5 the "vector functions" that the latter calls.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flashasc.ascend import _mlir
from flashasc.ascend._mlir import Values
from flashasc.ascend.workload import Product, Workload

DUMP_FLAG = "--mlir-print-ir-before=hivm-enable-multi-buffer"

_DUMP = re.compile(r"^// -----// IR Dump Before \w+ \(hivm-enable-multi-buffer\).*\n", re.MULTILINE)
_NAME = re.compile(r"func\.func (?:private )?@([\w.$-]+)\(")
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
class _Region:
    """A function, loop or branch: what it does itself, and the regions in it."""

    kind: str  # "func", "loop", "if", "else", "other"
    trips: int | None = 1
    step: int | None = None
    unlikely: bool = False
    own: Tally = field(default_factory=Counter)
    inner: list[_Region] = field(default_factory=list)

    @property
    def runtime_loop(self) -> bool:
        return self.kind == "loop" and self.trips is None


@dataclass
class _Function:
    name: str
    core: str  # "AIC", "AIV"
    body: _Region
    doubled: list[str]


def split_dumps(output: str) -> tuple[str, dict[str, str]]:
    """Take the printed functions out of what the compiler said.

    Returns:
        (the rest, function name -> text). A function that was printed more than once, because
        the compiler tried again, is there as it was last.
    """
    first, *dumps = _DUMP.split(output)
    rest, functions = [first], {}
    for dump in dumps:
        head, _, tail = dump.partition("\n")
        if head.endswith("{"):
            body, end, tail = tail.partition("\n}\n")
            head += "\n" + body + end
        if name := _NAME.search(head):
            functions[name[1]] = head
        rest.append(tail.lstrip("\n"))
    return "".join(rest), functions


def workload(functions: Mapping[str, str]) -> Workload:
    """Count the work in one iteration of a kernel's main loop.

    Args:
        functions: name -> text, as `split_dumps` found them.

    Returns:
        The counts. The main loop is the innermost one of runtime length that holds the products;
        in a kernel without products, the one with the most vector work in it; both cores' work
        in it counts. Loops of fixed length count as often as they run. Of an `if` with an `else`
        the dearer side counts, and only their difference as conditional; what the compiler marks
        unlikely (filling up a ragged last tile) does not count.

    Raises:
        ValueError: there is no kernel in it, or an operation that this can't read.
    """
    registers = {
        name: _parse(name, text, {}).body
        for name, text in functions.items()
        if "hivm.vector_function" in text.partition("\n")[0]
    }
    cores = [
        _parse(name, text, registers)
        for name, text in functions.items()
        if name not in registers and _is_device(text.partition("\n")[0])
    ]
    cube = next((f for f in cores if f.core == "AIC"), None)
    vector = next((f for f in cores if f.core == "AIV"), None)
    if cube is None and vector is None:
        raise ValueError(f"no kernel among the functions {sorted(functions)}")
    parts, step = _main_loop(cube, vector)
    sums = [_sum(part) for part in parts]
    always: Tally = Counter()
    extra: Tally = Counter()
    for one, more in sums:
        always.update(one)
        extra.update(more)
    total = always + extra
    named = {kind: {k[1:]: n for k, n in total.items() if k[0] == kind} for kind in _KINDS}
    return Workload(
        loop_step=step,
        products=tuple(
            Product(int(m), int(n), int(k), str(dtype), float(count))
            for (m, n, k, dtype), count in sorted(named["product"].items(), key=str)
        ),
        vector_ops={str(key[0]): float(n) for key, n in sorted(named["op"].items(), key=str)},
        vector_repeats=always[("repeats",)],
        branch_repeats=extra[("repeats",)],
        bytes_moved={str(key[0]): n for key, n in sorted(named["bytes"].items(), key=str)},
        core_syncs=max(one[("core wait",)] + more[("core wait",)] for one, more in sums),
        local_syncs=total[("local wait",)],
        doubled=tuple(dict.fromkeys(name for f in cores for name in f.doubled)),
        loop_buffers_single=tuple(str(key[0]) for key in sorted(named["single"], key=str)),
    )


_KINDS = ("product", "op", "bytes", "single")


def _is_device(header: str) -> bool:
    return header.endswith("{") and "function_kind<HOST>" not in header


def _main_loop(
    cube: _Function | None, vector: _Function | None
) -> tuple[list[_Region], int | None]:
    """Return the region of each core that one iteration is, and the loop's step."""
    if cube is not None and (found := _best(cube.body, _cube_work)):
        depth, loop = found
        parts = [loop]
        # the same loop, in the vector cores' copy of the program; absent if they have no part in it
        if vector is not None and (
            same := _best(vector.body, _joint_work, depth=depth, step=loop.step)
        ):
            parts.append(same[1])
        return parts, loop.step
    if cube is None and vector is not None and (found := _best(vector.body, _vector_work)):
        return [found[1]], found[1].step
    return [f.body for f in (cube, vector) if f is not None], None


def _cube_work(own: Tally) -> tuple[int, ...]:
    products = {key: n for key, n in own.items() if key[0] == "product"}
    return (sum(int(key[1]) * int(key[2]) * int(key[3]) * n for key, n in products.items()),)


def _joint_work(own: Tally) -> tuple[int, ...]:
    return own[("core wait",)], own[("repeats",)]


def _vector_work(own: Tally) -> tuple[int, ...]:
    moved = sum(n for key, n in own.items() if key[0] == "bytes")
    return own[("repeats",)], moved, sum(n for key, n in own.items() if key[0] == "op")


def _best(
    body: _Region,
    work: Callable[[Tally], tuple[int, ...]],
    *,
    depth: int | None = None,
    step: int | None = None,
) -> tuple[int, _Region] | None:
    """Return (depth among runtime loops, loop) with the most work of its own, None if none."""
    found = [
        (work(own), at, loop)
        for at, loop in _runtime_loops(body, 1)
        for own in [_own(loop)]
        if depth is None or (at, loop.step) == (depth, step)
    ]
    found = [one for one in found if any(one[0])]
    if not found:
        return None
    _, at, loop = max(found, key=lambda one: one[0])
    return at, loop


def _runtime_loops(region: _Region, depth: int) -> Iterator[tuple[int, _Region]]:
    for inner in region.inner:
        if inner.runtime_loop:
            yield depth, inner
        yield from _runtime_loops(inner, depth + inner.runtime_loop)


def _own(loop: _Region) -> Tally:
    """What a loop does outside the runtime loops in it."""
    always, extra = _sum(loop, into_runtime_loops=False)
    return always + extra


def _sum(region: _Region, *, into_runtime_loops: bool = True) -> tuple[Tally, Tally]:
    """Return what one pass through a region does (always, at most besides)."""
    always, extra = Counter(region.own), Tally()
    for index, inner in enumerate(region.inner):
        if inner.kind == "else" or inner.unlikely:
            continue
        if inner.runtime_loop and not into_runtime_loops:
            continue
        one, more = _sum(inner, into_runtime_loops=into_runtime_loops)
        if inner.kind == "if":
            following = region.inner[index + 1 : index + 2]
            other, other_more = (
                _sum(following[0], into_runtime_loops=into_runtime_loops)
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


def _parse(name: str, text: str, registers: Mapping[str, _Region]) -> _Function:
    """Read one function; `registers` are the A5 vector functions that it may call."""
    header, *lines = text.splitlines()
    values = Values(header)
    in_registers = "hivm.vector_function" in header
    core = "AIC" if "func_core_type<AIC>" in header or name.endswith("_aic") else "AIV"
    open_regions = [_Region("func")]
    for raw in lines:
        line = raw.strip()
        values.define(line)
        if line.startswith("}"):
            closed = open_regions.pop()
            if "unlikely_condition" in line:
                closed.unlikely = True
                _if_of(closed, open_regions[-1]).unlikely = True
            if not open_regions:
                return _Function(name, core, closed, values.doubled)
            if line.endswith("{"):  # "} else {", "} do {": the other half of an operation
                _enter(
                    open_regions, _Region("else" if "else" in line else "loop", closed.trips or 1)
                )
        elif line.endswith("{"):
            _enter(open_regions, _region(line, values))
        elif in_registers:
            _count_register(line, open_regions[-1].own)
        else:
            _count(line, values, registers, core, open_regions[-1])
    raise ValueError(f"the text of {name} ends in the middle")


def _enter(open_regions: list[_Region], region: _Region) -> None:
    open_regions[-1].inner.append(region)
    open_regions.append(region)


def _if_of(closed: _Region, parent: _Region) -> _Region:
    """Return the `if` that an `else` belongs to; anything else itself."""
    return parent.inner[-2] if closed.kind == "else" else closed


def _region(line: str, values: Values) -> _Region:
    if bounds := _FOR.search(line):
        low, high, step = (values.constants.get(bounds[i]) for i in (2, 3, 4))
        if low is None or high is None or not step:
            return _Region("loop", None, step)
        return _Region("loop", max(0, -(-(high - low) // step)), step)
    if "scf.while" in line:
        return _Region("loop", None)
    return _Region("if" if "scf.if" in line else "other")


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
    line: str, values: Values, registers: Mapping[str, _Region], core: str, region: _Region
) -> None:
    """Add one operation of a core's function to the region that it is in."""
    own = region.own
    if call := _CALL.match(line):
        if call[1] in registers:
            # as a region of its own, so that its branches stay branches
            region.inner.append(_Region("other", inner=[registers[call[1]]]))
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
            shape = _mlir.product(line, values)
            own[("product", *shape)] += 1
        elif name in _TRANSFERS:
            route, size, buffers = _mlir.transfer(line, values)
            own[("bytes", route)] += size
            own.update({("single", b): 1 for b in buffers if not values.is_doubled(b)})
        elif name not in _NO_WORK and core == "AIV":
            sizes = [values.size(*operand) for operand in _mlir.operands(line)]
            own[("repeats",)] += math.ceil(max((s or 0 for s in sizes), default=0) / 256)
            kind = re.search(r"vreduce .*?(<\w+>)", line)
            own[("op", f"{name} {kind[1]}" if kind else name)] += 1
