"""The one check that reads values, and so waits for the device."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from .._problem import AttentionProblem
from .arguments import Arguments


def check_values(call: Arguments, problem: AttentionProblem) -> None:
    """Check the lengths of a call that `validate_attention` accepted.

    Raises:
        ValueError: a length is out of range; the message names the sequence.
    """
    if problem.device.type == "meta":
        return
    if call.kv_lens is not None:
        for b, length in enumerate(call.kv_lens.tolist()):
            if not 0 <= length <= problem.Sk:
                raise ValueError(
                    f"kv_lens must be between 0 and Sk = {problem.Sk}; got {length} for sequence "
                    f"{b}. attention would take it as the nearer of the two"
                )
    if problem.packed:
        for letter in ("q", "k"):
            tokens = problem.tokens_q if letter == "q" else problem.tokens_k
            _cumulative(
                f"cu_seqlens_{letter}",
                getattr(call, f"cu_seqlens_{letter}"),
                letter,
                tokens,
                getattr(call, f"max_seqlen_{letter}"),
            )


def _cumulative(name: str, edges: Tensor, of: str, tokens: int, longest: int | None) -> None:
    values: list[int] = edges.tolist()
    if values[0] != 0:
        raise ValueError(
            f"{name} must start with 0; got {values[0]}. Of plain lengths, make it by "
            "F.pad(lengths.cumsum(0), (1, 0))"
        )
    for b, (start, stop) in enumerate(pairwise(values)):
        if stop < start:
            raise ValueError(
                f"{name} must not fall; got {start} and then {stop} for sequence {b}. It holds "
                "cumulative lengths, not lengths"
            )
        if longest is not None and stop - start > longest:
            raise ValueError(
                f"max_seqlen_{of} must be at least the longest sequence; got {longest}, and "
                f"sequence {b} of {name} has {stop - start} tokens"
            )
    if values[-1] != tokens:
        raise ValueError(
            f"{name} must end with the number of tokens of {of}, {tokens}; got {values[-1]}. "
            "Tokens behind the last sequence attend to nothing"
        )
