"""What a cache refuses, and that it is left alone then; and that a compiled loop compiles once."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc import KVCache, PagedKVCache
from tests.attention.routes import Route

Cache = KVCache | PagedKVCache
FLOAT32 = torch.float32
B, HQ, HK, D = 2, 4, 2, 8


def whole() -> KVCache:
    return KVCache.allocate(B, HK, 64, D, dtype=FLOAT32)


def paged() -> PagedKVCache:
    return PagedKVCache.allocate(B, HK, 6, D, page_size=16, dtype=FLOAT32)


def of_own_tensors() -> PagedKVCache:
    k = torch.zeros(6, HK, 16, D)
    table = torch.arange(6, dtype=torch.int32).view(B, 3)
    return PagedKVCache(k, k.clone(), table, torch.zeros(B, dtype=torch.int32))


def tokens(count: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, HQ, count, D), torch.randn(B, HK, count, D), torch.randn(B, HK, count, D)


def state(cache: Cache) -> list[Tensor]:
    """All that a caller can see of it, copied."""
    held = [cache.k, cache.v, cache.lens]
    if isinstance(cache, PagedKVCache):
        held.append(cache.block_table)
        if cache._pool is not None:
            held += [cache._pool.free, cache._pool.held, cache._pool.owned]
    return [x.clone() for x in held]


def assert_same(cache: Cache, before: list[Tensor]) -> None:
    for found, expected in zip(state(cache), before, strict=True):
        assert torch.equal(found, expected)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.parametrize("make", [whole, paged, of_own_tensors])
def test_a_compiled_loop_compiles_once(make: Callable[[], Cache]) -> None:
    """Over pages taken and free ones running out; and a loop of `append` likewise."""
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    @torch.compile(fullgraph=True, backend=count)
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flashasc.decode(q, cache, k=k, v=v)

    @torch.compile(fullgraph=True, backend=count)
    def add(k: Tensor, v: Tensor) -> None:
        cache.append(k, v)

    cache, twin = make(), make()
    for _ in range(24):
        q, k, v = tokens()
        assert torch.equal(step(q, k, v), flashasc.decode(q, twin, k=k, v=v))
    assert len(graphs) == 1
    for _ in range(22):
        _, k, v = tokens()
        add(k, v)
        twin.append(k, v)
    assert len(graphs) == 2
    assert_same(cache, state(twin))
    if make is paged:
        before = [step(*tokens()) for _ in range(2)] and state(cache)
        with pytest.raises(ValueError, match="2 more pages are needed, and 0 are free"):
            step(*tokens())
        assert_same(cache, before)
        cache.reset()
        step(*tokens())
        assert cache.lens.tolist() == [1, 1]
        assert len(graphs) == 2


def test_pages_are_an_operators_business() -> None:
    pool = paged()._pool
    assert pool is not None
    lens, table = torch.zeros(B, dtype=torch.int32), torch.full((B, 6), -1, dtype=torch.int32)
    books = (table, lens, pool.free, pool.held, pool.owned)
    torch.library.opcheck(torch.ops.flashasc.take_pages, (*books, 20, 16, 1))
    torch.library.opcheck(torch.ops.flashasc.count_tokens, (pool.held, lens, 3, -1))


def test_a_copy_has_pages_of_its_own() -> None:
    cache = paged()
    cache.append(*tokens(10)[1:])
    other = copy.deepcopy(cache)
    before = state(cache)
    other.append(*tokens(30)[1:])
    assert_same(cache, before)
    cache.append(*tokens(30)[1:])
    cache.check()


@pytest.mark.parametrize("make", [whole, paged])
def test_inference_tensors_are_written_in_inference_mode(make: Callable[[], Cache]) -> None:
    """Outside PyTorch refuses; that has to be known before the first write, and pages taken."""
    with torch.inference_mode():
        cache = make()
        cache.append(*tokens(10)[1:])
        before = state(cache)
    q, k, v = tokens(20)
    calls: list[Callable[[], object]] = [
        lambda: flashasc.decode(q, cache, k=k, v=v),
        lambda: cache.append(k, v),
        cache.reset,
    ]
    if isinstance(cache, PagedKVCache):
        calls += [lambda: cache.promise(20), lambda: cache.free(0)]  # type: ignore[union-attr]
    for call in calls:
        with torch.no_grad(), pytest.raises(ValueError, match=r"made under torch.inference_mode"):
            call()
        assert_same(cache, before)
    flashasc.decode(q, cache)
    with torch.inference_mode():
        flashasc.decode(q, cache, k=k, v=v)
    assert cache.lens.tolist() == [30, 30]
    ordinary = make()
    with torch.inference_mode():
        flashasc.decode(q, ordinary, k=k, v=v)
    flashasc.decode(q, ordinary, k=k, v=v)
    assert ordinary.lens.tolist() == [40, 40]


@pytest.mark.parametrize("name", ["k", "v", "lens"])
def test_what_shares_memory_is_read_but_not_written(name: str) -> None:
    """A prompt that all sequences share is one; new tokens would be written over one another."""
    parts = {"k": torch.randn(B, HK, 20, D), "v": torch.randn(B, HK, 20, D)}
    parts["lens"] = torch.tensor([7, 7])
    parts[name] = parts[name][:1].expand(parts[name].shape)
    cache = KVCache(**parts)
    q, k, v = tokens()
    contiguous = KVCache(**{key: x.contiguous() for key, x in parts.items()})
    assert torch.equal(flashasc.decode(q, cache), flashasc.decode(q, contiguous))
    before = state(cache)
    for call in (lambda: cache.append(k, v), lambda: flashasc.decode(q, cache, k=k, v=v)):
        with pytest.raises(ValueError, match=rf"kv_cache\.{name} must have a place in memory"):
            call()
        assert_same(cache, before)
    windows = torch.randn(B * HK * 64 * D).as_strided((B, HK, 20, D), (HK * 20 * D, 20 * D, 4, 1))
    with pytest.raises(ValueError, match="expanded or overlapping"):
        KVCache(windows, parts["v"], torch.zeros(B, dtype=torch.int32)).append(k, v)


def test_more_tokens_than_there_is_room_for() -> None:
    cache = KVCache.allocate(B, HK, 20, D, dtype=torch.float32)
    cache.append(*tokens(20)[1:])
    cache.rewind(15)
    before = state(cache)
    q, k, v = tokens(21)
    for call in (lambda: cache.append(k, v), lambda: flashasc.decode(q, cache, k=k, v=v)):
        with pytest.raises(ValueError, match="21 new tokens are more than .* room for, 20"):
            call()
        assert_same(cache, before)


CHANGES: list[tuple[Callable[[], Cache], str, Callable[[Any], Any], str]] = [
    (whole, "k", lambda c: c.k[:, :, :8], "k and v must agree"),
    (whole, "v", lambda c: c.v.half(), "v must have k's dtype"),
    (whole, "lens", lambda c: c.lens[:1], "lens must have 2 elements"),
    (whole, "lens", lambda c: [1, 2], "lens must be a torch.Tensor"),
    (whole, "lens", lambda c: c.lens.to("meta"), "lens must be on"),
    (paged, "block_table", lambda c: c.block_table[:, :2], "pages, page size and table"),
    (paged, "block_table", lambda c: c.block_table.long(), "block_table must be int32"),
    (of_own_tensors, "block_table", lambda c: c.block_table[:1], "lens must have 1 elements"),
    (of_own_tensors, "block_table", lambda c: c.block_table.t(), "last stride 1"),
    (of_own_tensors, "k", lambda c: c.k[:, :, :8], "k and v must agree"),
]


@pytest.mark.parametrize(("make", "name", "change", "message"), CHANGES)
def test_attributes_that_no_longer_fit_are_found(
    make: Callable[[], Cache], name: str, change: Callable[[Any], Any], message: str
) -> None:
    """Also where the same call was right before, and is remembered."""
    cache = make()
    q, k, v = tokens()
    for _ in range(2):
        flashasc.decode(q, cache, k=k, v=v)
        flashasc.decode(q, cache)
    setattr(cache, name, change(cache))
    calls: list[Callable[[], object]] = [
        lambda: flashasc.decode(q, cache),
        lambda: flashasc.decode(q, cache, k=k, v=v),
        lambda: cache.append(k, v),
        cache.reset,
        cache.check,
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=f"kv_cache was changed.*{message}"):
            call()


def test_a_tensor_that_was_resized_is_found() -> None:
    cache = whole()
    q, _, _ = tokens()
    flashasc.decode(q, cache)
    cache.k.resize_(B, HK, 8, D)
    with pytest.raises(ValueError, match="kv_cache was changed.*k and v must agree"):
        flashasc.decode(q, cache)


def test_only_a_cache_is_one() -> None:
    q, k, v = tokens()
    for thing in ((k, v), None, namedtuple("Looks", "k v lens block_table")(k, v, None, None)):
        with pytest.raises(TypeError, match="kv_cache must be a KVCache or a PagedKVCache; got"):
            flashasc.decode(q, thing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.promise(-1), ValueError, "tokens must be 0 or more; got -1"),
        (lambda c: c.promise(1.5), TypeError, "tokens must be an int"),
        (lambda c: c.promise(None), TypeError, "tokens must be an int, .* got None"),
        (lambda c: c.promise(1, sequence=2), ValueError, "sequence must be between 0 and 1; got 2"),
        (lambda c: c.promise(1, sequence=-1), ValueError, "sequence must be between 0 and 1"),
        (lambda c: c.free(True), TypeError, "sequence must be an int; got bool True"),
        (lambda c: c.keep(-3), ValueError, "tokens must be 0 or more; got -3"),
        (lambda c: c.rewind(-3), ValueError, "tokens must be 0 or more; got -3"),
        (lambda c: c.rewind(3, sequence=2), ValueError, "sequence must be between 0 and 1"),
        (lambda c: c.append(*tokens()[1:], impl="cuda"), ValueError, "impl must be one of"),
        (lambda c: c.allocate(B, HK, 4.0, D), TypeError, "pages must be an int"),
        (lambda c: KVCache.allocate(B, HK, -1, D), ValueError, "capacity must be 0 or more"),
        (lambda c: c.allocate(B, HK, 4, D, longest=2.5), TypeError, "longest must be an int"),
        (lambda c: c.allocate(B, HK, 4, D, page_size=0, longest=9), ValueError, "power of two"),
    ],
)
def test_wrong_numbers_of_pages(
    call: Callable[[PagedKVCache], object], error: type[Exception], message: str
) -> None:
    cache = paged()
    before = state(cache)
    with pytest.raises(error, match=message):
        call(cache)
    assert_same(cache, before)


@pytest.mark.parametrize("make", [whole, paged, of_own_tensors])
def test_forgotten_tokens_leave_room(make: Callable[[], Cache]) -> None:
    """Pages too: a loop whose guesses are half wrong runs as long as one that makes none."""
    cache, twin = make(), make()
    for _ in range(24):
        q, k, v = tokens(2)
        guessed = flashasc.decode(q, cache, k=k, v=v)
        cache.rewind(1)
        k, v = k[:, :, :1], v[:, :, :1]
        out = flashasc.decode(q[:, :, :1], twin, k=k, v=v)
        torch.testing.assert_close(guessed[:, :, :1], out)
    assert torch.equal(cache.lens, twin.lens)
    assert make is not paged or torch.equal(cache._pool.held, twin._pool.held)  # type: ignore[union-attr]
    cache.check()
    cache.rewind(100)
    assert cache.lens.tolist() == [0, 0]


def test_float64_has_no_kernel_that_appends() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    cache = PagedKVCache.allocate(B, HK, 6, D, page_size=16, dtype=torch.float64)
    before = state(cache)
    _, k, v = tokens()
    with pytest.raises(NotImplementedError, match="float64"):
        cache.append(k.double(), v.double(), impl="triton")
    assert_same(cache, before)


def test_new_tokens_of_the_cache_itself(route: Route) -> None:
    """What is read may lie where what is written does."""
    cache = KVCache.allocate(1, HK, 64, D, dtype=FLOAT32, device=route.device)
    prompt = [torch.randn(1, HK, 10, D, device=route.device) for _ in "kv"]
    cache.append(*prompt, impl=route.impl)
    for _ in range(2):
        expected = cache.k[:, :, 4:14].clone()
        count = int(cache.lens[0])
        cache.append(cache.k[:, :, 4:14], cache.v[:, :, 4:14], impl=route.impl)
        assert torch.equal(cache.k[:, :, count : count + 10], expected)


def test_zeros_without_memory(route: Route) -> None:
    """PyTorch's own stand-ins for zero gradients."""
    device, half = route.device, torch.float16
    zero = torch._efficientzerotensor((2, 4, 3, 32), dtype=half, device=device)
    keys = torch.randn(2, 2, 40, 32, device=device).half()
    nothing = torch._efficientzerotensor(keys.shape, dtype=half, device=device)
    lens = torch.full((2,), 40, dtype=torch.int32, device=device)
    cache = KVCache(keys, keys.clone(), lens)
    with torch.no_grad():
        # the second call is one that could be a repeat of the first
        for q in (torch.zeros_like(zero), zero):
            out = flashasc.attention(q, keys, keys, impl=route.impl)
            mean = keys.mean(2, keepdim=True).repeat_interleave(2, 1).expand(out.shape)
            torch.testing.assert_close(out, mean, rtol=1e-3, atol=1e-3)
            found = flashasc.decode(q[:, :, :1], cache, impl=route.impl)
            torch.testing.assert_close(found, mean[:, :, :1], rtol=1e-3, atol=1e-3)
        assert not flashasc.attention(zero, keys, nothing, impl=route.impl).any()
        with pytest.raises(ValueError, match="must have memory to be written"):
            KVCache(nothing, nothing, lens).append(keys, keys, impl=route.impl)


def test_derivatives_are_refused_and_not_lost() -> None:
    cache = whole()
    q, k, v = tokens()
    cache.append(k, v)
    before = state(cache)
    slopes = torch.rand(HQ)
    calls: dict[str, tuple[Callable[[Tensor], object], Tensor]] = {
        "q": (lambda x: flashasc.decode(x, cache), q),
        "k": (lambda x: flashasc.decode(q, cache, k=x, v=v), k),
        "v": (lambda x: flashasc.decode(q, cache, k=k, v=x), v),
        "slopes": (lambda x: flashasc.decode(q, cache, alibi_slopes=x), slopes),
        "appended": (lambda x: cache.append(k, x), v),
    }
    for call, x in calls.values():
        with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
            torch.func.jvp(call, (x,), (x,))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
                call(dual)
        with pytest.raises(NotImplementedError, match="derivatives by torch.func"):
            torch.func.grad(lambda x, call=call: call(x).sum())(x)
        with pytest.raises(NotImplementedError, match="no gradients"):
            call(x.clone().requires_grad_())
        assert_same(cache, before)
