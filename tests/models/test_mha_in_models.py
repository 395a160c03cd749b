"""`flashasc.nn.MultiheadAttention` where PyTorch's is used: layers, copies, files, processes."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc.nn.multihead
from flashasc.nn import MultiheadAttention, replace_attention
from flashasc.testing import error_budget
from tests.conftest import RunPython

E, HEADS, B, S = 32, 4, 2, 9
PADDING = torch.zeros(B, S, dtype=torch.bool)
PADDING[1, 5:] = True


class Count:
    """How often a function is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)


def encoder(layers: int = 2, **options: Any) -> torch.nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(E, HEADS, 48, batch_first=True, **options)
    return torch.nn.TransformerEncoder(layer, layers)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
@pytest.mark.parametrize("padding", [None, PADDING])
@torch.inference_mode()
def test_an_encoder_in_eval_calls_ours(
    monkeypatch: pytest.MonkeyPatch, padding: Tensor | None, options: dict[str, Any]
) -> None:
    """Its fused path reads the weights and would never come by."""
    model = encoder(**options).eval()
    x = torch.randn(B, S, E)
    eager = model(x, src_key_padding_mask=padding)
    exact = model.double()(x.double(), src_key_padding_mask=padding)
    assert replace_attention(model.float()) == ["layers.0.self_attn", "layers.1.self_attn"]
    ours = Count(monkeypatch, MultiheadAttention, "forward")
    kernel = Count(monkeypatch, flashasc.nn.multihead, "attention")
    found = model(x, src_key_padding_mask=padding)
    assert ours.calls == kernel.calls == 2
    seen = slice(None) if padding is None else ~padding
    assert (found[seen] - exact[seen]).abs().max() <= error_budget(exact[seen], eager[seen])


@torch.inference_mode()
def test_a_lone_encoder_layer_in_eval_calls_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = encoder(1).layers[0].eval()
    replace_attention(layer)
    kernel = Count(monkeypatch, flashasc.nn.multihead, "attention")
    fused = Count(monkeypatch, torch, "_transformer_encoder_layer_fwd")
    layer(torch.randn(B, S, E))
    assert (kernel.calls, fused.calls) == (1, 0)
    # and PyTorch's own would have taken the fused path here: the test can fail
    encoder(1).layers[0].eval()(torch.randn(B, S, E))
    assert fused.calls == 1


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_transformer_causal_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Transformer(E, HEADS, 1, 2, 48, dropout=0.0)
    source, target = torch.randn(S, B, E), torch.randn(S - 2, B, E)
    causal = model.generate_square_subsequent_mask(S - 2)
    call = {"tgt_mask": causal, "tgt_is_causal": True, "memory_key_padding_mask": PADDING.float()}
    grads = []
    for swapped in (False, True):
        if swapped:
            names = replace_attention(model)
            assert len(names) == 5 and "decoder.layers.1.multihead_attn" in names
        kernel = Count(monkeypatch, flashasc.nn.multihead, "attention")
        model.zero_grad()
        model(source, target, **call).square().sum().backward()
        assert kernel.calls == (5 if swapped else 0)
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, expected in grads[0].items():
        torch.testing.assert_close(grads[1][name], expected, rtol=1e-4, atol=1e-3)


def test_dropout_of_a_swapped_model_raises_in_training() -> None:
    model = encoder(dropout=0.1)
    replace_attention(model)
    with pytest.raises(NotImplementedError, match=r"dropout=0.1"):
        model(torch.randn(B, S, E))
    for layer in model.layers:
        layer.self_attn.dropout = 0.0
    model(torch.randn(B, S, E))


def test_replace_says_what_it_cannot() -> None:
    class Mine(torch.nn.MultiheadAttention):
        pass

    with pytest.raises(ValueError, match="from_torch"):
        replace_attention(torch.nn.MultiheadAttention(E, HEADS))
    with pytest.raises(ValueError, match="route_sdpa"):
        replace_attention(torch.nn.ModuleList([Mine(E, HEADS)]))
    model = encoder()
    model.layers[1].self_attn.register_forward_hook(lambda *_: None)
    with pytest.raises(NotImplementedError, match=r"layers.1.self_attn has hooks"):
        replace_attention(model)
    assert type(model.layers[0].self_attn) is torch.nn.MultiheadAttention


