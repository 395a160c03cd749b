"""The loop over K: any strides, ragged sizes, every way of summing; against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from gemm_kernels import default_kernel, order_kernel, tile_kernel, unchecked_kernel
from hostile_numbers import U, normals, uniforms
from torch import Tensor

BLOCK = 16


@dataclass(frozen=True)
class Variant:
    """A way of summing over K."""

    METHOD: str = "kahan"
    SEGMENT: int = 1
    BRANCH: bool = False
    PRODUCT: str = "ieee"
    sides: tuple[int, int, int] = (BLOCK, BLOCK, BLOCK)
    """BLOCK_M, BLOCK_N, BLOCK_K."""

    def __str__(self) -> str:
        branch = " branch" if self.BRANCH else ""
        return f"{self.METHOD} {self.SEGMENT}{branch} {self.PRODUCT}"

    def run(
        self,
        device: Device,
        a: Tensor,
        b: Tensor,
        begin_k: int = 0,
        end_k: int | None = None,
        wide: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Raw (acc, comp) of a @ b for views a [M, K] and b [K, N] of any strides."""
        (M, K), N = a.shape, b.shape[1]
        a, b = a.to(device.place), b.to(device.place)
        acc, comp = (torch.full((M, N), math.nan, device=device.place) for _ in range(2))
        args = {
            "a_ptr": a, "b_ptr": b, "acc_ptr": acc, "comp_ptr": comp,
            "begin_k": begin_k, "end_k": K if end_k is None else end_k, "M": M, "N": N,
            "stride_am": a.stride(0), "stride_ak": a.stride(1),
            "stride_bk": b.stride(0), "stride_bn": b.stride(1),
        }  # fmt: skip
        block_m, block_n, block_k = self.sides
        constants = {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "METHOD": self.METHOD,
            "SEGMENT": self.SEGMENT, "BRANCH": self.BRANCH, "PRODUCT": self.PRODUCT, "WIDE": wide,
            "A_BY_COLUMNS": a.stride(0) == 1, "B_BY_COLUMNS": b.stride(0) == 1, "GROUP": 2,
        }  # fmt: skip
        grid = (math.ceil(M / block_m) * math.ceil(N / block_n),)
        device.launch(tile_kernel, args, constants, grid)
        return acc.cpu(), comp.cpu()

    def bound(self, K: int) -> float:
        """Error in units of |a| |b|, see blocks/README.md."""
        length = K if self.METHOD == "plain" else min(K, self.SEGMENT * self.sides[2])
        return 2 * U * (length + 1) + 2 * U + 2 * K * U**2


PLAIN = Variant("plain")
KAHAN = Variant()
SEGMENTS = Variant(SEGMENT=3)
# not 3: segments of tiles, and not of numbers, are told apart where one divides the other
BRANCHES = Variant(SEGMENT=2, BRANCH=True)


def total(pair: tuple[Tensor, Tensor]) -> Tensor:
    return pair[0].double() + pair[1].double()


def check_bound(device: Device, variant: Variant, a: Tensor, b: Tensor) -> None:
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = (total(variant.run(device, a, b)) - exact).abs()
    assert (error <= variant.bound(a.shape[1]) * size).all()


def amid_nan(x: Tensor, *, transposed: bool) -> Tensor:
    """The same matrix with NaN all round it in memory."""
    x = x.T if transposed else x
    rows, columns = x.shape
    around = torch.full((rows + 4, columns + 6), math.nan, dtype=x.dtype)
    inside = around[2 : 2 + rows, 3 : 3 + columns]
    inside.copy_(x)
    return inside.T if transposed else inside


@pytest.mark.parametrize("variant", [PLAIN, KAHAN, SEGMENTS, BRANCHES], ids=str)
def test_a_ragged_product_is_bounded(fast_device: Device, variant: Variant) -> None:
    # seven tiles of K: a segment that is not full, and a tile that is not
    a, b = normals(21, 7 * BLOCK - 5, seed=1), normals(7 * BLOCK - 5, 18, seed=2)
    check_bound(fast_device, variant, amid_nan(a, transposed=False), amid_nan(b, transposed=False))


@pytest.mark.parametrize("sides", [(16, 32, 64), (64, 16, 32)], ids=str)
@pytest.mark.parametrize("variant", [PLAIN, SEGMENTS, BRANCHES], ids=str)
def test_a_tile_whose_sides_differ(
    fast_device: Device, variant: Variant, sides: tuple[int, int, int]
) -> None:
    a, b = normals(70, 200, seed=11), normals(200, 40, seed=12)
    check_bound(
        fast_device,
        replace(variant, sides=sides),
        amid_nan(a, transposed=False),
        amid_nan(b, transposed=False),
    )


