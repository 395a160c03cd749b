"""What the suites share: `pytest bench/`, with the options of pytest-benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from .machine import facts
from .suite import Measure, Session, speeds_over

SESSION = pytest.StashKey[Session]()


def pytest_configure(config: pytest.Config) -> None:
    """Say what is missing, rather than that a fixture is."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("bench/ needs pytest-benchmark: pip install -e '.[bench]'")
    config.stash[SESSION] = Session()


@pytest.fixture
def measure(benchmark: Any, request: pytest.FixtureRequest) -> Measure:
    """Gate and time one implementation of a case."""
    return Measure(benchmark, request, request.config.stash[SESSION])


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add the machine, its roofs, what was not timed and why, and ratios within the run."""
    session = config.stash[SESSION]
    speeds_over(output_json)
    output_json["flashasc"] = {
        "machine": facts(),
        "roofs": session.roofs,
        "not_timed": session.not_timed,
    }