def test_a_shared_module_stays_one() -> None:
    attention = torch.nn.MultiheadAttention(E, HEADS, kdim=E, add_bias_kv=True)
    model = torch.nn.ModuleList([attention, attention])
    before = dict(model.named_parameters())
    assert replace_attention(model, precision="standard") == ["0", "1"]
    assert model[0] is model[1] and model[0].precision == "standard"
    after = dict(model.named_parameters())
    assert all(after[name] is before[name] for name in before) and len(after) == len(before)


X = torch.randn(S, B, E)


def saved_and_loaded(module: Any) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved_and_loaded]
)
@pytest.mark.parametrize("options", [{}, {"vdim": E + 1}])
def test_copies(duplicate: Any, options: dict[str, int]) -> None:
    module = MultiheadAttention(E, HEADS, precision="standard", impl="reference", **options).eval()
    other = duplicate(module)
    v = torch.randn(S, B, module.vdim)
    assert type(other) is MultiheadAttention and not other._qkv_same_embed_dim
    assert (other.precision, other.impl) == ("standard", "reference")
    assert torch.equal(other(X, X, v)[0], module(X, X, v)[0])
    assert not any(p is q for p, q in zip(module.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@torch.inference_mode()
def test_other_dtypes(dtype: torch.dtype) -> None:
    theirs = torch.nn.MultiheadAttention(E, HEADS, add_bias_kv=True)
    ours = MultiheadAttention.from_torch(theirs).to(dtype)
    x = X.to(dtype)
    eager, _ = theirs(x, x, x, need_weights=False)
    found, weights = ours(x, x, x)
    exact, _ = theirs.double()(x.double(), x.double(), x.double())
    assert found.dtype == weights.dtype == dtype
    assert (found - exact).abs().max() <= error_budget(exact, eager)


@torch.inference_mode()
def test_autocast() -> None:
    theirs = torch.nn.MultiheadAttention(E, HEADS, add_bias_kv=True, add_zero_attn=True)
    ours = MultiheadAttention.from_torch(theirs)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = ours(X, X, X, attn_mask=torch.zeros(S, S))
        expected, _ = theirs(X, X, X, attn_mask=torch.zeros(S, S), need_weights=False)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_compiled_whole() -> None:
    module = MultiheadAttention(E, HEADS, batch_first=True)
    x = torch.randn(B, S, E)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    found, _ = compiled(x, x, x, key_padding_mask=PADDING, need_weights=False)
    expected, _ = module(x, x, x, key_padding_mask=PADDING, need_weights=False)
    torch.testing.assert_close(found, expected)


def test_nested_tensors_raise() -> None:
    nested = torch.nested.nested_tensor([torch.randn(3, E), torch.randn(2, E)])
    module = MultiheadAttention(E, HEADS, batch_first=True).eval()
    with pytest.raises(NotImplementedError, match="nested"):
        module(nested, nested, nested)


PARALLEL = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
import flashasc

def main(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = flashasc.nn.MultiheadAttention(16, 2)
    alone = torch.nn.MultiheadAttention(16, 2)
    alone.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 16)
    wrapped = torch.nn.parallel.DistributedDataParallel(module)
    mine = x[:, rank : rank + 1]
    wrapped(mine, mine, mine, need_weights=False)[0].square().mean().backward()
    alone(x, x, x, need_weights=False)[0].square().mean().backward()
    for p, q in zip(module.parameters(), alone.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.start_processes(main, (sys.argv[1],), 2, start_method="fork")
"""


def test_two_processes_share_gradients(run_python: RunPython, tmp_path: Any) -> None:
    """`DistributedDataParallel`: each has half a batch, the gradients are the whole one's."""
    run_python(PARALLEL, str(tmp_path / "meeting"))
