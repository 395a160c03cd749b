"""HFusion operations as what they mean in MLIR's own dialects.

Text in, text out; one operation a line, as bishengir-opt prints them. A few of them occur at the
Linalg level too.
"""

from __future__ import annotations

import re

from flashasc.native import structured
from flashasc.native.elementwise import ELEMENTWISE, atomic, elementwise
from flashasc.native.errors import NativeError
from flashasc.native.generic import Operands, Unknown, write_elementwise
from flashasc.native.mlir import split_list

_OPERATION = re.compile(
    r"^(?P<indent>\s*)(?:(?P<result>%[\w#]+)(?::\d+)? = )?"
    r"(?P<dialect>hfusion|linalg)\.(?P<name>[a-z_]+) ?(?P<attributes>\{[^}]*\})?"
    r"(?P<middle>[^%(]*?) ?"
    r"ins\((?P<ins>.*?)\) outs\((?P<outs>.*?)\)(?P<tail>.*)$"
)
_ARANGE = re.compile(
    r"(\s*)(%\w+) = hfusion\.arange (?:offset\[(%\w+)\] )?strides\[([^\]]*)\] "
    r"outs\((%\w+) : (\S+)\) -> \S+"
)
_FLIP = re.compile(r"(\s*)(%\w+) = hfusion\.flip (%\w+) : (\S+) flip_axis = (\d+) -> \S+")
_CUMULATE = re.compile(
    r"(\s*)(%\w+) = hfusion\.(cumsum|cumprod) (%\w+) : (\S+) cum_dims = \[(\d+)\] "
    r"reverse = (true|false) -> \S+"
)
_INTERLEAVE = re.compile(r"(\s*)(%\w+) = hfusion\.interleave (%\w+, %\w+ : .*) -> (\S+)")
_DEINTERLEAVE = re.compile(
    r"(\s*)(%\w+) = hfusion\.deinterleave (%\w+) channel<(\d+)> : (\S+) -> (\S+)"
)


def translate(text: str, *, a5: bool) -> str:
    """Rewrite every HFusion operation of a module into upstream ones.

    Args:
        text: MLIR, tensors or memrefs; operations of other dialects are left as they are.
        a5: whether the A5 generation's compiler wrote it.

    Returns:
        The module without `hfusion` operations and without the attributes that only the Ascend
        compiler reads.

    Raises:
        NativeError: an operation that has no translation.
    """
    text = re.sub(r"^module attributes .*$", "module {", text, count=1, flags=re.MULTILINE)
    text = re.sub(r" \{hacc\.arg_type = #hacc\.arg_type<\w+>\}", "", text)
    # all memory is one here
    text = re.sub(r", #hivm\.address_space<\w+>", "", text)
    lines = []
    for line in text.splitlines():
        if "hfusion." in line or "linalg.elemwise_" in line or "hivm.hir." in line:
            try:
                line = _translate_line(line, a5)
            except Unknown as unknown:
                raise NativeError(
                    f"the lowered kernel has {unknown}, which cannot be run here: "
                    f"{line.strip()[:200]}",
                    step="check",
                ) from None
        lines.append(line)
    return "\n".join(lines) + "\n"


def _translate_line(line: str, a5: bool) -> str:
    if re.search(r"hivm\.hir\.\w*sync_block_(un)?lock", line):
        # taken around an atomic; kernels with atomics run on one thread
        return ""
    if match := re.fullmatch(r"(\s*%\w+, %\w+ = )hfusion\.mulext (.*)", line):
        return f"{match[1]}arith.mulsi_extended {match[2]}"
    if match := _ARANGE.fullmatch(line):
        return structured.arange(*match.groups())
    if match := _FLIP.fullmatch(line):
        return structured.flip(match[1], match[2], match[3], match[4], int(match[5]))
    if match := _CUMULATE.fullmatch(line):
        indent, result, kind, source, type_, axis, backwards = match.groups()
        return structured.cumulate(
            kind, indent, result, source, type_, int(axis), backwards == "true"
        )
    if match := _INTERLEAVE.fullmatch(line):
        return structured.interleave(match[1], match[2], Operands.parse(match[3]), match[4])
    if match := _DEINTERLEAVE.fullmatch(line):
        indent, result, source, channel, source_type, type_ = match.groups()
        return structured.deinterleave(indent, result, source, source_type, int(channel), type_)
    if match := _OPERATION.match(line):
        return _translate_operation(match, a5)
    name = re.search(r"(?:hfusion|hivm|linalg)\.[\w.]+", line)
    raise Unknown(name[0] if name else "an operation")


