"""exp, exp2, rounding to bf16 and integer division, written out in LLVM's dialect.

The exponentials are computed in fp64 and rounded once: 2**x = 2**n * 2**r with n the nearest
integer and |r| <= 1/2, 2**r = 1 + r*q(r) with q a polynomial of degree 6 (Chebyshev interpolation,
relative error of 1 + r*q below 1.2e-10). Results are within 0.51 units in the last place of fp32,
subnormal ones included, and 2**n is exact. No product is fused with a sum, so every machine gives
the same bits. Written out, they vectorise.
"""

from __future__ import annotations

import re
import struct

_Q = (
    0.6931471805568316,
    0.24022650922342711,
    0.05550410906331985,
    0.009618056669891503,
    0.0013333478467158547,
    0.00015461447461298118,
    1.5303702451919612e-05,
)
_LOG2E = 1.4426950408889634
# adding it leaves the nearest integer in the low bits of the sum
_MAGIC = 1.5 * 2.0**52


def _constant(value: float) -> str:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"llvm.mlir.constant(0x{bits:016X} : f64) : f64"


def _polynomial() -> str:
    lines = [f"%c{i} = {_constant(value)}" for i, value in enumerate(_Q)]
    lines.append(f"%m{len(_Q)} = llvm.fmul %r, %c{len(_Q) - 1} : f64")
    for i in reversed(range(len(_Q) - 1)):
        lines.append(f"%a{i + 1} = llvm.fadd %m{i + 2}, %c{i} : f64")
        lines.append(f"%m{i + 1} = llvm.fmul %a{i + 1}, %r : f64")
    lines.append("%p = llvm.fadd %m1, %one : f64")
    return "".join(f"    {line}\n" for line in lines)


_INLINE = 'attributes {passthrough = ["alwaysinline"]}'

DEFINITIONS = f"""
  llvm.func internal @flashasc_exp2_of_f64(%x: f64) -> f32 {_INLINE} {{
    %least = {_constant(-1000.0)}
    %most = {_constant(1000.0)}
    %magic = {_constant(_MAGIC)}
    %one = {_constant(1.0)}
    %one_bits = llvm.mlir.constant({0x3FF << 52} : i64) : i64
    %shift = llvm.mlir.constant(52 : i64) : i64
    %below = llvm.fcmp "olt" %x, %least : f64
    %x1 = llvm.select %below, %least, %x : i1, f64
    %above = llvm.fcmp "ogt" %x1, %most : f64
    %t = llvm.select %above, %most, %x1 : i1, f64
    %k = llvm.fadd %t, %magic : f64
    %n = llvm.fsub %k, %magic : f64
    %r = llvm.fsub %t, %n : f64
{_polynomial()}    %k_bits = llvm.bitcast %k : f64 to i64
    %raised = llvm.shl %k_bits, %shift : i64
    %scale_bits = llvm.add %raised, %one_bits : i64
    %scale = llvm.bitcast %scale_bits : i64 to f64
    %y = llvm.fmul %p, %scale : f64
    %rounded = llvm.fptrunc %y : f64 to f32
    llvm.return %rounded : f32
  }}
  llvm.func internal @flashasc_exp2(%x: f32) -> f32 {_INLINE} {{
    %wide = llvm.fpext %x : f32 to f64
    %y = llvm.call @flashasc_exp2_of_f64(%wide) : (f64) -> f32
    llvm.return %y : f32
  }}
  llvm.func internal @flashasc_exp(%x: f32) -> f32 {_INLINE} {{
    %wide = llvm.fpext %x : f32 to f64
    %log2e = {_constant(_LOG2E)}
    %t = llvm.fmul %wide, %log2e : f64
    %y = llvm.call @flashasc_exp2_of_f64(%t) : (f64) -> f32
    llvm.return %y : f32
  }}
  llvm.func internal @flashasc_to_bf16(%x: f32) -> bf16 {_INLINE} {{
    %bits = llvm.bitcast %x : f32 to i32
    %sixteen = llvm.mlir.constant(16 : i32) : i32
    %one = llvm.mlir.constant(1 : i32) : i32
    %half = llvm.mlir.constant(32767 : i32) : i32
    %quiet = llvm.mlir.constant(64 : i32) : i32
    %high = llvm.lshr %bits, %sixteen : i32
    %odd = llvm.and %high, %one : i32
    %bias = llvm.add %half, %odd : i32
    %moved = llvm.add %bits, %bias : i32
    %rounded = llvm.lshr %moved, %sixteen : i32
    %nan = llvm.or %high, %quiet : i32
    %is_nan = llvm.fcmp "uno" %x, %x : f32
    %chosen = llvm.select %is_nan, %nan, %rounded : i1, i32
    %short = llvm.trunc %chosen : i32 to i16
    %y = llvm.bitcast %short : i16 to bf16
    llvm.return %y : bf16
  }}
"""


