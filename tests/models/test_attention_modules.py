"""`flashasc.nn.Attention`, `GroupedQueryAttention` and `RotaryEmbedding`."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc.nn import Attention, GroupedQueryAttention, RotaryEmbedding

Q, K = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)


def test_options_and_tensors_arrive() -> None:
    module = Attention(causal=True, window=(2, 0), softcap=3.0, scale=0.3, impl="reference")
    assert not list(module.parameters()) and not module.state_dict()
    sinks, lengths = torch.randn(4), torch.tensor([7, 3])
    found = module(Q, K, K, sinks=sinks, kv_lens=lengths, return_lse=True)
    expected = flashasc.attention(
        Q,
        K,
        K,
        window=(2, 0),
        softcap=3.0,
        scale=0.3,
        sinks=sinks,
        kv_lens=lengths,
        return_lse=True,
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert repr(module) == (
        "Attention(causal=True, scale=0.3, window=(2, 0), softcap=3.0, impl='reference')"
    )
    # options are attributes, read at every call
    other = copy.deepcopy(module)
    other.causal, other.window = False, None
    plain = flashasc.attention(Q, K, K, softcap=3.0, scale=0.3)
    assert torch.equal(other(Q, K, K), plain)


def test_packed_sequences() -> None:
    q, ends = torch.randn(9, 4, 8), torch.tensor([0, 4, 9])
    out = Attention(layout="TND", causal=True)(q, q, q, cu_seqlens_q=ends, cu_seqlens_k=ends)
    one = q[4:].transpose(0, 1)[None]
    expected = flashasc.attention(one, one, one, causal=True)[0].transpose(0, 1)
    torch.testing.assert_close(out[4:], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "SBND"}, "layout must be one of"),
        ({"window": 3}, "window must be a pair"),
        ({"softcap": 0.0}, "softcap must be greater than 0"),
        ({"precision": "exact"}, "precision must be one of"),
        ({"causal": 1}, "causal must be True or False"),
        ({"layout": "TND", "impl": "fast"}, "impl must be one of"),
    ],
)
def test_wrong_options_raise_when_the_module_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Attention(**options)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_angles_at_any_position(interleaved: bool) -> None:
    rotary = RotaryEmbedding(8, base=500.0, interleaved=interleaved)
    positions = torch.tensor([0, 1, 1023, 1024, 131_071, 1_000_003, 4_194_303])
    x = torch.randn(2, 7, 3, 10)
    angles = positions.double()[:, None] * 500.0 ** -(torch.arange(0, 8, 2).double() / 8)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    turned = x[..., :8].double()
    pairs = turned.unflatten(-1, (-1, 2)) if interleaved else turned.unflatten(-1, (2, -1)).mT
    complex_out = torch.view_as_complex(pairs.contiguous()) * turn
    exact = torch.view_as_real(complex_out)
    exact = exact.flatten(-2) if interleaved else exact.mT.flatten(-2)
    for module in (rotary, copy.deepcopy(rotary).half().float(), copy.deepcopy(rotary).bfloat16()):
        out = module(x, positions)
        assert (out[..., :8] - exact).abs().max() < 2e-6
        assert torch.equal(out[..., 8:], x[..., 8:])
    assert not rotary.state_dict()
    with pytest.raises(ValueError, match="dim must be even"):
        RotaryEmbedding(7)


def test_a_layer_of_qwen3_loads_and_agrees() -> None:
    pytest.importorskip("transformers")
    model = importlib.import_module("tiny_models").decoder("qwen3")
    theirs, config = model.model.layers[0].self_attn, model.config
    ours = GroupedQueryAttention(48, 6, 2, head_dim=16, qk_norm=True, norm_eps=config.rms_norm_eps)
    ours.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(2, 11, 48), torch.arange(3, 14)[None]
    rotation = model.model.rotary_emb(x, positions)
    hidden = torch.full((11, 11), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        expected, _ = theirs(x, position_embeddings=rotation, attention_mask=hidden)
        found = ours(x, positions=positions)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="size mismatch for k_proj"):
        GroupedQueryAttention(48, 6, 3, head_dim=16, qk_norm=True).load_state_dict(
            theirs.state_dict()
        )


def module(**options: Any) -> GroupedQueryAttention:
    torch.manual_seed(0)
    return GroupedQueryAttention(24, 4, 2, sinks=True, window=(3, 0), **options)


def rows(m: GroupedQueryAttention, x: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        return m(x, **options)


def test_packed_and_padded_batches_agree_with_lone_sequences() -> None:
    m = module()
    torch.nn.init.normal_(m.sinks)
    tokens, ends = torch.randn(11, 24), torch.tensor([0, 4, 11], dtype=torch.int32)
    alone = torch.cat([rows(m, tokens[None, :4])[0], rows(m, tokens[None, 4:])[0]])
    torch.testing.assert_close(rows(m, tokens, cu_seqlens=ends), alone)
    torch.testing.assert_close(rows(m, tokens, cu_seqlens=ends, max_seqlen=7), alone)
    padded = torch.stack([torch.cat([tokens[:4], torch.full((3, 24), 9.0)]), tokens[4:]])
    out = rows(m, padded, kv_lens=torch.tensor([4, 7]))
    torch.testing.assert_close(out[0, :4], alone[:4])
    torch.testing.assert_close(out[1], alone[4:])


def test_only_distances_matter() -> None:
    m, x = module(), torch.randn(1, 9, 24)
    torch.testing.assert_close(rows(m, x), rows(m, x, positions=torch.arange(9) + 5000))
    assert not torch.allclose(rows(m, x), rows(m, x, positions=torch.arange(9) * 2), atol=1e-3)


@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        (torch.arange(6), ValueError, r"broadcasts to \(2, 7\); got \(6,\)"),
        (torch.zeros(3, 2, 7).long(), ValueError, r"broadcasts to \(2, 7\); got \(3, 2, 7\)"),
        (torch.arange(7.0), TypeError, "positions must be integers; got torch.float32"),
        ([0, 1], TypeError, "positions must be a torch.Tensor of integers; got list"),
    ],
)
def test_positions_that_do_not_fit(positions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        module()(torch.randn(2, 7, 24), positions=positions)


def test_decoding_with_what_project_gives() -> None:
    """The way of a key-value cache: a token's k and v are those of the whole sequence."""
    m, x = module(), torch.randn(1, 9, 24)
    q, k, v = m.project(x, torch.arange(9))
    last = m.project(x[:, 8:], torch.tensor([8]))
    for part, whole in zip(last, (q, k, v), strict=True):
        torch.testing.assert_close(part, whole[:, 8:])
    out = m.attention(last[0], k, v, sinks=m.sinks)
    torch.testing.assert_close(m.o_proj(out.flatten(-2)), rows(m, x)[:, 8:])


def test_trains_and_compiles() -> None:
    m, x = module(qk_norm=True), torch.randn(2, 6, 24)
    m(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in m.parameters())
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), m(x))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((24, 4, 3), "a multiple of num_kv_heads"), ((25, 4, 2), "embed_dim must be a multiple")],
)
def test_sizes_that_do_not_go_together(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupedQueryAttention(*sizes)


def test_wrong_input_says_so() -> None:
    with pytest.raises(ValueError, match=r"x must be \[B, S, embed_dim\] with embed_dim = 24"):
        module()(torch.zeros(5, 24))
    with pytest.raises(ValueError, match=r"x must be \[tokens, embed_dim\]"):
        module()(torch.zeros(1, 5, 24), cu_seqlens=torch.tensor([0, 5]))
