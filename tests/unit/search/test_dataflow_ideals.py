"""Order ideals: counts that can be worked out by hand, and each set closed under reading."""

from itertools import combinations
from math import comb

import pytest

from meshwright.base.errors import UnsupportedError
from meshwright.graph.dataflow.gpt import gpt_layer
from meshwright.search.dataflow.ideals import members, order_ideals, reads_of


def test_a_chain_has_one_more_ideal_than_kernels() -> None:
    assert order_ideals([0, 0b1, 0b10]) == (0, 0b1, 0b11, 0b111)


def test_kernels_side_by_side_have_all_subsets() -> None:
    ideals = order_ideals([0, 0, 0, 0])
    assert sorted(ideals) == list(range(16))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_chains_of_two_side_by_side_have_a_power_of_three(width: int) -> None:
    reads = [0] * width + [1 << place for place in range(width)]
    assert len(order_ideals(reads)) == 3**width


def test_the_gpt_layer_has_26_ideals_and_301_nested_pairs() -> None:
    ideals = order_ideals(reads_of(gpt_layer(12288, 96, 128, 2048)))
    pairs = [(a, b) for a, b in combinations(ideals, 2) if a & ~b == 0]
    assert (len(ideals), len(pairs)) == (26, 301)
    assert len({b & ~a for a, b in pairs}) == 271


def test_every_ideal_holds_what_its_members_read() -> None:
    reads = reads_of(gpt_layer(64, 4, 16, 32))
    for ideal in order_ideals(reads):
        assert all(reads[kernel] & ~ideal == 0 for kernel in members(ideal))


def test_a_graph_that_is_too_wide_says_so() -> None:
    assert len(order_ideals([0] * 6, most=64)) == sum(comb(6, k) for k in range(7))
    with pytest.raises(UnsupportedError, match="more than 63 order ideals"):
        order_ideals([0] * 6, most=63)
