"""What HFusion's element-wise operations compute, in MLIR's own dialects.

The compiler's own `--linalg-generalize-named-ops` gives some of them a body that only HIVM, which
goes by the name, is not misled by: `vnot` becomes the identity, a rounding float cast a plain copy.
So each is written out here, and one that is not in the tables is refused.
"""

from __future__ import annotations

import re

from flashasc.native.generic import Body, Operands, Unknown, WriteBody
from flashasc.native.mlir import element, is_float, width

ELEMENTWISE = frozenset(
    (
        "elemwise_unary",
        "elemwise_binary",
        "elemwise_ternary",
        "compare",
        "select",
        "cast",
        "bitcast",
    )
)

_MATH = "exp log sqrt rsqrt tanh sin cos atan tan erf exp2 expm1 log2 log10 log1p ceil floor"

# name -> operation on floats, operation on integers; None where there is none
_UNARY: dict[str, tuple[str | None, str | None]] = {
    **{name: (f"math.{name}", None) for name in _MATH.split()},
    "abs": ("math.absf", "math.absi"),
    "absi": (None, "math.absi"),
    "negf": ("arith.negf", None),
}

_BINARY: dict[str, tuple[str | None, str | None]] = {
    "add": ("arith.addf", "arith.addi"),
    "sub": ("arith.subf", "arith.subi"),
    "mul": ("arith.mulf", "arith.muli"),
    "div": ("arith.divf", "arith.divsi"),
    "divfhp": ("arith.divf", None),
    "div_unsigned": (None, "arith.divui"),
    "max_signed": ("arith.maximumf", "arith.maxsi"),
    "min_signed": ("arith.minimumf", "arith.minsi"),
    "max_unsigned": (None, "arith.maxui"),
    "min_unsigned": (None, "arith.minui"),
    "vand": (None, "arith.andi"),
    "vor": (None, "arith.ori"),
    "vxor": (None, "arith.xori"),
    "shli": (None, "arith.shli"),
    "shrsi": (None, "arith.shrsi"),
    "shrui": (None, "arith.shrui"),
    "mod": ("arith.remf", "arith.remsi"),
    "modui": (None, "arith.remui"),
    "powf": ("math.powf", None),
}

# What maxf and minf do with NaN differs between the two compilers' own definitions of them.
_MAXIMUM = {
    False: {"maxf": "arith.maxnumf", "minf": "arith.minnumf"},
    True: {"maxf": "arith.maximumf", "minf": "arith.minimumf"},
}

_COMPARE: dict[str, tuple[str | None, str]] = {
    "veq": ("oeq", "eq"),
    "vne": ("une", "ne"),
    "vlt": ("olt", "slt"),
    "vle": ("ole", "sle"),
    "vgt": ("ogt", "sgt"),
    "vge": ("oge", "sge"),
    "vult": (None, "ult"),
    "vule": (None, "ule"),
    "vugt": (None, "ugt"),
    "vuge": (None, "uge"),
}

_ATOMIC: dict[str, tuple[str | None, str | None]] = {
    "add": ("arith.addf", "arith.addi"),
    "max": ("arith.maximumf", "arith.maxsi"),
    "min": ("arith.minimumf", "arith.minsi"),
    "umax": (None, "arith.maxui"),
    "umin": (None, "arith.minui"),
    "and": (None, "arith.andi"),
    "or": (None, "arith.ori"),
    "xor": (None, "arith.xori"),
}

_ROUND_FLOAT = {
    "floor": "math.floor",
    "ceil": "math.ceil",
    "rint": "math.roundeven",
    "trunc": "math.trunc",
    "round": "math.round",
}


def _choose(table: dict[str, tuple[str | None, str | None]], name: str, type_: str) -> str:
    found = table.get(name, (None, None))[0 if is_float(type_) else 1]
    if found is None:
        raise Unknown(f"the function {name} on {type_}")
    return found


def _enum(attributes: str, kind: str, default: str | None = None) -> str:
    match = re.search(rf"#(?:hfusion|linalg)\.{kind}<(\w+)>", attributes)
    if match is None and default is None:
        raise Unknown(f"an operation without its {kind}")
    return match[1] if match else str(default)


