"""A wrong choice of precision or implementation raises when it is made, as a call would."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashasc
from flashasc.nn import Attention, GroupedQueryAttention, MultiheadAttention, replace_attention

Q = torch.randn(1, 1, 2, 8)


def registered(**options: Any) -> None:
    pytest.importorskip("transformers")
    from flashasc.integrations import transformers as asc

    asc.register("wrong_choice", **options)


def routed(**options: Any) -> None:
    with flashasc.route_sdpa(**options):
        pass


def replaced(**options: Any) -> None:
    replace_attention(torch.nn.TransformerEncoderLayer(16, 4), **options)


MADE: dict[str, Any] = {
    "register": registered,
    "route_sdpa": routed,
    "replace_attention": replaced,
    "Attention": Attention,
    "GroupedQueryAttention": lambda **options: GroupedQueryAttention(16, 4, **options),
    "MultiheadAttention": lambda **options: MultiheadAttention(16, 4, **options),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(
    "options", [{"precision": "foo"}, {"impl": "foo"}, {"precision": 3}], ids=str
)
def test_it_raises_as_the_call(made: str, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as call:
        flashasc.attention(Q, Q, Q, **options)
    with pytest.raises(call.type) as early:
        MADE[made](**options)
    assert str(early.value) == str(call.value)


def test_a_name_that_is_no_word() -> None:
    pytest.importorskip("transformers")
    from flashasc.integrations import transformers as asc

    with pytest.raises(TypeError, match="name must be a str.*got int 3"):
        asc.register(3)  # type: ignore[arg-type]
