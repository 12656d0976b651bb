"""Lengths of answers, and the answers that grow at once while a batch of them is made.

Answers start when there is a place for them, and every step of a server gives each of those in
flight one token. Their number falls as they end, so that the last ones leave most places empty: the
tail of a rollout. Lengths are numbers on a grid of equal intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import erfc, exp, log, log1p, sqrt

import numpy as np

from meshwright.base.arrays import FloatArray, read_only

INTERVALS = 128
"""Intervals from none to the most tokens of an answer."""
INSIDE = 8
"""Points of an interval at which the share of longer answers is taken."""
HALVINGS = 60


@dataclass(frozen=True)
class AnswerLengths:
    """Lengths of answers with a mean, cut off at a longest one."""

    mean: float
    """Mean tokens of an answer, those cut off included."""
    longest: float
    """Tokens at which an answer is cut off."""
    spread: float = 0.0
    """Standard deviation over the mean before the cut, of a log-normal distribution [1]."""

    @property
    def are_equal(self) -> bool:
        """Whether all answers have the mean length."""
        return self.spread == 0.0 or self.mean >= self.longest

    @property
    def step(self) -> float:
        """Tokens of an interval."""
        return (self.mean if self.are_equal else self.longest) / INTERVALS

    @property
    def share_longer(self) -> FloatArray:
        """Share of the answers that are longer, its mean over each interval, shape (INTERVALS,)."""
        if self.are_equal:
            return np.ones(INTERVALS)
        return log_normal_share_longer(self.mean, self.longest, self.spread)

    @property
    def mean_square(self) -> float:
        """Mean of the squares of the lengths [tokens^2].

        The integral of 2 k S(k) over the lengths k, where S(k) are longer: m^2 of equal ones.
        """
        middles = (np.arange(INTERVALS) + 0.5) * self.step
        return float(2.0 * self.step * (middles * self.share_longer).sum())

    @property
    def cut_share(self) -> float:
        """Share of the answers that are cut off [1]."""
        if self.are_equal:
            return 0.0
        deviation = sqrt(log1p(self.spread**2))
        middle = _log_median(self.mean, self.longest, deviation)
        return _normal_share_above((log(self.longest) - middle) / deviation)

    def longest_of(self, number: float) -> float:
        """Return the expected tokens of the longest of some answers.

        The integral of 1 - (1 - S(k))^n: of n equal ones their length, of n numbers spread evenly
        from 0 to 1 the integral of 1 - k^n, n / (n + 1).
        """
        return float(self.step * any_longer(self.share_longer, number).sum())


def any_longer(share_longer: FloatArray, number: float) -> FloatArray:
    """Return the probability that any of some independent answers is longer [1]."""
    none: FloatArray = (1.0 - share_longer) ** number
    return 1.0 - none


def _normal_share_above(deviations: float) -> float:
    return 0.5 * erfc(deviations / sqrt(2.0))


def _cut_mean(middle: float, deviation: float, longest: float) -> float:
    """Return the mean of log-normal lengths that are cut off at the longest."""
    reach = (log(longest) - middle) / deviation
    below = exp(middle + deviation**2 / 2.0) * (1.0 - _normal_share_above(reach - deviation))
    return below + longest * _normal_share_above(reach)


def _log_median(mean: float, longest: float, deviation: float) -> float:
    """Return the logarithm of the median with which lengths cut off at the longest have a mean."""
    low, high = log(mean) - deviation**2, log(longest) + 8.0 * deviation
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (
            (middle, high) if _cut_mean(middle, deviation, longest) < mean else (low, middle)
        )
    return (low + high) / 2.0


@lru_cache(maxsize=64)
def log_normal_share_longer(mean: float, longest: float, spread: float) -> FloatArray:
    """Return the share of log-normal answers that are longer, its mean over each interval.

    The intervals are equal, from none to the longest; they sum to the mean length, exactly.
    """
    deviation = sqrt(log1p(spread**2))
    middle = _log_median(mean, longest, deviation)
    points = (np.arange(INTERVALS * INSIDE) + 0.5) * longest / (INTERVALS * INSIDE)
    above = [_normal_share_above((log(k) - middle) / deviation) for k in points.tolist()]
    share = np.array(above).reshape(INTERVALS, INSIDE).mean(axis=1)
    return read_only(share * (mean / (share.sum() * longest / INTERVALS)).clip(max=1.0 / share[0]))


@dataclass(frozen=True)
class Growth:
    """Answers that grow on one replica while a batch is made; columns over intervals of tokens."""

    step: float
    """Steps of the server in an interval: tokens of each answer in flight."""
    in_flight: FloatArray
    """Mean answers in flight."""
    grown: FloatArray
    """Mean tokens that those in flight have."""
    goes_on: FloatArray
    """Probability that any answer of all replicas is still in flight [1]."""

    @property
    def num_tokens(self) -> float:
        """Tokens that all answers have at the end."""
        return float(self.step * self.in_flight.sum())


@lru_cache(maxsize=256)
def growth(lengths: AnswerLengths, number: float, places: float, replicas: float = 1.0) -> Growth:
    """Return the growth of a batch of answers on one replica, first come first served.

    With S the share of longer ones and s(t) those that start at t, n(t) = sum over u of
    s(t - u) S(u) are in flight, and as many start as there are places left. All of them have
    number x mean tokens at the end. Two batches of equal answers that fill all places follow one
    another: 8 answers of 100 tokens in 4 places take 200 steps. Any answer is in flight with the
    probability of independent ends, and at least with the share of places that are taken.

    Parameters
    ----------
    number
        Answers of a replica.
    places
        Most answers in flight on it.
    replicas
        Replicas that work on equal batches; the last answer of all of them ends the growth.
    """
    longer = lengths.share_longer
    ages = (np.arange(INTERVALS) + 0.5) * lengths.step
    none = np.log1p(-np.minimum(longer, 1.0 - 1e-12))
    starts: list[float] = []
    in_flight, grown, goes_on = list[float](), list[float](), list[float]()
    waiting, last = number, 0
    while waiting > 1e-9 * number or len(starts) - last < INTERVALS:
        young = np.array(starts[:-INTERVALS:-1])  # those before, the youngest first
        held = float(young @ longer[1 : len(young) + 1])
        begins = min(waiting, max(places - held, 0.0))
        waiting -= begins
        starts.append(begins)
        last = len(starts) - 1 if begins > 1e-9 * number else last
        every = np.concatenate([[begins], young])
        ends = len(every)
        there = every * longer[:ends]
        in_flight.append(float(there.sum()))
        grown.append(float(there @ ages[:ends]) / max(in_flight[-1], 1e-300))
        any_left = 1.0 - exp(replicas * float(every @ none[:ends]))
        goes_on.append(min(max(any_left, in_flight[-1] / min(places, number)), 1.0))
    return Growth(lengths.step, *map(np.array, (in_flight, grown, goes_on)))
