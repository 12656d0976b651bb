"""What the planner finds on blocks of a wafer, against the bounds: 2 TB/s, 200 ns, m_half 4 MB."""

import pytest
from oracles.best_time import best_time_s

from meshwright.collectives.bounds import lower_bound_s
from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import best_algorithm
from meshwright.spec.collective import CollectiveKind

MIB = 2.0**20
SHAPES = [(4, 4), (4, 8), (6, 8), (8, 8)]
GATHER, REDUCE = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER


def block(rows, columns, half=4e6):
    spans = (Span(float(size), 2e12, 2e-7, half, 0.0, True, False) for size in (columns, rows))
    return Group(tuple(spans))


def share(kind, num_bytes, group):
    return float(lower_bound_s(kind, num_bytes, group) / best_time_s(kind, num_bytes, group))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [GATHER, REDUCE])
def test_gathers_of_64_mib_for_each_device_reach_95_percent(kind, shape):
    assert share(kind, 64 * MIB * shape[0] * shape[1], block(*shape)) >= 0.95


@pytest.mark.parametrize("shape", SHAPES)
def test_all_reduce_beats_a_reduction_and_a_gather(shape):
    """By a sixth and more with messages of 2 us, by a third and more without m_half."""
    num_bytes = 64 * MIB * shape[0] * shape[1]
    for half, gain in ((4e6, 1.16), (0.0, 1.33)):
        group = block(*shape, half)
        least_s = float(best_time_s(CollectiveKind.ALL_REDUCE, num_bytes, group))
        both_s = sum(float(best_time_s(kind, num_bytes, group)) for kind in (GATHER, REDUCE))
        assert both_s >= gain * least_s


@pytest.mark.parametrize("shape", SHAPES)
def test_trees_reach_90_percent_without_occupation_by_messages(shape):
    num_bytes = 64 * MIB * shape[0] * shape[1]
    assert share(CollectiveKind.ALL_REDUCE, num_bytes, block(*shape, 0.0)) >= 0.9


def test_the_choice_depends_on_size_and_shape():
    square, oblong, flat = block(4, 4), block(6, 8), block(2, 8)
    assert best_algorithm(GATHER, 48 * 65536.0, oblong) == "even_wave_all_gather"
    assert best_algorithm(GATHER, 48 * 64 * MIB, oblong) == "corner_wave_all_gather"
    assert best_algorithm(GATHER, 16 * 64 * MIB, flat) == "cycle_all_gather"
    assert best_algorithm(CollectiveKind.ALL_REDUCE, 65536.0, square) == "central_all_reduce"
