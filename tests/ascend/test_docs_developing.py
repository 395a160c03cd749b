"""What docs/developing-for-ascend.md shows is run, in its order, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "developing-for-ascend.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)


def run(command: list[str], folder: Path, status: int = 0) -> None:
    root = str(PAGE.parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), root])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("the numerics need a C compiler")
    kernels = tmp_path / "my_kernels.py"
    ran = {"file": 0, "python": 0, "sh": 0, "diff": 0}
    for number, (language, text) in enumerate(BLOCKS):
        if text.startswith("# my_kernels.py\n"):
            kernels.write_text(text)
            ran["file"] += 1
        elif language == "python":
            script = tmp_path / f"script_{number}.py"
            script.write_text(text)
            run([sys.executable, str(script)], tmp_path)
            ran["python"] += 1
        elif language == "sh":
            call, _, comment = text.replace("\\\n", " ").partition("  # exit status ")
            _, *arguments = shlex.split(call)
            run([sys.executable, *arguments], tmp_path, status=int(comment or 0))
            ran["sh"] += 1
        elif language == "diff":
            old, new = (line[1:] for line in text.splitlines())
            assert kernels.read_text().count(old) == 1
            kernels.write_text(kernels.read_text().replace(old, new))
            ran["diff"] += 1
    assert ran == {"file": 1, "python": 2, "sh": 3, "diff": 1}


def test_every_rule_is_in_the_table() -> None:
    from flashasc.ascend.lints import EFFECTS

    listed = re.findall(r"^\| `([a-z][a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(EFFECTS)
