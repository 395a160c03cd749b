"""Context parallelism on 2, 3 and 4 ranks, against the same call in one process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from flashasc._arguments import Arguments
from flashasc._problem import Extras
from flashasc.distributed._blocks import BlockAttention
from flashasc.distributed._call import Geometry, LocalCall
from flashasc.distributed._placement import shards
from flashasc.testing import exact_attention
from tests.distributed import context_cases
from tests.distributed.context_cases import CASES, ContextCase
from tests.distributed.ranks import on_ranks, returned

WORLDS = (2, 3, 4)


@lru_cache
def measured(world: int) -> list[Any]:
    return returned(on_ranks(world, context_cases.measured))


@lru_cache
def precise(world: int) -> list[Any]:
    return returned(on_ranks(world, context_cases.precise))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_as_in_one_process(case: ContextCase, world: int) -> None:
    for rank, figures in enumerate(measured(world)):
        found = figures[case.id]
        assert found["out"] <= 2e-6, (rank, found)
        assert found["lse"] <= 2e-6, (rank, found)
        assert found["grad"] <= 1e-5, (rank, found)
        assert found["unshard"] <= 2e-6, (rank, found)
        assert found["contiguous"], rank


def expected_counts(case: ContextCase, world: int) -> tuple[int, int]:
    """(collectives, sends) of one forward call that returns the log-sum-exp."""
    if case.mode == "ulysses":
        return 1 + 5, 0
    if case.mode == "ring":
        if case.options == {"window": (9, 0)}:
            # ends in the neighbour's part of 37 tokens: no block goes further
            return 1, 1
        if case.layout == "TND" and case.placement == "contiguous":
            # the longest of these sequences lies on this many ranks beside the first
            return 1, world // 2
        return 1, world - 1
    ring, heads = (world // 2, 2) if world % 2 == 0 else (world, 1)
    near = case.options == {"window": (9, 0)}
    exchanges = (heads > 1) + (ring > 1) + 5 * (heads > 1)
    return exchanges, min(ring - 1, 1) if near else ring - 1


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_is_moved(case: ContextCase, world: int) -> None:
    """One small exchange of facts, then one transfer a step, or one collective a tensor."""
    collectives, sends = expected_counts(case, world)
    for figures in measured(world):
        found = figures[case.id]
        assert found["collectives"] == found["own collectives"] == collectives
        # ranks without keys have nothing to send
        if case.Sq >= 2 * world:
            assert found["sends"] == found["receives"] == sends


@pytest.mark.parametrize("world", (2, 4))
@pytest.mark.parametrize(("mode", "placement"), context_cases.PRECISE)
def test_bfloat16_is_no_worse_than_one_process(world: int, mode: str, placement: str) -> None:
    figures = precise(world)[0]
    for precision in ("compensated", "high"):
        error, single, equal = figures[mode, placement, precision]
        assert error <= 1.1 * single, (precision, error, single)
        if precision == "high":
            assert equal >= 0.995, equal


def test_subgroups_meshes_and_groups_of_one() -> None:
    for distance, alone, by_mesh in returned(on_ranks(4, context_cases.subgroups)):
        assert distance <= 2e-6
        assert alone == 0.0
        assert by_mesh


def test_any_number_of_tokens_and_the_kernels() -> None:
    for figures in returned(on_ranks(3, context_cases.uneven)):
        for name, distance in figures.items():
            assert distance <= (1e-14 if "float64" in name else 2e-6), (name, distance)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_error_does_not_grow_with_ranks(dtype: torch.dtype) -> None:
    """64K keys, positive values, ranks simulated in one process."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 1, 16, 16, generator=generator).to(dtype)
    k = torch.randn(1, 1, 1 << 16, 16, generator=generator).to(dtype)
    v = torch.rand(1, 1, 1 << 16, 16, generator=generator).to(dtype)
    exact = exact_attention(q, k, v).out
    # the output in float32: rounding it to 16 bits would hide what is asked
    call = LocalCall.checked(Arguments(q, k, v, out_dtype=torch.float32), "zigzag")
    errors = []
    for world in (1, 2, 4, 8):
        keys = shards([1 << 16], world, "zigzag")
        geometry = Geometry(shards([16], 1, "contiguous") * world, keys, (0,))
        blocks = BlockAttention(call.problem, Extras(), "auto", geometry, 0)
        parts = [torch.cat([k.new_empty(0).long(), *map(_range, shard)]) for shard in keys]
        for step in range(world):
            source = -step % world
            blocks.add(q, k[:, :, parts[source]], v[:, :, parts[source]], source)
        out, _ = blocks.finish(q, k, v)
        errors.append((out.double() - exact).square().mean().sqrt().item())
    assert max(errors[1:]) <= 1.1 * errors[0], errors


def _range(piece: Any) -> torch.Tensor:
    return torch.arange(piece.starts[0], piece.starts[0] + piece.lengths[0])
