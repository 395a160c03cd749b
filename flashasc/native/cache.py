"""Files kept between processes, which other processes may be writing, or have left half written.

An entry is a file named after its content and a small JSON beside it, written last, that names the
file and its SHA-256. Both appear by renaming, so a reader sees a whole entry or none; one whose
content does not match is as good as absent, and is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashasc.native.errors import NativeError


def root() -> Path:
    """Return the cache folder: FLASHASC_CACHE_DIR, or ~/.cache/flashasc/native."""
    if chosen := os.environ.get("FLASHASC_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    return Path("~/.cache/flashasc/native").expanduser()


def make_key(parts: Any) -> str:
    """Return a key for anything that JSON can hold; equal parts have equal keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def load(kind: str, key: str) -> tuple[Path, dict[str, Any]] | None:
    """Find an entry.

    Args:
        kind: which sort of entry: a subfolder.
        key: what `store` was given.

    Returns:
        (its file, the information stored with it), or None when there is none that is whole.
    """
    try:
        note = json.loads(_note(kind, key).read_text())
        path = _note(kind, key).with_name(note["file"])
        content = path.read_bytes()
        if len(content) != note["size"] or hashlib.sha256(content).hexdigest() != note["sha256"]:
            return None
        info = note["info"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (path, info) if isinstance(info, dict) else None


def store(kind: str, key: str, content: bytes, suffix: str, info: dict[str, Any]) -> Path:
    """Write an entry, replacing any there is.

    Returns:
        The path of its file.

    Raises:
        NativeError: the folder cannot be written.
    """
    digest = hashlib.sha256(content).hexdigest()
    note_path = _note(kind, key)
    path = note_path.with_name(f"{key[:32]}-{digest[:16]}{suffix}")
    note = {"file": path.name, "size": len(content), "sha256": digest, "info": info}
    try:
        _write(path, content)
        _write(note_path, json.dumps(note).encode())
    except OSError as error:
        raise _unwritable(error) from error
    return path


@contextlib.contextmanager
def building(kind: str, key: str) -> Iterator[None]:
    """Hold off others that want to make the same entry; they look again when it is their turn.

    A process that dies lets go. Where the file system has no locks, all of them make the entry,
    which is slower and no less right.

    Raises:
        NativeError: the folder cannot be written.
    """
    path = _note(kind, key).with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        # released by name: a child forked meanwhile shares the descriptor
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _note(kind: str, key: str) -> Path:
    return root() / kind / key[:2] / f"{key}.json"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _unwritable(error: OSError) -> NativeError:
    return NativeError(
        f"cannot write in the cache folder {root()}: {error}; set FLASHASC_CACHE_DIR to a folder "
        "that can be written",
        step="cache",
    )
