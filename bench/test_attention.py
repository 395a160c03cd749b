"""Attention beside its peers, every case of the table on every device that is here."""

from __future__ import annotations

import functools

from .attention_runs import IMPLEMENTATIONS
from .cases import ATTENTION, ATTENTION_CPU, AttentionCase
from .gate import AttentionInputs, Expected, attention_inputs, expected_attention
from .suite import Measure, need, parameters

TABLES = {"cpu": ATTENTION_CPU, "cuda": ATTENTION, "npu": ATTENTION}


@parameters(TABLES, lambda device, case: IMPLEMENTATIONS[device])
def test_attention(device: str, case: str, implementation: str, measure: Measure) -> None:
    need(device)
    row, inputs, expected = prepared(device, case)
    build = IMPLEMENTATIONS[device][implementation]
    measure(device, row, implementation, lambda: build(row, inputs), expected)


# one case at a time: the largest take some GiB
@functools.lru_cache(maxsize=1)
def prepared(device: str, name: str) -> tuple[AttentionCase, AttentionInputs, Expected]:
    (case,) = (case for case in TABLES[device] if case.name == name)
    inputs = attention_inputs(case, device)
    return case, inputs, expected_attention(case, inputs)