def elementwise(
    operation: str, attributes: str, ins: Operands, outs: Operands, a5: bool
) -> WriteBody:
    """Return what writes the body of one operation.

    Args:
        operation: one of ELEMENTWISE.
        attributes: its attributes, as printed.
        ins, outs: its operands.
        a5: whether the A5 generation's compiler wrote it.

    Raises:
        Unknown: it is not in the tables.
    """
    types = [element(type_) for type_ in ins.types]
    to = element(outs.types[0])
    if operation == "select":
        return lambda body: body.add(f"arith.select %fi0, %fi1, %fi2 : {to}")
    if operation == "bitcast":
        return lambda body: body.add(f"arith.bitcast %fi0 : {types[0]} to {to}")
    if operation == "cast":
        return _cast(attributes, types[0], to)
    if operation == "compare":
        of_float, of_int = _COMPARE.get(_enum(attributes, "compare_fn"), (None, ""))
        predicate, code = (of_float, "cmpf") if is_float(types[0]) else (of_int, "cmpi")
        if not predicate:
            raise Unknown(f"the comparison {_enum(attributes, 'compare_fn')} on {types[0]}")
        return lambda body: body.add(f"arith.{code} {predicate}, %fi0, %fi1 : {types[0]}")
    if operation == "elemwise_unary":
        return _unary(_enum(attributes, "unary_fn"), to)
    if operation == "elemwise_ternary":
        if _enum(attributes, "ternary_fn") != "fma" or not is_float(to):
            raise Unknown(f"the function {_enum(attributes, 'ternary_fn')} on {to}")
        return lambda body: body.add(f"math.fma %fi0, %fi1, %fi2 : {to}")
    name = _enum(attributes, "binary_fn")
    maximum = _MAXIMUM[a5].get(name) if is_float(to) else None
    code = maximum or _choose(_BINARY, name, to)
    return lambda body: body.add(f"{code} %fi0, %fi1 : {to}")


def _unary(name: str, type_: str) -> WriteBody:
    if name == "vnot" and not is_float(type_):
        ones = "true" if type_ == "i1" else "-1"
        return lambda body: body.add(f"arith.xori %fi0, {body.constant(ones, type_)} : {type_}")
    if name == "rec" and is_float(type_):
        return lambda body: body.add(f"arith.divf {body.constant('1.0', type_)}, %fi0 : {type_}")
    if name == "relu" and is_float(type_):
        return lambda body: body.add(
            f"arith.maximumf %fi0, {body.constant('0.0', type_)} : {type_}"
        )
    code = _choose(_UNARY, name, type_)
    return lambda body: body.add(f"{code} %fi0 : {type_}")


def _cast(attributes: str, source: str, to: str) -> WriteBody:
    rounding = _enum(attributes, "round_mode", "rint")
    # a truth value is 0 or 1 whatever the sign mode says
    unsigned = _enum(attributes, "type_fn", "cast_signed") == "cast_unsigned" or source == "i1"
    form = f"a cast from {source} to {to}, rounding {rounding}"
    if "enable_saturate = true" in attributes:
        raise Unknown(f"{form}, saturating")
    if is_float(source) and is_float(to):
        return _cast_float(rounding, source, to, form)
    if is_float(source):
        if to == "i1":
            raise Unknown(form)
        code = "arith.fptoui" if unsigned else "arith.fptosi"

        def to_int(body: Body) -> str:
            value = "%fi0"
            if rounding != "trunc":
                if rounding not in _ROUND_FLOAT:
                    raise Unknown(form)
                value = body.add(f"{_ROUND_FLOAT[rounding]} {value} : {source}")
            return body.add(f"{code} {value} : {source} to {to}")

        return to_int
    if is_float(to):
        return _cast_from_int(rounding, source, to, unsigned, form)
    if to == "i1":
        return lambda body: body.add(
            f"arith.cmpi ne, %fi0, {body.constant('0', source)} : {source}"
        )
    if width(to) < width(source):
        if "enable_overflow = false" in attributes:
            raise Unknown(f"{form}, not wrapping")
        return lambda body: body.add(f"arith.trunci %fi0 : {source} to {to}")
    if width(to) == width(source):
        return lambda body: "%fi0"
    code = "arith.extui" if unsigned else "arith.extsi"
    return lambda body: body.add(f"{code} %fi0 : {source} to {to}")


