"""`flashasc.nn.MultiheadAttention` against PyTorch's, from one checkpoint."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc.testing import error_budget

N, L, S, E, HEADS = 2, 5, 7, 24, 4

MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "other widths": {"kdim": 10, "vdim": 6},
    "one other width": {"vdim": 6, "bias": False},
    "bias_kv": {"add_bias_kv": True},
    "bias_kv and zero": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 10},
}


def bools(*shape: int) -> Tensor:
    """Hidden here and there, never a whole row."""
    hidden = torch.rand(shape) < 0.4
    hidden[..., 2] = False
    return hidden


CAUSAL = torch.ones(L, S, dtype=torch.bool).triu(1)
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "bool": {"attn_mask": bools(L, S)},
    "bool a head": {"attn_mask": bools(N * HEADS, L, S)},
    "float": {"attn_mask": torch.randn(L, S)},
    "float a head": {"attn_mask": torch.randn(N * HEADS, L, S)},
    "padding": {"key_padding_mask": bools(N, S)},
    "float padding": {"key_padding_mask": torch.randn(N, S)},
    "both bool": {"attn_mask": bools(L, S), "key_padding_mask": bools(N, S)},
    "both float": {
        "attn_mask": torch.randn(N * HEADS, L, S),
        "key_padding_mask": torch.randn(N, S),
    },
    "mixed": {"attn_mask": bools(L, S), "key_padding_mask": torch.randn(N, S)},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "causal and padding": {
        "attn_mask": torch.zeros(L, S).masked_fill(CAUSAL, -torch.inf),
        "is_causal": True,
        "key_padding_mask": torch.tensor([[0.0] * S, [0.0] * 4 + [-torch.inf] * 3]),
    },
}


def pair(name: str, **options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(1)
    theirs = torch.nn.MultiheadAttention(E, HEADS, **MODULES[name], **options)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.manual_seed(2)
    ours = flashasc.nn.MultiheadAttention(E, HEADS, **MODULES[name], **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs(module: Any, batched: bool) -> list[Tensor]:
    torch.manual_seed(3)
    tensors = [torch.randn(n, N, w) for n, w in ((L, E), (S, module.kdim), (S, module.vdim))]
    if not batched:
        return [x[:, 0] for x in tensors]
    return [x.transpose(0, 1) if module.batch_first else x for x in tensors]


def of_one(masks: dict[str, Any]) -> dict[str, Any]:
    """Masks of the first element of the batch."""
    cut = {}
    for name, x in masks.items():
        if name == "key_padding_mask":
            x = x[0]
        elif name == "attn_mask" and x.dim() == 3:
            x = x[:HEADS]
        cut[name] = x
    return cut


def doubled(options: dict[str, Any]) -> dict[str, Any]:
    floats = {
        k: x.double() for k, x in options.items() if isinstance(x, Tensor) and x.is_floating_point()
    }
    return options | floats


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", MODULES)
def test_the_same_numbers(name: str, masks: dict[str, Any]) -> None:
    for batch_first, batched, need_weights in itertools.product([True, False], repeat=3):
        ours, theirs = pair(name, batch_first=batch_first)
        x = inputs(theirs, batched)
        options = masks if batched else of_one(masks)
        # PyTorch's hint hides the key of bias_k; without it the mask is what counts
        expected = options | ({"is_causal": False} if "add_bias_kv" in MODULES[name] else {})
        eager, eager_weights = theirs(*x, **expected, need_weights=need_weights)
        found, weights = ours(*x, **options, need_weights=need_weights)
        exact, exact_weights = theirs.double()(
            *(t.double() for t in x), **doubled(expected), need_weights=need_weights
        )
        assert found.shape == eager.shape and found.is_contiguous()
        assert (found - exact).abs().max() <= error_budget(exact, eager)
        if need_weights:
            assert weights.shape == eager_weights.shape
            budget = error_budget(exact_weights, eager_weights)
            assert (weights - exact_weights).abs().max() <= budget
        else:
            assert weights is None


@pytest.mark.parametrize("name", ["float a head", "both bool", "none"])
@pytest.mark.parametrize("average", [True, False])
def test_weights_of_each_head(name: str, average: bool) -> None:
    ours, theirs = pair("bias_kv and zero", batch_first=True)
    x = inputs(theirs, True)
    found = ours(*x, **MASKS[name], average_attn_weights=average)[1]
    expected = theirs(*x, **MASKS[name], average_attn_weights=average)[1]
    assert found.shape == ((N, L, S + 2) if average else (N, HEADS, L, S + 2))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("need_weights", [True, False])
def test_gradients(need_weights: bool) -> None:
    ours, theirs = pair("other widths")
    grads = []
    for module in (ours, theirs):
        x = [t.requires_grad_() for t in inputs(module, True)]
        bias = MASKS["float a head"]["attn_mask"].clone().requires_grad_()
        out, weights = module(*x, attn_mask=bias, need_weights=need_weights)
        loss = out.square().sum() + (weights.square().sum() if need_weights else 0)
        loss.backward()
        grads.append([t.grad for t in (*x, bias, *module.parameters())])
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_row_that_sees_nothing_is_zero() -> None:
    ours, _ = pair("no bias")
    x = inputs(ours, True)
    hidden = torch.zeros(L, S, dtype=torch.bool)
    hidden[1] = True
    for mask in (hidden, torch.zeros(L, S).masked_fill(hidden, -torch.inf)):
        out, weights = ours(*x, attn_mask=mask)
        assert (out[1] == 0).all() and (weights[:, 1] == 0).all()
        assert not out[0].isnan().any() and (weights[:, 0].sum(-1) - 1).abs().max() < 1e-6


def test_the_kernel_computes_it() -> None:
    ours, theirs = pair("bias_kv")
    ours.impl = "triton"
    x = inputs(theirs, True)
    with torch.no_grad():
        found, _ = ours(*x, **MASKS["both bool"], need_weights=False)
        expected, _ = theirs(*x, **MASKS["both bool"], need_weights=False)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_first_numbers_are_pytorchs() -> None:
    """One seed, one model: parameters are made in PyTorch's order."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, HEADS, add_bias_kv=True, kdim=3)
    torch.manual_seed(0)
    ours = flashasc.nn.MultiheadAttention(E, HEADS, add_bias_kv=True, kdim=3)
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(found, expected), name