def _translate_operation(match: re.Match[str], a5: bool) -> str:
    name, indent, result = match["name"], match["indent"], match["result"]
    ins, outs = Operands.parse(match["ins"]), Operands.parse(match["outs"])
    attributes = (match["attributes"] or "") + match["tail"]
    if name == "reduce_with_index":
        kind = re.search(r"<(max|min)>", match["middle"])
        axis = re.search(r"dimensions = \[(\d+)\]", match["tail"])
        if not kind or not axis or "tie_break_left = true" not in attributes:
            raise Unknown("a form of hfusion.reduce_with_index")
        return structured.reduce_with_index(indent, result, ins, outs, kind[1], int(axis[1]))
    if name == "gather":
        axis = re.search(r"axis = (\d+)", match["tail"])
        if not axis:
            raise Unknown("a form of hfusion.gather")
        return structured.gather(indent, result, ins, outs.types[0], int(axis[1]))
    if name in ELEMENTWISE:
        body = elementwise(name, attributes, ins, outs, a5)
    elif name in ("atomic_rmw", "store", "atomic_xchg", "atomic_cas"):
        body = atomic(name, attributes, outs)
    else:
        raise Unknown(f"{match['dialect']}.{name}")
    return write_elementwise(indent, result, ins, outs, body)


_CALL = re.compile(
    r"^(?P<indent> *)(?P<result>%\w+) = (?:func\.)?call @triton_"
    r"(?P<name>cumsum|cumprod|flip|gather)(?:_\d+)?\((?P<names>[^)]*)\) : "
    r"\((?P<types>.*)\) -> (?P<type>\S+)$",
    re.MULTILINE,
)


def open_calls(text: str) -> str:
    """Write out the calls of tensor functions that the Ascend compiler supplies, where known.

    Raises:
        NativeError: a form of one that is not known.
    """

    def constant(name: str) -> str:
        found = re.search(rf"^ *{name} = arith\.constant ([\w-]+)", text, re.MULTILINE)
        if found is None:
            raise Unknown(f"an axis {name} that is not a constant")
        return found[1]

    def write(match: re.Match[str]) -> str:
        names, types = split_list(match["names"]), split_list(match["types"])
        indent, result, type_ = match["indent"], match["result"], match["type"]
        try:
            if match["name"] == "gather":
                operands = Operands(names[:2], types[:2])
                return structured.gather(indent, result, operands, type_, int(constant(names[2])))
            axis = int(constant(names[1]))
            if match["name"] == "flip":
                return structured.flip(indent, result, names[0], type_, axis)
            backwards = constant(names[2]) == "true"
            return structured.cumulate(
                match["name"], indent, result, names[0], type_, axis, backwards
            )
        except Unknown as unknown:
            raise NativeError(
                f"the lowered kernel has {unknown}, which cannot be run here: {match[0].strip()}",
                step="check",
            ) from None

    opened = _CALL.sub(write, text)
    # declarations that nothing calls any more
    for declared in re.findall(r"func\.func private @(triton_\w+)\(", opened):
        if not re.search(rf"call @{declared}\(", opened):
            opened = re.sub(rf"^ *func\.func private @{declared}\(.*\n", "", opened, flags=re.M)
    return opened
