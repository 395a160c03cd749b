"""Modules and models whose sequences lie on several ranks: run inside a rank."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from flashasc.distributed import ContextParallel
from flashasc.nn import Attention, GroupedQueryAttention, MultiheadAttention, replace_attention
from tests.conftest import ROOT

EDGES = torch.tensor([0, 9, 10, 31], dtype=torch.int32)


def contexts() -> dict[str, ContextParallel]:
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()))
    return {
        "ring": ContextParallel(None, "ring", "zigzag"),
        "ulysses": ContextParallel(None, "ulysses"),
        "hybrid": ContextParallel(mesh, "hybrid", "zigzag"),
    }


def distances() -> dict[str, float]:
    """How far modules on ranks are from the same in one process, gradients too."""
    torch.manual_seed(0)
    found = {}
    for name, cp in contexts().items():
        found[f"{name} bare"] = _bare(cp)
        found[f"{name} grouped"] = _grouped(cp)
        found[f"{name} packed"] = _grouped(cp, EDGES)
        found[f"{name} encoder"] = _encoder(cp)
    own = contexts()["ring"]
    found["uneven positions"] = _uneven_positions()
    found["copy"] = float(copy.deepcopy(Attention(cp=own)).cp is not own)
    return found


def _same(x: Tensor) -> Tensor:
    dist.broadcast(x, 0)
    return x


def _apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item() if a.shape == b.shape else float("inf")


def _bare(cp: ContextParallel) -> float:
    q, k, sinks = (_same(torch.randn(shape)) for shape in ((1, 4, 23, 8), (1, 2, 23, 8), (4,)))
    options: dict[str, Any] = {"causal": True, "window": (9, 0), "softcap": 3.0}
    whole = Attention(**options)(q, k, k, sinks=sinks, return_lse=True)
    mine = [cp.shard(x, 2) for x in (q, k, k)]
    out = Attention(**options, cp=cp)(*mine, sinks=sinks, return_lse=True)
    return max(_apart(a, cp.shard(b, 2)) for a, b in zip(out, whole, strict=True))


def _grouped(cp: ContextParallel, edges: Tensor | None = None) -> float:
    module = GroupedQueryAttention(24, 4, 2, qk_norm=True, sinks=True)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        _same(parameter.data)
    shape, dim = ((2, 31, 24), 1) if edges is None else ((31, 24), 0)
    x, toward = (_same(torch.randn(shape)) for _ in range(2))
    packing = {} if edges is None else {"cu_seqlens": edges}
    whole = module(x, **packing)
    (whole * toward).sum().backward()
    grads = [p.grad for p in module.parameters()]
    module.zero_grad()
    module.cp = cp
    positions = cp.positions(31, edges)
    out = module(cp.shard(x, dim, edges), positions=positions, **packing)
    (out * cp.shard(toward, dim, edges)).sum().backward()
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad)
    scaled = [
        _apart(p.grad, grad) / grad.abs().max().item()
        for p, grad in zip(module.parameters(), grads, strict=True)
    ]
    return max(_apart(out, cp.shard(whole, dim, edges)), *scaled)


def _encoder(cp: ContextParallel) -> float:
    """PyTorch's layer, its attention replaced: without a mask, and causal without a mask."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=cp.mode == "ring").eval()
    for parameter in layer.parameters():
        _same(parameter.data)
    dim = 1 if cp.mode == "ring" else 0
    x = _same(torch.randn((2, 23, 16) if dim else (23, 2, 16)))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(23)
    whole = [layer(x), layer(x, mask, is_causal=True)]
    replace_attention(layer, cp=cp)
    mine = cp.shard(x, dim)
    found = [layer(mine), layer(mine, is_causal=True)]
    return max(_apart(a, cp.shard(b, dim)) for a, b in zip(found, whole, strict=True))


def _uneven_positions() -> float:
    rank = dist.get_rank()
    found = ContextParallel().own_positions(3 + 2 * rank)
    first = sum(3 + 2 * r for r in range(rank))
    expected = torch.arange(first, first + 3 + 2 * rank)
    # zigzag, in a mesh
    mesh = ContextParallel(init_device_mesh("cpu", (1, dist.get_world_size())), "hybrid", "zigzag")
    again = mesh.positions(13)
    return max(_apart(found, expected), _apart(mesh.own_positions(len(again)), again))


# what rank 1 raises, and words in the messages of both
WRONG = {
    "mask": ("NotImplementedError", "takes no mask"),
    "longest": ("NotImplementedError", "takes no max_seqlen_k"),
    "features": ("ValueError", "embed_dim = 16"),
    "no positions": ("ValueError", "cp.positions"),
    "all positions": ("ValueError", "one for each of this rank's 6 tokens"),
    "lengths": ("NotImplementedError", "takes no kv_lens"),
    "padding": ("NotImplementedError", "takes no key_padding_mask"),
    "weights": ("NotImplementedError", "no rank has all keys"),
    "added": ("NotImplementedError", "takes no add_zero_attn"),
}


