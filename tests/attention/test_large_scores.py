"""Scores that float32 holds exactly cost nothing, however large: only their differences count."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashasc.testing import Case, normal
from tests.attention.routes import Route

pytestmark = pytest.mark.usefixtures("_small_tiles")
KINDS = [(torch.float32, "compensated"), (torch.float16, "high"), (torch.bfloat16, "standard")]


def assert_shifted(
    route: Route, case: Case, precision: Any, near: dict[str, Any], far: dict[str, Any], by: float
) -> None:
    """The options `far` shift every score of `near` by the same, which changes no weight."""
    q, k, v = normal(case, device=route.device)
    results = []
    for given in (near, far):
        options = {"q": torch.zeros_like(q), "k": torch.ones_like(k), **given}
        results.append(
            route(
                options.pop("q"), options.pop("k"), v, precision=precision,
                out_dtype=torch.float32, return_lse=True, **options,
            )
        )  # fmt: skip
    (out, lse), (far_out, far_lse) = results
    eps = torch.finfo(torch.float32).eps
    # scores of 8192 in log2 units are off by up to 3e-4, and so are their weights
    torch.testing.assert_close(far_out, out, rtol=0, atol=8 * eps * v.abs().max().item())
    torch.testing.assert_close(far_lse - by, lse, rtol=0, atol=2 * eps * abs(by))


@pytest.mark.parametrize("by", [8192.0, -8192.0, 65536.0])
@pytest.mark.parametrize("dtype, precision", KINDS, ids=str)
def test_a_large_bias(options_route: Route, dtype: torch.dtype, precision: str, by: float) -> None:
    case = Case(Sq=40, Sk=70, D=16, dtype=dtype)
    # multiples of 1 / 128, as float32 has them at 65 536
    bias = (torch.randn(40, 70, device=options_route.device) * 256).round() / 128
    assert torch.equal((bias + by) - by, bias)
    assert_shifted(options_route, case, precision, {"bias": bias}, {"bias": bias + by}, by)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    "dtype, precision, Sq",
    # few queries are another kernel's
    [*((*kind, 40) for kind in KINDS), (*KINDS[0], 3)],
    ids=str,
)
def test_slopes_of_scores_at_a_large_cap(
    options_route: Route, dtype: torch.dtype, precision: str, Sq: int, sign: float
) -> None:
    """At the cap every score is the cap, whatever it was: the distance alone tells keys apart."""
    case = Case(Sq=Sq, Sk=70, D=16, dtype=dtype)
    device = options_route.device
    options = {"alibi_slopes": torch.tensor([0.25, 0.0625], device=device), "softcap": 8192.0}
    # scores of 16 * 1e4 * 1, 20 times the cap
    q = torch.full((1, 2, Sq, 16), sign * 1e4, dtype=dtype, device=device)
    far = {"q": q, "scale": 1.0, **options}
    assert_shifted(options_route, case, precision, options, far, sign * 8192.0)