def _cast_float(rounding: str, source: str, to: str, form: str) -> WriteBody:
    if source == to:
        if rounding not in _ROUND_FLOAT:
            raise Unknown(form)
        return lambda body: body.add(f"{_ROUND_FLOAT[rounding]} %fi0 : {to}")
    if width(to) > width(source):
        return lambda body: body.add(f"arith.extf %fi0 : {source} to {to}")
    if rounding == "rint":
        return lambda body: body.add(f"arith.truncf %fi0 : {source} to {to}")
    if rounding != "trunc" or width(to) == width(source):
        raise Unknown(form)

    def towards_zero(body: Body) -> str:
        # round to nearest, then one step back where that went away from zero
        near = body.add(f"arith.truncf %fi0 : {source} to {to}")
        back = body.add(f"arith.extf {near} : {to} to {source}")
        size, wanted = (body.add(f"math.absf {value} : {source}") for value in (back, "%fi0"))
        over = body.add(f"arith.cmpf ogt, {size}, {wanted} : {source}")
        bits = body.add(f"arith.bitcast {near} : {to} to i{width(to)}")
        step = body.add(f"arith.extui {over} : i1 to i{width(to)}")
        bits = body.add(f"arith.subi {bits}, {step} : i{width(to)}")
        return body.add(f"arith.bitcast {bits} : i{width(to)} to {to}")

    return towards_zero


def _cast_from_int(rounding: str, source: str, to: str, unsigned: bool, form: str) -> WriteBody:
    code = "arith.uitofp" if unsigned else "arith.sitofp"
    digits = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}.get(to, 0)
    if rounding == "rint" or width(source) <= digits:
        return lambda body: body.add(f"{code} %fi0 : {source} to {to}")
    if rounding != "trunc" or source == "i1":
        raise Unknown(form)

    def towards_zero(body: Body) -> str:
        # clear what lies below the last digit that fits; the rest converts exactly
        zero = body.constant("0", source)
        negative = (
            body.constant("false", "i1")
            if unsigned
            else body.add(f"arith.cmpi slt, %fi0, {zero} : {source}")
        )
        flipped = body.add(f"arith.subi {zero}, %fi0 : {source}")
        size = body.add(f"arith.select {negative}, {flipped}, %fi0 : {source}")
        leading = body.add(f"math.ctlz {size} : {source}")
        spare = body.constant(str(width(source) - digits), source)
        excess = body.add(f"arith.subi {spare}, {leading} : {source}")
        excess = body.add(f"arith.maxsi {excess}, {zero} : {source}")
        kept = body.add(f"arith.shrui {size}, {excess} : {source}")
        kept = body.add(f"arith.shli {kept}, {excess} : {source}")
        value = body.add(f"arith.uitofp {kept} : {source} to {to}")
        opposite = body.add(f"arith.negf {value} : {to}")
        return body.add(f"arith.select {negative}, {opposite}, {value} : {to}")

    return towards_zero


def atomic(operation: str, attributes: str, outs: Operands) -> WriteBody:
    """Return what writes the body of one atomic, as a plain read and write.

    Args:
        operation: "atomic_rmw", "atomic_xchg", "atomic_cas" or "store" (also without atomic_kind).
        attributes: its attributes, as printed.
        outs: where it reads and writes.

    Raises:
        Unknown: it is not in the tables.
    """
    type_ = element(outs.types[0])
    if operation == "atomic_xchg":
        return lambda body: "%fi0"
    if operation == "atomic_cas":
        if is_float(type_):
            raise Unknown(f"a compare-and-swap on {type_}")

        def swap(body: Body) -> str:
            hit = body.add(f"arith.cmpi eq, %fo0, %fi0 : {type_}")
            return body.add(f"arith.select {hit}, %fi1, %fo0 : {type_}")

        return swap
    kind = re.search(r"atomic_kind = (?:#hfusion\.atomic_kind)?<(\w+)>", attributes)
    if kind is None:
        if operation == "store":
            return lambda body: "%fi0"
        raise Unknown("an atomic without its kind")
    code = _choose(_ATOMIC, kind[1], type_)
    return lambda body: body.add(f"{code} %fo0, %fi0 : {type_}")
