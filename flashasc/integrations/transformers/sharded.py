"""A model whose sequence lies on several ranks, each with its tokens and all of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..._dispatch import Impl
from ..._problem import Precision
from .options import reject_others
from .served import require_interface

if TYPE_CHECKING:
    from ...distributed import ContextParallel

__all__ = ["ShardedAttention", "ShardedMask", "shard_batch"]

# no prediction is asked for here: what losses of Transformers and PyTorch ignore
_IGNORED = -100


class ShardedMask(NamedTuple):
    """Which keys of the whole sequence a query sees; takes the place of a mask's tensor."""

    causal: bool
    window: int | None = None
    """Keys that a query sees, its own among them, where causal."""


def shard_batch(
    cp: ContextParallel, input_ids: Tensor, labels: Tensor | None = None
) -> dict[str, Any]:
    """What this rank's model is called with: `model(**shard_batch(cp, input_ids))`.

    Args:
        cp: the ranks.
        input_ids: [B, S] whole sequences of one length, the same on every rank.
        labels: [B, S] as the model takes them, not shifted; -100 where none is asked for.

    Returns:
        input_ids and attention_mask (ones) [B, tokens of this rank], position_ids [1, tokens],
        use_cache; with labels also labels, shift_labels (the next token's, which another rank may
        hold) and num_items_in_batch: the model's loss is then this rank's share, and the shares
        add up to the loss of the whole.

    Raises:
        ValueError: a shape is wrong.
    """
    if input_ids.dim() != 2 or (labels is not None and labels.shape != input_ids.shape):
        shapes = [None if x is None else tuple(x.shape) for x in (input_ids, labels)]
        raise ValueError(f"input_ids and labels must be [B, S], both alike; got {shapes}")
    mine = cp.shard(input_ids, 1)
    positions = cp.positions(input_ids.shape[1]).to(input_ids.device)
    batch = {
        "input_ids": mine,
        "position_ids": positions[None],
        # without it Transformers takes a jump in the positions for another sequence
        "attention_mask": torch.ones_like(mine),
        "use_cache": False,
    }
    if labels is None:
        return batch
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=_IGNORED)
    return batch | {
        "labels": cp.shard(labels, 1),
        "shift_labels": cp.shard(shifted, 1),
        "num_items_in_batch": (shifted != _IGNORED).sum(),
    }