def wrong_modules() -> dict[str, Callable[[bool], Any]]:
    """Calls of modules; told whether to be wrong."""
    cp = ContextParallel(None, "ring", "zigzag")
    q = torch.ones(1, 2, 6, 8)
    bare = Attention(cp=cp)
    grouped, free = (GroupedQueryAttention(16, 2, rope_base=b, cp=cp) for b in (1e4, None))
    heads = MultiheadAttention(16, 2, batch_first=True, cp=cp)
    added = MultiheadAttention(16, 2, batch_first=True, add_zero_attn=True, cp=cp)
    x, at, lens = torch.ones(1, 6, 16), cp.positions(12), torch.tensor([3])
    mask = torch.ones(6, 6, dtype=torch.bool)
    return {
        "mask": lambda wrong: bare(q, q, q, mask=mask if wrong else None),
        "longest": lambda wrong: bare(q, q, q, max_seqlen_k=6 if wrong else None),
        "features": lambda wrong: free(x[..., : 15 if wrong else 16]),
        "no positions": lambda wrong: grouped(x, positions=None if wrong else at),
        "all positions": lambda wrong: grouped(x, positions=torch.arange(12) if wrong else at),
        "lengths": lambda wrong: free(x, kv_lens=lens if wrong else None),
        "padding": lambda wrong: heads(x, x, x, mask[:1] if wrong else None, need_weights=False),
        "weights": lambda wrong: heads(x, x, x, need_weights=wrong),
        "added": lambda wrong: (added if wrong else heads)(x, x, x, need_weights=False),
    }


def wrong_results() -> dict[str, tuple[str, str]]:
    """What each raises on this rank, and what pickling a group does."""
    wrong = dist.get_rank() == 1
    found = {name: _raised(partial(call, wrong)) for name, call in wrong_modules().items()}
    cp = ContextParallel(dist.new_group([0, 1]), "ring")
    module = Attention(cp=cp, causal=True)
    found["pickle"] = _raised(lambda: pickle.dumps(module))
    module.cp = ContextParallel(timeout=5.0)
    found["pickle of all ranks"] = ("", repr(pickle.loads(pickle.dumps(module))))
    return found


def _raised(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def _tiny() -> Any:
    sys.path.insert(0, str(ROOT / "tests" / "models"))
    return importlib.import_module("tiny_models")


def models() -> tuple[dict[str, tuple[float, float, float]], dict[str, tuple[str, str]]]:
    """Figures of right calls, and what wrong ones raise."""
    return right_models(), wrong_models()


def right_models() -> dict[str, tuple[float, float, float]]:
    """Distances of logits, loss and gradients of small models from those of one process."""
    from flashasc.integrations import transformers as asc

    tiny = _tiny()
    tokens = torch.randint(2, 97, (2, 27), generator=torch.Generator().manual_seed(1))
    labels = tokens.masked_fill(torch.arange(27) < 3, -100)
    found = {}
    cps = contexts()
    for name, mode in zip(tiny.DECODERS, 2 * list(cps)):
        torch.manual_seed(2)
        model = tiny.decoder(name)
        for parameter in model.parameters():
            _same(parameter.data)
        model.set_attn_implementation(asc.register())
        whole = model(tokens, labels=labels, use_cache=False)
        whole.loss.backward()
        grads = [p.grad for p in model.parameters()]
        model.zero_grad()
        cp = cps[mode]
        model.set_attn_implementation(asc.register("asc_ranks", cp=cp))
        out = model(**asc.shard_batch(cp, tokens, labels))
        out.loss.backward()
        loss = out.loss.detach().clone()
        dist.all_reduce(loss)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        found[name] = (
            _apart(out.logits, cp.shard(whole.logits, 1)) / whole.logits.abs().max().item(),
            abs(loss - whole.loss).item(),
            max(
                _apart(p.grad, grad) / (grad.abs().max().item() + 1e-6)
                for p, grad in zip(model.parameters(), grads, strict=True)
            ),
        )
    return found


# what rank 1 raises, and words in the messages of both
WRONG_MODELS = {
    "padding": ("NotImplementedError", "attention_mask hides tokens"),
    "no positions": ("ValueError", r"got \[0, 1, 2, 3, 4, 5, 6, 7\], .* at \[4, 5, 6, 7, 8, 9, 10"),
    "other positions": ("ValueError", "position_ids must be those of this rank's tokens"),
    "own mask": ("NotImplementedError", "pass no mask of your own"),
    "packed": ("NotImplementedError", "cu_seq_lens_k, cu_seq_lens_q"),
    "weights": ("NotImplementedError", "output_attentions=True"),
}


def wrong_models() -> dict[str, tuple[str, str]]:
    """What calls of a model raise on this rank; rank 1's are wrong."""
    from flashasc.integrations import transformers as asc

    tiny = _tiny()
    cp = ContextParallel(None, "ring", "zigzag")
    llama, bert = tiny.decoder("llama"), tiny.bert()
    for model in (llama, bert):
        model.set_attn_implementation(asc.register("asc_ranks", cp=cp))
    tokens = torch.randint(2, 97, (1, 16))
    right = asc.shard_batch(cp, tokens)

    def call(**wrong: Any) -> Any:
        return llama(**{**right, **(wrong if dist.get_rank() else {})})

    holes = right["attention_mask"].clone()
    holes[0, 0] = 0
    ends = torch.tensor([0, 16], dtype=torch.int32)
    with torch.inference_mode():
        cache = llama(**{**right, "use_cache": True}).past_key_values
        more = {"position_ids": torch.tensor([[16]]), "past_key_values": cache}
        calls: dict[str, Callable[[], Any]] = {
            "padding": partial(call, attention_mask=holes),
            "no positions": partial(call, position_ids=None),
            "other positions": partial(call, position_ids=torch.arange(8)[None]),
            # taken for packed sequences on rank 0, whose positions jump
            "no mask": partial(llama, **{**right, "attention_mask": None}),
            "own mask": partial(call, attention_mask=torch.ones(1, 1, 8, 8).bool()),
            "packed": partial(call, cu_seq_lens_q=ends, cu_seq_lens_k=ends),
            "weights": partial(call, output_attentions=True),
            "cache": partial(llama, right["input_ids"][:, :1], **more),
            "encoder": partial(bert, right["input_ids"]),
        }
        found = {name: _raised(one) for name, one in calls.items()}
        # and a right one works afterwards
        found["right"] = _raised(call)
    return found
