from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flashasc.ascend import calibration, known_archs
from flashasc.ascend.estimate import attention_time, estimate
from flashasc.ascend.hardware import hardware_of
from flashasc.ascend.workload import Product, Workload

PAGE = Path(__file__).parents[2] / "docs" / "ascend-cost-model.md"
A2, A5 = "Ascend910B2", "Ascend950PR_9589"
KNOWN = hardware_of(A2)
PROBLEM = {"B": 1, "Hq": 1, "Sq": 4096, "Sk": 4096, "D": 128, "block_m": 128}


def work(**changes: object) -> Workload:
    nothing = Workload(128, (), {}, 0, 0, {}, 0, 0, (), ())
    return dataclasses.replace(nothing, **changes)  # type: ignore[arg-type]


def test_a_product_takes_its_operations_at_the_cube_s_rate() -> None:
    answer = estimate(work(products=(Product(128, 128, 128, "f16", 1),)), A2)
    assert answer.cube_us == pytest.approx(2 * 128**3 / 8192 / 1800)
    assert answer.bound_by == "cube"
    assert answer.fraction_of_peak == pytest.approx(1)


@pytest.mark.parametrize("dtype, times", [("bf16", 1), ("f32", 4), ("i8", 0.5)])
def test_a_product_s_dtype_decides_its_rate(dtype: str, times: float) -> None:
    base, other = (
        estimate(work(products=(Product(128, 128, 128, kind, 1),)), A2) for kind in ("f16", dtype)
    )
    assert other.cube_us == pytest.approx(times * base.cube_us)


@pytest.mark.parametrize(
    "route, rate",
    [("L0C->GM:workspace", 86), ("UB->GM", 86), ("GM:workspace->UB", 110), ("GM->L1", 110)],
)
def test_a_route_s_bytes_take_its_port_s_time(route: str, rate: int) -> None:
    some = (Product(16, 16, 16, "f16", 1),)
    answer = estimate(work(products=some, bytes_moved={route: 1_000_000}), A2)
    assert answer.transfer_us == pytest.approx(1_000_000 / rate / 1800)
    assert answer.bound_by == "transfer"


def test_ports_work_side_by_side_and_a_port_does_one_thing_at_a_time() -> None:
    some = (Product(16, 16, 16, "f16", 1),)
    sides = {"GM->L1": 110_000, "L0C->GM": 86_000, "GM->UB": 110_000}
    assert estimate(work(products=some, bytes_moved=sides), A2).transfer_us == pytest.approx(
        1000 / 1800
    )
    shared = {"GM->L1": 110_000, "GM:workspace->L1": 110_000}
    assert estimate(work(products=some, bytes_moved=shared), A2).transfer_us == pytest.approx(
        2000 / 1800
    )


def test_vector_operations_take_one_cycle_a_register_on_a2() -> None:
    counts = work(vector_repeats=1800, branch_repeats=900)
    assert estimate(counts, A2).vector_us == pytest.approx(1)
    assert estimate(counts, A2, branches=1).vector_us == pytest.approx(1.5)


def test_a_kernel_without_products_shares_global_memory() -> None:
    moved = {"GM->UB": 10_000, "UB->GM": 10_000}
    answer = estimate(work(bytes_moved=moved), A2)
    assert answer.transfer_us == pytest.approx(20_000 * 48 / 1.6e12 * 1e6)
    assert answer.busiest_route == "global memory"
    assert answer.fraction_of_peak == 0


def test_other_numbers_may_be_given() -> None:
    slower = dataclasses.replace(KNOWN, clock_hz=KNOWN.clock_hz / 2)
    counts = calibration.schedule()
    assert estimate(counts, A2, hardware=slower).iteration_us == pytest.approx(
        2 * estimate(counts, A2).iteration_us
    )


def test_a_share_of_branches_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"branches: expected a share from 0 to 1, got 1\.5"):
        estimate(work(), A2, branches=1.5)


@pytest.mark.parametrize("arch", known_archs())
def test_every_processor_is_known(arch: str) -> None:
    known = hardware_of(arch)
    assert known.cube_cores * 2 == known.vector_cores
    assert known.sources


def test_published_peaks() -> None:
    assert hardware_of("Ascend910B2").peak_flop_per_s == pytest.approx(353.9e12, rel=1e-3)
    assert hardware_of("Ascend910B3").peak_flop_per_s == pytest.approx(294.9e12, rel=1e-3)
    assert hardware_of(A5).peak_flop_per_s == pytest.approx(432.5e12, rel=1e-3)


def test_an_unknown_processor_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"(?s)got 'Ascend999'.*Ascend910B3"):
        hardware_of("Ascend999")


def test_the_core_with_the_most_tasks_sets_the_time() -> None:
    counts = calibration.schedule()
    # 32 tasks on 24 cores: two rounds, as long as 48 tasks would take
    one, full = (
        attention_time(counts, A2, **{**PROBLEM, "Sq": rows}, causal=False)
        for rows in (32 * 128, 48 * 128)
    )
    assert one.us == pytest.approx(full.us)
    step = estimate(counts, A2)
    by_hand = KNOWN.launch_us + 2 * (31 * step.iteration_us + step.serial_us)
    assert one.us == pytest.approx(by_hand)
    assert one.tflop_per_s == pytest.approx(4 * 4096**2 * 128 / by_hand / 1e6)


def test_a_causal_kernel_leaves_out_what_is_above_the_diagonal() -> None:
    counts = dataclasses.replace(calibration.schedule(), branch_repeats=4000)
    step, edge = (estimate(counts, A2, branches=b) for b in (0, 1))
    fill = step.serial_us - step.iteration_us
    sizes = {**PROBLEM, "Sq": 24 * 128, "Sk": 24 * 128}
    answer = attention_time(counts, A2, **sizes, causal=True)
    # the last of 24 query tiles sees 23 whole key tiles and the diagonal's
    by_hand = KNOWN.launch_us + 23 * step.iteration_us + edge.iteration_us + fill
    assert answer.us == pytest.approx(by_hand)


def test_without_overlap_it_takes_longer() -> None:
    counts = calibration.schedule()
    fast, slow = (
        attention_time(counts, A2, **PROBLEM, causal=False, overlap=o) for o in (True, False)
    )
    assert slow.us > 2 * fast.us


def test_a_kernel_without_a_key_loop_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a loop over keys"):
        attention_time(work(loop_step=None), A2, **PROBLEM, causal=False)


def test_the_page_s_table_is_what_the_calibration_gives() -> None:
    assert "\n".join(calibration.table()) in PAGE.read_text()


def test_published_long_rates_lie_within_the_estimate_s_range() -> None:
    counts = calibration.schedule()
    for length in (8192, 32768):
        sizes = {**PROBLEM, "Sq": length, "Sk": length}
        fast, slow = (
            attention_time(counts, calibration.ARCH, **sizes, causal=False, overlap=o).tflop_per_s
            for o in (True, False)
        )
        for rate in calibration.PUBLISHED[length]:
            assert slow < rate < fast
