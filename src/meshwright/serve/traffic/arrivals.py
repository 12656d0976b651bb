"""Requests one by one, drawn from a description of traffic."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.spec.arrivals import ALONE, Arrivals
from meshwright.spec.traffic import MOST_DEVIATIONS, Traffic


def drawn(traffic: Traffic, rate_per_s: float, number: int, seed: int = 0) -> Arrivals:
    """Return requests drawn from a description of traffic.

    Parameters
    ----------
    rate_per_s
        Requests a second of one worker: a router that sends each Poisson arrival to any of R
        workers leaves a Poisson process of a part of the rate.
    """
    draws = np.random.default_rng(seed)
    if traffic.turns > 1:
        return _conversations(traffic, draws, rate_per_s, number)
    prompts = lengths_drawn(draws, traffic.prompt_length, traffic.length_spread, number)
    answers = lengths_drawn(draws, traffic.answer_length, traffic.length_spread, number)
    alone = np.full(number, ALONE, dtype=np.int64)
    prefix = draws.integers(traffic.num_prefixes, size=number) if traffic.shared_prefix else alone
    shared = np.minimum(traffic.shared_prefix, prompts)
    gaps_s = _gaps_s(traffic, draws, rate_per_s, number)
    return Arrivals(np.cumsum(gaps_s), prompts, answers, prefix, shared, shared)


def _gaps_s(
    traffic: Traffic, draws: np.random.Generator, rate_per_s: float, number: int
) -> FloatArray:
    if traffic.arrivals == "constant":
        return np.full(number, 1.0 / rate_per_s)
    return draws.exponential(1.0 / rate_per_s, number)


def lengths_drawn(draws: np.random.Generator, mean: float, spread: float, number: int) -> IntArray:
    """Return lengths with a mean and a relative standard deviation, at least one token.

    Of a log-normal distribution: sigma^2 = ln(1 + spread^2), and mu = ln(mean) - sigma^2 / 2.
    """
    if spread == 0.0:
        return np.full(number, round(mean), dtype=np.int64)
    variance = np.log1p(spread * spread)
    deviations = np.clip(draws.standard_normal(number), -MOST_DEVIATIONS, MOST_DEVIATIONS)
    values = mean * np.exp(np.sqrt(variance) * deviations - variance / 2.0)
    found: IntArray = np.maximum(np.rint(values), 1.0).astype(np.int64)
    return found


def _conversations(
    traffic: Traffic, draws: np.random.Generator, rate_per_s: float, number: int
) -> Arrivals:
    """Return conversations: prompts grow by the turns before, which the cache may hold.

    Some began before the first request, others go on after the last one.
    """
    turns, pause_s = traffic.turns, traffic.turn_interval_s
    span_s, longest_s = number / rate_per_s, (traffic.turns - 1) * traffic.turn_interval_s
    started = int(np.ceil((span_s + longest_s) * rate_per_s / turns))
    starts_s = np.cumsum(_gaps_s(traffic, draws, rate_per_s / turns, started)) - longest_s
    size = started * turns
    new, said = (
        lengths_drawn(draws, mean, traffic.length_spread, size).reshape(started, turns)
        for mean in (traffic.prompt_length, traffic.answer_length)
    )
    ends = np.cumsum(new + said, axis=1)
    before = ends - new - said
    times_s = starts_s[:, None] + pause_s * np.arange(turns)
    names = np.repeat(np.arange(started), turns).reshape(started, turns)
    seen = (times_s >= 0.0) & (times_s <= span_s)
    order = np.argsort(times_s[seen], kind="stable")
    integers = [values[seen][order] for values in (before + new, said, names, before, ends)]
    return Arrivals(times_s[seen][order], *integers)
