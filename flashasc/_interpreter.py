"""Cures for the faults of Triton's interpreter (TRITON_INTERPRET=1).

The interpreters of triton-ascend 3.2.0 and upstream 3.2 to 3.6 compute wrong values for bfloat16
and in a few other places, and fail under NumPy 2.4. `apply()` replaces the methods at fault; the
launchers call it when a kernel is about to run in the interpreter, nothing else does.

| fault | seen in |
|---|---|
| bf16 arithmetic, comparisons, products, sums and casts work on the bit patterns | all |
| fp32 to bf16 truncates; subnormal bf16 numbers become others | all |
| a bf16 constant (`tl.full`) is an AttributeError | all |
| `int()` and `bool()` of one-element arrays: an error from NumPy 2.4 on | all |
| `tl.fma` rounds twice | all |
| `tl.maximum`, `tl.minimum`, `tl.clamp` spread a NaN that the hardware passes over | all |
| `tl.max`, `tl.min` of a tile spread NaN | 3.2 |
| `tl.max`, `tl.min` run a Python loop over every element | triton-ascend |
| `~mask` is a TypeError; `tile.T` loses its shape | 3.2 |
| block pointers check the upper bound alone | 3.2 |

Not cured, and not used in this package: float8, `tl.fma` in fp64 (rounds twice), `tl.erf` of 16-bit
tiles, NaN padding of bf16 block pointers, rounding toward zero into an overflow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MARK = "_cured_by_flashasc"
# what the cures below replace or call, by owner
_PARTS = {
    "InterpreterBuilder": (
        *("unary_op", "binary_op", "cast_impl", "create_fp_to_fp", "create_dot", "create_fma"),
        *("create_rsqrt", "create_clampf", "create_minnumf", "create_maxnumf"),
        "get_all_ones_value",
    ),
    "ReduceOps": ("apply_impl", "sum", "to_tensor"),
    "BlockPointerHandle": ("materialize_pointers",),
}


def apply() -> None:
    """Cure the interpreter of the Triton that is installed. Does nothing the second time.

    Raises:
        RuntimeError: its interpreter is built differently from those these cures were made for.
    """
    from triton.runtime import interpreter

    if getattr(interpreter, _MARK, False):
        return
    _check(interpreter)
    for cure in (_scalars, _bfloat16, _fma, _nan, _reductions, _masks, _block_pointers):
        cure(interpreter)
    setattr(interpreter, _MARK, True)


def _check(interpreter: Any) -> None:
    missing = [
        f"{owner}.{name}"
        for owner, names in _PARTS.items()
        for name in names
        if not hasattr(getattr(interpreter, owner, None), name)
    ]
    if missing or not hasattr(interpreter, "_patch_lang_tensor"):
        import triton

        raise RuntimeError(
            f"the interpreter of Triton {triton.__version__} has no "
            f"{', '.join(missing) or '_patch_lang_tensor'}: its faults with bfloat16 cannot be "
            "cured. Use triton-ascend 3.2.0 or upstream Triton 3.2 to 3.6, or unset "
            "TRITON_INTERPRET"
        )


def _scalars(interpreter: Any) -> None:
    """Loop bounds and conditions come as one-element arrays, tiles' transposes without a shape."""
    import triton.language as tl

    original = interpreter._patch_lang_tensor

    def index(self: Any) -> int:
        return int(self.handle.data.item())

    def truth(self: Any) -> bool:
        # a tile is never a condition; the interpreter asks all the same
        return bool(self.handle.data.item()) if self.handle.data.size == 1 else True

    def transpose(self: Any) -> Any:
        shape = list(self.type.shape)[::-1]
        handle = interpreter.TensorHandle(np.transpose(self.handle.data), self.handle.dtype)
        return tl.core.tensor(handle, tl.core.block_type(self.dtype, shape))

    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        # 3.6 undoes its patches after a launch, through the scope it passes
        replace = scope[0].set_attr if scope else setattr
        replace(tensor, "__index__", index)
        replace(tensor, "__bool__", truth)
        replace(tensor, "T", property(transpose))

    interpreter._patch_lang_tensor = patch_lang_tensor


