"""Checks of Triton's interpreter against torch and exact arithmetic, one function each.

`python -m tests.interpreter_checks cured|uncured` under TRITON_INTERPRET=1 prints one JSON object:
check name -> "" or what went wrong.
"""

from __future__ import annotations

import json
import traceback
import warnings

from . import arithmetic, bfloat16, tiles
from .registry import CHECKS

__all__ = ["CHECKS", "arithmetic", "bfloat16", "main", "tiles"]


def main(mode: str) -> None:
    if mode == "cured":
        from flashasc import _interpreter

        _interpreter.apply()
        _interpreter.apply()
    answers = {}
    for name, function in CHECKS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                function()
            answers[name] = ""
        except Exception:
            answers[name] = traceback.format_exc()
    print(json.dumps(answers))
