"""Run many random calls: python -m tests.fuzz --route native --budget 20000."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable

import torch

from tests.fuzz.calls import CALLS_PER_MOULD, draw, places
from tests.fuzz.judge import ROUTES, check_call


def main() -> int:
    """Run calls until the budget is used up; 1 if any was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--route", choices=ROUTES, default="reference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=1000, help="how many calls")
    parser.add_argument("--start", type=int, default=0, help="number of the first call")
    parser.add_argument(
        "--moulds", type=int, help="spread the calls over so many specialisations, instead of "
        f"{CALLS_PER_MOULD} calls for each"
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--only", type=int, help="one call, shown in full")
    arguments = parser.parse_args()
    # the calls are too small to share among threads
    torch.set_num_threads(1)
    if arguments.only is not None:
        call = draw(arguments.route, arguments.seed, arguments.only)
        print(call.mould, f"\nhostile: {call.hostile}")
        for name, x in {"q": call.q, "k": call.k, "v": call.v, **call.options}.items():
            shown = f"{tuple(x.shape)} {x.stride()} {x.dtype}" if hasattr(x, "stride") else x
            print(f"{name}: {shown}")
        check_call(arguments.route, arguments.seed, arguments.only)
        return 0
    began, told, wrong, done = time.monotonic(), 0.0, 0, 0
    numbers: Iterable[int] = range(arguments.start, arguments.start + arguments.budget)
    if arguments.moulds:
        # a mould has so many calls, and the next one's come after them
        moulds = max(arguments.moulds, -(-arguments.budget // CALLS_PER_MOULD))
        numbers = (arguments.start + place for place in places(arguments.budget, moulds))
    for number in numbers:
        try:
            check_call(arguments.route, arguments.seed, number)
        except AssertionError as error:
            wrong += 1
            print(error, flush=True)
        done += 1
        spent = time.monotonic() - began
        if done % 1000 == 0 or done == arguments.budget or spent > told + 60:
            told = spent
            rate = done / spent * 60
            print(f"{done} calls, {wrong} wrong, {rate:.0f} a minute", flush=True)
        if spent > arguments.seconds:
            break
    print(f"{arguments.route}, seed {arguments.seed}: {done} calls, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