X = torch.zeros(L, N, E)
Y = torch.zeros(S, N, E)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"attn_mask": torch.zeros(S, L)}, r"attn_mask must be \[L, S\] = \(5, 7\)"),
        ({"attn_mask": torch.zeros(N, L, S)}, r"\[N \* num_heads, L, S\] = \(8, 5, 7\)"),
        ({"key_padding_mask": torch.zeros(S, N)}, r"key_padding_mask must be \[N, S\] = \(2, 7\)"),
        ({"attn_mask": torch.zeros(L, S, dtype=torch.int)}, "attn_mask must be bool"),
        (
            {"key_padding_mask": torch.zeros(N, S, dtype=torch.long)},
            "key_padding_mask must be bool",
        ),
        ({"is_causal": True}, "must be given"),
        ({"query": X[..., :3]}, r"query must have 24 features"),
        ({"value": Y[:3]}, "same length and batch"),
        ({"key": Y[:, :1], "value": Y[:, :1]}, "one batch size"),
        ({"query": X[0]}, "query, key and value must all be"),
        ({"query": None}, "query must be a torch.Tensor"),
    ],
)
def test_wrong_calls_say_so(call: dict[str, Any], message: str) -> None:
    module = flashasc.nn.MultiheadAttention(E, HEADS)
    with pytest.raises((TypeError, ValueError), match=message):
        module(**({"query": X, "key": Y, "value": Y} | call))


def test_wrong_state_dict() -> None:
    module = flashasc.nn.MultiheadAttention(E, HEADS)
    with pytest.raises(RuntimeError, match="q_proj_weight"):
        module.load_state_dict(torch.nn.MultiheadAttention(E, HEADS, kdim=3).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for in_proj_weight"):
        module.load_state_dict(torch.nn.MultiheadAttention(2 * E, HEADS).state_dict())
    with pytest.raises(ValueError, match="embed_dim must be a multiple of num_heads"):
        flashasc.nn.MultiheadAttention(10, 4)


def test_dropout_raises_in_training_alone() -> None:
    module = flashasc.nn.MultiheadAttention(E, HEADS, dropout=0.1)
    with pytest.raises(NotImplementedError, match=r"dropout=0.1.*module.dropout = 0.0.*eval"):
        module(X, Y, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.eval()(X, Y, Y)
    module.train().dropout = 0.0
    module(X, Y, Y)
