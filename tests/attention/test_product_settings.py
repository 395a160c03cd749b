"""PyTorch's process-wide settings of how float32 matrices are multiplied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

RUN = """
import threading
import torch
import flashasc

q, k, v = (torch.randn(2, 2, 300, 16, requires_grad=True) for _ in range(3))
expected = torch.autograd.grad(flashasc.attention(q, k, v).sum(), q)[0]

{setting}
libraries = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
before = [library.fp32_precision for library in libraries]


def work():
    for _ in range(10):
        found = torch.autograd.grad(flashasc.attention(q, k, v).sum(), q)[0]
        same.append(torch.equal(found, expected))


same = []
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(same) and len(same) == 30
assert [library.fp32_precision for library in libraries] == before
"""


@pytest.mark.parametrize(
    "setting",
    [
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
        "torch.backends.fp32_precision = 'tf32'",
    ],
)
def test_they_neither_matter_nor_change(run_python: Callable[..., object], setting: str) -> None:
    run_python(RUN.format(setting=setting), env={"OMP_NUM_THREADS": "1"})
