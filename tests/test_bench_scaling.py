"""`bench.scaling` on the native CPU route: a new length compiles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scaling import in_process


def test_a_process_compiles_once_for_every_length(tmp_path: Path) -> None:
    pytest.importorskip("triton.backends.ascend")
    first, again = (in_process("compensated", str(tmp_path)) for _ in range(2))
    for process in (first, again):
        assert process["compiled for new lengths"] == 0
        assert process["new lengths"] < first["first call"]
    assert again["first call"] < first["first call"]
