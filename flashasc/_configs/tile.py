"""One row of a tile table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._problem import AttentionProblem, Precision

SCORE_OPTIONS = frozenset({"window", "softcap", "mask", "bias", "alibi"})
"""Every score option, see `AttentionProblem.score_options`."""


@dataclass(frozen=True)
class TileConfig:
    """One row of a tile table.

    A row serves problems of its dtype and precision whose D and Dv are at most `max_head`, and
    which use no other score options than its own.
    """

    targets: tuple[str, ...]
    """Architectures: "Ascend910B3", ... or "sm_80", ..."""
    dtype: torch.dtype
    precision: Precision
    max_head: int
    block_m: int
    """Query rows of a tile."""
    block_n: int
    """Keys of a tile."""
    source: str
    """Where the row comes from: what was measured or compiled, and with which version."""
    options: frozenset[str] = frozenset()
    """The score options (see `AttentionProblem.score_options`) that the row has room for."""
    head_blocks: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Columns that a tile of head vectors may have."""
    least_values: int = 16
    """Columns that a tile of values has at least."""
    comp_dtype: torch.dtype = torch.float32
    """In which the output's compensation is kept between tiles: float32 or bfloat16."""
    segment: int = 1
    """Tiles of keys whose products are summed plainly before the sum is compensated."""
    natural_exp: bool = False
    """Weights by exp instead of exp2, whatever the options; for 16-bit dtypes."""
    core_loop: bool = True
    """One program a core, looping over tasks (NPU), instead of one program a task (GPU)."""
    chunk: int = 0
    """Keys that one program attends to, where keys are split; 0 where they are not."""
    least_page: int = 16
    """Keys that a page of a cache has at least, for a compiler to take it."""
    merge_columns: int = 0
    """Columns that one program merges the chunks of, where there are more; 0: all. A GPU takes all
    where Dv is no multiple."""
    cached_bytes: int = 0
    """Keys and values that a GPU's cache holds while programs of several heads read them, so that
    the longest tiles of all these heads go first; 0: one head after another."""
    split_loop: bool = False
    """Two loops over the keys, without and with a mask, instead of one that branches."""
    pairs: bool = False
    """Weights are rounded two at a time, by an instruction of NVIDIA's; for 16-bit dtypes."""
    settle: bool = False
    """Each product with the values is waited for where it is made, see `blocks.gemm.settled`; on
    NVIDIA's sm_90, where a thread has few registers."""
    repair: bool = False
    """For "high": infinite values are put right once, after the last tile, where there are any,
    instead of at each tile, see `blocks.softmax.online_update`; where a GPU lacks registers."""
    descriptors: bool = False
    """Whole tiles of keys and values are read by tensor descriptor, where they can be: on NVIDIA's
    sm_90, without pages. With split_loop."""
    described_edges: bool = True
    """Tiles with keys that only some rows see are read by descriptor too, in one loop with the
    whole ones; else in loops of their own, which leave the loop over whole tiles its registers."""
    dot_precision: str = "ieee"
    num_warps: int | None = None
    num_stages: int | None = None
    least_triton: tuple[int, int] = (3, 2)
    """The oldest upstream Triton that compiles the row, for NVIDIA; older ones get a later row."""
    max_registers: int | None = None
    """Registers that a thread may have, so that more programs fit on a multiprocessor."""

    def __post_init__(self) -> None:
        """Refuse a row that would round what it is there to keep, or whose chunks are no chunks."""
        assert self.chunk % (self.block_n * self.segment) == 0, (
            "a chunk is whole segments: tiles and segments are counted from key 0"
        )
        assert not self.repair or self.precision == "high", (
            "only weights of two numbers spoil an infinite value"
        )
        assert self.segment == 1 or self.comp_dtype == torch.float32, (
            "a segment's products are summed where the compensation is kept: in float32"
        )

    def columns(self, size: int) -> int:
        """Columns of the tile that holds query or key vectors of `size` numbers."""
        return next(block for block in self.head_blocks if block >= size)

    def value_columns(self, size: int) -> int:
        """Columns of the tile that holds value vectors of `size` numbers."""
        return self.columns(max(size, self.least_values))

    def natural_scores(self, problem: AttentionProblem) -> bool:
        """Whether the softmax gets scores in natural units instead of log2 units.

        What a bias or slopes are added to is not changed to log2 units afterwards: a large sum
        would be rounded once more.
        """
        return self.natural_exp or problem.has_bias or problem.has_alibi

    def natural(self, problem: AttentionProblem) -> bool:
        """Whether the softmax's pivots are in natural units too; whole ones never are."""
        whole = problem.dtype == torch.float32 or problem.precision == "high"
        return self.natural_scores(problem) and not whole

    def compiler_options(self) -> dict[str, int | bool]:
        """Options of an upstream Triton launch; an Ascend compiler takes none of them."""
        if self.num_warps is None or self.num_stages is None:
            return {}
        # fused multiply-adds are written where they are wanted: contracted by the compiler,
        # `score * scale - pivot` may come out above 0 and overflow for huge scores
        options: dict[str, int | bool] = {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": False,
        }
        if self.max_registers is not None:
            options["maxnreg"] = self.max_registers
        return options
