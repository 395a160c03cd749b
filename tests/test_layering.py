"""One change, one place: how sums are kept is a file of blocks, a mask rule is flashasc's.

Each test makes such a change in a copy of the tree and runs the copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashasc import _triton
from tests.conftest import ROOT

TEN_TIMES = "tests/attention/test_long_rows.py::test_ten_times_below_plain_sums[native-linalg]"
KAHAN = "total, error = fast_two_sum(acc, addend)"
# the error of the addition, whichever of the two is larger: Neumaier, ZAMM 54 (1974), 39-51
NEUMAIER = """larger = tl.abs(acc) >= tl.abs(addend)
    total = acc + addend
    error = tl.where(larger, (acc - total) + addend, (addend - total) + acc)"""
WRONG = NEUMAIER.replace("(acc - total) + addend", "(total - acc) - addend")

DILATED = """
    offs = start_n + tl.arange(0, scores.shape[1])
    apart = tl.abs(offs_m[:, None] + diagonal - offs[None, :])
    scores = tl.where(apart % 2 == 0, scores, NEG_INF)
    return scores


@triton.jit
def banded("""

DILATED_ATTENTION = """
import sys, torch, flashasc, blocks
for package in (flashasc, blocks):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 150, 32)
apart = torch.arange(150)[:, None] - torch.arange(150)
for causal in (False, True):
    seen = (apart % 2 == 0) & (apart >= 0 if causal else apart == apart)
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=seen
    )
    found = flashasc.attention(q, k, v, causal=causal, impl="triton")
    assert (found - exact).abs().max() < 1e-5
"""


@pytest.fixture(autouse=True)
def _native_route() -> None:
    if _triton.installed().kind != "ascend" or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("kernels run natively here: needs triton-ascend, and not its interpreter")


def changed_tree(folder: Path, file: str, old: str, new: str) -> None:
    """The repository's code in a folder, with one change in one file."""
    for name in ("blocks", "flashasc", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    source = (folder / file).read_text()
    assert source.count(old) == 1, f"{file} no longer has this once: {old}"
    (folder / file).write_text(source.replace(old, new))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(("error", "passes"), [(NEUMAIER, True), (WRONG, False)])
def test_another_summation_is_a_change_in_one_file_of_blocks(
    tmp_path: Path, error: str, passes: bool
) -> None:
    """Neumaier's sum in Kahan's place: attention's accuracy test runs it, and would not pass it
    wrong."""
    changed_tree(tmp_path, "blocks/compensated.py", KAHAN, error)
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEN_TIMES)
    assert done.returncode == (0 if passes else 1), done.stdout + done.stderr
    assert ("1 passed" if passes else "1 failed") in done.stdout


def test_a_new_mask_rule_touches_flashasc_alone(tmp_path: Path) -> None:
    """Dilated attention: a query sees every other key."""
    scores = "flashasc/kernels/attention_scores.py"
    changed_tree(tmp_path, scores, "    return scores\n\n\n@triton.jit\ndef banded(", DILATED)
    done = run(tmp_path, "-c", DILATED_ATTENTION, str(tmp_path))
    assert done.returncode == 0, done.stderr
