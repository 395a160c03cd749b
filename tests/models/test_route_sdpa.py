"""Routing PyTorch's function for a block: what is reached, what is left, what is put back."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
import torch.nn.functional as F

import flashasc

ORIGINAL = F.scaled_dot_product_attention
Q = torch.randn(1, 2, 5, 8)
K = torch.randn(1, 2, 7, 8)


@pytest.fixture(autouse=True)
def _all_put_back():
    yield
    assert F.scaled_dot_product_attention is ORIGINAL
    assert torch.backends.mha.get_fastpath_enabled()


def test_calls_are_taken_over_and_counted() -> None:
    expected = F.scaled_dot_product_attention(Q, K, K, is_causal=True)
    with flashasc.route_sdpa(impl="triton") as calls:
        found = F.scaled_dot_product_attention(Q, K, value=K, is_causal=True)
        kernel = flashasc.attention(Q, K, K, causal=True, causal_align="top_left", impl="triton")
    assert torch.equal(found, kernel) and not torch.equal(found, expected)
    torch.testing.assert_close(found, expected)
    F.scaled_dot_product_attention(Q, K, K)
    assert (calls.taken, calls.left) == (1, {})


@torch.no_grad()
def test_pytorchs_own_modules_are_reached() -> None:
    """In eval they would take a fused path that is no call of the function."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 8, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    expected = layer(x)
    with flashasc.route_sdpa() as calls:
        found = layer(x)
    assert calls.taken == 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_an_exception_ends_the_block_like_anything_else() -> None:
    with pytest.raises(KeyError), flashasc.route_sdpa(), flashasc.route_sdpa():
        raise KeyError


def test_what_cannot_be_taken_over_raises_first_of_all() -> None:
    with pytest.raises(NotImplementedError, match="dropout_p=0.5"), flashasc.route_sdpa():
        F.scaled_dot_product_attention(Q, K, K, dropout_p=0.5)


def test_or_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), flashasc.route_sdpa(unsupported="log") as calls:
        for _ in range(3):
            torch.manual_seed(0)
            found = F.scaled_dot_product_attention(Q, K, K, dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(found, F.scaled_dot_product_attention(Q, K, K, dropout_p=0.5))
    ((left, times),) = calls.left.items()
    assert (calls.taken, times, left.shapes) == (0, 3, ((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)))
    assert "dropout_p=0.5" in left.reason
    assert [record.name for record in caplog.records] == ["flashasc"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_or_recorded_alone(caplog: pytest.LogCaptureFixture) -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 3, 4)])
    with flashasc.route_sdpa(unsupported="record") as calls:
        F.scaled_dot_product_attention(nested, nested, nested)
        with pytest.raises(RuntimeError, match="same dtype"):  # PyTorch's own error
            F.scaled_dot_product_attention(Q, K.half(), K)
    assert sum(calls.left.values()) == 2 and not caplog.records


def test_an_error_of_the_installation_is_never_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashasc._triton, "installed", lambda: flashasc._triton.TritonInfo(None))
    with (
        pytest.raises(ImportError, match="no Triton"),
        flashasc.route_sdpa(unsupported="record", impl="triton"),
    ):
        F.scaled_dot_product_attention(Q, K, K)


def test_blocks_nest() -> None:
    with flashasc.route_sdpa() as outer:
        with flashasc.route_sdpa(unsupported="record") as inner:
            F.scaled_dot_product_attention(Q, K, K, dropout_p=0.1)
        F.scaled_dot_product_attention(Q, K, K)
        with pytest.raises(NotImplementedError):
            F.scaled_dot_product_attention(Q, K, K, dropout_p=0.1)
    assert (outer.taken, len(outer.left), inner.taken, len(inner.left)) == (1, 0, 0, 1)


def test_threads_share_the_block_that_opened_last() -> None:
    opened, close = threading.Event(), threading.Event()
    counts = {}

    def other() -> None:
        with flashasc.route_sdpa() as calls:
            opened.set()
            assert close.wait(10)
        counts["other"] = calls.taken

    thread = threading.Thread(target=other)
    thread.start()
    assert opened.wait(10)
    F.scaled_dot_product_attention(Q, K, K)  # routed by the other thread's block
    with flashasc.route_sdpa() as mine:
        F.scaled_dot_product_attention(Q, K, K)
        close.set()
        thread.join()
        # its block has ended first; this one is still open
        F.scaled_dot_product_attention(Q, K, K)
    assert (counts["other"], mine.taken) == (1, 2)


def test_someone_elses_replacement_survives_and_never_meets_itself() -> None:
    seen = []
    with flashasc.route_sdpa() as first:
        behind = F.scaled_dot_product_attention

        def foreign(*args, **options):
            seen.append(len(args))
            return behind(*args, **options)

        F.scaled_dot_product_attention = foreign
    assert F.scaled_dot_product_attention is foreign
    F.scaled_dot_product_attention(Q, K, K)
    with flashasc.route_sdpa() as second:
        F.scaled_dot_product_attention(Q, K, K)
    assert (first.taken, second.taken, seen) == (0, 1, [3])
    F.scaled_dot_product_attention = ORIGINAL


def test_checkpointed_backward_recomputes_the_same_way() -> None:
    q = Q.clone().requires_grad_()
    with flashasc.route_sdpa() as calls:
        out = torch.utils.checkpoint.checkpoint(
            lambda x: F.scaled_dot_product_attention(x, K, K).square(), q, use_reentrant=False
        )
        out.sum().backward()
    assert calls.taken == 2 and q.grad is not None


def test_a_compiled_model_in_the_block() -> None:
    with flashasc.route_sdpa() as calls:
        compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, K, K), backend="eager")
        found = compiled(Q)
    assert calls.taken >= 1
    torch.testing.assert_close(found, ORIGINAL(Q, K, K))
    torch._dynamo.reset()


def test_a_wrong_choice_says_so() -> None:
    with (
        pytest.raises(ValueError, match="unsupported must be one of"),
        flashasc.route_sdpa(
            unsupported="ignore"  # type: ignore[arg-type]
        ),
    ):
        pass
