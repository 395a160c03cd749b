"""Tile tables: which shapes and schedule a kernel runs with, and the constraints they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class TileConfig:
    """One row of a tile table.

    A row serves problems of its dtype and precision whose D and Dv are at most `max_head`.
    """

    targets: tuple[str, ...]
    """Architectures: "Ascend910B3", ... or "sm_80", ..."""
    dtype: torch.dtype
    precision: Literal["standard", "compensated"]
    max_head: int
    block_m: int
    """Query rows of a tile."""
    block_n: int
    """Keys of a tile."""
    source: str
    """Where the row comes from: what was measured or compiled, and with which version."""
    comp_dtype: torch.dtype = torch.float32
    """In which the output's compensation is kept between tiles: float32 or bfloat16."""
    seed_product: bool = False
    """Start a product from the accumulator instead of adding it afterwards."""
    core_loop: bool = True
    """One program a core, looping over tasks (NPU), instead of one program a task (GPU)."""
    split_loop: bool = False
    """Two loops over the keys, without and with a mask, instead of one that branches."""
    dot_precision: str = "ieee"
    num_warps: int | None = None
    num_stages: int | None = None
