"""Changes of layout: which collective, and the cheapest way to have a tensor in several layouts."""

from itertools import chain, combinations

import pytest

from meshwright.dataflow.layouts import (
    PARTIAL,
    REPLICATED,
    LayoutChange,
    TensorLayout,
    cheapest_changes,
    collective_of,
    costs_of_sets,
    payload_bytes,
)
from meshwright.spec.collective import CollectiveKind

ROWS, COLUMNS = TensorLayout(0), TensorLayout(1)
COSTS = {
    None: 0.0,
    CollectiveKind.ALL_REDUCE: 14.0,
    CollectiveKind.ALL_GATHER: 7.0,
    CollectiveKind.REDUCE_SCATTER: 7.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}


def cost(have, want):
    return COSTS[collective_of(have, want)]


@pytest.mark.parametrize(
    ("have", "want", "kind"),
    [
        (REPLICATED, ROWS, None),
        (ROWS, ROWS, None),
        (ROWS, REPLICATED, CollectiveKind.ALL_GATHER),
        (ROWS, COLUMNS, CollectiveKind.ALL_TO_ALL),
        (PARTIAL, REPLICATED, CollectiveKind.ALL_REDUCE),
        (PARTIAL, COLUMNS, CollectiveKind.REDUCE_SCATTER),
        (REPLICATED, PARTIAL, None),
        (ROWS, PARTIAL, None),
    ],
)
def test_the_collective_of_each_change(have, want, kind):
    assert collective_of(have, want) is kind


def test_a_rank_sends_its_shard_in_an_all_to_all_and_the_tensor_elsewhere():
    assert payload_bytes(CollectiveKind.ALL_TO_ALL, 80.0, 8) == 10.0
    assert payload_bytes(CollectiveKind.ALL_GATHER, 80.0, 8) == 80.0


def test_a_tensor_is_made_whole_once_however_many_ask():
    total, changes = cheapest_changes(ROWS, [REPLICATED], cost)
    assert (total, changes) == (7.0, (LayoutChange(ROWS, REPLICATED),))
    total, changes = cheapest_changes(ROWS, [REPLICATED, COLUMNS], cost)
    assert total == 7.0
    assert LayoutChange(REPLICATED, COLUMNS) in changes


def test_a_partial_sum_is_scattered_and_passed_on():
    """Reduce-scatter to rows, all-to-all to columns: cheaper than two reduce-scatters."""
    total, changes = cheapest_changes(PARTIAL, [ROWS, COLUMNS], cost)
    assert total == 8.0
    assert {change.kind for change in changes} == {
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
    }


def test_a_tensor_may_be_made_whole_though_nobody_asks():
    dear = {**COSTS, CollectiveKind.ALL_TO_ALL: 5.0}
    total, changes = cheapest_changes(
        ROWS, [COLUMNS, TensorLayout(2)], lambda a, b: dear[collective_of(a, b)]
    )
    assert total == 7.0
    assert changes[0] == LayoutChange(ROWS, REPLICATED)


@pytest.mark.parametrize("have", [REPLICATED, ROWS, COLUMNS, PARTIAL])
def test_sets_cost_what_their_cheapest_way_costs(have):
    targets = (ROWS, REPLICATED, COLUMNS)
    costs = costs_of_sets(have, targets, cost)
    sets = chain.from_iterable(combinations(range(3), size) for size in range(4))
    for chosen in sets:
        wanted = [targets[place] for place in chosen]
        number = sum(1 << place for place in chosen)
        assert costs[number] == cheapest_changes(have, wanted, cost)[0]
