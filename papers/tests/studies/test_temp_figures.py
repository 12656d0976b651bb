"""Figures of TEMP: what their studies compute themselves, by hand."""

import pytest

from meshwright.sharding.strategy import make_strategy
from meshwright_papers.studies.temp.rings import round_s, shared_link_times
from meshwright_papers.studies.temp.solver import bracket
from meshwright_papers.studies.temp.strategies import GROUPS
from meshwright_papers.studies.temp.throughput import (
    Communication,
    as_tensor_parallel,
    mean_gain,
    saved,
)


def test_a_wrap_is_seven_times_as_long_only_where_relays_store():
    """16 MB at 2 TB/s take 8 us, each hop 0.2 us more: 7 x 8.2, or 8 + 7 x 0.2."""
    assert round_s("ring", stores=True) == pytest.approx(57.4e-6)
    assert round_s("ring", stores=False) == pytest.approx(9.4e-6)
    assert round_s("stream", stores=True) == round_s("stream", stores=False)


def test_two_messages_share_the_middle_link():
    assert shared_link_times() == 2.0


def test_equal_degrees_keep_replicas_and_groups():
    known = as_tensor_parallel(make_strategy(tp=2, tatp=8, dp_shard=2, micro_batch_size=4))
    assert (known.tp, known.tatp, known.dp, known.micro_batch_size) == (16, 1, 2, 4)


def test_savings_are_means_of_shares():
    pairs = [(Communication(1.0, 9.0), Communication(4.0, 3.0)),
             (Communication(3.0, 1.0), Communication(2.0, 1.0))]  # fmt: skip
    assert saved(pairs) == pytest.approx(100.0 * (0.75 - 0.5) / 2)
    assert saved([]) is None


def test_mean_gains_leave_out_what_is_not_known():
    assert mean_gain([2.0, None, 8.0]) == pytest.approx(4.0)
    assert mean_gain([None]) is None


@pytest.mark.parametrize(
    ("group", "published"),
    [(0, (4, 1, 1, 8)), (1, (1, 4, 1, 8)), (2, (1, 1, 2, 16)), (3, (1, 4, 1, 8))],
)
def test_published_mixes_are_what_the_second_takeaway_says(group, published):
    test = GROUPS[group][-1]
    assert test(published)
    assert not test((32, 1, 1, 1))


def test_times_are_told_as_the_next_round_one():
    assert bracket(0.4) == "under 1 s"
    assert bracket(3.0) == bracket(9.9) == "under 10 s"
    assert bracket(1e5) == "over 3600 s"
