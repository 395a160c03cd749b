"""The costs in the catalogue of blocks are those of the code."""

from __future__ import annotations

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")

from block_costs import README, ROW, Cost, catalogue


@pytest.fixture(scope="module")
def counted() -> dict[str, Cost]:
    return catalogue()


def test_the_costs_are_those_of_the_code(counted: dict[str, Cost]) -> None:
    """PYTHONPATH=tests python tests/blocks/block_costs.py prints the rows as they should be."""
    listed = {
        f"{file}.{name}": rest.rpartition(" | ")[0]
        for file, name, _what, rest in ROW.findall(README.read_text())
    }
    # inline PTX and tensor descriptors: not in the IR that is counted
    elsewhere = {"gemm.round_pairs", "gemm.settled", "layout.load_described"}
    assert {listed.pop(name) for name in elsewhere} == {"– | – | –"}
    assert listed == {name: counted[name].cells() for name in listed}


def test_what_a_transform_is_known_to_cost(counted: dict[str, Cost]) -> None:
    """Six additions and three; tiles that are alive at once."""
    tile = 32 * 64 * 4
    assert counted["compensated.two_sum"] == Cost("32 x 64", 6, (0, 0, 0), 6 * tile)
    assert counted["compensated.fast_two_sum"] == Cost("32 x 64", 3, (0, 0, 0), 4 * tile)
    assert counted["gemm.dot_add"].extra == (0, 0, 1)
    assert counted["softmax.online_update"].extra == (0, 0, 2)
    # a segment's sum and what is carried beside it, and one tile of each factor
    assert counted["gemm.gemm_tile"].bytes >= 4 * 32 * 32 * 4
