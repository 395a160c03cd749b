"""Functions of triton-ascend's libdevice, which the lowered text calls and the device supplies."""

from __future__ import annotations

import re
from collections.abc import Callable

from flashasc.native.errors import NativeError
from flashasc.native.generic import Body, Operands, write_elementwise
from flashasc.native.mlir import element, is_float, split_list

_UNARY = {
    "tanh": "math.tanh",
    "tan": "math.tan",
    "atan": "math.atan",
    "log1p": "math.log1p",
    "round": "math.round",
}

_DECLARATION = re.compile(
    r"^(?P<indent> *)func\.func private @(?P<name>\w+)\((?P<args>[^)]*)\)"
    r"(?: -> (?P<result>\S+))?(?: attributes \{.*\})?$",
    re.MULTILINE,
)


def _recip(type_: str) -> str:
    return f"%one = arith.constant 1.0 : {type_}\n    %y = arith.divf %one, %a0 : {type_}"


def _relu(type_: str) -> str:
    return f"%zero = arith.constant 0.0 : {type_}\n    %y = arith.maximumf %a0, %zero : {type_}"


def _isnan(type_: str) -> str:
    return f"%y = arith.cmpf uno, %a0, %a0 : {type_}"


def _isinf(type_: str) -> str:
    infinity = {"f16": "0x7C00", "bf16": "0x7F80", "f32": "0x7F800000"}[type_]
    return (
        f"%size = math.absf %a0 : {type_}\n    %inf = arith.constant {infinity} : {type_}\n"
        f"    %y = arith.cmpf oeq, %size, %inf : {type_}"
    )


def _pow(type_: str) -> str:
    return f"%y = math.powf %a0, %a1 : {type_}"


_OTHERS: dict[str, tuple[int, Callable[[str], str]]] = {
    "recip": (1, _recip),
    "relu": (1, _relu),
    "isnan": (1, _isnan),
    "isinf": (1, _isinf),
    "pow": (2, _pow),
}


_MAP = re.compile(
    r"^(?P<indent> *)(?P<result>%\w+) = linalg\.map \{ func\.call \{callee = @(?P<callee>\w+)\} \} "
    r"ins\((?P<ins>.*)\) outs\((?P<outs>.*)\)$",
    re.MULTILINE,
)


def _open_map(match: re.Match[str]) -> str:
    ins, outs = Operands.parse(match["ins"]), Operands.parse(match["outs"])
    types = [element(type_) for type_ in ins.types]
    arguments = ", ".join(f"%fi{i}" for i in range(len(types)))
    to = element(outs.types[0])

    def body(written: Body) -> str:
        return written.add(
            f"func.call @{match['callee']}({arguments}) : ({', '.join(types)}) -> {to}"
        )

    return write_elementwise(match["indent"], match["result"], ins, outs, body)


def define(text: str) -> str:
    """Give every function that the module only declares a body.

    Args:
        text: MLIR module, as triton-ascend lowers it.

    Returns:
        The module, each declaration replaced by a definition.

    Raises:
        NativeError: a declared function is not known here.
    """
    return _DECLARATION.sub(_define, _MAP.sub(_open_map, text))


def _define(match: re.Match[str]) -> str:
    name, result = match["name"], match["result"]
    types = split_list(match["args"])
    short = re.fullmatch(r"__hmf_(\w+?)(?:f|Dh)?", name)
    body = _body(short[1], types) if short and types and result else None
    if body is None:
        raise NativeError(
            f"the lowered kernel calls @{name}({', '.join(types)}), which the Ascend compiler "
            f"supplies and this route does not ({_origin(name)})",
            step="check",
        )
    arguments = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(types))
    return (
        f"{match['indent']}func.func private @{name}({arguments}) -> {result} {{\n"
        f"    {body}\n    return %y : {result}\n  }}"
    )


def _body(name: str, types: list[str]) -> str | None:
    if not is_float(types[0]) or len(set(types)) != 1:
        return None
    if name in _UNARY and len(types) == 1:
        return f"%y = {_UNARY[name]} %a0 : {types[0]}"
    count, write = _OTHERS.get(name, (0, None))
    return write(types[0]) if write and count == len(types) else None


def _origin(name: str) -> str:
    """Say what in a kernel's source a called function comes from."""
    for prefix, source in (
        ("triton_cumsum", "tl.cumsum or tl.associative_scan with an addition"),
        ("triton_cumprod", "tl.cumprod or tl.associative_scan with a product"),
        ("triton_sort", "tl.sort"),
        ("triton_flip", "tl.flip"),
        ("triton_gather", "tl.gather"),
        ("triton_print", "tl.device_print"),
        ("triton_assert", "tl.device_assert"),
        ("__hmf_", "a libdevice function"),
    ):
        if name.startswith(prefix):
            return source
    return "an extern function"
