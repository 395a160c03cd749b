"""Results saved by one machine, read on another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch


def load(path: str | Path) -> Any:
    """Read tensors: .pt or .pth of `torch.save`, .npy or .npz of NumPy, onto the CPU.

    Nothing but tensors and containers is unpickled.

    Raises:
        ValueError: no such file, another kind of file, or one that cannot be read; the message
            names it and why.
    """
    path = Path(path)
    try:
        match path.suffix:
            case ".pt" | ".pth":
                return torch.load(path, map_location="cpu", weights_only=True)
            case ".npy":
                return np.load(path, allow_pickle=False)
            case ".npz":
                with np.load(path, allow_pickle=False) as arrays:
                    return dict(arrays)
    # the unpickler of a file that is no pickle may raise anything: struct.error, KeyError, ...
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path}: cannot be read: {why}") from error
    raise ValueError(f"{path}: expected a .pt, .pth, .npy or .npz file")
