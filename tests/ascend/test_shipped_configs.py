"""Every row of the Ascend tile table, through the compiler of each processor that it names."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import TARGETS, product, rows

from flashasc._configs import TileConfig, ascend, choose
from flashasc._problem import AttentionProblem
from flashasc._target import Target
from flashasc.ascend import compile_kernel, lower
from flashasc.kernels import attention_fwd
from flashasc.workbench import Use, check, shipped_cases
from flashasc.workbench.shipped import attention_case, uses

USES = [(row, arch) for row in ascend.TILES for arch in row.targets]


def next_smaller(row: TileConfig) -> int:
    """Largest head size that another row of the table serves before this one."""
    alike = [r for r in ascend.TILES if r.targets == row.targets and r.dtype == row.dtype]
    sizes = {r.max_head for r in alike if r.precision == row.precision}
    return max((size for size in sizes if size < row.max_head), default=0)


def name_of(use: tuple[TileConfig, str]) -> str:
    row, arch = use
    dtype = str(row.dtype).removeprefix("torch.")
    return f"{arch}-{dtype}-{row.precision}-{row.max_head}-{row.block_m}x{row.block_n}"


def problem(row: TileConfig, use: Use, Sq: int = 320, Sk: int = 512) -> AttentionProblem:
    return AttentionProblem(
        B=2,
        Hq=4,
        Hk=2,
        Sq=Sq,
        Sk=Sk,
        D=use.D,
        Dv=use.Dv,
        dtype=row.dtype,
        out_dtype=torch.float32 if use.fp32_out else row.dtype,
        device=torch.device("meta"),
        layout="BNSD",
        causal=use.causal,
        diagonal=Sk - Sq,
        scale=0.125,
        precision=row.precision,
        with_lse=use.with_lse,
    )


@pytest.mark.parametrize("use", USES, ids=name_of)
def test_a_row_compiles_for_a_processor_it_names(use: tuple[TileConfig, str]) -> None:
    row, arch = use
    verdicts = check([attention_case(row, each, arch) for each in uses(row, next_smaller(row))])
    assert len(verdicts) >= 4
    assert all(verdict.ok for verdict in verdicts), "\n".join(
        f"{verdict.case.name}: {verdict.explanation()}" for verdict in verdicts
    )


def test_the_shipped_set_is_the_table() -> None:
    """Every row, for every processor that it names, in every use; nothing twice."""
    cases = shipped_cases(TARGETS)
    facts = {
        (c.arch, c.facts["dtype"], c.facts["precision"], c.facts["max_head"], c.facts["use"])
        for c in cases
    }
    assert len(facts) == len(cases)
    for row, arch in USES:
        key = (arch, str(row.dtype).removeprefix("torch."), row.precision, row.max_head)
        count = sum(key == (a, d, p, head) for a, d, p, head, _ in facts)
        # every width of tile that the row is the first to serve is used at its full width
        widths = {size for size in row.head_blocks if next_smaller(row) < size < row.max_head}
        assert count == 4 + len(widths - {min(row.head_blocks)})
    dtypes = {"float16", "bfloat16", "float32"}
    wanted = set(itertools.product(TARGETS, dtypes, ("standard", "compensated")))
    assert {(arch, dtype, precision) for arch, dtype, precision, *_ in facts} == wanted
    for c in cases:
        assert c.constants["BLOCK_M"] == c.facts["block_m"]
        assert c.constants["BLOCK_N"] == c.facts["block_n"]


@dataclasses.dataclass
class Launch:
    args: dict[str, Any]
    constants: dict[str, Any]


def launched(monkeypatch, row: TileConfig, use: Use) -> Launch:
    """What the launcher hands to Triton for a call of this kind."""
    caught: list[Launch] = []

    def catch(kernel: Any, programs: int, args: Any, constants: Any, **_: Any) -> None:
        caught.append(Launch(dict(args), dict(constants)))

    def tensor(heads: int, length: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        if use.wide:
            # strides past 32 bits, but for a single column's rows
            step = 1 if size == 1 else 2**33
            strides = (2**36, 2**35, step, 1)
        else:
            # rows of a multiple of 16 numbers, as aligned tensors have; one column lies by itself
            step = 1 if size == 1 else -(-size // 16) * 16
            strides = (heads * length * step, length * step, step, 1)
        return torch.empty_strided((2, heads, length, size), strides, dtype=dtype, device="meta")

    facts = problem(row, use)
    q = tensor(4, 320, use.D, row.dtype)
    k, v = tensor(2, 512, use.D, row.dtype), tensor(2, 512, use.Dv, row.dtype)
    out = tensor(4, 320, use.Dv, facts.out_dtype)
    lse = torch.empty(2, 4, 320, device="meta") if use.with_lse else None
    monkeypatch.setattr(attention_fwd, "launch", catch)
    target = Target("ascend", row.targets[0], cores=20)
    attention_fwd.launch_attention_fwd(q, k, v, out, lse, facts, row, target, "device")
    (launch,) = caught
    return launch


def triton_type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        name = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[value.dtype]
        return f"*{name}"
    if isinstance(value, float):
        return "fp32"
    assert isinstance(value, int)
    return "i32" if -(2**31) <= value < 2**31 else "i64"


@pytest.mark.parametrize("use", range(4))
@pytest.mark.parametrize(
    "row", [ascend.TILES[0], ascend.TILES[-1]], ids=lambda r: f"{r.precision}-{r.max_head}"
)
def test_cases_are_what_a_call_specialises(monkeypatch, row: TileConfig, use: int) -> None:
    """The rules of the JIT, applied to what a real launch passes, give the specialisation."""
    kind = uses(row, 0)[use]
    launch = launched(monkeypatch, row, kind)
    case = attention_case(row, kind, row.targets[0])
    plain = {p.name for p in case.kernel.params if p.do_not_specialize}
    fixed = {
        name: value
        for name, value in launch.args.items()
        if value is None or (isinstance(value, int) and value == 1 and name not in plain)
    }
    assert dict(case.constants) == launch.constants | fixed
    free = {name: value for name, value in launch.args.items() if name not in fixed}
    assert {name: case.signature[name] for name in free} == {
        name: triton_type(value) for name, value in free.items()
    }
    # the log-sum-exp is torch's own allocation; its mark changes nothing in what is lowered
    marked = {
        name
        for name, value in free.items()
        if name not in plain
        and name != "lse_ptr"
        and (isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0))
    }
    assert set(case.divisible_by_16) == marked


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_head_size_has_a_row(dtype: torch.dtype, precision: str, arch: str) -> None:
    target = Target("ascend", arch, cores=20)
    template = dataclasses.replace(ascend.TILES[0], dtype=dtype, precision=precision)
    sizes = range(1, 257)
    for D, Dv in [*zip(sizes, sizes, strict=True), *itertools.product(sizes, [256]), (256, 1)]:
        row = choose(problem(template, Use(D, Dv, causal=True, with_lse=True)), target)
        assert arch in row.targets
        assert (row.dtype, row.precision) == (dtype, precision)
        assert max(D, Dv) <= row.max_head


@pytest.mark.parametrize("alike, named", ascend.SAME_MEMORIES.items())
def test_processors_that_share_a_row_have_the_same_memories(alike: str, named: str) -> None:
    for case in (rows(), product()):
        assert (
            compile_kernel(lower(*case, alike)).memory == compile_kernel(lower(*case, named)).memory
        )


def test_a_row_that_is_too_large_does_not_pass() -> None:
    row, arch = USES[-1]
    too_large = dataclasses.replace(row, block_m=256, block_n=256)
    (verdict,) = check([attention_case(too_large, uses(too_large, 0)[0], arch)])
    assert not verdict.ok
    assert verdict.verdict.startswith("overflows")
    assert "overflow: needs" in verdict.explanation()
