"""Where the wrapper kernels of these tests run: one call, whichever route."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

from flashasc import _triton

Route = Literal["linalg", "hfusion", "gpu", "interpreter"]

ARCH = "Ascend910B3"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Device:
    """A way of running kernels.

    "linalg" and "hfusion" are levels of the native CPU route, "gpu" an NVIDIA GPU; "interpreter"
    needs TRITON_INTERPRET=1 from before the first import of Triton.
    """

    route: Route

    @property
    def place(self) -> torch.device:
        return torch.device("cuda" if self.route == "gpu" else "cpu")

    @property
    def exact_exp2(self) -> bool:
        """Whether exp2 of a whole number is exact; HFusion makes exp(x * ln 2) of it."""
        return self.route != "hfusion"

    def steps(self, many: int, few: int) -> int:
        """How long a loop is: `few` in the interpreter, which takes 0.1 ms an operation."""
        return few if self.route == "interpreter" else many

    def require(self) -> None:
        """Skip the test, with the reason, where this route cannot run."""
        try:
            _triton.require(self.place.type, interpreted=self.route == "interpreter")
        except (ImportError, RuntimeError) as error:
            pytest.skip(str(error))
        if os.environ.get("TRITON_INTERPRET") == "1" and self.route != "interpreter":
            pytest.skip("TRITON_INTERPRET=1: kernels are interpreted here, not compiled")

    def launch(
        self,
        kernel: Any,
        args: Mapping[str, Any],
        constants: Mapping[str, Any],
        grid: tuple[int, ...] = (1,),
    ) -> None:
        """Run a kernel on tensors that are on the device already."""
        match self.route:
            case "gpu":
                # the error of an addition is only its error where no multiplication is fused in
                kernel[grid](**args, **constants, enable_fp_fusion=False)
                torch.cuda.synchronize()
            case "interpreter":
                importlib.import_module("flashasc._interpreter").apply()
                kernel[grid](**args, **constants)
            case level:
                native = importlib.import_module("flashasc.native")
                native.launch(kernel, grid, args, constants, arch=ARCH, level=level)

    def run(
        self,
        kernel: Any,
        args: Mapping[str, Any],
        outputs: Mapping[str, Shape],
        grid: tuple[int, ...] = (1,),
        dtype: torch.dtype = torch.float32,
        **constants: Any,
    ) -> list[torch.Tensor]:
        """Run a kernel on CPU tensors and fresh outputs.

        Args:
            kernel: a `triton.jit` function.
            args: runtime arguments by name; tensors are contiguous.
            outputs: shape of each output by argument name; every one starts as NaN, or -77.
            grid: grid size.
            dtype: dtype of the outputs.
            constants: constexpr arguments.

        Returns:
            The outputs in the order given, on the CPU.
        """
        inputs = {
            name: x.to(self.place) if isinstance(x, torch.Tensor) else x for name, x in args.items()
        }
        results = {
            name: torch.full(
                shape, math.nan if dtype.is_floating_point else -77, dtype=dtype, device=self.place
            )
            for name, shape in outputs.items()
        }
        self.launch(kernel, {**inputs, **results}, constants, grid)
        return [result.cpu() for result in results.values()]
