"""What kernels compute, at both levels, for two generations: exact where that is promised."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import native_kernels as kernels
import pytest
import torch

from flashasc.native import call, host, launch, lowered, program

A2, A5 = "Ascend910B3", "Ascend950PR_9589"
TARGETS = [(A2, "linalg"), (A2, "hfusion"), (A5, "linalg"), (A5, "hfusion")]
A2_TARGETS = TARGETS[:2]
EPS = 2.0**-24  # half a unit in the last place of 1, fp32

every_target = pytest.mark.parametrize("arch, level", TARGETS)
both_levels = pytest.mark.parametrize("arch, level", A2_TARGETS)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def run(
    kernel: Any, target: tuple[str, str], args: dict[str, Any], grid: int = 1, **constants: object
) -> None:
    launch(kernel, (grid,), args, constants, arch=target[0], level=target[1])


def in_order(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The fp32 sum over an axis, rounded after each addition, from the first element on."""
    parts = x.unbind(dim)
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total


def product_in_order(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor | None = None):
    """The fp32 product, each multiplication and each addition rounded, in the order of k."""
    a, b = a.float(), b.float()
    total = torch.zeros(a.shape[0], b.shape[1]) if start is None else start
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1, :]
    return total


@every_target
def test_functions(arch: str, level: str) -> None:
    x = torch.cat([torch.linspace(-8, 8, 200), torch.randn(56)])
    y = torch.empty(9, 256)
    run(kernels.functions, (arch, level), {"x_ptr": x, "y_ptr": y, "n": 256}, BLOCK=256)
    wide = x.double()
    size = wide.abs()
    exact = torch.stack(
        [
            wide.exp2(),
            wide.exp(),
            size.log2(),
            size.log(),
            size.sqrt(),
            wide.erf(),
            wide.tanh(),
            wide.sigmoid(),
            size.rsqrt(),
        ]
    )
    # two units in the last place; HFusion has erf and tanh as rational functions, sigmoid as a
    # quotient, and exponentials of a rounded product: their argument carries |x| units more
    allowed = exact.abs() * 4 * EPS + 2.0**-149
    if level == "hfusion":
        allowed = allowed * 2 + exact.abs() * size * 2 * EPS + 4 * EPS * (exact.abs() < 1.01)
    # both logarithms cross zero at 1, where HFusion's log2 is a quotient of logarithms
    excess = (y.double() - exact).abs() / allowed
    assert excess.max() <= 1, excess.max(dim=1)


def test_exponentials_are_rounded_right_and_exact_at_integers() -> None:
    n = 1 << 16
    x = torch.cat(
        [
            torch.linspace(-151, 129, n // 2),
            torch.randn(n // 4) * 3,
            torch.arange(-150.0, 128.0),
            torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 0.0, 3.4e38, -3.4e38]),
        ]
    )
    x = torch.cat([x, torch.zeros(n - len(x))])
    y = torch.empty(2, n)
    run(
        kernels.exponentials,
        (A2, "linalg"),
        {"x_ptr": x, "y_ptr": y, "n": n},
        grid=n // 1024,
        BLOCK=1024,
    )
    for result, exact in ((y[0], x.double().exp2()), (y[1], x.double().exp())):
        right = exact.float()
        assert torch.equal(result.isnan(), x.isnan())
        assert torch.equal(result.isinf(), right.isinf() & ~x.isnan())
        finite = right.isfinite() & result.isfinite()
        unit = (torch.nextafter(right.abs(), torch.tensor(torch.inf)) - right.abs()).double()
        error = ((result.double() - exact).abs() / unit)[finite]
        assert error.max() <= 0.51, error.max()
    whole = x == x.round()
    assert torch.equal(y[0][whole & x.isfinite()], x.double().exp2().float()[whole & x.isfinite()])