def test_a_ragged_product_at_hfusion(device: Device) -> None:
    a, b = normals(21, 60, seed=1), normals(60, 18, seed=2)
    check_bound(device, SEGMENTS, a, amid_nan(b, transposed=False))


@pytest.mark.parametrize("a_transposed, b_transposed", [(True, False), (False, True)])
def test_strides_change_no_bit(fast_device: Device, a_transposed: bool, b_transposed: bool) -> None:
    a, b = normals(21, 37, seed=1), normals(37, 18, seed=2)
    expected = KAHAN.run(fast_device, a, b)
    found = KAHAN.run(
        fast_device, amid_nan(a, transposed=a_transposed), amid_nan(b, transposed=b_transposed)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def relative_error(device: Device, variant: Variant, tiles: int) -> float:
    a, b = uniforms(BLOCK, tiles * BLOCK, seed=1), uniforms(tiles * BLOCK, BLOCK, seed=2)
    exact = a.double() @ b.double()
    return float(((total(variant.run(device, a, b)) - exact) / exact).square().mean().sqrt())


@pytest.mark.parametrize("name", ["KAHAN", "SEGMENTS", "BRANCHES"])
def test_the_error_does_not_grow_with_k(fast_device: Device, name: str) -> None:
    variant = {"KAHAN": KAHAN, "SEGMENTS": SEGMENTS, "BRANCHES": BRANCHES}[name]
    few, many = 24, fast_device.steps(2048, 128)
    short, long = (relative_error(fast_device, variant, tiles) for tiles in (few, many))
    assert long <= 1.2 * short, "the error grew with K"
    assert relative_error(fast_device, PLAIN, many) > 4 * long, "a plain sum is as good"


def test_no_unit_is_lost_beside_a_large_number(fast_device: Device) -> None:
    """2**24 in the first segment and a 1 in each of 5 others: a plain sum stays at 2**24."""
    length = 3 * BLOCK
    b = torch.zeros(6 * length, 2)
    b[0], b[length + 5 :: length] = 2.0**24, 1.0
    a = torch.ones(2, 6 * length)
    for variant in (KAHAN, SEGMENTS, BRANCHES):
        assert (total(variant.run(fast_device, a, b)) == 2.0**24 + 5).all(), variant
    assert (total(PLAIN.run(fast_device, a, b)) == 2.0**24).all()


@pytest.mark.parametrize("branch", [False, True])
def test_a_segment_is_a_plain_sum(fast_device: Device, branch: bool) -> None:
    """Of as many tiles as it has, and what comes after it is added to it."""
    variant = Variant(SEGMENT=3, BRANCH=branch)
    a, b = normals(5, 4 * BLOCK, seed=9), normals(4 * BLOCK, 7, seed=10)
    first, _ = PLAIN.run(fast_device, a, b, 0, 3 * BLOCK)
    acc, comp = variant.run(fast_device, a, b, 0, 3 * BLOCK)
    assert torch.equal(acc, first) and (comp == 0).all()
    rest, _ = PLAIN.run(fast_device, a, b, 3 * BLOCK, 4 * BLOCK)
    acc, comp = variant.run(fast_device, a, b)
    assert torch.equal(acc, first + rest)
    assert torch.equal(comp, rest - ((first + rest) - first))


def test_parts_of_k_are_those_asked_for(fast_device: Device) -> None:
    a, b = normals(5, 100, seed=1), normals(100, 7, seed=2)
    for variant in (PLAIN, SEGMENTS):
        found = total(variant.run(fast_device, a, b, 32, 90))
        exact = a[:, 32:90].double() @ b[32:90].double()
        assert ((found - exact).abs() <= 1e-5).all()
    # an element that is not of the part has no say in it
    a[:, 90:], a[:, :32] = math.nan, math.nan
    assert KAHAN.run(fast_device, a, b, 32, 90)[0].isfinite().all()


def test_a_part_of_k_has_the_bits_that_it_has_by_itself(fast_device: Device) -> None:
    """Segments are counted from where the part begins."""
    a, b = normals(5, 8 * BLOCK, seed=3), normals(8 * BLOCK, 7, seed=4)
    for variant in (KAHAN, SEGMENTS, BRANCHES):
        part = variant.run(fast_device, a, b, BLOCK, 8 * BLOCK)
        alone = variant.run(fast_device, a[:, BLOCK:], b[BLOCK:])
        for one, other in zip(part, alone, strict=True):
            assert torch.equal(one, other), variant


def test_a_product_by_default(fast_device: Device) -> None:
    """Every tile compensated, every edge checked, row by row, IEEE products."""
    a, b = normals(13, 5 * BLOCK - 3, seed=5), normals(5 * BLOCK - 3, 11, seed=6)
    expected = KAHAN.run(fast_device, a, b)
    a, b = (amid_nan(x, transposed=False).to(fast_device.place) for x in (a, b))
    acc, comp = (torch.full((13, 11), math.nan, device=fast_device.place) for _ in range(2))
    args = {
        "a_ptr": a, "b_ptr": b, "acc_ptr": acc, "comp_ptr": comp, "M": 13, "N": 11,
        "K": a.shape[1], "stride_am": a.stride(0), "stride_bk": b.stride(0),
    }  # fmt: skip
    fast_device.launch(default_kernel, args, {"BLOCK": BLOCK})
    assert torch.equal(acc.cpu(), expected[0])
    assert torch.equal(comp.cpu(), expected[1])


@pytest.mark.parametrize("whole", ["M", "N", "K"])
def test_only_sides_that_are_whole_go_unchecked(fast_device: Device, whole: str) -> None:
    """The others are ragged, and what lies beside them is NaN."""
    M, N, K = (4 * BLOCK if name == whole == "K" else BLOCK if name == whole else 11
               for name in "MNK")  # fmt: skip
    x, y = uniforms(M, K, seed=7), uniforms(K, N, seed=8)
    a, b = (amid_nan(z, transposed=False).to(fast_device.place) for z in (x, y))
    for method in ("plain", "kahan"):
        acc = torch.full((M, N), math.nan, device=fast_device.place)
        args = {
            "a_ptr": a, "b_ptr": b, "acc_ptr": acc, "M": M, "N": N, "K": K,
            "stride_am": a.stride(0), "stride_bk": b.stride(0),
        }  # fmt: skip
        checks = {f"CHECK_{name}": name != whole for name in "MNK"}
        constants = {"BLOCK": BLOCK, "METHOD": method, **checks}
        fast_device.launch(unchecked_kernel, args, constants)
        assert torch.allclose(acc.cpu().double(), x.double() @ y.double(), rtol=1e-5, atol=0.0)


def test_factors_across_more_than_32_bits(fast_device: Device, tmp_path: Path) -> None:
    """Rows 2**28 elements apart: the last of a tile is past 2**31 elements from its first."""
    if fast_device.route == "gpu":
        pytest.skip("needs 8 GiB of GPU memory")
    memory = torch.from_file(str(tmp_path / "sparse"), True, BLOCK * 2**28, dtype=torch.float16)
    (tmp_path / "sparse").unlink()
    a, b = (memory.as_strided((BLOCK, BLOCK), (2**28, 1), 32 * n) for n in range(2))
    a.copy_(normals(BLOCK, BLOCK, seed=1))
    b.copy_(normals(BLOCK, BLOCK, seed=2))
    exact = a.double() @ b.double()
    for variant in (PLAIN, KAHAN):
        found = total(variant.run(fast_device, a, b, wide=True))
        assert torch.allclose(found, exact, rtol=0.0, atol=1e-5), variant


def test_an_infinity_stays_one(fast_device: Device) -> None:
    a, b = uniforms(4, 200, seed=1) + 0.5, uniforms(200, 4, seed=2) + 0.5
    b[70, 1], b[71, 2] = math.inf, math.nan
    for variant in (SEGMENTS, BRANCHES):
        found = total(variant.run(fast_device, a, b))
        assert (found[:, 1] == math.inf).all()
        assert found[:, 2].isnan().all()
        assert found[:, [0, 3]].isfinite().all()


@pytest.mark.parametrize("tiles_m, tiles_n", [(1, 1), (5, 3), (7, 1), (4, 6)])
def test_grouped_order_visits_each_tile_once(
    fast_device: Device, tiles_m: int, tiles_n: int
) -> None:
    count = tiles_m * tiles_n
    (visits,) = fast_device.run(
        order_kernel, {"tiles_m": tiles_m, "tiles_n": tiles_n}, {"out_ptr": (count,)}, (count,),
        torch.int32, GROUP=4,
    )  # fmt: skip
    assert sorted(visits.tolist()) == list(range(count))
    # a group's tiles come before the next group's
    groups = visits // tiles_n // 4
    assert torch.equal(groups, groups.sort().values)
    # and within one, those that share columns come together
    assert (visits[: min(4, tiles_m)] % tiles_n == 0).all()
