"""Both sides of every row of docs/coming-from.md give the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashasc
from tests.docs import other_libraries as other
from tests.docs.pages import rows

HEADINGS = {
    "`F.scaled_dot_product_attention`": 6,
    "`flash_attn_func`, `flash_attn_varlen_func`": 12,
    "`torch_npu.npu_fusion_attention`": 13,
}
ROWS = [row for heading in HEADINGS for row in rows("coming-from", heading)]


def names(heading: str) -> dict[str, Any]:
    """What the calls on the page refer to. Sq != Sk, so that alignment matters."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
    seq_first = "flash_attn" in heading
    sq, sk, sv = (x.transpose(1, 2) for x in (q, k, v))
    allowed = draw(2, 1, 5, 7) > 0
    allowed[..., 0] = True
    return {
        "torch": torch,
        "attention": flashasc.attention,
        "sdpa": F.scaled_dot_product_attention,
        "flash_attn_func": other.flash_attn_func,
        "flash_attn_varlen_func": other.flash_attn_varlen_func,
        "npu": other.npu_fusion_attention,
        "npu_v2": other.npu_fusion_attention,
        **dict(zip("qkv", (sq, sk, sv) if seq_first else (q, k, v))),
        "sq": sq,
        "sk": sk,
        "sv": sv,
        "hq": sq.flatten(2),
        "hk": sk.flatten(2),
        "hv": sv.flatten(2),
        "tq": draw(8, 4, 16),
        "tk": draw(8, 4, 16),
        "tv": draw(8, 4, 16),
        "cu_q": torch.tensor([0, 3, 8]),
        "cu_k": torch.tensor([0, 4, 8]),
        "allowed": allowed,
        "hidden": ~allowed,
        "added": draw(1, 4, 5, 7),
        "upper": torch.ones(2048, 2048, dtype=torch.bool).triu(1),
        "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]),
    }


@pytest.mark.parametrize("heading", HEADINGS)
def test_both_sides_of_every_row(heading: str) -> None:
    calls = rows("coming-from", heading)
    assert len(calls) == HEADINGS[heading]
    known = names(heading)
    results = []
    for theirs, ours in calls:
        expected = eval(theirs.strip("`"), dict(known))
        actual = eval(ours.strip("`"), dict(known))
        assert actual.shape == expected.shape, ours
        assert torch.allclose(actual, expected, rtol=1e-10, atol=1e-12), ours
        results.append(expected)
    # rows that all gave one and the same would prove nothing
    distinct = {tuple(r.flatten()[:64].tolist()) for r in results}
    assert len(distinct) >= len(results) - 5


def test_sdpa_refuses_what_combines_here() -> None:
    n = names("sdpa")
    q, k, v, allowed = n["q"], n["k"], n["v"], n["allowed"]
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="is_causal"):
        F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=True)
    causal = torch.ones(5, 7, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed & causal)
    actual = flashasc.attention(q, k, v, mask=allowed, causal=True, causal_align="top_left")
    torch.testing.assert_close(actual, expected)
