"""`explain` says what runs, and what it says is what runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashasc
from flashasc import reference
from flashasc._configs import TileConfig
from flashasc.testing import Case, normal
from tests.attention.routes import ROUTES, Route
from tests.cases_table import BY_HEAD_SIZE, DTYPES, RAGGED


def watch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record every computation as it starts: "reference", or a kernel's launch arguments."""
    seen: list[Any] = []
    attention_fwd = reference.attention_fwd

    def reference_runs(*args: Any) -> Any:
        seen.append("reference")
        return attention_fwd(*args)

    monkeypatch.setattr(reference, "attention_fwd", reference_runs)
    try:
        from flashasc.kernels import attention_launch
    except ImportError:
        return seen
    launch = attention_launch.launch

    def launched(kernel: Any, programs: int, args: Any, constants: Any, **options: Any) -> None:
        seen.append({"programs": programs, "constants": constants, **options})
        launch(kernel, programs, args, constants, **options)

    monkeypatch.setattr(attention_launch, "launch", launched)
    return seen


@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_agrees_with_what_runs(
    monkeypatch: pytest.MonkeyPatch, every_route: Route, dtype: torch.dtype, precision: str
) -> None:
    q, k, v = normal(RAGGED.but(dtype=dtype), device=every_route.device)
    options = {"precision": precision, "return_lse": True}
    plan = every_route.explain(q, k, v, **options)
    seen = watch(monkeypatch)
    every_route(q, k, v, **options)
    ran = seen[-1]
    if every_route.name == "reference":
        assert plan.route == ran == "reference"
        assert plan.config is plan.target is None
        assert str(plan) == "reference (plain PyTorch): asked for"
        return
    assert plan.route == ran["route"] == ("native" if every_route.native else "device")
    assert plan.target.arch == ran["arch"]
    assert isinstance(plan.config, TileConfig)
    constants = ran["constants"]
    assert (constants["BLOCK_M"], constants["BLOCK_N"]) == (
        plan.config.block_m,
        plan.config.block_n,
    )
    compensated = "kahan" if plan.config.segment == 1 else "segment"
    assert constants["METHOD"] == {"standard": "plain", "compensated": compensated}[precision]
    assert constants["SEGMENT"] == plan.config.segment
    text = str(plan)
    assert plan.target.arch in text
    assert f"{plan.config.block_m} x {plan.config.block_n}" in text
    assert plan.config.source in text


def test_it_computes_nothing(monkeypatch: pytest.MonkeyPatch, route: Route) -> None:
    q, k, v = normal(RAGGED, device=route.device)
    seen = watch(monkeypatch)
    route.explain(q, k, v, causal=True, return_lse=True)
    assert not seen


def test_auto_takes_the_reference_for_cpu_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = normal(RAGGED)
    plan = flashasc.explain(q, k, v)
    assert plan.route == "reference"
    assert "cpu tensors" in str(plan)
    assert "impl='triton'" in str(plan)
    seen = watch(monkeypatch)
    flashasc.attention(q, k, v)
    assert seen == ["reference"]


def test_auto_takes_the_reference_for_float64() -> None:
    q, k, v = (x.to("meta") for x in normal(RAGGED.but(dtype=torch.float64)))
    assert flashasc.explain(q, k, v).route == "reference"


@pytest.mark.gpu
def test_auto_takes_the_kernel_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = normal(RAGGED, device="cuda")
    assert flashasc.explain(q, k, v) == flashasc.explain(q, k, v)
    assert flashasc.explain(q, k, v).route == "device"
    seen = watch(monkeypatch)
    flashasc.attention(q, k, v)
    assert seen[0]["route"] == "device"
    assert flashasc.explain(*(x.double() for x in (q, k, v))).route == "reference"


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_the_tile_depends_on_dtype_and_head_size_alone(
    every_kernel_route: Route, layout: str
) -> None:
    """Never on the batch, on heads or on lengths: results are batch-invariant by this."""
    for dtype in DTYPES:
        case = Case(D=80, dtype=dtype, layout=layout)
        rows = set()
        for sizes in ({"B": 1}, {"B": 9}, {"Hq": 16, "Hk": 1}, {"Sq": 17, "Sk": 5000}, {"Sk": 1}):
            q, k, v = normal(case.but(**sizes), device=every_kernel_route.device)
            plan = every_kernel_route.explain(q, k, v, layout=layout)
            rows.add((plan.config, plan.split))
        for sizes in ({"B": 1}, {"B": 9}, {"Hq": 16, "Hk": 1}, {"Sk": 5000}, {"Sk": 1}):
            q, k, v = normal(case.but(**sizes, Sq=1), device=every_kernel_route.device)
            plan = every_kernel_route.explain(q, k, v, layout=layout)
            rows.add((plan.config, plan.split))
        # one for many queries, one for few
        assert len(rows) == 2


@pytest.mark.parametrize(
    "arch", ["Ascend910B3", "Ascend910_9392", "Ascend950PR_9589", "Ascend910B4"]
)
def test_every_head_size_has_a_tile(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    monkeypatch.setattr("flashasc._dispatch.require", lambda *_, **__: None)
    monkeypatch.setenv("FLASHASC_NATIVE_ARCH", arch)
    for case in BY_HEAD_SIZE:
        for Sq in (1, 17):
            q, k, v = normal(case.but(Sq=Sq, Sk=1))
            for precision in ("standard", "compensated"):
                plan = ROUTES["native-linalg"].explain(q, k, v, precision=precision)
                assert plan.target.arch == arch
                row = plan.split if Sq == 1 else plan.config
                assert row.max_head >= max(q.shape[-1], v.shape[-1])
