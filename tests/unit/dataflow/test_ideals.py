"""Order ideals: counts that can be worked out by hand, and each set closed under reading."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from meshwright.dataflow.ideals import TooWideError, as_bits, larger_ideals, members, order_ideals
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

MOST = 1_000


def ideals_of(needs):
    """Return ideals as bits, from what each kernel needs."""
    rows = np.zeros((len(needs), len(needs)), bool)
    for kernel, others in enumerate(needs):
        rows[kernel, others] = True
    return as_bits(order_ideals(rows, MOST))


def test_a_chain_has_one_more_ideal_than_kernels():
    assert ideals_of([[], [0], [1]]) == (0, 0b1, 0b11, 0b111)


def test_kernels_side_by_side_have_all_subsets():
    assert sorted(ideals_of([[], [], [], []])) == list(range(16))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_chains_of_two_side_by_side_have_a_power_of_three(width):
    assert len(ideals_of([[]] * width + [[place] for place in range(width)])) == 3**width


def test_a_chain_of_more_than_64_kernels_is_told_in_bits():
    found = ideals_of([[place - 1] if place else [] for place in range(70)])
    assert found == tuple((1 << size) - 1 for size in range(71))


def test_the_gpt_layer_has_26_ideals_and_301_nested_pairs():
    reads = gpt_layer(12288, 96, 128, 2048).reads
    rows = order_ideals(reads, MOST)
    pairs = [(a, b) for a, b in combinations(as_bits(rows), 2) if a & ~b == 0]
    assert (len(rows), len(pairs)) == (26, 301)
    assert len({b & ~a for a, b in pairs}) == 271
    assert sum(len(found) for _, found in larger_ideals(rows, reads, MOST)) == 301


def test_every_ideal_holds_what_its_members_read():
    reads = gpt_layer(64, 4, 16, 32).reads
    rows = order_ideals(reads, MOST)
    for row, ideal in zip(rows, as_bits(rows), strict=True):
        assert members(ideal) == tuple(np.flatnonzero(row))
        assert not (reads[row] & ~row).any()


@pytest.mark.parametrize("seed", range(20))
def test_ideals_are_the_sets_that_hold_all_that_their_members_need(seed):
    random = np.random.default_rng(seed)
    needs = np.tril(random.random((9, 9)) < random.choice([0.1, 0.3, 0.6]), -1)
    need = [sum(1 << place for place in np.flatnonzero(row)) for row in needs.tolist()]
    closed = [bits for bits in range(1 << 9) if all(need[k] & ~bits == 0 for k in members(bits))]
    assert sorted(as_bits(order_ideals(needs, MOST))) == closed
    rows = order_ideals(needs, MOST)
    nested = {(a, b) for a in closed for b in closed if a != b and a & ~b == 0}
    grown = larger_ideals(rows, needs, 2**20)
    pairs = [
        pair
        for origin, after in grown
        for pair in zip(as_bits(rows[origin]), as_bits(after), strict=True)
    ]
    assert len(pairs) == len(nested)
    assert set(pairs) == nested


def test_what_is_not_kept_is_not_grown_further():
    found = order_ideals(
        np.zeros((4, 4), bool), MOST, kept=lambda before, after, kernel: kernel > 1
    )
    assert as_bits(found) == (0, 0b100, 0b1000, 0b1100)


def test_a_graph_that_is_too_wide_says_so():
    needs = np.zeros((6, 6), bool)
    assert len(order_ideals(needs, 63)) == sum(comb(6, k) for k in range(7))
    with pytest.raises(TooWideError, match="more than 62 sets of kernels"):
        order_ideals(needs, 62)