@every_target
def test_functions_without_rounding_choices_are_exact(arch: str, level: str) -> None:
    x = torch.randn(128) * 2
    x[:6] = torch.tensor([0.0, -0.0, 0.5, 2.0, torch.inf, -torch.inf])
    x[6] = torch.nan
    y = torch.empty(10, 128)
    run(kernels.exact_functions, (arch, level), {"x_ptr": x, "y_ptr": y, "n": 128}, BLOCK=128)
    half = torch.tensor(0.5)
    want = {
        "floor": x.floor(),
        "ceil": x.ceil(),
        "abs": x.abs(),
        "where": torch.where(x > 0.25, x, -x),
        # without propagate_nan, the number wins
        "maximum": torch.fmax(x, half),
        "minimum": torch.fmin(x, half),
        "quotient": x / 3.0,
        "clamp": x.clamp(-1, 1),
        # a product and a sum, each rounded
        "polynomial": x * x + x,
        "is nan": x.isnan().float(),
    }
    for got, (name, expected) in zip(y, want.items()):
        number = ~x.isnan() if name == "clamp" else slice(None)
        torch.testing.assert_close(
            got[number], expected[number], rtol=0, atol=0, equal_nan=True, msg=name
        )


CASTS = [
    (torch.float32, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.int32),
    (torch.int32, torch.float32),
    (torch.int8, torch.int32),
    (torch.int32, torch.int8),
    (torch.float16, torch.bfloat16),
]


def cast_inputs(source: torch.dtype, to: torch.dtype) -> torch.Tensor:
    if source in (torch.float16, torch.bfloat16):
        return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(source)
    if source == torch.int8:
        return torch.arange(-128, 128, dtype=torch.int8)
    if source == torch.int32 and to == torch.int8:
        return torch.arange(-128, 128, dtype=torch.int32)
    if source == torch.int32:
        return torch.randint(-(2**31), 2**31 - 1, (8192,), dtype=torch.int32)
    if to == torch.int32:
        return torch.randn(8192) * 1e5
    # every upper half, with lower halves round the ties
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    bits = torch.cat(
        [upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x1001)]
    )
    return bits.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("source, to", CASTS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@both_levels
def test_casts(arch: str, level: str, source: torch.dtype, to: torch.dtype) -> None:
    x = cast_inputs(source, to)
    y = torch.empty(len(x), dtype=to)
    args = {"x_ptr": x, "y_ptr": y, "n": len(x)}
    run(kernels.cast_through, (arch, level), args, grid=-(-len(x) // 8192), BLOCK=8192)
    want = x.float().to(to) if source == torch.float16 and to == torch.bfloat16 else x.to(to)
    torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True)


@every_target
def test_a_cast_towards_zero(arch: str, level: str) -> None:
    x = torch.cat([torch.randn(200), torch.tensor([65519.0, -65519.0, 1e-8, -1e-8, 6.1e-5])])
    x = torch.cat([x, x.half().float()])[:256]
    x = torch.cat([x, torch.zeros(256 - len(x))])
    y = torch.empty(256, dtype=torch.float16)
    run(kernels.cast_towards_zero, (arch, level), {"x_ptr": x, "y_ptr": y}, BLOCK=256)
    near = x.half()
    away = near.float().abs() > x.abs()
    want = torch.where(away, (near.view(torch.int16) - 1).view(torch.float16), near)
    assert torch.equal(y, want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32], ids=["signed", "unsigned"])
@every_target
def test_integers(arch: str, level: str, dtype: torch.dtype) -> None:
    low, high = (-(2**31), 2**31) if dtype == torch.int32 else (0, 2**32)
    x, y = (torch.randint(low, high, (64,)) for _ in "xy")
    y[:8] = x[:8]
    z = torch.empty(9, 64, dtype=torch.int32)
    args = {"x_ptr": x.to(dtype), "y_ptr": y.to(dtype), "z_ptr": z, "n": 64}
    run(kernels.integers, (arch, level), args, BLOCK=64)
    orders = (x < y, x <= y, x > y, x >= y, x == y, x != y)
    rows = [
        sum(order.long() << i for i, order in enumerate(orders)),
        torch.maximum(x, y),
        torch.minimum(x, y),
        x & y,
        x | y,
        x ^ y,
        x >> 3,
        x << 2,
        x * y + x - y,
    ]
    for i, row in enumerate(rows):
        assert torch.equal(z[i], (row & 0xFFFFFFFF).to(torch.int32)), i


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint32, torch.int8], ids=lambda d: str(d)[6:]
)
def test_divisions_by_zero_do_no_harm(dtype: torch.dtype) -> None:
    """A processor may stop the process at x // 0, also in lanes whose result is thrown away."""
    least, largest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([7, -7, 0, least, largest, least, 9, 100] * 2).to(dtype)
    y = torch.tensor([0, 0, 0, -1, -1, 3, 2, -7] * 2).to(dtype)
    z = torch.empty(2, 16, dtype=dtype)
    run(
        kernels.divided,
        (A2, "linalg"),
        {"x_ptr": x, "y_ptr": y, "z_ptr": z, "n": 16},
        BLOCK=16,
    )
    wide_x, wide_y = (value.long() for value in (x, y))
    safe = torch.where(wide_y == 0, 1, wide_y)
    overflows = (wide_x == least) & (wide_y == -1)
    safe[overflows] = 1
    quotient = torch.where(wide_y == 0, 0, torch.div(wide_x, safe, rounding_mode="trunc"))
    rest = torch.where(wide_y == 0, wide_x, torch.fmod(wide_x, safe))
    assert torch.equal(z.long(), torch.stack([quotient, rest]))


