"""Count what a compiled kernel does, in the compiler's own text (HIVM, an MLIR dialect).

Read is the text after memory planning and synchronisation and before buffers are doubled
(`DUMP_FLAG`): operations still have their names and shapes there, and a buffer that will be
doubled shows two addresses. Every function is printed by itself: one for the cube core, one for
the vector cores, and on A5 the "vector functions" that the latter calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from flashasc.ascend._regions import Function, Region, Tally, parse, sum_of
from flashasc.ascend.workload import Product, Workload

DUMP_FLAG = "--mlir-print-ir-before=hivm-enable-multi-buffer"

_DUMP = re.compile(r"^// -----// IR Dump Before \w+ \(hivm-enable-multi-buffer\).*\n", re.MULTILINE)
_NAME = re.compile(r"func\.func (?:private )?@([\w.$-]+)\(")


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
            functions[name[1]] = head.rstrip()
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
        unlikely (filling up a ragged last tile) does not count. On A2 and A3 the compiler may run
        several iterations' products, then their vector work, then their next products, so that the
        cores work side by side; counted is one iteration of the loop as it was written.

    Raises:
        ValueError: there is no kernel in it, or an operation that this can't read.
    """
    registers = {
        name: parse(name, text, {}).body
        for name, text in functions.items()
        if "hivm.vector_function" in text.partition("\n")[0]
    }
    cores = [
        parse(name, text, registers)
        for name, text in functions.items()
        if name not in registers and _is_device(text.partition("\n")[0])
    ]
    cube = next((f for f in cores if f.core == "AIC"), None)
    vector = next((f for f in cores if f.core == "AIV"), None)
    if cube is None and vector is None:
        raise ValueError(f"no kernel among the functions {sorted(functions)}")
    parts = _main_loop(cube, vector)
    step, tiles = parts[0].step, parts[0].tiles
    sums = [
        (_share(always, part.tiles), _share(extra, part.tiles))
        for part in parts
        for always, extra in [sum_of(part)]
    ]
    always = sum((one for one, _ in sums), Tally())
    extra = sum((more for _, more in sums), Tally())
    total = always + extra
    named = {kind: {k[1:]: n for k, n in total.items() if k[0] == kind} for kind in _KINDS}
    return Workload(
        loop_step=step // tiles if step else None,
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
        tiles_in_flight=tiles,
    )


_KINDS = ("product", "op", "bytes", "single")


def _is_device(header: str) -> bool:
    return header.endswith("{") and "function_kind<HOST>" not in header


def _main_loop(cube: Function | None, vector: Function | None) -> list[Region]:
    """Return the region of each core that one iteration is; the whole programs without a loop."""
    if cube is not None and (found := _best(cube.body, _cube_work)):
        depth, loop = found
        # the same loop, in the vector cores' copy of the program; absent if they have no part in it
        same = vector and _best(vector.body, _joint_work, depth=depth, step=loop.step)
        return [loop, same[1]] if same else [loop]
    if cube is None and vector is not None and (found := _best(vector.body, _vector_work)):
        return [found[1]]
    return [f.body for f in (cube, vector) if f is not None]


def _share(tally: Tally, tiles: int) -> Tally:
    """Return the part of an unrolled loop's work that belongs to one iteration of the source's."""
    return Counter({key: -(-n // tiles) for key, n in tally.items()})


def _cube_work(own: Tally) -> tuple[int, ...]:
    products = {key: n for key, n in own.items() if key[0] == "product"}
    return (sum(int(key[1]) * int(key[2]) * int(key[3]) * n for key, n in products.items()),)


def _joint_work(own: Tally) -> tuple[int, ...]:
    return own[("core wait",)], own[("repeats",)]


def _vector_work(own: Tally) -> tuple[int, ...]:
    moved = sum(n for key, n in own.items() if key[0] == "bytes")
    return own[("repeats",)], moved, sum(n for key, n in own.items() if key[0] == "op")


def _best(
    body: Region,
    work: Callable[[Tally], tuple[int, ...]],
    *,
    depth: int | None = None,
    step: int | None = None,
) -> tuple[int, Region] | None:
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


def _runtime_loops(region: Region, depth: int) -> Iterator[tuple[int, Region]]:
    for inner in region.inner:
        if inner.runtime_loop:
            yield depth, inner
        yield from _runtime_loops(inner, depth + inner.runtime_loop)


def _own(loop: Region) -> Tally:
    """What a loop does outside the runtime loops in it."""
    always, extra = sum_of(loop, into_runtime_loops=False)
    return always + extra
