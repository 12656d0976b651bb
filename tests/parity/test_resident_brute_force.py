"""Which layers stay near, against every subset of them."""

from itertools import chain, combinations

import numpy as np
import pytest

from meshwright.sram.contiguous import most_worth


@pytest.mark.parametrize("seed", range(60))
def test_no_subset_is_worth_more(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 9))
    sizes, worths = rng.integers(0, 12, (2, count)).tolist()
    capacity = int(rng.integers(0, 30))
    subsets = chain.from_iterable(combinations(range(count), k) for k in range(count + 1))
    best = max(
        sum(worths[i] for i in subset)
        for subset in subsets
        if sum(sizes[i] for i in subset) <= capacity
    )
    worth, items = most_worth(sizes, worths, capacity)
    assert worth == best == sum(worths[i] for i in items)
    assert sum(sizes[i] for i in items) <= capacity


def test_layers_of_two_kinds_leave_few_sets():
    sizes = [5.0, 7.0] * 100
    worth, items = most_worth(sizes, sizes, 599.0)
    assert (worth, len(set(items))) == (599.0, len(items))