@pytest.mark.parametrize("shape", [(48, 80, 24), (3, 5, 7), (33, 17, 64)])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["fp16", "bf16", "fp32"]
)
def test_products_are_summed_in_order(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    M, N, K = shape
    a = torch.randn(K, M).to(dtype).t()  # not contiguous
    b = torch.randn(K, 2 * N).to(dtype)[:, ::2]
    c = torch.empty(M, N)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": c}
    args |= dict(zip(("stride_am", "stride_ak"), a.stride()))
    args |= dict(zip(("stride_bk", "stride_bn"), b.stride()))
    run(kernels.product, (A2, "linalg"), args, M=M, N=N, K=K)
    assert torch.equal(c, product_in_order(a, b))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["fp16", "bf16", "fp32"]
)
@every_target
def test_accumulated_products(arch: str, level: str, dtype: torch.dtype) -> None:
    a, b = (torch.randn(3, 32, 32).to(dtype) for _ in "ab")
    c = torch.empty(32, 32)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "K": 96}
    run(kernels.accumulated_product, (arch, level), args, BLOCK=32)
    want = torch.zeros(32, 32)
    for left, right in zip(a, b):
        want = product_in_order(left, right.t(), want * 0.5)
    # HFusion may multiply first and add the accumulator then
    torch.testing.assert_close(c, want, rtol=0, atol=0 if level == "linalg" else 2e-5)


@both_levels
def test_products_of_integers_and_of_batches(arch: str, level: str) -> None:
    a, b = (torch.randint(-128, 128, (32, 32), dtype=torch.int8) for _ in "ab")
    c = torch.empty(32, 32, dtype=torch.int32)
    strides = {"stride_am": 32, "stride_ak": 1, "stride_bk": 32, "stride_bn": 1}
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": c, **strides}
    run(kernels.product, (arch, level), args, M=32, N=32, K=32)
    assert torch.equal(c, (a.int() @ b.int()))
    a, b = (torch.randn(4, 16, 16).half() for _ in "ab")
    c = torch.empty(4, 16, 16)
    run(kernels.batched_product, (arch, level), {"a_ptr": a, "b_ptr": b, "c_ptr": c}, B=4, N=16)
    assert torch.equal(c, torch.stack([product_in_order(x, y) for x, y in zip(a, b)]))