class ShardedAttention:
    """Attention of a layer over the keys of all ranks, as Transformers calls it.

    Args:
        cp: the ranks.
        precision, impl: as for `flashasc.attention`.

    What it cannot honour, on one rank or on all, raises on all of them.
    """

    def __init__(self, cp: ContextParallel, precision: Precision, impl: Impl) -> None:
        self.cp = cp
        self.precision: Precision = precision
        self.impl: Impl = impl
        # a new forward pass, of which the first layer looks at the positions
        self._passing = False

    def mask(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Any] | None = None,
        attention_mask: Tensor | None = None,
        local_size: int | None = None,
        config: Any = None,
        **_: Any,
    ) -> ShardedMask:
        """The mask of a forward pass, for `AttentionMaskInterface`.

        Raises:
            NotImplementedError: a cache with keys, padding, a mask that is neither causality nor a
                window, or a model that computes its attention itself.
        """
        self._passing = False
        with self.cp.all_raise():
            require_interface(config)
            if (q_length, int(q_offset), kv_offset) != (kv_length, 0, 0):
                raise NotImplementedError(_CACHE.format(kv_length, q_length))
            if attention_mask is not None and not bool(attention_mask.all()):
                raise NotImplementedError(
                    "attention_mask hides tokens, which a sequence on several ranks does not "
                    "support; use sequences of one length without padding, or right padding that "
                    "labels of -100 leave out of the loss, with an attention_mask of ones"
                )
            return _read(mask_function, local_size)

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        dropout: float = 0.0,
        scaling: float | None = None,
        *,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_ids: Tensor | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attention of one layer.

        Args:
            module: the layer.
            query: [B, Hq, S, D]. This rank's queries.
            key, value: [B, Hk, S, D]. This rank's, and no others.
            attention_mask: what `mask` returned. It has causality and window, whatever `is_causal`
                and `sliding_window` say.
            dropout: must be 0.
            scaling, softcap, s_aux: as for `attention_forward`.
            position_ids: [1 or B, S]. Looked at by the first layer of a forward pass, with one
                small exchange.
            options: whatever else the model passes.

        Returns:
            ([B, S, Hq, D], None).

        Raises:
            NotImplementedError: dropout, a cache, a mask of another kind, an option that is not
                known, a layer that is given no positions.
            ValueError: the positions are not those of this rank's tokens.
        """
        name = type(module).__name__
        with self.cp.all_raise():
            if dropout:
                raise NotImplementedError(
                    f"attention dropout of {dropout} in training is not supported; set it to 0 in "
                    "the model's config (attention_dropout), or call .eval()"
                )
            reject_others(options, module)
            if key.shape[2] != query.shape[2]:
                raise NotImplementedError(_CACHE.format(key.shape[2], query.shape[2]))
            if not isinstance(attention_mask, ShardedMask):
                raise NotImplementedError(
                    f"{name} got {type(attention_mask).__name__} for a mask, and attention over "
                    "several ranks takes causality and windows alone, from the mask function that "
                    "register() made known: pass no mask of your own"
                )
        self._check_positions(name, position_ids, query)
        window = attention_mask.window
        out = self.cp.attention(
            *(x.transpose(1, 2) for x in (query, key, value)),
            layout="BSND",
            causal=attention_mask.causal,
            window=None if window is None else (window - 1, 0),
            scale=scaling,
            softcap=softcap,
            sinks=s_aux,
            precision=self.precision,
            impl=self.impl,
        )
        return out, None

    def _check_positions(self, name: str, position_ids: Tensor | None, query: Tensor) -> None:
        if self._passing:
            return
        with self.cp.all_raise():
            if position_ids is None:
                raise NotImplementedError(
                    f"{name} is given no position_ids, so that nobody knows whether they are those "
                    "of this rank's tokens; models with rotary positions hand them on"
                )
        expected = self.cp.own_positions(query.shape[2])
        with self.cp.all_raise():
            found = position_ids.cpu()
            if found.shape[-1:] != expected.shape or not bool((found == expected).all()):
                raise ValueError(
                    "position_ids must be those of this rank's tokens, position_ids="
                    f"cp.positions(length)[None], see shard_batch; got {_ends(found)}, and the "
                    f"{len(expected)} tokens of this rank are at {_ends(expected)}"
                )
        # where another rank found its own wrong, this one learns of it in the call that follows
        self._passing = True


_CACHE = (
    "{} keys for {} queries: a key-value cache, or keys of another sequence. On several ranks no "
    "cache can be continued, as each holds its part of the keys alone: read whole sequences, with "
    "use_cache=False"
)


def _ends(positions: Tensor) -> str:
    flat = positions.flatten().tolist()
    if len(flat) > 8:
        flat = [*flat[:3], "...", *flat[-3:]]
    return f"[{', '.join(map(str, flat))}]"


def _read(mask_function: Callable[..., Any] | None, local_size: int | None) -> ShardedMask:
    """What a mask function of Transformers says, from which functions it is made of."""
    from transformers import masking_utils

    if mask_function is masking_utils.causal_mask_function:
        return ShardedMask(causal=True)
    if mask_function is masking_utils.bidirectional_mask_function:
        return ShardedMask(causal=False)
    cells = getattr(mask_function, "__closure__", None) or ()
    parts = {
        getattr(part, "__qualname__", "").partition(".")[0]
        for cell in cells
        if isinstance(cell.cell_contents, tuple)
        for part in cell.cell_contents
    }
    if local_size is not None and parts == {"sliding_window_overlay", "causal_mask_function"}:
        return ShardedMask(causal=True, window=local_size)
    raise NotImplementedError(
        f"a mask made of {sorted(parts) or mask_function} is neither causality nor a window, which "
        "is all that several ranks support. Where positions jump, as in zigzag placement, pass an "
        "attention_mask of ones, as shard_batch does: without one Transformers takes a jump for "
        "the start of another sequence"
    )
