from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHASC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ascend"