@pytest.mark.parametrize("shape", [(32, 64), (5, 48)])
@every_target
def test_reductions_go_in_order(arch: str, level: str, shape: tuple[int, int]) -> None:
    M, N = shape
    x = torch.randn(M, N) * 10 ** torch.randn(M, N)
    rows, columns = torch.empty(3, M), torch.empty(2, N)
    args = {"x_ptr": x, "row_ptr": rows, "column_ptr": columns}
    run(kernels.reductions, (arch, level), args, M=M, N=N)
    assert torch.equal(rows[0], in_order(x, 1))
    assert torch.equal(rows[1:], torch.stack([x.amax(1), x.amin(1)]))
    assert torch.equal(columns[0], in_order(x, 0))
    assert torch.equal(columns[1], x.amax(0))


@every_target
def test_a_reduction_of_the_kernels_own(arch: str, level: str) -> None:
    for _ in range(3):  # what memory held before must not matter
        x = torch.randn(32, 64)
        y = torch.empty(32)
        run(kernels.own_reduction, (arch, level), {"x_ptr": x, "y_ptr": y}, M=32, N=64)
        assert torch.equal(y, x.abs().amax(1))


@pytest.mark.parametrize("arch, level", TARGETS[:3])  # the A5 compiler rejects argmax itself
def test_argmax(arch: str, level: str) -> None:
    x = torch.randn(32, 64)
    x[3, 10:20] = 9.0
    y = torch.empty(32, dtype=torch.int32)
    for _ in range(2):
        run(kernels.largest_index, (arch, level), {"x_ptr": x, "y_ptr": y}, M=32, N=64)
        assert torch.equal(y, x.argmax(1).int()) and y[3] == 10


@every_target
def test_scans(arch: str, level: str) -> None:
    x = torch.randn(8, 32)
    y = torch.empty(2, 8, 32)
    run(kernels.scans, (arch, level), {"x_ptr": x, "y_ptr": y}, M=8, N=32)
    for axis, got in ((1, y[0]), (0, y[1])):
        size = x.shape[axis]
        want = torch.stack([in_order(x.narrow(axis, 0, i + 1), axis) for i in range(size)], axis)
        assert torch.equal(got, want)


@every_target
def test_a_scan_of_pairs(arch: str, level: str) -> None:
    x = torch.randn(32, 64)
    y = torch.empty(32, 64)
    run(kernels.scanned_pairs, (arch, level), {"x_ptr": x, "y_ptr": y}, M=32, N=64)
    exact = x.double().cumsum(1)
    assert (y.double() - exact).abs().max() <= EPS * exact.abs().max()


@every_target
def test_rearrangements(arch: str, level: str) -> None:
    x = torch.randn(64)
    y = torch.empty(5 * 64)
    run(kernels.rearranged, (arch, level), {"x_ptr": x, "y_ptr": y}, N=64)
    flipped, mixed, gathered, shaped = y.split([64, 128, 64, 64])
    assert torch.equal(flipped, x.flip(0))
    assert torch.equal(mixed, torch.stack([x, -x], 1).flatten())
    assert torch.equal(gathered, x[(torch.arange(64) * 7) % 64])
    assert torch.equal(shaped, x.view(4, 4, 4).transpose(1, 2).flatten())


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["fp16", "bf16", "fp32"]
)
@both_levels
def test_strided_rows_and_ragged_ends(arch: str, level: str, dtype: torch.dtype) -> None:
    base = torch.randn(100, 9).to(dtype)
    views = [base.t()]
    if dtype == torch.float32:
        views += [base.t().contiguous(), base[:, :1].t().expand(9, 100), base.t()[::2, 1::3]]
    for x in views:
        rows, n = x.shape
        y = torch.full((rows * n + 64,), torch.nan)
        args = {"x_ptr": x, "y_ptr": y, "n_rows": rows, "n": n}
        args |= {"stride_xm": x.stride(0), "stride_xn": x.stride(1)}
        # more programs than rows: the others return early
        run(kernels.softmax_rows, (arch, level), args, grid=rows + 3, BLOCK=128)
        want = torch.softmax(x.double(), 1)
        got = y[: rows * n].view(rows, n)
        assert (got.double() - want).abs().max() <= 4 * EPS
        assert y[rows * n :].isnan().all(), "written past the end"