def _bfloat16(interpreter: Any) -> None:
    """Bf16 lives in uint16 arrays: compute in fp32 and round once, to nearest even."""
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    handle_type = interpreter.TensorHandle
    original_cast, original_round = builder.cast_impl, builder.create_fp_to_fp
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def is_bf16(x: Any) -> bool:
        # the dtype alone would lie: a comparison's result carries that of its operands
        return isinstance(x, handle_type) and (
            x.dtype.scalar == tl.bfloat16 and x.data.dtype == np.uint16
        )

    def widen(x: Any) -> Any:
        return handle_type(_bf16_to_fp32(x.data), tl.float32) if is_bf16(x) else x

    def in_fp32(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def computed(self: Any, *args: Any) -> Any:
            operands = [x for x in args if isinstance(x, handle_type)]
            if not any(is_bf16(x) for x in operands):
                return method(self, *args)
            found = method(self, *map(widen, args))
            if found.data.dtype == bool:
                return handle_type(found.data, tl.int1)
            if all(is_bf16(x) for x in operands):
                return handle_type(_to_bf16(found.data), tl.bfloat16)
            return found

        return computed

    for name in ("unary_op", "binary_op", "create_fma", "create_rsqrt", "create_dot"):
        setattr(builder, name, in_fp32(getattr(builder, name)))

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if is_bf16(src):
            return cast_impl(self, widen(src), dst_type)
        if dst_type.scalar == tl.bfloat16:
            return handle_type(_to_bf16(src.data), tl.bfloat16)
        return original_cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        wide = min(src.dtype.scalar.primitive_bitwidth, dst_type.scalar.primitive_bitwidth) > 8
        if wide and rounding_mode != toward_zero:
            return cast_impl(self, src, dst_type)
        return original_round(self, src, dst_type, rounding_mode)

    def get_bf16(self: Any, value: float) -> Any:
        return handle_type(_to_bf16(np.array([value], np.float64)), tl.bfloat16)

    builder.cast_impl, builder.create_fp_to_fp, builder.get_bf16 = (
        cast_impl,
        create_fp_to_fp,
        get_bf16,
    )


def _fma(interpreter: Any) -> None:
    """A fused multiply-add rounds once; the error of a product is computed with it."""
    builder = interpreter.InterpreterBuilder
    original = builder.create_fma

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype not in (np.float16, np.float32):
            return original(self, x, y, z)
        return interpreter.TensorHandle(_fused(x.data, y.data, z.data), z.dtype.scalar)

    builder.create_fma = create_fma


def _nan(interpreter: Any) -> None:
    """Maximum and minimum return the other operand for a NaN unless told to spread it."""
    builder = interpreter.InterpreterBuilder
    original = builder.create_clampf
    spread = interpreter._ir.PROPAGATE_NAN.ALL

    def create_clampf(self: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan == spread:
            return original(self, x, low, high, propagate_nan)
        data = np.fmin(np.fmax(x.data, low.data), high.data)
        return interpreter.TensorHandle(data, high.dtype.scalar)

    builder.create_clampf = create_clampf
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)


def _reductions(interpreter: Any) -> None:
    """Reduce with NumPy where the combine function is known, and bf16 sums as numbers."""
    import triton.language as tl

    reduce_ops = interpreter.ReduceOps
    original_apply, original_sum = reduce_ops.apply_impl, reduce_ops.sum
    # by name: triton-ascend has functions of its own beside upstream's
    known = {
        "_elementwise_max": np.fmax,
        "_elementwise_min": np.fmin,
        "_elementwise_max_default": np.fmax,
        "_elementwise_min_default": np.fmin,
        "_elementwise_max_propagate_nan": np.maximum,
        "_elementwise_min_propagate_nan": np.minimum,
    }

    def apply_impl(self: Any, inputs: Any) -> Any:
        operation = known.get(self.combine_fn.__name__)
        (tile, *more) = inputs
        if operation is None or more or tile.dtype.scalar == tl.bfloat16:
            return original_apply(self, inputs)
        data = operation.reduce(tile.handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(data, tile.dtype)

    def sum_(self: Any, tile: Any) -> Any:
        if tile.dtype.scalar != tl.bfloat16:
            return original_sum(self, tile)
        data = _bf16_to_fp32(tile.handle.data).sum(axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(_to_bf16(data), tile.dtype)

    reduce_ops.apply_impl, reduce_ops.sum = apply_impl, sum_


def _masks(interpreter: Any) -> None:
    """`~mask` asks for the type of a mask and for a mask of ones."""
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    original = builder.get_all_ones_value

    def get_all_ones_value(self: Any, dtype: Any) -> Any:
        if dtype.scalar == tl.int1:
            return interpreter.TensorHandle(np.ones(1, bool), tl.int1)
        return original(self, dtype)

    builder.get_all_ones_value = get_all_ones_value
    builder.get_int1_ty = lambda self: tl.int1


def _block_pointers(interpreter: Any) -> None:
    """A checked dimension has a lower end too."""
    pointer = interpreter.BlockPointerHandle
    original = pointer.materialize_pointers

    def materialize_pointers(self: Any, boundary_check: Any) -> Any:
        pointers, mask = original(self, boundary_check)
        for dim in boundary_check:
            offsets = self.offsets[dim].data + np.arange(mask.shape[dim])
            shape = [1] * mask.ndim
            shape[dim] = -1
            mask = mask & (offsets >= 0).reshape(shape)
        return pointers, mask

    pointer.materialize_pointers = materialize_pointers


def _bf16_to_fp32(bits: Array) -> Array:
    """The fp32 numbers that uint16 bit patterns of bf16 stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bf16(x: Any) -> Array:
    """Bit patterns (uint16) of the bf16 numbers nearest to x, ties to even, any NaN quiet."""
    exact = np.asarray(x)
    if exact.dtype != np.float32:
        # a sum of roundings is not a rounding: keep what fp32 drops as its last bit
        wide = exact.astype(np.float64)
        narrow = wide.astype(np.float32)
        exact = _to_odd(narrow, wide - narrow)
    bits = exact.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FC0), rounded).astype(np.uint16)


def _fused(x: Array, y: Array, z: Array) -> Array:
    """Round x * y + z once, into z's dtype (fp16 or fp32).

    The product is exact in fp64; the sum is rounded to odd there, which a rounding to a shorter
    format cannot tell from the exact value (Boldo, Melquiond 2008).
    """
    product = x.astype(np.float64) * y.astype(np.float64)
    addend = z.astype(np.float64)
    total = product + addend
    # the error of the sum (Knuth's two_sum)
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    return _to_odd(total, error).astype(z.dtype)


def _to_odd(nearest: Array, error: Array) -> Array:
    """Turn a value rounded to nearest, and what it lacks, into the value rounded to odd."""
    even = nearest.view(f"u{nearest.itemsize}") & 1 == 0
    inexact = np.isfinite(nearest) & np.isfinite(error) & (error != 0)
    neighbour = np.nextafter(nearest, np.copysign(np.inf, error).astype(nearest.dtype))
    return np.where(even & inexact, neighbour, nearest)
