"""One row of the tile table for matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._gemm_problem import Product

SPLITS: tuple[Product, ...] = ("bf16x3", "bf16x6", "fp16x3", "fp16x6")
"""Products of 16-bit parts, see `blocks.splits`."""


@dataclass(frozen=True)
class GemmTile:
    """One row of the tile table for matrix products.

    A row serves problems of its dtype, method and products, whatever their sizes.
    """

    targets: tuple[str, ...]
    """Architectures: "Ascend910B3", ... or "sm_80", ..."""
    dtype: torch.dtype
    compensated: bool
    products: tuple[Product, ...]
    block_m: int
    block_n: int
    block_k: int
    source: str
    """Where the row comes from: what was measured or compiled, and with which version."""
    bare: bool = False
    """Without room for a bias, an activation or a residual."""
    segment: int = 1
    """Tiles of K that are summed plainly before the sum is compensated."""
    part_k: int = 32768
    """A longer K is cut in parts of this length, each a task of its own. It follows from K alone,
    so that results don't depend on the batch, and is long enough for what the parts write and read
    again to be little beside the factors. A multiple of block_k."""
    branch: bool = False
    """How a segment ends, see `blocks.gemm.gemm_tile`."""
    core_loop: bool = True
    """One program a core, looping over tasks (NPU), instead of one program a task (GPU)."""
    group: int = 8
    """Rows of tiles that are worked on together, so that they share factors in the cache."""
    merge_m: int = 16
    merge_n: int = 128
    """Tile of the second stage, which adds up the parts."""
    num_warps: int | None = None
    num_stages: int | None = None

    def __post_init__(self) -> None:
        """Refuse parts that begin within a tile."""
        assert self.part_k % self.block_k == 0

    def parts(self, K: int) -> int:
        """In how many parts a sum of K products is computed."""
        return -(-K // self.part_k)

    def compiler_options(self) -> dict[str, int | bool]:
        """Options of an upstream Triton launch; an Ascend compiler takes none of them."""
        if self.num_warps is None or self.num_stages is None:
            return {}
        # a product fused into a sum is not the number whose rounding error the next line computes
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": False,
        }
