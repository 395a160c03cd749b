from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is not installed")

import triton
import triton.language as tl
from ascend_kernels import A2, A5, normalise_rows, product

from flashasc.ascend import CompileReport, ToolchainError, compile_kernel, hivm, lower
from flashasc.ascend.hivm import split_dumps, workload
from flashasc.ascend.workload import Product, Workload

BOTH = pytest.mark.parametrize("arch", [A2, A5])


@triton.jit
def multiply_tasks(a_ptr, b_ptr, c_ptr, tasks, K, BLOCK: tl.constexpr):
    """A product's loop inside a loop over tasks, as a kernel with one program per core has it."""
    offs = tl.arange(0, BLOCK)
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            a = tl.load(a_ptr + task * BLOCK * K + offs[:, None] * K + (k + offs)[None, :])
            b = tl.load(b_ptr + (k + offs)[:, None] * BLOCK + offs[None, :])
            acc += tl.dot(a, b)
        tl.store(c_ptr + task * BLOCK * BLOCK + offs[:, None] * BLOCK + offs[None, :], acc)


@triton.jit
def scores_of_keys(q_ptr, k_ptr, out_ptr, N, edge, BLOCK: tl.constexpr, MASK: tl.constexpr):
    """Products that need vector work each time, so that tiles pass between the cores."""
    offs = tl.arange(0, BLOCK)
    q = tl.load(q_ptr + offs[:, None] * BLOCK + offs[None, :])
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for n in range(0, N, BLOCK):
        k = tl.load(k_ptr + (n + offs)[:, None] * BLOCK + offs[None, :])
        s = tl.exp(tl.dot(q, tl.trans(k)))
        if MASK:  # noqa: SIM102 - one is for the compiler to fold, the other for the device
            if n >= edge:
                s = s * 3.0 + 1.0
        total += s
    tl.store(out_ptr + offs[:, None] * BLOCK + offs[None, :], total)


@triton.jit
def add_and_double(x_ptr, y_ptr, n, N: tl.constexpr):
    offs = tl.arange(0, N)
    for start in range(0, n, N):
        x = tl.load(x_ptr + start + offs)
        tl.store(y_ptr + start + offs, tl.exp(x) + x)


@triton.jit
def once(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(y_ptr + offs, tl.exp(tl.load(x_ptr + offs)))


def work_of(
    kernel: object, signature: Mapping[str, str], constants: Mapping[str, object], arch: str
) -> Workload:
    report = compile_kernel(lower(kernel, dict(signature), dict(constants), arch))
    assert report.ok, report.summary()
    assert report.workload is not None
    return report.workload


@BOTH
@pytest.mark.parametrize("block", [32, 64, 128])
def test_a_product_loop_moves_its_two_tiles(arch: str, block: int) -> None:
    work = work_of(*product(block), arch)
    assert work.loop_step == block
    assert work.products == (Product(block, block, block, "f16", 1.0),)
    assert work.bytes_moved == {"GM->L1": 2 * block * block * 2}
    assert work.vector_repeats == work.branch_repeats == work.core_syncs == 0


@BOTH
def test_the_main_loop_is_inside_the_loop_over_tasks(arch: str) -> None:
    signature = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*fp32", "tasks": "i32", "K": "i32"}
    work = work_of(multiply_tasks, signature, {"BLOCK": 64}, arch)
    assert work.loop_step == 64
    assert work.products == (Product(64, 64, 64, "bf16", 1.0),)
    assert work.bytes_moved["GM->L1"] == 2 * 64 * 64 * 2


SCORES = {"q_ptr": "*fp16", "k_ptr": "*fp16", "out_ptr": "*fp32", "N": "i32", "edge": "i32"}


def test_tiles_that_pass_between_the_cores_through_global_memory() -> None:
    work = work_of(scores_of_keys, SCORES, {"BLOCK": 64, "MASK": False}, A2)
    scores = 64 * 64 * 4
    assert work.products == (Product(64, 64, 64, "f16", 1.0),)
    assert work.bytes_moved["GM->L1"] == 64 * 64 * 2
    assert work.bytes_moved["L0C->GM:workspace"] == scores
    # two vector cores, 32 rows each: exp and add are 32 registers each
    assert work.bytes_moved["GM:workspace->UB"] == scores // 2
    assert work.vector_ops["vexp"] == 1
    assert work.vector_repeats == 2 * scores // 2 // 256
    assert work.core_syncs >= 1


def test_tiles_that_pass_between_the_cores_directly() -> None:
    work = work_of(scores_of_keys, SCORES, {"BLOCK": 64, "MASK": False}, A5)
    assert work.bytes_moved["L0C->UB"] == 64 * 64 * 4
    assert not any("workspace" in route for route in work.bytes_moved)
    # 64 registers, each: read the scores and the sum, exp, add, write; and one vadd outside them
    assert work.vector_ops["math.exp"] == work.vector_ops["arith.addf"] == 64
    assert work.vector_ops["vector.transfer_read"] == 2 * 64
    assert work.vector_repeats == 64 * 5 + 64 * work.vector_ops["vadd"]


@BOTH
def test_what_only_some_iterations_do_is_counted_apart(arch: str) -> None:
    plain = work_of(scores_of_keys, SCORES, {"BLOCK": 64, "MASK": False}, arch)
    masked = work_of(scores_of_keys, SCORES, {"BLOCK": 64, "MASK": True}, arch)
    assert plain.branch_repeats == 0
    registers = 64 * 64 * 4 // 256 // (2 if arch == A2 else 1)
    # a multiplication and an addition; on A5 also a read and a write
    assert masked.branch_repeats == registers * (2 if arch == A2 else 4)
    assert masked.vector_repeats <= plain.vector_repeats + 2 * registers


@BOTH
def test_a_vector_loop(arch: str) -> None:
    work = work_of(
        add_and_double, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}, {"N": 1024}, arch
    )
    assert work.loop_step == 1024
    assert work.products == ()
    assert work.bytes_moved == {"GM->UB": 4096, "UB->GM": 4096}
    registers = 4096 // 256
    # exp and add; on A5 a read and a write as well
    assert work.vector_repeats == registers * (2 if arch == A2 else 4)
    assert work.core_syncs == 0


