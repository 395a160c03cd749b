"""bfloat16: loads, casts, arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from .registry import CHECKS, SEED, N, check, hostile, normals, same


@triton.jit
def _cast(x_ptr, out_ptr, ROUNDING: tl.constexpr, N: tl.constexpr):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, x.to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING))


def cast(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    _cast[(x.numel() // N,)](x, out, ROUNDING=rounding, N=N)
    return out


EVERY_BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)


@check
def bf16_load_and_store() -> None:
    same(cast(EVERY_BF16, torch.bfloat16), EVERY_BF16)


@check
def bf16_to_fp32() -> None:
    same(cast(EVERY_BF16, torch.float32), EVERY_BF16.float())


@check
def bf16_to_fp16_and_fp64() -> None:
    same(cast(EVERY_BF16, torch.float16), EVERY_BF16.half())
    same(cast(EVERY_BF16, torch.float64), EVERY_BF16.double())


@check
def fp32_to_bf16_rounds_to_nearest_even() -> None:
    x = torch.cat([normals(2048), hostile(torch.float32)])
    same(cast(x, torch.bfloat16), x.bfloat16())
    same(cast(x, torch.bfloat16, "rtne"), x.bfloat16())
    ties = (EVERY_BF16.float().view(torch.int32) | 0x8000).view(torch.float32)
    same(cast(ties, torch.bfloat16), ties.bfloat16())


@check
def fp32_to_bf16_toward_zero() -> None:
    x = normals(2048)
    truncated = (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    same(cast(x, torch.bfloat16, "rtz"), truncated)


@check
def fp64_to_bf16_rounds_once() -> None:
    x = torch.cat([normals(2048).double(), hostile(torch.float64, 8192)])
    half = 1 + 2.0**-8  # the middle of two bf16 numbers; what follows is lost in fp32
    near = [half + 2.0**-40, half - 2.0**-40, -half - 2.0**-40, half]
    x[:4] = torch.tensor(near, dtype=torch.float64)
    found = cast(x, torch.bfloat16)
    assert found[:4].tolist() == [1 + 2.0**-7, 1.0, -1 - 2.0**-7, 1.0], found[:4]
    nearest = x.float().bfloat16()  # rounds twice: right but for near-ties
    gap = (found.double() - x).abs() - (nearest.double() - x).abs()
    assert not (gap > 0).any(), "a bf16 number nearer than the result exists"
    assert (found.isnan() == x.isnan()).all()


@check
def integers_to_and_from_bf16() -> None:
    x = torch.randint(-70000, 70000, (2048,), generator=SEED, dtype=torch.int32)
    same(cast(x, torch.bfloat16), x.float().bfloat16())
    y = normals(2048).mul(100).bfloat16()
    assert (cast(y, torch.int32) == y.int()).all()


@triton.jit
def _binary(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, N: tl.constexpr):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    elif OP == "div":
        z = x / y
    elif OP == "neg":
        z = -x
    elif OP == "abs":
        z = tl.abs(x)
    elif OP == "less":
        z = tl.where(x < y, x, y)
    elif OP == "equal":
        z = tl.where(x == y, x, y)
    elif OP == "where_scalar":
        z = tl.where(x < y, x, 0.0)
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "minimum":
        z = tl.minimum(x, y)
    elif OP == "maximum_nan":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum_nan":
        z = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "full":
        z = x + tl.full([N], 1.5, x.dtype)
    elif OP == "div_rn":
        z = tl.div_rn(x, y)
    elif OP == "sqrt_rn":
        z = tl.sqrt_rn(x)
    elif OP == "exp2":
        z = tl.exp2(x)
    elif OP == "clamp":
        z = tl.clamp(x, -1.0, 1.0)
    tl.store(out_ptr + offs, z)


def binary(op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, float("nan"))
    _binary[(x.numel() // N,)](x, y, out, OP=op, N=N)
    return out


def number(pick: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Maximum or minimum that passes over NaN, signalling or not (torch.fmax looks which)."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, pick(x, y)))


BF16_OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "less": lambda x, y: torch.where(x < y, x, y),
    "equal": lambda x, y: torch.where(x == y, x, y),
    "where_scalar": lambda x, y: torch.where(x < y, x, torch.zeros_like(x)),
    "maximum": lambda x, y: number(torch.maximum, x, y),
    "minimum": lambda x, y: number(torch.minimum, x, y),
    "full": lambda x, y: x + 1.5,
}


def _bf16_op(op: str) -> None:
    x, y = hostile(torch.bfloat16, 4096), hostile(torch.bfloat16, 4096)
    x[:2048], y[:2048] = normals(2048), normals(2048)
    x[:1024].copy_(y[512:1536])
    x[7], y[7] = 1.0, 1.0
    same(binary(op, x, y), BF16_OPS[op](x, y))


for _op in BF16_OPS:
    CHECKS[f"bf16_{_op}"] = lambda op=_op: _bf16_op(op)  # type: ignore[misc]
