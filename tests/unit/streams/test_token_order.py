"""How evenly a causal mask spreads the work of attention over members and rounds."""

import numpy as np
import pytest
from oracles.token_order import (
    contiguous_round_pairs,
    contiguous_tokens,
    visible_pairs,
    zigzag_round_pairs,
    zigzag_tokens,
)

from meshwright.streams.forms import enumerate_rounds, streams


def busiest(name, n, order, num_tokens):
    """Return the pairs of the busiest member in each round, and those of every member."""
    rounds = enumerate_rounds(streams[name], n)
    items = order(num_tokens, n, rounds.num_parts)
    parts = rounds.num_parts
    mine = [np.concatenate(items[i * parts : (i + 1) * parts]) for i in range(n)]
    pairs = np.array(
        [
            [sum(visible_pairs(mine[i], items[j]) for j in used[i]) for i in range(n)]
            for used in rounds.uses
        ]
    )
    assert pairs.sum() == num_tokens * (num_tokens + 1) // 2
    return pairs.max(axis=1).tolist(), pairs.sum(axis=0).tolist()


@pytest.mark.parametrize("name", streams)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_zigzag_is_even_in_every_round(name, n):
    num_tokens = 4 * n * 3
    stated = zigzag_round_pairs(float(num_tokens), float(n))
    rounds, members = busiest(name, n, zigzag_tokens, num_tokens)
    assert rounds == [stated.first, *[stated.others] * (n - 1)]
    assert set(members) == {sum(rounds)}


@pytest.mark.parametrize("name", ["ring", "folded_ring", "hold", "stream"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_one_member_of_a_contiguous_order_sees_everything(name, n):
    num_tokens = 4 * n * 3
    stated = contiguous_round_pairs(float(num_tokens), float(n))
    rounds, members = busiest(name, n, contiguous_tokens, num_tokens)
    assert rounds == [stated.first, *[stated.others] * (n - 1)]
    assert max(members) == sum(rounds)


def test_eight_members_by_hand():
    # S = 16: chunks of one token; zig-zag 3, then 2 a round; contiguous 3, then 4
    assert zigzag_round_pairs(16.0, 8.0) == (3, 2)
    assert contiguous_round_pairs(16.0, 8.0) == (3, 4)
    # without diagonals 2 - 1 / N: (2 + 7 * 4) / (8 * 2) = 15 / 8
    assert (2 + 7 * 4) / (8 * 2) == 2 - 1 / 8


def test_zigzag_by_hand():
    assert [part.tolist() for part in zigzag_tokens(8, 2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [part.tolist() for part in zigzag_tokens(8, 2, 2)] == [[0, 6], [1, 7], [2, 4], [3, 5]]
    assert [part.tolist() for part in contiguous_tokens(8, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_visible_pairs():
    # queries 0, 3 and keys 1, 2: none and two
    assert visible_pairs(np.array([0, 3]), np.array([1, 2])) == 2


def test_halves_that_are_whole_chunks_are_uneven():
    def whole_chunks(num_tokens, num_members, _):
        return [
            half for item in zigzag_tokens(num_tokens, num_members) for half in np.split(item, 2)
        ]

    # N = 8, chunks of six tokens: up to 3 s^2 = 108 pairs in a round in place of 2 s^2 = 72
    rounds, members = busiest("cycle", 8, whole_chunks, 96)
    assert max(rounds) == 108
    assert set(members) == {8 * 72 + 6}
