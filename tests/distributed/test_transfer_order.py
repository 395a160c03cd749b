"""Transfers are under way while a rank computes, whichever of host and device is the slower one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from tests.conftest import RunPython
from tests.distributed import order_cases
from tests.distributed.ranks import on_ranks, returned


@lru_cache
def orders() -> list[Any]:
    return returned(on_ranks(2, order_cases.orders))


def test_a_host_that_computes_starts_the_transfer_first() -> None:
    for events in (found["zigzag"] for found in orders()):
        assert events[:4] == ["start step 0", "attend", "attend", "attend"]
        assert events[4] == "wait for step 0" and set(events[5:]) == {"attend"}


def test_a_device_gets_its_first_call_before_the_transfer() -> None:
    """Of several calls the first, which the transfer neither waits for nor has to wait for."""
    for rank, found in enumerate(orders()):
        # the copy that is sent, and the transfer
        copy = ["mark", "beside, after mark"]
        send = ["beside, after mark", "start step 0"]
        events = found["zigzag, queued"]
        assert events[:5] == [*copy, "attend", *send]
        # the rest of its own keys, and each call once
        assert events[5:8] == ["attend", "attend", "wait for step 0"]
        assert events.count("attend") == found["zigzag"].count("attend")
        # a single call would keep the transfer off the device until it is done
        one = [*copy, *send, "attend", "wait for step 0", *["attend"] * rank]
        assert found["contiguous, queued"] == one


def test_heads_leave_before_any_is_waited_for() -> None:
    away = [f"heads for sequence, {what}" for what in ("queries", "keys", "values")]
    home = [f"sequence for heads, {what}" for what in ("output", "log-sum-exp")]
    expected = [
        f"{verb} {what}" for part in (away, home) for verb in ("start", "wait for") for what in part
    ]
    for found in orders():
        assert found["ulysses"] == expected


def test_ranks_agree_in_one_exchange_and_explain_in_another() -> None:
    for agreed, differ, refused in returned(on_ranks(2, order_cases.exchanges_of_facts)):
        assert agreed == 1
        assert differ == refused == -2


FACTS_BESIDE_WORK = """
import torch, torch.distributed as dist
from flashasc.distributed._transport import Transport
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
store = dist.HashStore()
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
ranks, mine = Transport(), torch.arange(3)
for turn in range(3):
    torch.cuda._sleep(2_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    assert ranks.all_gather_on_host(mine + turn, "facts").tolist() == [[turn, turn + 1, turn + 2]]
    # the first turn allocates
    assert turn == 0 or not busy.query(), "the host waited for what the device computes"
    torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.gpu
def test_facts_do_not_wait_for_the_device(run_python: RunPython) -> None:
    run_python(FACTS_BESIDE_WORK)
