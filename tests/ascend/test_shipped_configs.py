"""Every row of the Ascend tile table, through the compiler of each processor that it names."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import TARGETS, product, rows

from flashasc._configs import TileConfig, ascend, choose
from flashasc._configs.tile import SCORE_OPTIONS
from flashasc._problem import AttentionProblem, Extras, Precision
from flashasc._target import Target
from flashasc.ascend import compile_kernel, lower
from flashasc.kernels import attention_launch, launch
from flashasc.workbench import Use, check, shipped_cases
from flashasc.workbench.shipped import attention_case, uses

USES = [(row, arch) for row in ascend.TILES for arch in row.targets]


def next_smaller(row: TileConfig) -> int:
    """Largest head size that another row of the table serves before this one."""
    alike = [r for r in ascend.TILES if kind_of(r) == kind_of(row)]
    return max((r.max_head for r in alike if r.max_head < row.max_head), default=0)


def kind_of(row: TileConfig) -> tuple[object, ...]:
    return row.targets, row.dtype, row.precision, row.options


def name_of(use: tuple[TileConfig, str]) -> str:
    row, arch = use
    dtype = str(row.dtype).removeprefix("torch.")
    tile = f"{row.block_m}x{row.block_n}"
    return f"{arch}-{dtype}-{row.precision}-{row.max_head}-{len(row.options)} options-{tile}"


def problem(row: TileConfig, use: Use, Sq: int = 320, Sk: int = 500) -> AttentionProblem:
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
        layout="TND" if use.packed else "BNSD",
        causal=use.causal,
        diagonal=Sk - Sq,
        scale=0.125,
        precision=row.precision,
        with_lse=use.with_lse,
        softcap=30.0 if "softcap" in use.options else None,
        window_left=64 if "window" in use.options else None,
        window_right=8 if "window" in use.options and not use.causal else None,
        has_mask="mask" in use.options,
        has_bias="bias" in use.options,
        has_alibi="alibi" in use.options,
        has_sinks=use.sinks,
        has_kv_lens=use.kv_lens,
        tokens_q=Sq if use.packed else 0,
        tokens_k=Sk if use.packed else 0,
    )


def one_use_each() -> list[Any]:
    """Each row in one of its uses on one of its processors, in turn; `ascend check --uses` is all.

    That takes a quarter of an hour.
    """
    chosen = []
    for number, row in enumerate(ascend.TILES):
        kinds = uses(row, next_smaller(row))
        arch = row.targets[number % len(row.targets)]
        use = kinds[number % len(kinds)]
        chosen.append(pytest.param(row, use, arch, id=f"{name_of((row, arch))}-{use}"))
    return chosen


@pytest.mark.parametrize("row, use, arch", one_use_each())
def test_a_row_compiles_for_a_processor_it_names(row: TileConfig, use: Use, arch: str) -> None:
    (verdict,) = check([attention_case(row, use, arch)])
    assert verdict.ok, f"{verdict.case.name}: {verdict.explanation()}"


def test_the_shipped_set_is_the_table() -> None:
    """Every row, for every processor that it names, in every use; nothing twice."""
    for every_use in (True, False):
        cases = shipped_cases(TARGETS, every_use=every_use, attention_only=True)
        listed = {(case.arch, case.name) for case in cases}
        assert len(listed) == len(cases)
        kinds = [
            (arch, row, use)
            for row, arch in USES
            for use in uses(row, next_smaller(row))[: None if every_use else 1]
        ]
        assert listed == {(arch, attention_case(row, use, arch).name) for arch, row, use in kinds}
        for case in cases:
            assert case.constants["BLOCK_M"] == case.facts["block_m"]
            assert case.constants["BLOCK_N"] == case.facts["block_n"]
    # every width of tile that a row is the first to serve is used at its full width
    for row, _ in USES:
        sizes = {use.D for use in uses(row, next_smaller(row))}
        assert {size for size in row.head_blocks[1:] if next_smaller(row) < size} & set(
            range(row.max_head + 1)
        ) <= sizes


def test_every_dtype_precision_and_option_has_a_row_for_every_target() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for arch, dtype, precision in itertools.product(TARGETS, dtypes, get_args(Precision)):
        if (dtype, precision) == (torch.float32, "high"):
            continue
        rows = [r for r in ascend.TILES if arch in r.targets and r.dtype == dtype]
        assert any(
            r.precision == precision and r.max_head == 256 and r.options == SCORE_OPTIONS
            for r in rows
        )


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
            strides = (2**36 + 1, 2**35 + 1, step, 1)
        else:
            # rows of a multiple of 16 numbers, as aligned tensors have; one column lies by itself
            step = 1 if size == 1 else -(-size // 16) * 16
            # and a gap behind each head, as the cases are for any distance between them
            strides = (heads * (length * step + 1), length * step + 1, step, 1)
        return torch.empty_strided((2, heads, length, size), strides, dtype=dtype, device="meta")

    facts = problem(row, use)
    q = tensor(4, 320, use.D, row.dtype)
    k, v = tensor(2, 512, use.D, row.dtype), tensor(2, 512, use.Dv, row.dtype)
    out = tensor(4, 320, use.Dv, facts.out_dtype)
    lse = torch.empty(2, 4, 320, device="meta") if use.with_lse else None
    if use.packed:
        q, k, v, out = (x[0] for x in (q, k, v, out))
        lse = None if lse is None else lse[0]
    monkeypatch.setattr(attention_launch, "launch", catch)
    target = Target("ascend", row.targets[0], cores=20)
    attention_launch.launch_attention_fwd(
        q, k, v, out, lse, facts, extras(use), row, target, "device"
    )
    (launch,) = caught
    return launch


def extras(use: Use) -> Extras:
    """The other tensors of such a call."""
    shape = (2, 4, 320, 500) if use.spread == "full" else (2, 1, 1, 500)
    # as with q, k and v: a gap behind each head
    strides = (4 * 160001, 160001, 500, 1) if use.spread == "full" else (500, 500, 500, 1)

    def spread(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")

    lengths = torch.empty(3, dtype=torch.int32, device="meta")
    return Extras(
        mask=spread(torch.bool) if "mask" in use.options else None,
        bias=spread(torch.float32) if "bias" in use.options else None,
        alibi_slopes=torch.empty(4, device="meta") if "alibi" in use.options else None,
        sinks=torch.empty(4, device="meta") if use.sinks else None,
        kv_lens=lengths[:2] if use.kv_lens else None,
        cu_seqlens_q=lengths if use.packed else None,
        cu_seqlens_k=lengths if use.packed else None,
    )


def triton_type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        names = {
            torch.float16: "fp16",
            torch.bfloat16: "bf16",
            torch.float32: "fp32",
            torch.uint8: "u8",
            torch.int32: "i32",
        }
        return f"*{names[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    assert isinstance(value, int)
    return "i32" if -(2**31) <= value < 2**31 else "i64"


@pytest.mark.parametrize("use", range(5))
@pytest.mark.parametrize(
    "row",
    [ascend.TILES[0], next(r for r in ascend.TILES if "mask" in r.options), ascend.TILES[-1]],
    ids=lambda r: f"{r.precision}-{r.max_head}-{len(r.options)} options",
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
    marked = {
        name
        for name, value in free.items()
        if name not in plain
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
        row = choose(problem(template, Use(D, Dv)), target)
        assert arch in row.targets
        assert (row.dtype, row.precision) == (dtype, precision)
        assert max(D, Dv) <= row.max_head


@pytest.mark.parametrize("alike, named", ascend.SAME_MEMORIES.items())
def test_processors_that_share_a_row_have_the_same_memories(alike: str, named: str) -> None:
    for case in (rows(), product()):
        assert (
            compile_kernel(lower(*case, alike)).memory == compile_kernel(lower(*case, named)).memory
        )


@pytest.mark.parametrize("arch", TARGETS)
def test_a_launch_names_what_the_rows_were_compiled_with(
    monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    named: dict[str, object] = {}
    kernel = {(1,): named.update}
    npu: Any = SimpleNamespace(type="npu")
    monkeypatch.setattr(launch, "current", lambda device: nullcontext())
    launch.launch(kernel, 1, {}, {}, route="device", device=npu, arch=arch, options={})
    compiled = lower(*rows(), arch).options
    assert named == {"multibuffer": compiled["multibuffer"]}


def test_a_row_that_is_too_large_does_not_pass() -> None:
    row, arch = USES[-1]
    too_large = dataclasses.replace(row, block_m=256, block_n=256)
    (verdict,) = check([attention_case(too_large, uses(too_large, 0)[0], arch)])
    assert not verdict.ok
    assert verdict.verdict.startswith("overflows")
    assert "overflow: needs" in verdict.explanation()
