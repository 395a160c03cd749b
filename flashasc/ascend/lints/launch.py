"""What a launch hands to a kernel: scalars, and the grid."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from flashasc.ascend.lints.text import Text

# the launcher packs the number of programs into 16 bits (triton-ascend 3.2.0, driver.py)
LARGEST_GRID = 65_535


def half_scalars(text: Text) -> Iterator[tuple[int, str]]:
    """Find fp16 and bf16 scalars among the arguments of a kernel.

    Reported with the device (triton-ascend's issue 2364, for 3.2.2 and 3.6.0).
    """
    for number, match in text.find(r"func\.func @\w+\((.*)"):
        if types := sorted(set(re.findall(r"%arg\d+: (b?f16)\b", match[1]))):
            yield (
                number,
                f"a scalar argument is {' and '.join(types)}. It is reported to arrive with a "
                "wrong value on the device. Pass it as fp32 and convert it in the kernel, or load "
                "it from a tensor",
            )


def grid(text: Text, size: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Find a grid of more programs than one launch can have."""
    programs = math.prod(size)
    if programs <= LARGEST_GRID:
        return
    number = next((line for line, _ in text.find(r"func\.func @\w+\(")), 0)
    yield (
        number,
        f"the grid {' x '.join(map(str, size))} has {programs:,} programs and one launch at most "
        f"{LARGEST_GRID:,}: it fails, or runs fewer. Launch one program per core and let each "
        "loop over its share: for task in range(tl.program_id(0), tasks, tl.num_programs(0))",
    )
