"""The bits of a sequence, by every way of putting it into a batch that docs/ names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.attention.routes import prepare as prepare_route


@pytest.mark.parametrize("name", ["native-linalg", "reference"])
def test_alone_padded_and_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = prepare_route(name, monkeypatch)
    # more keys than a tile holds
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, S, 16, generator=generator) for S in (40, 600, 600))
    none = torch.full((2,), -torch.inf)
    alone = attend(q, k, v, sinks=none, return_lse=True)[0]

    def second_of_two(x: Tensor, room: int) -> Tensor:
        """A batch of two, in which this sequence is the second and padded with NaN."""
        batch = torch.full((2, 2, x.shape[2] + room, 16), torch.nan)
        batch[:, :, : x.shape[2]] = torch.cat([x.flip(2), x])
        return batch

    lens = torch.tensor([600, 600])
    padded = (second_of_two(k, 111), second_of_two(v, 111))
    two = attend(torch.cat([-q, q]), *padded, kv_lens=lens, sinks=none, return_lse=True)[0]
    attend.assert_same(two[1:], alone)

    packed = [torch.cat([x.flip(2)[:, :, 7:], x], 2)[0].transpose(0, 1) for x in (q, k, v)]
    lengths = {
        "cu_seqlens_q": torch.tensor([0, 33, 73]),
        "cu_seqlens_k": torch.tensor([0, 593, 1193]),
    }
    out = attend(*packed, layout="TND", **lengths, sinks=none, return_lse=True)[0]
    attend.assert_same(out[33:].transpose(0, 1)[None], alone)
