"""What a caller can get wrong about options: the class of the error, and what its message names."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import flashasc
from tests.attention.option_cases import ALONE, BASE, option, packed
from tests.attention.routes import Route

Q, KV = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8)
CU = torch.tensor([0, 2, 5], dtype=torch.int32)
PACKED = {
    "q": torch.zeros(5, 4, 8), "k": torch.zeros(5, 2, 8), "v": torch.zeros(5, 2, 8),
    "layout": "TND", "cu_seqlens_q": CU, "cu_seqlens_k": CU,
}  # fmt: skip
LENGTHS = torch.tensor([7, 3])
Entry = tuple[dict[str, Any], type[Exception], tuple[str, ...]]

MISTAKES: dict[str, Entry] = {
    "window is a number": ({"window": 4}, TypeError, ("window", "pair", "int 4", "(n - 1, 0)")),
    "window of three": ({"window": (1, 2, 3)}, ValueError, ("window", "pair", "3 values")),
    "window of floats": ({"window": (1.0, 2)}, TypeError, ("window", "float 1.0")),
    "window of flags": ({"window": (True, 2)}, TypeError, ("window", "bool True")),
    "window of -1": ({"window": (-1, 0)}, ValueError, ("window", "-1", "None")),
    "window of tensors": (
        {"window": (torch.tensor(1), 0)}, TypeError, ("window", "integers", "Tensor")
    ),
    "softcap of 0": ({"softcap": 0}, ValueError, ("softcap", "greater than 0", "None")),
    "negative softcap": ({"softcap": -2.0}, ValueError, ("softcap", "-2.0")),
    "softcap is NaN": ({"softcap": float("nan")}, ValueError, ("softcap", "finite", "nan")),
    "softcap is inf": ({"softcap": float("inf")}, ValueError, ("softcap", "finite", "inf")),
    "softcap too small": ({"softcap": 1e-40}, ValueError, ("softcap", "scale / softcap", "1e-40")),
    "softcap is a tensor": ({"softcap": torch.ones(())}, TypeError, ("softcap", ".item()")),
    "softcap is a flag": ({"softcap": True}, TypeError, ("softcap", "bool")),
    "float mask": (
        {"mask": torch.zeros(5, 7)}, TypeError, ("mask", "bool", "True = may attend", "bias=")
    ),
    "integer mask": ({"mask": torch.ones(5, 7).int()}, TypeError, ("mask", "bool", ".bool()")),
    "mask is a list": ({"mask": [[True]]}, TypeError, ("mask", "torch.Tensor", "list")),
    "mask of padding": (
        {"mask": torch.ones(2, 7).bool()},
        ValueError,
        ("mask", "[B, Hq, Sq, Sk] = (2, 4, 5, 7)", "(2, 7)", "mask[:, None, None, :]"),
    ),
    "mask of 5 dimensions": (
        {"mask": torch.ones(1, 2, 4, 5, 7).bool()}, ValueError, ("mask", "(1, 2, 4, 5, 7)")
    ),
    "mask elsewhere": (
        {"mask": torch.ones(5, 7).bool().to("meta")}, ValueError, ("mask", "device", "meta")
    ),
    "bool bias": ({"bias": torch.ones(5, 7).bool()}, TypeError, ("bias", "bool", "mask=")),
    "integer bias": ({"bias": torch.ones(5, 7).long()}, TypeError, ("bias", "float16", "int64")),
    "bias of other keys": (
        {"bias": torch.zeros(5, 8)}, ValueError, ("bias", "(2, 4, 5, 7)", "(5, 8)")
    ),
    "bias elsewhere": ({"bias": torch.zeros(7).to("meta")}, ValueError, ("bias", "meta", ".to(")),
    "slopes of key heads": (
        {"alibi_slopes": torch.zeros(2)}, ValueError, ("alibi_slopes", "[Hq] = (4,)", "(2,)")
    ),
    "slopes of another batch": (
        {"alibi_slopes": torch.zeros(3, 4)}, ValueError, ("alibi_slopes", "(2, 4)", "(3, 4)")
    ),
    "integer slopes": (
        {"alibi_slopes": torch.ones(4).int()}, TypeError, ("alibi_slopes", "float", "int32")
    ),
    "slope is a number": ({"alibi_slopes": 0.5}, TypeError, ("alibi_slopes", "Tensor", "float")),
    "sinks of each sequence": (
        {"sinks": torch.zeros(2, 4)}, ValueError, ("sinks", "[Hq] = (4,)", "(2, 4)")
    ),
    "integer sinks": ({"sinks": torch.ones(4).int()}, TypeError, ("sinks", "float", "int32")),
    "sinks elsewhere": ({"sinks": torch.zeros(4).to("meta")}, ValueError, ("sinks", "device")),
    "kv_lens of floats": ({"kv_lens": torch.ones(2)}, TypeError, ("kv_lens", "int32", "float32")),
    "kv_lens of another batch": (
        {"kv_lens": torch.ones(3).long()}, ValueError, ("kv_lens", "2 elements", "[B]", "3")
    ),
    "kv_lens of 2 dimensions": (
        {"kv_lens": torch.ones(2, 1).long()}, ValueError, ("kv_lens", "1 dimension", "(2, 1)")
    ),
    "kv_lens is a list": ({"kv_lens": [3, 4]}, TypeError, ("kv_lens", "Tensor", "list")),
    "kv_lens elsewhere": ({"kv_lens": LENGTHS.to("meta")}, ValueError, ("kv_lens", "meta")),
    "cumulative lengths of a padded batch": (
        {"cu_seqlens_q": CU}, ValueError, ("cu_seqlens_q", "TND", "BNSD", "kv_lens")
    ),
    "a largest length of a padded batch": (
        {"max_seqlen_k": 7}, ValueError, ("max_seqlen_k", "TND", "kv_lens")
    ),
    "packed in 4 dimensions": ({"layout": "TND"}, ValueError, ("q", "3 dim", "[tokens, H, D]")),
    "packed without lengths": (
        {**PACKED, "cu_seqlens_k": None}, ValueError, ("cu_seqlens_k", "leading 0", "same tensor")
    ),
    "packed with a mask": (
        {**PACKED, "mask": torch.ones(5, 5).bool()}, NotImplementedError, ("mask", "TND", "BSND")
    ),
    "packed with a bias": (
        {**PACKED, "bias": torch.ones(5, 5)}, NotImplementedError, ("bias", "TND", "BSND")
    ),
    "packed with kv_lens": (
        {**PACKED, "kv_lens": LENGTHS}, NotImplementedError, ("kv_lens", "TND", "BSND")
    ),
    "float cumulative lengths": (
        {**PACKED, "cu_seqlens_q": CU.float()}, TypeError, ("cu_seqlens_q", "int32", "float32")
    ),
    "no cumulative length": (
        {**PACKED, "cu_seqlens_q": CU[:0]}, ValueError, ("cu_seqlens_q", "at least 1", "a 0")
    ),
    "more sequences of keys": (
        {**PACKED, "cu_seqlens_k": CU[:2]}, ValueError, ("cu_seqlens_k", "3 elements", "got 2")
    ),
    "cumulative lengths elsewhere": (
        {**PACKED, "cu_seqlens_k": CU.to("meta")}, ValueError, ("cu_seqlens_k", "device", "meta")
    ),
    "largest length is a tensor": (
        {**PACKED, "max_seqlen_q": torch.tensor(3)}, TypeError, ("max_seqlen_q", "tensor", "int(")
    ),
    "largest length is a float": (
        {**PACKED, "max_seqlen_q": 3.0}, TypeError, ("max_seqlen_q", "float 3.0")
    ),
    "negative largest length": (
        {**PACKED, "max_seqlen_k": -1}, ValueError, ("max_seqlen_k", "0 or more", "-1")
    ),
    "packed heads": (
        {**PACKED, "q": torch.zeros(5, 3, 8)}, ValueError, ("multiple", "Hq = 3", "[tokens, H, D]")
    ),
    "high precision of float64": (
        {"q": Q.double(), "k": KV.double(), "v": KV.double(), "precision": "high"},
        NotImplementedError,
        ("high", "float64", "compensated"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("entry", [flashasc.attention, flashasc.check], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_named(mistake: str, entry: Any) -> None:
    changes, error, named = MISTAKES[mistake]
    with pytest.raises(error) as raised:
        entry(**{"q": Q, "k": KV, "v": KV, **changes})
    assert type(raised.value) is error
    message = str(raised.value)
    missing = [name for name in named if name.lower() not in message.lower()]
    assert not missing, message
    assert not re.search(r"(?<![\w.])_[a-z]\w+", message), message


VALUES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "kv_lens beyond the keys": ({"kv_lens": torch.tensor([7, 8])}, ("kv_lens", "7", "8", "1")),
    "negative kv_lens": ({"kv_lens": torch.tensor([-1, 3])}, ("kv_lens", "-1", "sequence 0")),
    "no leading 0": (
        {**PACKED, "cu_seqlens_q": torch.tensor([1, 2, 5])}, ("cu_seqlens_q", "start with 0", "1")
    ),
    "falling": (
        {**PACKED, "cu_seqlens_k": torch.tensor([0, 6, 5])}, ("cu_seqlens_k", "6 and then 5")
    ),
    "tokens left over": (
        {**PACKED, "cu_seqlens_k": torch.tensor([0, 2, 4])}, ("cu_seqlens_k", "5", "got 4")
    ),
    "more tokens than there are": (
        {**PACKED, "cu_seqlens_q": torch.tensor([0, 2, 6])}, ("cu_seqlens_q", "5", "got 6")
    ),
    "announced too short": (
        {**PACKED, "max_seqlen_q": 2}, ("max_seqlen_q", "got 2", "sequence 1", "3 tokens")
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", VALUES)
def test_check_reads_what_attention_does_not(mistake: str) -> None:
    changes, named = VALUES[mistake]
    arguments = {"q": Q, "k": KV, "v": KV, **changes}
    flashasc.attention(**arguments)
    flashasc.explain(**arguments)
    with pytest.raises(ValueError) as raised:
        flashasc.check(**arguments)
    assert not [name for name in named if name not in str(raised.value)], raised.value


def test_check_lets_right_calls_pass() -> None:
    flashasc.check(Q, KV, KV, kv_lens=torch.tensor([0, 7]))
    flashasc.check(**PACKED)
    flashasc.check(**PACKED, max_seqlen_q=3, max_seqlen_k=100)
    flashasc.check(*(x.to("meta") for x in (Q, KV, KV)), kv_lens=LENGTHS.to("meta"))


def test_check_asks_whether_the_call_can_be_computed() -> None:
    with pytest.raises(NotImplementedError, match="float64"):
        flashasc.check(Q.double(), KV.double(), KV.double(), impl="triton")


@pytest.mark.parametrize("name", [*dict.fromkeys(n.split()[0] for n in ALONE), "TND", "high"])
def test_kernels_name_what_they_do_not_serve(kernel_route: Route, name: str) -> None:
    case = BASE.but(Sq=5, Sk=7, dtype=torch.float16)
    inputs, options = packed(case, [2, 3, 0], [3, 3, 1], device=kernel_route.device)
    if name != "TND":
        tensors = (torch.zeros(case.B, h, s, 16) for h, s in ((4, 5), (2, 7), (2, 7)))
        inputs = tuple(x.to(kernel_route.device, torch.float16) for x in tensors)
        options = {"precision": "high"} if name == "high" else option(name, case)
        options = {
            key: x.to(kernel_route.device) if isinstance(x, torch.Tensor) else x
            for key, x in options.items()
        }
    for call in (kernel_route, kernel_route.explain):
        with pytest.raises(NotImplementedError, match=rf'{name}.*impl="reference"'):
            call(*inputs, **options)