@BOTH
def test_a_program_without_a_loop_is_counted_whole(arch: str) -> None:
    work = work_of(once, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"N": 512}, arch)
    assert work.loop_step is None
    assert work.bytes_moved == {"GM->UB": 2048, "UB->GM": 2048}
    assert work.vector_repeats == 8 * (1 if arch == A2 else 3)


def test_buffers_kept_twice_are_named() -> None:
    kernel, signature, constants = product(64)
    doubled = compile_kernel(lower(kernel, signature, constants, A2)).workload
    single = compile_kernel(
        lower(kernel, signature, constants, A2, options={"multibuffer": False})
    ).workload
    assert doubled is not None
    assert single is not None
    assert "4x4x16x16xf16@L1" in doubled.doubled
    assert "4x4x16x16xf16@L1" not in doubled.loop_buffers_single
    assert single.doubled == ()
    assert "4x4x16x16xf16@L1" in single.loop_buffers_single


def test_a_report_keeps_its_workload() -> None:
    signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "n_rows": "i32", "eps": "fp32"}
    report = compile_kernel(lower(normalise_rows, signature, {"N": 256, "BLOCK_M": 16}, A2))
    again = CompileReport.from_json(json.loads(json.dumps(report.to_json())))
    assert again.workload == report.workload
    assert "IR Dump" not in report.log


def test_a_kernel_that_does_not_compile_has_none() -> None:
    report = compile_kernel(lower(*product(256), A2))
    assert not report.ok
    assert report.workload is None
    assert "func.func" not in report.log


def test_output_that_cannot_be_read_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hivm, "split_dumps", lambda output: ("what it said", {}))
    with pytest.raises(ToolchainError, match=r"bishengir-compile \d.*no kernel[^$]*what it said"):
        compile_kernel(lower(*product(64), A2), cache=False)


CUBE = """func.func @k_mix_aic(%arg0: i32) attributes {hivm.func_core_type<AIC>} {
  %c0 = arith.constant 0 : i32
  %c4 = arith.constant 4 : i32
  scf.for %i = %c0 to %arg0 step %c4  : i32 {
    BODY
  }
  return
}"""
A_TILE = "memref<2x4x16x16xf16, #hivm.address_space<cbuf>>"
C_TILE = "memref<3x4x16x16xf32, #hivm.address_space<cc>>"
MMAD = f"hivm.hir.mmadL1 ins(%a, %b, %t : {A_TILE}, {A_TILE}, i1) outs(%c : {C_TILE})"


def counted(*body: str, text: str = CUBE) -> Workload:
    return workload({"k_mix_aic": text.replace("BODY", "\n    ".join(body))})


def test_a_product_s_shape_is_that_of_its_blocks() -> None:
    assert counted(MMAD).products == (Product(64, 48, 32, "f16", 1.0),)


def test_interleaved_iterations_are_counted_one_by_one() -> None:
    loop = "scf.for %j = %c0 to %n step %c1 {"
    end = "} {multibuffer_unroll_factor = 4 : i32}"
    work = counted(loop, MMAD, end, loop, MMAD, end)
    assert work.products == (Product(64, 48, 32, "f16", 2.0),)
    assert (work.loop_step, work.tiles_in_flight) == (1, 4)


def test_of_two_branches_the_dearer_one_counts() -> None:
    work = counted(MMAD, "scf.if %t {", MMAD, "} else {", MMAD, MMAD, "}")
    assert work.products[0].count == 3


def test_an_unlikely_branch_does_not_count() -> None:
    work = counted(MMAD, "scf.if %t {", MMAD, "} {hivm.unlikely_condition}")
    assert work.products[0].count == 1


def test_a_while_loop_is_a_loop() -> None:
    loop = "%0 = scf.while (%x = %c0) : (i32) -> i32 {"
    work = counted(loop, "scf.condition(%t) %x : i32", "} do {", MMAD, MMAD, "}")
    assert work.loop_step is None
    assert work.products[0].count == 2


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("hivm.hir.mmadL1 ins(%a : memref<?xf16>) outs(%c : memref<?xf32>)", "a product of unkn"),
        ("hivm.hir.load ins(%a : memref<?xf16>) outs(%c : memref<?xf16>)", "a transfer of unknown"),
    ],
)
def test_what_cannot_be_counted_is_an_error(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        counted(line)


def test_a_text_that_breaks_off_is_an_error() -> None:
    with pytest.raises(ValueError, match="k_mix_aic ends in the middle"):
        workload({"k_mix_aic": CUBE[:-10]})


def test_functions_are_taken_out_of_the_log() -> None:
    head = "// -----// IR Dump Before EnableMultiBuffer (hivm-enable-multi-buffer) //----- //\n"
    first, second = "func.func @f() {\n  a\n}", "func.func @f() {\n  b\n}"
    log, functions = split_dumps(f"one\n{head}{first}\n\ntwo\n{head}{second}\n\nthree\n")
    assert log == "one\ntwo\nthree\n"
    assert functions == {"f": second}
