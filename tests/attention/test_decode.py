"""Decoding with a cache: in one piece and in pages, with new tokens and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc import KVCache, PagedKVCache
from flashasc.testing import assert_accurate
from tests.attention.routes import Route
from tests.cases_table import BFLOAT16, FLOAT32

Caches = tuple[KVCache, PagedKVCache]
LENS = (0, 300, 2500)
HQ, HK, D, DV = 4, 2, 32, 16


def filled(route: Route, dtype: torch.dtype, page: int) -> Any:
    """(cache in one piece, cache in shuffled pages, k and v of each sequence), NaN elsewhere."""
    torch.manual_seed(0)
    device, room = route.device, 4096
    B = len(LENS)
    keys = [torch.randn(1, HK, n, D, device=device).to(dtype) for n in LENS]
    values = [torch.randn(1, HK, n, DV, device=device).to(dtype) for n in LENS]
    k = torch.full((B, HK, room, D), torch.nan, dtype=dtype, device=device)
    v = torch.full((B, HK, room, DV), torch.nan, dtype=dtype, device=device)
    for b, n in enumerate(LENS):
        k[b, :, :n], v[b, :, :n] = keys[b][0], values[b][0]
    count = B * room // page
    table = torch.randperm(count, device=device).to(torch.int32).view(B, -1)
    pages = []
    for x in (k, v):
        lying = torch.empty(count, HK, page, x.shape[-1], dtype=dtype, device=device)
        cut = x.view(B, HK, -1, page, x.shape[-1]).transpose(1, 2).flatten(0, 1)
        lying[table.flatten().long()] = cut
        pages.append(lying)
    lengths = torch.tensor(LENS, dtype=torch.int32, device=device)
    paged = PagedKVCache(pages[0], pages[1], table, lengths.clone())
    return KVCache(k, v, lengths), paged, list(zip(keys, values, strict=True))


def tokens(route: Route, dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((3, HQ, count, D), (3, HK, count, D), (3, HK, count, DV))
    return tuple(torch.randn(*s, device=route.device).to(dtype) for s in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("page", [256, 16])
def test_a_loop(route: Route, page: int) -> None:
    """Two steps of two tokens each; an empty sequence among them. Pages give the same bits."""
    whole, paged, held = filled(route, BFLOAT16, page)
    sinks = torch.linspace(-1, 2, HQ, device=route.device)
    options: dict[str, Any] = {"sinks": sinks, "window": (2000, None), "return_lse": True}
    for _ in range(2):
        q, k, v = tokens(route, BFLOAT16, 2)
        out, lse = flashasc.decode(q, whole, k=k, v=v, impl=route.impl, **options)
        found, found_lse = flashasc.decode(q, paged, k=k, v=v, impl=route.impl, **options)
        # a tile on Ascend lies in one page: smaller ones add up in another order
        if page >= 128 or route.name == "cuda":
            route.assert_same(found, out)
            route.assert_same(found_lse, lse)
        for b, (old_k, old_v) in enumerate(held):
            one = slice(b, b + 1)
            held[b] = (torch.cat([old_k, k[one]], 2), torch.cat([old_v, v[one]], 2))
            for result, result_lse in ((out, lse), (found, found_lse)):
                judged = {"sinks": sinks, "window": (2000, 0)}
                assert_accurate(result[one], q[one], *held[b], result_lse[one], **judged)
    assert whole.lens.tolist() == paged.lens.tolist() == [n + 4 for n in LENS]
    whole.check()
    paged.check()


def test_options_layouts_and_room(route: Route) -> None:
    """Every option; BSND; and no bit depends on the room that a cache has or on `max_kv_len`."""
    whole, _, held = filled(route, FLOAT32, 256)
    q, _, _ = tokens(route, FLOAT32, 3)
    options: dict[str, Any] = {
        "softcap": 3.0, "scale": 0.3, "window": (1000, 0), "return_lse": True,
        "alibi_slopes": torch.rand(3, HQ, device=route.device),
    }  # fmt: skip
    out, lse = flashasc.decode(q, whole, impl=route.impl, **options)
    for b in (1, 2):
        one = slice(b, b + 1)
        judged = {**options, "alibi_slopes": options["alibi_slopes"][one]}
        del judged["return_lse"]
        assert_accurate(out[one], q[one], *held[b], lse[one], **judged)
    # nothing to see
    assert (out[0] == 0).all()
    assert lse[0].isneginf().all()
    tight = KVCache(whole.k[:, :, :2500], whole.v[:, :, :2500], whole.lens)
    for cache, most in ((tight, None), (whole, 2500)):
        again = flashasc.decode(
            q.transpose(1, 2), cache, layout="BSND", max_kv_len=most, impl=route.impl, **options
        )
        assert again[0].is_contiguous()
        route.assert_same(again[0].transpose(1, 2), out)
        route.assert_same(again[1], lse)


def test_what_has_no_place_is_dropped(route: Route) -> None:
    """Lengths beyond the cache, pages out of range: nothing else is touched, `check` says it."""
    whole, paged, _ = filled(route, BFLOAT16, 256)
    whole.lens.copy_(torch.tensor([4095, 4096, -5]))
    _, k, v = tokens(route, BFLOAT16, 2)
    expected = whole.k.clone()
    expected[0, :, 4095] = k[0, :, 0]
    whole.append(k, v, impl=route.impl)
    assert torch.equal(whole.k.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert whole.lens.tolist() == [4097, 4098, -3]
    with pytest.raises(ValueError, match="lens must be between 0 and the cache's capacity, 4096"):
        whole.check()
    paged.lens.copy_(torch.tensor([10, 256, 300]))
    paged.block_table[0, 0] = -1
    paged.block_table[1, 1] = 10**6
    before = paged.k.clone()
    paged.append(k, v, impl=route.impl)
    before[paged.block_table[2, 1].long(), :, 44:46] = k[2]
    assert torch.equal(paged.k.nan_to_num(7.0), before.nan_to_num(7.0))
    q = torch.zeros(3, HQ, 1, D, dtype=BFLOAT16, device=route.device)
    assert flashasc.decode(q, paged, impl=route.impl).shape == (3, HQ, 1, DV)
    with pytest.raises(ValueError, match="block_table must hold pages from 0 to 47; got -1"):
        paged.check()


def test_a_call_that_fails_leaves_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PagedKVCache.allocate(2, 2, 3, 8, page_size=16, dtype=FLOAT32)
    cache.append(*(torch.randn(2, 2, 10, 8) for _ in "kv"))
    state = [x.clone() for x in (cache.k, cache.v, cache.block_table, cache.lens)]
    q, k = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8)
    one = PagedKVCache.allocate(1, 2, 3, 8, page_size=16, dtype=FLOAT32)
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "2 more pages are needed, and 1 are free", {"k": torch.randn(2, 2, 9, 8)}),
        (ValueError, "v together|given together", {"v": None}),
        (ValueError, "k must be .B, H, S, D. with B = 2, H = 2, D = 8", {"k": k[:, :1]}),
        (TypeError, "k must have the cache's dtype", {"k": k.double()}),
        (ValueError, "sinks must be .Hq. = .4,.", {"sinks": torch.zeros(3)}),
        (NotImplementedError, "precision=.high. is for float16", {"precision": "high"}),
        (ValueError, "layout must be one of", {"layout": "TND"}),
        (TypeError, "max_kv_len must be an int", {"max_kv_len": 1.5}),
    ]
    for error, message, change in wrong:
        given = {"k": k, "v": k, **change}
        if isinstance(given["k"], Tensor) and given["k"].shape[2] == 9:
            given["v"] = given["k"]
        with pytest.raises(error, match=message):
            flashasc.decode(q, cache, **given)

    def fails(*args: Any) -> None:
        raise NotImplementedError("no kernel")

    # found out after pages were promised, before the new length counts
    monkeypatch.setattr(flashasc.decoding._decode_ops, "attend", fails)
    with pytest.raises(NotImplementedError, match="no kernel"):
        flashasc.decode(q, cache, k=k, v=k)
    with pytest.raises(NotImplementedError, match="no kernel"):
        flashasc.decode(q[:1], one, k=k[:1], v=k[:1])
    assert (one.block_table == -1).all()
    monkeypatch.undo()
    # the page that was taken for it is free again
    one.append(torch.zeros(1, 2, 48, 8), torch.zeros(1, 2, 48, 8))
    for held, before in zip((cache.v, cache.block_table, cache.lens), state[1:], strict=True):
        visible = held[:, :, :10] if held.dim() == 4 else held
        assert torch.equal(visible, before[:, :, :10] if held.dim() == 4 else before)
    flashasc.decode(q, cache, k=k, v=k)
    assert cache.lens.tolist() == [11, 11]
    with pytest.raises(NotImplementedError, match="decode has no gradients"):
        flashasc.decode(q.requires_grad_(), cache)


def test_wrong_caches() -> None:
    k, lens = torch.zeros(4, 2, 16, 8), torch.zeros(3, dtype=torch.int32)
    table = torch.zeros(3, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="pages of a power of two"):
        PagedKVCache(k[:, :, :12], k[:, :, :12], table, lens)
    with pytest.raises(TypeError, match="block_table must be int32"):
        PagedKVCache(k, k, table.long(), lens)
    with pytest.raises(ValueError, match="lens must have 4 elements"):
        KVCache(k, k, lens)
    with pytest.raises(ValueError, match="k and v must agree"):
        KVCache(k, k[:, :1], torch.zeros(4, dtype=torch.int32))
    cache = PagedKVCache(k, k, table, lens)
    with pytest.raises(ValueError, match="its pages are yours"):
        cache.free(0)
    with pytest.raises(ValueError, match="sequence must be between 0 and 2"):
        cache.append(k[:1], k[:1], sequence=3)


def test_operators_and_compilation() -> None:
    cache = KVCache.allocate(2, 2, 64, 8, dtype=FLOAT32)
    cache.append(*(torch.randn(2, 2, 10, 8) for _ in "kv"))
    twin = KVCache(cache.k.clone(), cache.v.clone(), cache.lens.clone())
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8)

    def step(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return flashasc.decode(q, cache, k=k, v=v, return_lse=True)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        found = compiled(q, k, v)
        expected = flashasc.decode(q, twin, k=k, v=v, return_lse=True)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(cache.k, twin.k)
    assert torch.equal(cache.lens, twin.lens)
    table = torch.arange(4, dtype=torch.int32).view(2, 2)
    pages = torch.randn(4, 2, 16, 8)
    facts = (0.3, None, True, None, None, "BNSD", "compensated", FLOAT32, True, 32, "auto")
    lens = torch.tensor([3, 20], dtype=torch.int32)
    torch.library.opcheck(
        torch.ops.flashasc.decode, (q, pages, pages, lens, table, None, torch.zeros(4), *facts)
    )
    torch.library.opcheck(
        torch.ops.flashasc.append_kv, (pages, pages.clone(), k, v, lens, table, "auto")
    )


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_autograd_sees_what_a_call_writes(impl: str) -> None:
    """What was computed from the cache before cannot be differentiated with what is there now."""
    if impl == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    cache = KVCache.allocate(1, 1, 32, 16, dtype=FLOAT32)
    token = torch.randn(1, 1, 1, 16)
    weight = torch.ones(cache.k.shape, requires_grad=True)
    flashasc.decode(token, cache, k=token, v=token, impl=impl)
    result = (cache.k * weight).sum()
    flashasc.decode(token, cache, k=token, v=token, impl=impl)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_new_tokens_have_no_gradients() -> None:
    cache = KVCache.allocate(1, 1, 32, 16, dtype=FLOAT32)
    token = torch.randn(1, 1, 1, 16)
    with pytest.raises(NotImplementedError, match="no gradients"):
        flashasc.decode(token, cache, k=token.clone().requires_grad_(), v=token)
    assert cache.lens.tolist() == [0]
