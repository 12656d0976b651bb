"""Lengths of answers and their growth: numbers by hand, and answers dealt one by one."""

import heapq

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.loop.lengths import AnswerLengths, any_longer, growth


def test_the_longest_of_some_numbers():
    # Of three numbers spread evenly from 0 to 1 the largest is 3 / 4 on average.
    share_longer = 1.0 - (np.arange(1000) + 0.5) / 1000.0
    assert any_longer(share_longer, 3).mean() == pytest.approx(0.75, abs=1e-3)
    assert any_longer(np.array([0.5]), 2)[0] == pytest.approx(0.75)
    assert AnswerLengths(100.0, 100.0).longest_of(50) == pytest.approx(100.0)


def test_log_normal_lengths_by_hand():
    # Spread sqrt(e - 1) is sigma 1: mean m, and mean square m^2 (1 + spread^2) but for the cut.
    spread = float(np.sqrt(np.e - 1.0))
    lengths = AnswerLengths(100.0, 2_000.0, spread)
    assert lengths.step * lengths.share_longer.sum() == pytest.approx(100.0, rel=1e-6)
    assert lengths.mean_square == pytest.approx(100.0**2 * np.e, rel=0.06)
    # Half of the answers are longer than exp(ln 100 - 1/2) = 60.7 tokens.
    middle = AnswerLengths(100.0, 400.0, spread)
    median = np.interp(0.5, middle.share_longer[::-1], (np.arange(128)[::-1] + 0.5) * middle.step)
    assert 60.0 < median < 75.0


def test_two_batches_of_equal_answers_follow_one_another():
    grown = growth(AnswerLengths(100.0, 100.0), 8.0, 4.0)
    assert grown.step * len(grown.in_flight) == pytest.approx(200.0)
    assert grown.num_tokens == pytest.approx(800.0)
    assert np.allclose(grown.in_flight, 4.0)
    assert np.allclose(grown.goes_on, 1.0)
    # Half of their length, on average.
    assert grown.grown.mean() == pytest.approx(50.0)


@given(
    st.floats(10.0, 1000.0), st.floats(1.05, 20.0), st.floats(0.05, 3.0), st.floats(1.0, 300.0),
    st.floats(0.1, 3.0), st.sampled_from([1.0, 8.0]),
)  # fmt: skip
@example(10.0, 2.0, 1.0, 2.0, 0.5, 1.0)
def test_no_token_is_lost(mean, cut, spread, number, share, replicas):
    lengths, places = AnswerLengths(mean, mean * cut, spread), max(number * share, 1.0)
    grown = growth(lengths, number, places, replicas)
    assert grown.num_tokens == pytest.approx(number * mean, rel=1e-3)
    assert (grown.in_flight <= min(places, number) * (1.0 + 1e-9)).all()
    assert (grown.goes_on <= 1.0).all()
    steps = grown.step * grown.goes_on.sum()
    assert steps >= lengths.longest_of(number * replicas) * (1.0 - 1e-6)
    assert steps >= number * mean / places * (1.0 - 1e-3)


def dealt(answers, places):
    """Return the steps until all answers have ended, started in order as places get free."""
    ends = [0.0] * places
    for tokens in answers:
        heapq.heapreplace(ends, ends[0] + tokens)
    return max(ends)


@pytest.mark.parametrize(("number", "places"), [(64, 64), (400, 64), (64, 16)])
def test_growth_is_that_of_answers_dealt_one_by_one(number, places):
    lengths = AnswerLengths(200.0, 800.0, 1.0)
    draws = np.random.default_rng(1)
    edges = np.arange(len(lengths.share_longer)) * lengths.step
    points = draws.random((200, number))
    answers = np.interp(points, lengths.share_longer[::-1], edges[::-1], right=0.0)
    steps = np.mean([dealt(some, places) for some in answers])
    grown = growth(lengths, float(number), float(places))
    assert grown.step * grown.goes_on.sum() == pytest.approx(steps, rel=0.06)
