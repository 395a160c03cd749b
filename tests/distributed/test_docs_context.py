"""The page on context parallelism runs on two ranks."""

from __future__ import annotations

import torch

from flashasc.distributed.verify import FAULTS
from tests.conftest import ROOT
from tests.distributed.ranks import on_ranks, returned
from tests.docs.pages import blocks


def run_page() -> None:
    names: dict[str, object] = {}
    for block in blocks("context-parallel", "py"):
        exec(compile(block, "context-parallel.md", "exec"), names)
    assert isinstance(names["whole"], torch.Tensor)


def test_the_page_runs_on_two_ranks() -> None:
    returned(on_ranks(2, run_page))


def test_the_clean_runs_were_clean() -> None:
    text = (ROOT / "bench" / "results" / "verify_gloo.txt").read_text()
    assert "--runs 200" in text and "exit status 0" in text
    assert "every check passed" in text and "FAILED" not in text
    rows = [line for line in text.splitlines() if line.startswith("│ ")]
    assert rows and all(row.count("ok 200x") == 2 for row in rows)
    assert not FAULTS.keys() & set(text.split())
