"""The offline half of the Ascend compiler: find it, lower kernels with it, compile what it lowered.

Needs the packages of `pip install 'flashasc[offline]'` when called, and none of them to import.
"""

from flashasc.ascend.frontend import Lowered, lower
from flashasc.ascend.toolchain import (
    Family,
    ToolchainError,
    bishengir_tool,
    family,
    known_archs,
    versions,
)

__all__ = [
    "Family",
    "Lowered",
    "ToolchainError",
    "bishengir_tool",
    "family",
    "known_archs",
    "lower",
    "versions",
]
