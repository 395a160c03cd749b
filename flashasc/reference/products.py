"""In which precision the reference multiplies, whatever shortcuts a process allows itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which sums are kept: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextmanager
def full_precision_products(device: torch.device) -> Iterator[None]:
    """Products in the dtype of their factors, whatever shortcut is allowed elsewhere.

    Autocast would make 16-bit products of float32 tiles, and TF32 or bfloat16 ones are allowed by
    process-wide settings: those are set aside until the last thread in here has left.
    """
    with torch.autocast(device.type, enabled=False):
        with _settings.lock:
            if _settings.users == 0:
                _settings.put_aside()
            _settings.users += 1
        try:
            yield
        finally:
            with _settings.lock:
                _settings.users -= 1
                if _settings.users == 0:
                    _settings.put_back()


class _ProductSettings:
    """PyTorch's settings of how float32 matrices are multiplied, per library."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: list[tuple[Any, str]] = []

    def put_aside(self) -> None:
        # read and written per library: the older torch.get_float32_matmul_precision raises once
        # somebody has used these
        libraries: tuple[Any, ...] = (
            torch.backends.cuda.matmul,
            torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        )
        self.before = [(library, library.fp32_precision) for library in libraries]
        for library, setting in self.before:
            if setting != "ieee":
                library.fp32_precision = "ieee"

    def put_back(self) -> None:
        for library, setting in self.before:
            if setting != "ieee":
                library.fp32_precision = setting


_settings = _ProductSettings()