_DIVISION = re.compile(r"llvm\.([su])(div|rem) (%\w+), (%\w+)\s*: (i8|i16|i32|i64)\b")


def _division(sign: str, operation: str, type_: str) -> str:
    """A division that does not stop the process where the processor's own does.

    x / 0 is 0 and x % 0 is x; the least integer divided by -1 wraps to itself. A kernel may divide
    by zero where it throws the result away: in the lanes of a mask.
    """
    least = -(1 << (int(type_[1:]) - 1))
    wraps = ""
    divisor = "%nonzero"
    if sign == "s":
        divisor = "%safe"
        wraps = f"""
    %least = llvm.mlir.constant({least} : {type_}) : {type_}
    %ones = llvm.mlir.constant(-1 : {type_}) : {type_}
    %is_least = llvm.icmp "eq" %x, %least : {type_}
    %is_ones = llvm.icmp "eq" %y, %ones : {type_}
    %wraps = llvm.and %is_least, %is_ones : i1
    %safe = llvm.select %wraps, %one, %nonzero : i1, {type_}"""
    by_zero = "%zero" if operation == "div" else "%x"
    arguments = f"(%x: {type_}, %y: {type_}) -> {type_}"
    return f"""
  llvm.func internal @flashasc_{sign}{operation}_{type_}{arguments} {_INLINE} {{
    %zero = llvm.mlir.constant(0 : {type_}) : {type_}
    %one = llvm.mlir.constant(1 : {type_}) : {type_}
    %is_zero = llvm.icmp "eq" %y, %zero : {type_}
    %nonzero = llvm.select %is_zero, %one, %y : i1, {type_}{wraps}
    %r = llvm.{sign}{operation} %x, {divisor} : {type_}
    %result = llvm.select %is_zero, {by_zero}, %r : i1, {type_}
    llvm.return %result : {type_}
  }}"""


def use_definitions(text: str) -> str:
    """Replace what LLVM or the processor does its own way by calls, and define what is called.

    Args:
        text: body of a module in LLVM's dialect, up to and with its closing brace.

    Returns:
        The body with exp, exp2, fp32-to-bf16 rounding and integer division called as functions.
    """
    text = re.sub(
        r"llvm\.intr\.(exp2?)\((%\w+)\)\s*(?:\{[^}]*\} )?: \(f32\) -> f32",
        r"llvm.call @flashasc_\1(\2) : (f32) -> f32",
        text,
    )
    text = re.sub(
        r"llvm\.fptrunc (%\w+) : f32 to bf16",
        r"llvm.call @flashasc_to_bf16(\1) : (f32) -> bf16",
        text,
    )
    divisions: dict[tuple[str, str, str], None] = {}

    def call(match: re.Match[str]) -> str:
        sign, operation, x, y, type_ = match.groups()
        divisions[sign, operation, type_] = None
        function = f"@flashasc_{sign}{operation}_{type_}"
        return f"llvm.call {function}({x}, {y}) : ({type_}, {type_}) -> {type_}"

    text = _DIVISION.sub(call, text)
    end = text.rindex("}")
    defined = "".join(_division(*division) for division in divisions)
    return f"{text[:end]}{DEFINITIONS}{defined}\n{text[end:]}"
