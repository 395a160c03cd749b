from __future__ import annotations

from pathlib import Path

import pytest

from flashasc import _triton

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = _triton.installed()
    if found.kind != "upstream":
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=f"upstream Triton only: {found.summary}"))
