"""Sizes and options that the tests and the benchmarks share."""

from __future__ import annotations

import torch

from flashasc.testing import Case

FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (FLOAT32, FLOAT16, BFLOAT16)

# no length is a multiple of a tile, heads are grouped, several tiles of queries and of keys
RAGGED = Case(B=2, Hq=4, Hk=2, Sq=150, Sk=270, D=64)

HEAD_SIZES = (1, 2, 16, 17, 33, 64, 80, 96, 128, 192, 256)

# every head size in every dtype, Dv != D for some of them, causal by turns
BY_HEAD_SIZE = tuple(
    Case(
        Hq=2, Hk=1, Sq=70, Sk=290, D=D, Dv=Dv, dtype=dtype, causal=(place + number) % 2 == 1
    )
    for number, dtype in enumerate(DTYPES)
    for place, (D, Dv) in enumerate(
        [*((D, D) for D in HEAD_SIZES), (64, 128), (192, 128), (40, 1), (1, 256)]
    )
)  # fmt: skip

# (Hq, Hk)
HEAD_GROUPS = ((13, 1), (7, 1), (12, 4), (6, 3), (5, 5))

# (Sq, Sk): a single query, more queries than keys, one key, a key beyond a tile, whole tiles
LENGTHS = (
    (1, 1), (1, 20), (1, 777), (3, 257), (9, 9), (64, 256), (65, 64), (76, 1), (129, 128),
    (200, 50), (256, 512), (300, 299), (50, 700),
)  # fmt: skip

BY_LENGTH = tuple(
    Case(Hq=2, Hk=1, Sq=Sq, Sk=Sk, D=32, dtype=FLOAT16, causal=causal, causal_align=align)
    for Sq, Sk in LENGTHS
    for causal, align in (
        (False, "bottom_right"),
        (True, "bottom_right"),
        (True, "top_left"),
    )
)

BY_HEADS = tuple(
    Case(Hq=Hq, Hk=Hk, B=2, Sq=20, Sk=33, D=32, dtype=FLOAT16, causal=True)
    for Hq, Hk in HEAD_GROUPS
)

# what every level of lowering is tried on, and both precision levels
CORE = (
    RAGGED.but(dtype=FLOAT32),
    RAGGED.but(dtype=FLOAT32, causal=True, layout="BSND"),
    RAGGED.but(dtype=FLOAT16, layout="BSND"),
    RAGGED.but(dtype=FLOAT16, causal=True),
    RAGGED.but(dtype=BFLOAT16),
    RAGGED.but(dtype=BFLOAT16, causal=True, layout="BSND"),
    RAGGED.but(D=80, Dv=40, Sq=270, Sk=150, causal=True),
    RAGGED.but(D=128, Sq=33, dtype=BFLOAT16, causal=True, causal_align="top_left"),
    Case(Hq=3, Sq=70, Sk=130, D=256, dtype=FLOAT16),
)
