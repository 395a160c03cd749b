"""Many programs at once, from many threads, after fork, and without memory."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import native_kernels as kernels
import pytest
import torch

from flashasc.native import launch
from flashasc.native import program as program_module

HERE = os.path.dirname(__file__)


def softmax(x: torch.Tensor, threads: int) -> torch.Tensor:
    y = torch.full(x.shape, torch.nan)
    args = {"x_ptr": x, "y_ptr": y, "n_rows": x.shape[0], "n": x.shape[1]}
    args |= {"stride_xm": x.stride(0), "stride_xn": x.stride(1)}
    launch(kernels.softmax_rows, (x.shape[0],), args, {"BLOCK": 512}, threads=threads)
    return y


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x = torch.randn(300, 500)
    alone = softmax(x, 1)
    assert (alone.double() - x.double().softmax(1)).abs().max() < 1e-6
    for threads in (2, 3, 8, 64, 500):
        for _ in range(5):
            assert torch.equal(softmax(x, threads), alone)


def test_products_on_many_threads() -> None:
    results = []
    a, b = (torch.randn(3, 32, 32).half() for _ in "ab")
    for threads in (1, 8):
        c = torch.empty(32, 32)
        args = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "K": 96}
        # every program writes the same place the same value
        launch(kernels.accumulated_product, (16,), args, {"BLOCK": 32}, threads=threads)
        results.append(c)
    assert torch.equal(*results)


@pytest.mark.parametrize("level", ["linalg", "hfusion"])
def test_atomics_run_on_one_thread(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def spy_on(program: Any) -> None:
        original = program._run

        def run(*args: Any) -> int:
            used.append(args[-1])
            return original(*args)

        monkeypatch.setattr(program, "_run", run)

    x, y = torch.randn(32), torch.zeros(32)
    count, old = torch.zeros(1, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    counted = {"count_ptr": count, "old_ptr": old, "x_ptr": x, "sum_ptr": y, "n": 32}
    scaled = {"x_ptr": x, "y_ptr": y, "n": 32, "factor": 2.0}
    both = ((kernels.counted, counted), (kernels.scaled, scaled))
    for kernel, args in both:
        launch(kernel, (9,), args, {"BLOCK": 32}, level=level)
    for program in program_module._programs.values():
        spy_on(program)
    for kernel, args in both:
        launch(kernel, (9,), args, {"BLOCK": 32}, level=level, threads=7)
    assert used == [1, 7]


def test_python_threads_may_launch_at_once() -> None:
    inputs = [torch.randn(50 + i, 500) for i in range(8)]
    want = [softmax(x, 1) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for round_ in range(30):
            if not torch.equal(softmax(inputs[i], 1 + (i + round_) % 4), want[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_same_kernel_is_built_once_for_many_threads(
    cold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashasc.native import build

    steps: list[str] = []
    original = build.Steps.run

    def run(self: Any, step: str, command: Any) -> None:
        steps.append(step)
        original(self, step, command)

    monkeypatch.setattr(build.Steps, "run", run)
    x = torch.randn(8, 500)
    results: list[torch.Tensor] = []
    workers = [threading.Thread(target=lambda: results.append(softmax(x, 1))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4 and all(torch.equal(y, results[0]) for y in results)
    assert sorted(steps) == sorted(["bufferize", "to llvm", "emit", "link"])


def test_python_runs_meanwhile() -> None:
    n, block = 40_000, 64
    x, y = torch.rand(n, block), torch.empty(block)
    args = {"x_ptr": x, "y_ptr": y, "n": n}
    launch(kernels.summed, (1,), {**args, "n": 2}, {"BLOCK": block})
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    time.sleep(0.01)
    start = time.perf_counter()
    launch(kernels.summed, (8,), args, {"BLOCK": block}, threads=1)
    end = time.perf_counter()
    stop.set()
    ticker.join()
    inside = sum(start < moment < end for moment in ticks)
    assert inside >= 3, f"{inside} ticks in {end - start:.3f} s"


def test_a_forked_child_can_launch() -> None:
    x = torch.randn(64, 500)
    want = softmax(x, 4)  # workers are there when the process forks
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = b"0"
        try:
            # PyTorch's own threads do not survive a fork
            y = torch.full(x.shape, torch.nan)
            args = {"x_ptr": x, "y_ptr": y, "n_rows": 64, "n": 500}
            args |= {"stride_xm": 500, "stride_xn": 1}
            for _ in range(3):
                launch(kernels.softmax_rows, (64,), args, {"BLOCK": 512}, threads=4)
            right = y.numpy().tobytes() == want.numpy().tobytes()
            # the parent's workers are not here: the child has its own
            helped = len(os.listdir("/proc/self/task")) > 1
            status = b"1" if right and helped else b"0"
        finally:
            os.write(writer, status)
            os._exit(0)
    assert os.read(reader, 1) == b"1"
    os.waitpid(child, 0)
    assert torch.equal(softmax(x, 4), want)


def test_the_callers_float_settings_do_not_matter_and_stay() -> None:
    x = torch.full((64,), 2.0**-130)
    y = torch.zeros(64)
    args = {"x_ptr": x, "y_ptr": y, "n": 64, "factor": 0.5}
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        launch(kernels.scaled, (4,), args, {"BLOCK": 16}, threads=2)
        flushed = (torch.tensor([2.0**-130]) * torch.tensor([0.5])).item()
    finally:
        torch.set_flush_denormal(False)
    assert flushed == 0, "the caller's setting is back"
    assert (y == 2.0**-131).all()


# rows of 4 MB tiles, in a process that may not have much memory
HUNGRY = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import torch
from flashasc.native import NativeError, launch
import native_kernels as kernels
x, y = torch.rand(1 << 21), torch.empty(1 << 20)
args = {"x_ptr": x, "y_ptr": y, "rounds": 3}
def run(threads):
    launch(kernels.hungry, (8,), args, {"BLOCK": 1 << 20}, threads=threads)
run(2)
want = y.clone()
# a thread that has run nothing yet has no memory
import threading
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (10 << 20), resource.RLIM_INFINITY))
seen = []
def fails():
    try:
        run(1)
        seen.append("ran")
    except NativeError as error:
        seen.append(error)
worker = threading.Thread(target=fails)
worker.start()
worker.join()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert isinstance(seen[0], NativeError), seen
assert seen[0].step == "run" and "out of memory on a grid of (8, 1, 1)" in str(seen[0]), seen
y.zero_()
run(2)
assert torch.equal(y, want)
print("fine")
"""


def test_running_out_of_memory_is_an_error(run_python: Any) -> None:
    assert run_python(HUNGRY, HERE).stdout.strip() == "fine"


LONG = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import torch
from flashasc.native import launch
from flashasc.native import program as program_module
import native_kernels as kernels
x, y = torch.rand(2000, 4096), torch.empty(4096)
args = {"x_ptr": x, "y_ptr": y, "n": 2000}
launch(kernels.summed, (1,), {**args, "n": 10}, {"BLOCK": 4096}, threads=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(20):
    launch(kernels.summed, (1,), args, {"BLOCK": 4096}, threads=1)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown)
"""


def test_a_long_loop_takes_the_memory_of_one_round(run_python: Any) -> None:
    # 2000 rounds, each with at least two new tiles of 16 KB
    assert int(run_python(LONG, HERE).stdout) < 4096
