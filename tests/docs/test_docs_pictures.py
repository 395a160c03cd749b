"""The pictures of docs/masks-and-alignment.md show what attention does."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import flashasc
from tests.docs.pages import blocks

PICTURES = [
    (options, [line.split() for line in picture.splitlines()])
    for options, _, picture in (
        block.partition("\n\n") for block in blocks("masks-and-alignment", "text")
    )
    if re.match(r"\w+=", options)
]


def weights(Sq: int, Sk: int, **options: object) -> Tensor:
    """[Sq, Sk]: how much each query takes of each key, all scores being 0."""
    q, k = torch.zeros(1, 1, Sq, 16), torch.zeros(1, 1, Sk, 16)
    # each value says which key it belongs to
    return flashasc.attention(q, k, torch.eye(Sk)[None, None], **options)[0, 0]  # type: ignore[call-overload]


@pytest.mark.parametrize("options, picture", PICTURES, ids=[options for options, _ in PICTURES])
def test_a_picture_is_what_attention_does(options: str, picture: list[list[str]]) -> None:
    Sq, Sk = len(picture), len(picture[0])
    found = weights(Sq, Sk, **eval(f"dict({options})", {"torch": torch}))
    if "alibi_slopes" in options:
        # penalties against that of the nearest key seen, which is at distance 0
        distance = found.amax(1, keepdim=True).log() - found.log()
        drawn = [
            [f"{d:.0f}" if w > 0 else "." for d, w in zip(*row)] for row in zip(distance, found)
        ]
    elif "sinks" in options:
        drawn = [[f"{w:.2f}" if w > 0 else "." for w in row] for row in found]
    else:
        drawn = [["#" if w > 0 else "." for w in row] for row in found]
    assert drawn == picture


def test_every_option_has_a_picture() -> None:
    assert len(PICTURES) == 14
    drawn = " ".join(options for options, _ in PICTURES)
    for option in ("causal", "causal_align", "window", "mask", "kv_lens", "alibi_slopes", "sinks"):
        assert f"{option}=" in drawn
