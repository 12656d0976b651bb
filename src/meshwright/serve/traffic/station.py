"""The steady state of one worker under requests that arrive at a rate, in closed form.

Answers in flight, the time of a step and the queue before it hold each other. The most that the
cache, the places and the passes of a worker hold is its saturation.
:mod:`meshwright.serve.traffic.queueing` plays the same requests one by one: tests hold both
within stated tolerances of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, column
from meshwright.serve.closed_loop import LoopOf, first_token_s
from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.passes import room_of_pass
from meshwright.serve.traffic.iteration import Worker
from meshwright.serve.traffic.queueing import BLOCK_TOKENS
from meshwright.spec.arrivals import Arrivals

ROUNDS = 6
"""Rounds of the fixed point of answers in flight and room for prefixes."""
MOST_BUSY = 1.0 - 1e-6
"""Largest share of the time that prompts may take."""


@dataclass(frozen=True)
class Demand:
    """Mean lengths of some requests, and the prefixes that they share."""

    prompt_tokens: float
    """Mean tokens of a prompt, cached ones included."""
    answer_tokens: float
    context_tokens: float
    """Mean tokens in the cache of an answer in flight: long answers are there for longer."""
    full_tokens: float
    """Mean tokens of prompt and answer of an answer in flight."""
    answer_variation: float
    """Squared variation of the lengths of answers [1]."""
    arrival_variation: float
    """Squared variation of the intervals of arrivals: 1 at random, 0 at equal intervals [1]."""
    shared_tokens: FloatArray
    """Tokens of each prompt that an earlier request has left, where the cache forgets nothing."""
    distances: FloatArray
    """Tokens that come into the cache between that request and this one."""

    def hit_tokens(self, room: float) -> float:
        """Return the mean tokens of a prompt in a cache that keeps the latest ones.

        Parameters
        ----------
        room
            Tokens of prefixes for which the cache has room.
        """
        return float(np.mean(self.shared_tokens * (self.distances <= room)))


def demand(arrivals: Arrivals) -> Demand:
    """Return the demand of some requests."""
    prompt, answer = (np.asarray(a, dtype=float)
                      for a in (arrivals.prompt_tokens, arrivals.answer_tokens))  # fmt: skip
    gaps_s = np.diff(arrivals.arrival_s)
    weights = answer / answer.sum()
    shared, distances = _shared(arrivals)
    return Demand(
        prompt_tokens=float(prompt.mean()),
        answer_tokens=float(answer.mean()),
        context_tokens=float(weights @ (prompt + answer / 2.0)),
        full_tokens=float(weights @ (prompt + answer)),
        answer_variation=float(answer.var() / answer.mean() ** 2),
        arrival_variation=float(gaps_s.var() / gaps_s.mean() ** 2) if gaps_s.sum() > 0 else 0.0,
        shared_tokens=shared,
        distances=distances,
    )


def _shared(arrivals: Arrivals) -> tuple[FloatArray, FloatArray]:
    """Return the shared tokens of each prompt, and the tokens that come between two uses.

    Between two uses at most all prefixes pass once, and at most as many as there are requests.
    """
    number = len(arrivals)
    shared, distances = np.zeros(number), np.zeros(number)
    has = np.flatnonzero(arrivals.prefix >= 0)
    if not len(has):
        return shared, distances
    kept = arrivals.kept_tokens.astype(float)
    order = has[np.argsort(arrivals.prefix[has], kind="stable")]
    again = arrivals.prefix[order[1:]] == arrivals.prefix[order[:-1]]
    later, before = order[1:][again], order[:-1][again]
    held = np.minimum(arrivals.prefix_tokens[later], arrivals.kept_tokens[before])
    held = np.minimum(held, arrivals.prompt_tokens[later] - 1)
    shared[later] = held // BLOCK_TOKENS * BLOCK_TOKENS
    lasts = np.append(order[:-1][~again], order[-1])
    distances[later] = np.minimum((later - before) * kept[has].mean(), kept[lasts].sum())
    return shared, distances


@dataclass(frozen=True)
class Steady:
    """The steady state of a worker at a rate."""

    rate_per_s: float
    in_flight: float
    """Mean answers in flight."""
    step_s: float
    """Mean time per output token [s]."""
    queue_s: float
    """Mean wait for a place in the batch [s]."""
    first_s: float
    """Mean time to the first token [s]."""
    end_s: float
    """Mean time from arrival to the last token [s]."""
    hit_tokens: float
    """Mean tokens of a prompt found in the cache."""


@dataclass(frozen=True)
class Station:
    """A worker under a demand."""

    worker: Worker
    demand: Demand

    @cached_property
    def later_tokens(self) -> float:
        """Tokens of a mean answer after its first one."""
        return max(self.demand.answer_tokens - 1.0, 1e-9)

    def places(self, hit_tokens: float) -> int:
        """Return the most answers in flight: by places, by tokens of a pass, by the cache.

        Sequences that may be evicted take what they hold, others their full length. Prefixes that
        others share are held once.
        """
        server, asked = self.worker.server, self.demand
        new = max(asked.prompt_tokens - hit_tokens, 1.0)
        of_pass = server.most_pass_tokens / (float(server.mixes_phases) + new / self.later_tokens)
        length = asked.context_tokens if server.evicts else asked.full_tokens
        own = max(length - hit_tokens, 1.0)
        most = min(server.most_sequences, of_pass, self.worker.cache_tokens / own)
        return max(int(most), 1)

    def steps(
        self, answers: FloatArray, prompts: FloatArray, hit_tokens: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the time of steps without prompts, and what each of their prompts adds [s].

        Prompts that come in one step share a pass, as far as it has room for them.

        Parameters
        ----------
        answers
            Answers in flight, of each state.
        prompts
            Prompts that a step carries, of each state.
        """
        worker, server = self.worker, self.worker.server
        new = max(self.demand.prompt_tokens - hit_tokens, 1.0)
        together = np.clip(prompts, 1.0, max(float(room_of_pass(server, new)), 1.0))
        alone_s = worker.step_s(answers, self.demand.context_tokens)
        beside = answers * float(server.mixes_phases)
        with_s = worker.pass_s(beside + together * new, beside + together)
        with_s = with_s + together * worker.prompt_s(hit_tokens, new)
        with_s = with_s + worker.host_s(beside + together)
        without_s = worker.pass_s(answers, answers) + worker.host_s(answers)
        more_s = with_s - without_s * float(server.mixes_phases)
        return column(alone_s), column(np.maximum(more_s, 0.0) / together)

    def saturation_per_s(self) -> float:
        """Return the highest rate that the worker serves; 0 where one request has no room [1/s].

        With all N places taken a step carries N / (O - 1) prompts, so that N / ((O - 1) d + N e)
        requests end in a second.
        """
        if self.worker.cache_tokens < self.demand.full_tokens:
            return 0.0
        hit = self.demand.hit_tokens(np.inf)
        for _ in range(ROUNDS):
            full = np.array([float(self.places(hit))])
            hit = self._hits(full[0], hit)
        share = full / self.later_tokens
        alone_s, more_s = self.steps(full, share, hit)
        return float((full / (self.later_tokens * alone_s + full * more_s))[0])

    def _hits(self, answers: float, hit_tokens: float) -> float:
        """Return the mean cached tokens of a prompt beside some answers in flight."""
        own = max(self.demand.context_tokens - hit_tokens, 0.0)
        return self.demand.hit_tokens(self.worker.cache_tokens - answers * own)

    def steady(self, rate_per_s: float) -> Steady | None:
        """Return the steady state at a rate; None: it is above the saturation.

        Answers in flight share the worker: with n of them a step takes

            t(n) = (d + r e (e + d) / (O - 1)) / (1 - r e),

        where prompts that came during the pass of a prompt follow it, before its answer goes on,
        and n / ((O - 1) t(n)) requests end in a second. Whatever the lengths of answers, the chance
        of n is the product of r over these rates of 1 to n (Kelly 1979, symmetric queues); those
        beyond the N places wait, longer where answers vary, as (1 + b) / 2. Arrivals at equal
        intervals leave the state at its middle. Where prefixes have room only while answers in
        flight are few because of them, they are there.
        """
        hit = self.demand.hit_tokens(np.inf)
        found: Steady | None = None
        for _ in range(ROUNDS):
            found = self._state(rate_per_s, hit)
            if found is None:
                return None
            hit = self._hits(found.in_flight, hit)
        return found

    def _state(self, rate_per_s: float, hit_tokens: float) -> Steady | None:
        """Return the steady state where prompts find some cached tokens."""
        if rate_per_s >= self.saturation_per_s():
            return None
        asked, later = self.demand, self.later_tokens
        places = np.arange(1.0, self.places(hit_tokens) + 1.0)
        step_s = column(self.worker.step_s(places, asked.context_tokens))
        for _ in range(ROUNDS):
            alone_s, more_s = self.steps(places, rate_per_s * step_s, hit_tokens)
            share = np.minimum(rate_per_s * more_s, MOST_BUSY)
            behind_s = share * (more_s + alone_s) / later
            step_s = (alone_s + behind_s) / (1.0 - share)
        ended = places / (later * step_s)
        logs = np.cumsum(np.log(rate_per_s / ended))
        most = max(float(logs.max()), 0.0)
        weights, none = np.exp(logs - most), float(np.exp(-most))
        ratio = min(float(rate_per_s / ended[-1]), MOST_BUSY)
        waits = float(weights[-1]) * ratio / (1.0 - ratio)
        total = float(weights.sum()) + none + waits
        random = float((places @ weights + places[-1] * waits) / total)
        middle = float(np.interp(rate_per_s, np.append(0.0, ended), np.append(0.0, places)))
        in_flight = middle + asked.arrival_variation * (random - middle)
        queue_s = waits / (1.0 - ratio) / total / rate_per_s
        queue_s *= (asked.arrival_variation + asked.answer_variation) / 2.0
        mean_s = in_flight / (rate_per_s * later)
        place = float(np.clip(in_flight, 1.0, places[-1]))
        alone, more = (float(np.interp(place, places, values)) for values in (alone_s, more_s))
        first_s = queue_s + self._first_s(rate_per_s, mean_s, alone, more, hit_tokens)
        return Steady(
            rate_per_s, in_flight, mean_s, queue_s, first_s, first_s + later * mean_s, hit_tokens
        )

    def _first_s(
        self, rate_per_s: float, step_s: float, alone_s: float, more_s: float, hit_tokens: float
    ) -> float:
        """Return the mean time to the first token of a request that has its place [s]."""
        constants, server = self.worker.problem.constants, self.worker.server
        room = float(room_of_pass(server, max(self.demand.prompt_tokens - hit_tokens, 1.0)))
        loop = LoopOf(
            clients=1.0, answer_tokens=self.demand.answer_tokens, decode_s=alone_s,
            more_s=more_s, own_s=more_s,
            passes_of_prompt=float(server.mixes_phases) * max(1.0 / room, 1.0),
            prompts_of_pass=room, steps_ahead=constants.steps_ahead, companions=0.0,
        )  # fmt: skip
        first_s = first_token_s(loop, rate_per_s, step_s, rate_per_s * step_s)
        return float(first_s + host_of_prompt_s(constants, self.demand.prompt_tokens))
