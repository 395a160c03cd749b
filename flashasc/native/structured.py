"""Operations that move elements or run along an axis, as `linalg.generic` on tensors.

They come twice: as `hfusion` operations, and at the Linalg level as calls of functions that the
Ascend compiler supplies (`@triton_cumsum`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flashasc.native.generic import (
    Body,
    Operands,
    Unknown,
    affine_map,
    dims,
    identity,
    write_elementwise,
    write_generic,
)
from flashasc.native.mlir import element, is_float, rank, split_list


def sizes(type_: str) -> list[int]:
    """Return the sizes of a tensor type.

    Raises:
        Unknown: one of them is not known.
    """
    found = re.match(r"tensor<((?:[\d?]+x)*)", type_)
    if found is None or "?" in found[1]:
        raise Unknown(f"an operation on {type_}, whose size is not known,")
    return [int(size) for size in found[1].split("x")[:-1]]


def _with_shape(shape: Sequence[int], type_: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element(type_)}>"


def _name(result: str, use: str) -> str:
    return f"%fx_{result[1:]}_{use}"


def _empty(indent: str, name: str, type_: str) -> str:
    return f"{indent}{name} = tensor.empty() : {type_}"


def arange(indent: str, result: str, offset: str | None, strides: str, out: str, type_: str) -> str:
    """offset + sum of index * stride over the axes."""
    if is_float(element(type_)):
        raise Unknown(f"hfusion.arange of {type_}")

    def body(written: Body) -> str:
        total = offset
        for axis, stride in enumerate(split_list(strides)):
            index = written.add(f"linalg.index {axis} : index")
            term = written.add(f"arith.muli {index}, {stride} : index")
            total = written.add(f"arith.addi {total}, {term} : index") if total else term
        return written.add(f"arith.index_cast {total} : index to {element(type_)}")

    return write_elementwise(indent, result, Operands([], []), Operands([out], [type_]), body)


def flip(indent: str, result: str, source: str, type_: str, axis: int) -> str:
    """Reverse one axis."""
    shape = sizes(type_)
    reversed_ = dims(len(shape))
    reversed_[axis] = f"{shape[axis] - 1} - d{axis}"
    out = _name(result, "out")
    operation = write_generic(
        indent,
        result,
        Operands([source], [type_]),
        Operands([out], [type_]),
        [affine_map(len(shape), reversed_), identity(type_)],
        ["parallel"] * len(shape),
        lambda body: ["%fi0"],
    )
    return f"{_empty(indent, out, type_)}\n{operation}"


def cumulate(
    kind: str, indent: str, result: str, source: str, type_: str, axis: int, backwards: bool
) -> str:
    """Running sum or product along an axis, one element after the other, in the tensor's type.

    Args:
        kind: "cumsum" or "cumprod".
    """
    shape, type_of = sizes(type_), element(type_)
    floats = is_float(type_of)
    code = {
        ("cumsum", True): "arith.addf",
        ("cumsum", False): "arith.addi",
        ("cumprod", True): "arith.mulf",
        ("cumprod", False): "arith.muli",
    }[kind, floats]
    # what leaves every first element as it is, -0.0 included
    neutral = {"cumsum": "-0.0" if floats else "0", "cumprod": "1.0" if floats else "1"}[kind]
    rest = [size for i, size in enumerate(shape) if i != axis]
    state_type = _with_shape(rest, type_)
    visited = dims(len(shape))
    if backwards:
        visited[axis] = f"{shape[axis] - 1} - d{axis}"
    kept = [dim for i, dim in enumerate(dims(len(shape))) if i != axis]
    along = affine_map(len(shape), visited)
    one, state, filled, out = (_name(result, use) for use in ("one", "state", "filled", "out"))

    def body(written: Body) -> list[str]:
        value = written.add(f"{code} %fo0, %fi0 : {type_of}")
        return [value, value]

    operation = write_generic(
        indent,
        _name(result, "pair"),
        Operands([source], [type_]),
        Operands([filled, out], [state_type, type_]),
        [along, affine_map(len(shape), kept), along],
        ["reduction" if i == axis else "parallel" for i in range(len(shape))],
        body,
    )
    return "\n".join(
        [
            f"{indent}{one} = arith.constant {neutral} : {type_of}",
            _empty(indent, state, state_type),
            f"{indent}{filled} = linalg.fill ins({one} : {type_of}) "
            f"outs({state} : {state_type}) -> {state_type}",
            _empty(indent, out, type_),
            operation,
            f"{indent}{result} = tensor.cast {_name(result, 'pair')}#1 : {type_} to {type_}",
        ]
    )


def gather(indent: str, result: str, ins: Operands, type_: str, axis: int) -> str:
    """out[i, j] = source[index[i, j], j] for axis 0, and alike for others."""
    source, index = ins.names
    if rank(ins.types[0]) != rank(ins.types[1]) or element(ins.types[1]) not in ("i32", "i64"):
        raise Unknown(f"a gather from {ins.types[0]} by {ins.types[1]}")
    out = _name(result, "out")

    def body(written: Body) -> str:
        at = [written.add(f"linalg.index {i} : index") for i in range(rank(type_))]
        at[axis] = written.add(f"arith.index_cast %fi0 : {element(ins.types[1])} to index")
        return written.add(f"tensor.extract {source}[{', '.join(at)}] : {ins.types[0]}")

    operation = write_elementwise(
        indent, result, Operands([index], [ins.types[1]]), Operands([out], [type_]), body
    )
    return f"{_empty(indent, out, type_)}\n{operation}"


def interleave(indent: str, result: str, ins: Operands, type_: str) -> str:
    """Elements of two tensors by turns along the last axis."""
    if len(ins.names) != 2:
        raise Unknown("hfusion.interleave of other than two tensors")
    out, last = _name(result, "out"), rank(type_) - 1

    def body(written: Body) -> str:
        at = [written.add(f"linalg.index {i} : index") for i in range(rank(type_))]
        two = written.constant("2", "index")
        zero = written.constant("0", "index")
        turn = written.add(f"arith.remui {at[last]}, {two} : index")
        at[last] = written.add(f"arith.divui {at[last]}, {two} : index")
        place = ", ".join(at)
        first, second = (
            written.add(f"tensor.extract {name}[{place}] : {of}")
            for name, of in zip(ins.names, ins.types)
        )
        even = written.add(f"arith.cmpi eq, {turn}, {zero} : index")
        return written.add(f"arith.select {even}, {first}, {second} : {element(type_)}")

    operation = write_elementwise(indent, result, Operands([], []), Operands([out], [type_]), body)
    return f"{_empty(indent, out, type_)}\n{operation}"


def deinterleave(
    indent: str, result: str, source: str, source_type: str, channel: int, type_: str
) -> str:
    """Every second element along the last axis, from `channel` on."""
    out, last = _name(result, "out"), rank(type_) - 1

    def body(written: Body) -> str:
        at = [written.add(f"linalg.index {i} : index") for i in range(rank(type_))]
        two = written.constant("2", "index")
        start = written.constant(str(channel), "index")
        at[last] = written.add(f"arith.muli {at[last]}, {two} : index")
        at[last] = written.add(f"arith.addi {at[last]}, {start} : index")
        return written.add(f"tensor.extract {source}[{', '.join(at)}] : {source_type}")

    operation = write_elementwise(indent, result, Operands([], []), Operands([out], [type_]), body)
    return f"{_empty(indent, out, type_)}\n{operation}"


def reduce_with_index(
    indent: str, result: str, ins: Operands, outs: Operands, kind: str, axis: int
) -> str:
    """The first largest ("max") or smallest ("min") element along an axis, and its index."""
    of, index_type = (element(type_) for type_ in outs.types)
    if len(ins.names) != 1 or not is_float(of):
        raise Unknown(f"hfusion.reduce_with_index of {', '.join(ins.types)}")
    count = rank(ins.types[0])
    kept = affine_map(count, [dim for i, dim in enumerate(dims(count)) if i != axis])

    def body(written: Body) -> list[str]:
        at = written.add(f"linalg.index {axis} : index")
        here = written.add(f"arith.index_cast {at} : index to {index_type}")
        zero = written.constant("0", index_type)
        # the first element always enters: what the outputs hold before is no part of the result
        first = written.add(f"arith.cmpi eq, {here}, {zero} : {index_type}")
        predicate = "ogt" if kind == "max" else "olt"
        better = written.add(f"arith.cmpf {predicate}, %fi0, %fo0 : {of}")
        take = written.add(f"arith.ori {first}, {better} : i1")
        return [
            written.add(f"arith.select {take}, %fi0, %fo0 : {of}"),
            written.add(f"arith.select {take}, {here}, %fo1 : {index_type}"),
        ]

    return write_generic(
        indent,
        result,
        ins,
        outs,
        [identity(ins.types[0]), kept, kept],
        ["reduction" if i == axis else "parallel" for i in range(count)],
        body,
    )


_REDUCE = re.compile(
    r"^(?P<indent> *)(?P<result>%\w+) = linalg\.reduce ins\((?P<source>%[\w#]+) : "
    r"(?P<type>tensor<\S+)\) outs\((?P<start>%\w+) : (?P<out>tensor<\S+)\) "
    r"dimensions = \[(?P<axis>\d+)\].*\n"
    r" *\((?P<element>%\w+): \S+, (?P<state>%\w+): \S+\) \{\n"
    r"(?P<body>(?:.*\n)*?) *linalg\.yield (?P<value>%\w+) : \S+\n *\}$",
    re.MULTILINE,
)


def start_reductions(text: str) -> str:
    """Let a reduction with a function of the kernel's own start from its first element.

    triton-adapter-opt knows the neutral element of sums and maxima only, and starts others from a
    tensor that holds nothing; what `tl.reduce` means starts from the first element.
    """

    def write(match: re.Match[str]) -> str:
        if not re.search(rf"^ *{match['start']} = tensor\.empty\(", text, re.MULTILINE):
            return match[0]
        indent, axis, type_ = match["indent"], int(match["axis"]), match["type"]
        kept = [dim for i, dim in enumerate(dims(rank(type_))) if i != axis]
        maps = f"{identity(type_)}, {affine_map(rank(type_), kept)}"
        loops = ", ".join('"reduction"' if i == axis else '"parallel"' for i in range(rank(type_)))
        of = element(type_)
        return (
            f"{indent}{match['result']} = linalg.generic {{indexing_maps = [{maps}], "
            f"iterator_types = [{loops}]}} ins({match['source']} : {type_}) "
            f"outs({match['start']} : {match['out']}) {{\n"
            f"{indent}^bb0({match['element']}: {of}, {match['state']}: {of}):\n"
            f"{match['body']}"
            f"{indent}  %fx_at = linalg.index {axis} : index\n"
            f"{indent}  %fx_zero = arith.constant 0 : index\n"
            f"{indent}  %fx_first = arith.cmpi eq, %fx_at, %fx_zero : index\n"
            f"{indent}  %fx_value = arith.select %fx_first, {match['element']}, "
            f"{match['value']} : {of}\n"
            f"{indent}  linalg.yield %fx_value : {of}\n"
            f"{indent}}} -> {match['out']}"
        )

    return _REDUCE.sub(write, text)
