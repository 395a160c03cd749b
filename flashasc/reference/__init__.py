"""Attention in plain PyTorch: the same algorithm as the kernels, on any device.

Works in float32, and in float64 for float64 input: 16-bit tiles are widened before they are
multiplied, so a product of two of them is exact. Its memory beyond input and output is a tile of
scores, O(Sq * tile), never O(Sq * Sk), forward and backward.
"""

from __future__ import annotations

from torch import Tensor

from .._problem import AttentionProblem, Extras
from . import backward, forward, packed, states
from .backward import Gradients, Needs
from .cached import append, decode
from .gemm import gemm
from .products import full_precision_products, working_dtype
from .reductions import max_rows, sum_rows
from .scores import KEYS_PER_TILE, SCORES_PER_TILE
from .states import finalize_state, merge_states

__all__ = [
    "KEYS_PER_TILE",
    "SCORES_PER_TILE",
    "Gradients",
    "Needs",
    "append",
    "attention_bwd",
    "attention_fwd",
    "attention_state",
    "decode",
    "finalize_state",
    "gemm",
    "max_rows",
    "merge_states",
    "sum_rows",
    "working_dtype",
]

_NONE = Extras()
_Q_K_V = Needs()


def attention_fwd(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, extras: Extras = _NONE
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp, a tile of queries and a tile of keys at a time.

    Args:
        q: [B, Hq, Sq, D] any strides; [Hq, tokens, D] for a packed batch.
        k: [B, Hk, Sk, D] any strides; [Hk, tokens, D].
        v: [B, Hk, Sk, Dv] any strides; [Hk, tokens, Dv].
        problem: the facts of the call.
        extras: the other tensors of the call.

    Returns:
        (out, lse): [B, Hq, Sq, Dv] and [B, Hq, Sq] ([Hq, tokens, Dv] and [Hq, tokens]),
        contiguous, both in the working dtype; lse in natural-log units.
    """
    with full_precision_products(problem.device):
        run = packed.forward if problem.packed else forward.forward
        return run(q, k, v, problem, extras)


def attention_state(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, extras: Extras = _NONE
) -> tuple[Tensor, Tensor]:
    """Raw softmax state of the queries after these keys, to be merged with that of others.

    Args:
        q, k, v, problem, extras: as for `attention_fwd`; sinks do not count yet.

    Returns:
        (rows, acc): [B, Hq, 5, Sq] and [B, Hq, Sq, 2, Dv] ([Hq, 5, tokens] and
        [Hq, tokens, 2, Dv]), contiguous, in the working dtype; see `states`.
    """
    with full_precision_products(problem.device):
        run = packed.state if problem.packed else states.state
        rows, acc = run(q, k, v, problem, extras)
    return rows.movedim(-1, -2).contiguous(), acc.contiguous()


def attention_bwd(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: AttentionProblem,
    extras: Extras = _NONE,
    needs: Needs = _Q_K_V,
    *,
    some_keys: bool = False,
) -> Gradients:
    """Gradients of the inputs that ask, from scores computed again a tile of keys at a time.

    Args:
        grad_out, out: [B, Hq, Sq, Dv]; [Hq, tokens, Dv] for a packed batch.
        grad_lse, lse: [B, Hq, Sq] or [Hq, tokens], natural-log units; grad_lse may be None.
        q, k, v, problem, extras: as in the forward pass.
        needs: which gradients are asked for.
        some_keys: k and v are some of the keys that out and lse are of; weights then come from lse,
            whose rounding is a factor on them.

    Returns:
        Each asked one contiguous, in its input's shape and dtype; None for the others. A row that
        saw nothing has gradient 0.
    """
    inputs = (q, k, v, extras.bias, extras.alibi_slopes, extras.sinks)
    with full_precision_products(problem.device):
        run = packed.backward if problem.packed else backward.backward
        found = run(
            grad_out, grad_lse, q, k, v, out, lse, problem, extras, needs, some_keys=some_keys
        )
    return Gradients(
        *(
            None if g is None or x is None else g.to(x.dtype)
            for g, x in zip(found, inputs, strict=True)
        )
    )
