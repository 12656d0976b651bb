"""Groups on random networks: nothing lost, nothing counted nearer than it is."""

from collections import Counter
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.best_time import best_time_s

from meshwright.collectives.group import Group, group_size, make_group
from meshwright.collectives.registry import best_affine_candidates
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import NetworkLevel

KINDS = st.sampled_from(list(CollectiveKind))
SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3)
DEGREES = st.integers(1, 24)


def network(shape, kind="switch"):
    """Return levels that get slower outwards."""
    return [
        NetworkLevel(
            name=f"level {k}",
            kind=kind,
            size=size,
            bandwidth_bytes_per_s=8e9 / (8**k if kind == "switch" else 1),
            latency_s=1e-6 * (k + 1 if kind == "switch" else 1),
        )
        for k, size in enumerate(shape)
    ]


@st.composite
def groups_that_fit(draw):
    """Return a shape, a stride and a degree of at least two whose groups lie on its devices."""
    shape = draw(st.lists(st.integers(2, 9), min_size=1, max_size=3))
    stride = draw(st.integers(1, prod(shape) // 2))
    return shape, stride, draw(st.integers(2, min(24, prod(shape) // stride)))


def members(shape, stride, degree):
    """Return the members of every group that lies wholly on the devices."""
    span = stride * degree
    return [
        [first + offset + i * stride for i in range(degree)]
        for first in range(0, prod(shape) - span + 1, span)
        for offset in range(stride)
    ]


@given(shape=SHAPES, stride=DEGREES, degree=DEGREES)
def test_the_product_of_the_spans_is_the_degree(shape, stride, degree):
    group = make_group(network(shape), float(stride), float(degree))
    assert float(group_size(group)) == degree
    assert all(float(span.size) == int(span.size) >= 1 for span in group.spans)


@given(case=groups_that_fit())
def test_members_counted_inside_a_domain_are_inside_it(case):
    shape, stride, degree = case
    group = make_group(network(shape), float(stride), float(degree))
    inside, domain = 1, 1
    for size, span in zip(shape, group.spans, strict=True):
        inside, domain = inside * int(span.size), domain * size
        for ranks in members(shape, stride, degree):
            for first in range(0, degree, inside):
                block = ranks[first : first + inside]
                assert len({rank // domain for rank in block}) == 1


@given(shape=SHAPES, data=st.data())
def test_where_all_divides_the_spans_are_the_overlap_of_two_ranges(shape, data):
    """[stride, stride x degree) against [inner, outer), each bound a product of level sizes."""
    cuts = [prod(shape[:k]) for k in range(len(shape) + 1)]
    low, high = sorted(data.draw(st.tuples(st.sampled_from(cuts), st.sampled_from(cuts))))
    group = make_group(network(shape), float(low), float(high // low))
    overlaps = [max(1, min(high, outer) // max(low, inner)) for inner, outer in pairwise(cuts)]
    assert [float(span.size) for span in group.spans] == overlaps


@given(case=groups_that_fit())
def test_never_faster_than_the_real_members_allow(case):
    """The members of a group in one domain fetch all other shards by their own links outwards."""
    shape, stride, degree = case
    levels = network(shape)
    group = make_group(levels, float(stride), float(degree))
    time_s = float(best_time_s(CollectiveKind.ALL_GATHER, 1e9, group))
    domain = 1
    for k, level in enumerate(levels):
        outwards = sum(one.bandwidth_bytes_per_s for one in levels[k:])
        for ranks in members(shape, stride, degree):
            for count in Counter(rank // domain for rank in ranks).values():
                bound_s = 1e9 * (degree - count) / degree / (count * outwards)
                assert time_s >= bound_s * (1 - 1e-12)
        domain *= level.size


@given(case=groups_that_fit())
def test_a_grid_span_is_charged_the_load_of_its_busiest_link(case):
    """Every device sends to the next block of its group at once, in dimension order."""
    shape, stride, degree = case
    levels = network(shape, "mesh")
    group = make_group(levels, float(stride), float(degree))
    inside = 1
    for span in group.spans:
        if span.size > 1:
            loads, hops = shift_loads(shape, stride, degree, inside, int(span.size))
            assert 8e9 / float(span.bandwidth_bytes_per_s) >= max(loads.values()) * (1 - 1e-12)
            assert float(span.latency_s) >= 1e-6 * hops * (1 - 1e-12)
        inside *= int(span.size)


def shift_loads(shape, stride, degree, inside, size):
    """Return the messages on each directed link, and the most hops, of one step along a span."""
    loads, most_hops = Counter(), 0
    for ranks in members(shape, stride, degree):
        for index, rank in enumerate(ranks):
            if (index // inside) % size == size - 1:
                continue
            hops, at = 0, list(place(shape, rank))
            for k, goal in enumerate(place(shape, ranks[index + inside])):
                while at[k] != goal:
                    way = 1 if goal > at[k] else -1
                    loads[tuple(at), k, way] += 1
                    at[k], hops = at[k] + way, hops + 1
            most_hops = max(most_hops, hops)
    return loads, most_hops


def place(shape, rank):
    for size in shape:
        yield rank % size
        rank //= size


@given(
    shape=SHAPES,
    kind=KINDS,
    level_kind=st.sampled_from(["switch", "torus", "mesh"]),
    rows=st.lists(st.tuples(DEGREES, DEGREES), min_size=1, max_size=5),
    num_bytes=st.sampled_from([0.0, 1e3, 1e7]),
)
def test_a_group_equals_its_row_in_a_column_bit_for_bit(shape, kind, level_kind, rows, num_bytes):
    levels = network(shape, level_kind)
    strides, degrees = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    column_s = best_time_s(
        kind, np.full(len(rows), num_bytes), make_group(levels, strides, degrees)
    )
    for (stride, degree), row_s in zip(rows, column_s, strict=True):
        group = make_group(levels, float(stride), float(degree))
        assert float(best_time_s(kind, num_bytes, group)) == float(row_s)


@given(shape=SHAPES, kind=KINDS, stride=DEGREES, degree=DEGREES)
def test_every_group_has_an_algorithm_and_a_finite_time(shape, kind, stride, degree):
    group: Group = make_group(network(shape), float(stride), float(degree))
    for num_bytes in (0.0, 1e6):
        assert np.isfinite(best_time_s(kind, num_bytes, group))
    assert best_affine_candidates(kind, group)


@pytest.mark.parametrize("degree", [5.0, 6.0, 7.0])
def test_an_odd_degree_is_never_cheaper_than_the_even_one_below(degree):
    """On hosts of 8, five to seven members are charged at least as much as the four that fit."""
    levels = network((8, 8))
    fits = best_time_s(CollectiveKind.ALL_REDUCE, 1e6, make_group(levels, 1.0, 4.0))
    assert best_time_s(CollectiveKind.ALL_REDUCE, 1e6, make_group(levels, 1.0, degree)) > fits