@every_target
def test_a_gather_through_pointers(arch: str, level: str) -> None:
    x, index = torch.randn(100), torch.randint(0, 100, (64,), dtype=torch.int32)
    y = torch.empty(64)
    args = {"x_ptr": x, "index_ptr": index, "y_ptr": y}
    run(kernels.gathered, (arch, level), args, BLOCK=64)
    assert torch.equal(y, x[index.long()])


@every_target
def test_atomics(arch: str, level: str) -> None:
    count = torch.zeros(1, dtype=torch.int32)
    programs = 4000
    old = torch.full((programs,), -1, dtype=torch.int32)
    x = torch.randint(-8, 8, (32,)).float()
    total = torch.zeros(32)
    args = {"count_ptr": count, "old_ptr": old, "x_ptr": x, "sum_ptr": total, "n": 20}
    launch(kernels.counted, (programs,), args, {"BLOCK": 32}, arch=arch, level=level, threads=8)
    # in order, which no two threads would keep
    assert count.item() == programs
    assert torch.equal(old, torch.arange(programs, dtype=torch.int32))
    assert torch.equal(total, torch.cat([x[:20] * programs, torch.zeros(12)]))


@every_target
def test_exchanges(arch: str, level: str) -> None:
    x, y = (torch.randint(-100, 100, (32,), dtype=torch.int32) for _ in "xy")
    for held, want in ((3, 7), (4, 4)):
        new, old = y.clone(), torch.zeros_like(y)
        lock = torch.tensor([held], dtype=torch.int32)
        args = {"x_ptr": x, "y_ptr": new, "old_ptr": old, "lock_ptr": lock}
        run(kernels.swapped, (arch, level), args, BLOCK=32)
        assert torch.equal(new, x) and torch.equal(old, y) and lock.item() == want


@every_target
def test_compensation_survives(arch: str, level: str) -> None:
    n, block = 4096, 64
    x = torch.rand(n, block) + 1e3
    y = torch.empty(block)
    run(kernels.summed, (arch, level), {"x_ptr": x, "y_ptr": y, "n": n}, BLOCK=block)
    exact = x.double().sum(0)
    plain = (in_order(x, 0).double() - exact).abs().max()
    assert (y.double() - exact).abs().max() <= 2 * EPS * exact.max() < plain / 20


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other levels")
def test_processor_levels_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, cold: Path) -> None:
    machine = host.host()
    levels = list(host._X86_OPTIONS)
    levels = levels[: levels.index(machine.cpu) + 1]
    a, b = torch.randn(48, 24).half(), torch.randn(24, 80).half()
    x = torch.cat([torch.randn(1024) * 5, torch.linspace(-150, 130, 1024)])
    results = []
    for level in levels:
        for module in (call, lowered, program):
            module.forget()
        other = host.Host(machine.triple, level, host._X86_OPTIONS[level])
        monkeypatch.setattr(host, "host", cache(lambda other=other: other))
        c, y = torch.empty(48, 80), torch.empty(2, 2048)
        strides = {"stride_am": 24, "stride_ak": 1, "stride_bk": 80, "stride_bn": 1}
        args = {"a_ptr": a, "b_ptr": b, "c_ptr": c, **strides}
        run(kernels.product, (A2, "hfusion"), args, M=48, N=80, K=24)
        args = {"x_ptr": x, "y_ptr": y, "n": 2048}
        run(kernels.exponentials, (A2, "linalg"), args, grid=2, BLOCK=1024)
        results.append((c, y))
    assert len(results) >= 2 and len(list((cold / "kernels").rglob("*.json"))) == 2 * len(results)
    for c, y in results:
        assert torch.equal(c, product_in_order(a, b))
        assert torch.equal(y.view(torch.int32), results[-1][1].view(torch.int32))
