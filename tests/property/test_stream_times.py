"""Laws of the round model: homogeneity, bounds, and that a scalar is a row of the columns."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.stream_transfers import forward_prefetched_s

from meshwright.streams.round_model import backward_s, forward_s

members = st.integers(1, 64).map(float)
seconds = st.floats(1e-6, 1.0)
fast = settings(max_examples=60)


def all_times(n, compute_s, link_s, accumulator_s, hbm_s):
    """Return the three passes."""
    return (
        forward_s(n, compute_s, link_s, hbm_s),
        forward_prefetched_s(n, compute_s, link_s, hbm_s),
        backward_s(n, compute_s, link_s, accumulator_s, hbm_s),
        backward_s(n, compute_s, link_s, accumulator_s, hbm_s, num_shared_rounds=0.0),
    )


@fast
@given(members, seconds, seconds, seconds, seconds)
def test_each_resource_is_a_lower_bound_and_their_sum_an_upper_one(n, compute, link, grad, hbm):
    forward, prefetched, backward, apart = (
        time.total_s for time in all_times(n, compute, link, grad, hbm)
    )
    slack = 1 + 1e-12
    assert max(n * compute, n * hbm, (n - 1) * link) <= prefetched * slack
    assert prefetched <= forward * slack
    assert max(n * compute, n * hbm, (n - 1) * (link + grad)) <= backward * slack
    assert max(n * compute, n * hbm, (n - 1) * max(link, grad)) <= apart * slack
    assert apart <= backward * slack
    assert forward <= (n * max(compute, hbm) + (n - 1) * link) * slack
    assert backward <= (n * max(compute, hbm) + (n - 1) * (link + grad)) * slack


@fast
@given(members, seconds, seconds, seconds, seconds)
def test_twice_the_times_take_twice_as_long_and_no_part_is_negative(n, compute, link, grad, hbm):
    once = all_times(n, compute, link, grad, hbm)
    twice = all_times(n, 2 * compute, 2 * link, 2 * grad, 2 * hbm)
    for a, b in zip(once, twice, strict=True):
        assert 2 * a.total_s == b.total_s
        assert min(a.compute_s, a.exposed_hbm_s, a.exposed_stream_s) >= 0


@fast
@given(st.lists(st.tuples(members, seconds, seconds, seconds, seconds), min_size=1, max_size=8))
def test_scalar_equals_column(rows):
    columns = all_times(*(np.array(column) for column in zip(*rows, strict=True)))
    for index, row in enumerate(rows):
        for column, scalar in zip(columns, all_times(*row), strict=True):
            assert column.total_s[index] == scalar.total_s
            assert column.exposed_stream_s[index] == scalar.exposed_stream_s
            assert column.exposed_hbm_s[index] == scalar.exposed_hbm_s
