"""The offline half of the Ascend compiler: find it, lower kernels with it, compile what it lowered.

Needs the packages of `pip install 'flashasc[offline]'` when called, and none of them to import.
"""

from flashasc.ascend.compile import compile_kernel, compiler_flags
from flashasc.ascend.estimate import Estimate, KernelEstimate, attention_time, estimate
from flashasc.ascend.frontend import Lowered, lower
from flashasc.ascend.hardware import Hardware, hardware_of
from flashasc.ascend.library import undefined_library_calls
from flashasc.ascend.lints import Finding, lint, lint_lowered
from flashasc.ascend.plan import MemoryUse
from flashasc.ascend.report import CompileReport, Overflow
from flashasc.ascend.toolchain import (
    Family,
    ToolchainError,
    bishengir_tool,
    family,
    known_archs,
    versions,
)
from flashasc.ascend.user_kernel import UserKernel, load_kernel
from flashasc.ascend.workload import Product, Workload

__all__ = [
    "CompileReport",
    "Estimate",
    "Family",
    "Finding",
    "Hardware",
    "KernelEstimate",
    "Lowered",
    "MemoryUse",
    "Overflow",
    "Product",
    "ToolchainError",
    "UserKernel",
    "Workload",
    "attention_time",
    "bishengir_tool",
    "compile_kernel",
    "compiler_flags",
    "estimate",
    "family",
    "hardware_of",
    "known_archs",
    "lint",
    "lint_lowered",
    "load_kernel",
    "lower",
    "undefined_library_calls",
    "versions",
]
