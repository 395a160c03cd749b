"""Modules, routing and Transformers on a GPU, where "auto" is the kernel."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F

import flashasc
from flashasc.testing import error_budget

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_an_encoder_with_padding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval().cuda()
    x = torch.randn(2, 100, 128, device="cuda")
    padding = torch.arange(100, device="cuda") >= torch.tensor([[100], [70]], device="cuda")
    exact = model.double()(x.double(), src_key_padding_mask=padding)[~padding]
    model.to(dtype)
    eager = model(x.to(dtype), src_key_padding_mask=padding)[~padding]
    flashasc.nn.replace_attention(model, impl="triton")
    found = model(x.to(dtype), src_key_padding_mask=padding)[~padding]
    assert (found - exact).abs().max() <= error_budget(exact, eager)


def test_the_rotary_tables_move_along() -> None:
    module = flashasc.nn.GroupedQueryAttention(128, 4, 2, qk_norm=True, sinks=True)
    x = torch.randn(2, 70, 128)
    expected = module(x)
    found = module.cuda()(x.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert module.bfloat16()(x.cuda().bfloat16()).dtype == torch.bfloat16


def test_routed_calls_with_gradients() -> None:
    q, k = (torch.randn(2, 4, n, 64, device="cuda", requires_grad=True) for n in (50, 70))
    with flashasc.route_sdpa(impl="triton") as calls:
        found = F.scaled_dot_product_attention(q, k, k, is_causal=True)
    expected = F.scaled_dot_product_attention(q, k, k, is_causal=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    grads = [torch.autograd.grad(out.square().sum(), (q, k)) for out in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)
    assert calls.taken == 1


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
@torch.inference_mode()
def test_left_padded_generation(name: str) -> None:
    pytest.importorskip("transformers")
    from flashasc.integrations import transformers as asc

    model = importlib.import_module("tiny_models").decoder(name).cuda()
    tokens = torch.randint(2, 97, (2, 14), generator=torch.Generator().manual_seed(1)).cuda()
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    written = []
    for implementation in (asc.register(), "eager"):
        model.set_attn_implementation(implementation)
        call = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
        written.append(model.generate(tokens, **call))
    assert torch.equal(*written)
