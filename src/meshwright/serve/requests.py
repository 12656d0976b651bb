"""Requests from the first token of their prompt to the last of their answer, under one server.

A batch: equal requests start together, up to the number that the cache has room for; their prompts
pass first, then one token of each in every step. A queue: a request starts whenever another one
ends, so that each step carries tokens of both kinds.

Answers grow token by token; a step at half of their length stands for all of them, which is exact
where the cost of attention is linear in the length of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial, reduce

import numpy as np

from meshwright.base.arrays import Num, ceil_div, column, larger, smaller, where
from meshwright.serve.closed_loop import after_first_wave, requests_per_s
from meshwright.serve.operators import PassShape, host_of_prompt_s
from meshwright.serve.passes import (
    PassPrice,
    ServingProblem,
    price_passes,
    price_requests,
    reserved_bytes,
    round_s,
    with_core,
)
from meshwright.serve.price import held_room, price_clients
from meshwright.sharding.strategy import PlanOptions, Strategy, StrategyColumns
from meshwright.spec.workload import Server


def most_at_once(server: Server) -> float:
    """Return the most sequences that a server runs at once: configured, where it has an option."""
    return np.inf if server.sequences_option else float(server.most_sequences)


BENCHMARK_ROUNDS = 10.0
"""Requests of each client in a benchmark, where nothing is stated: ten times as many prompts as
clients. Source: SemiAnalysis InferenceX, benchmarks/benchmark_lib.sh (num-prompts)."""


@dataclass(frozen=True)
class EqualRequests:
    """Equal requests, one column entry for each question."""

    prompt_tokens: Num
    answer_tokens: Num
    batch: Num
    """Requests of one replica that start together; infinity: a queue that never ends."""
    is_closed_loop: bool = False
    """``batch`` clients send one request each, and the next one when the answer has ended."""
    are_equal: bool = False
    """All requests have exactly these lengths; otherwise lengths vary around them."""
    rounds: Num = BENCHMARK_ROUNDS
    """Requests of each client; the first ones are all sent at once."""


@dataclass(frozen=True)
class Served:
    """Times and rates of requests on one replica; columns."""

    room: Num
    """Sequences of full length that the cache holds; below 1, the model does not fit."""
    at_once: Num
    """Sequences in flight."""
    prompt_s: Num
    """Batch: time until the last of the prompts that start together has passed; clients: mean time
    to the first token [s]."""
    step_s: Num
    """Time of one token of each sequence in flight, with the prompts between the steps [s]."""
    latency_s: Num
    """Batch: time until its last token; infinity for a queue [s]."""
    requests_per_s: Num
    """Requests per second of one replica [1/s]."""


@dataclass(frozen=True)
class Serving:
    """A model on the devices of one replica, under a server."""

    problem: ServingProblem
    server: Server
    plan_options: PlanOptions
    strategy: Strategy

    def served(self, requests: EqualRequests) -> Served:
        """Return the times and rates of requests, all of them batches or all clients and queues."""
        is_loop = requests.is_closed_loop or bool(np.all(np.isinf(requests.batch)))
        room = self._room(requests, is_loop=is_loop)
        if is_loop:
            return self._loop(requests, room)
        return self._batch(requests, room)

    def _batch(self, requests: EqualRequests, room: Num) -> Served:
        """Return the price of batches: prompts, then steps, in waves that fit the memory.

        Where sequences may be evicted they follow each other without a pause, so that waves may
        be fractions; otherwise those that wait start when the wave before has ended.
        """
        allowed = larger(smaller(room, float(self.server.most_sequences)), 1.0)
        waves = larger(requests.batch / allowed, 1.0)
        waves = waves if self.server.evicts else np.ceil(waves)
        at_once = requests.batch / waves
        prompt_s = self.prompts_s(at_once, requests.prompt_tokens) + self.host_s(
            requests.prompt_tokens
        )
        step_s = self.step_s(at_once, self._middle(requests))
        latency_s = waves * (prompt_s + requests.answer_tokens * step_s)
        return Served(room, at_once, prompt_s, step_s, latency_s, requests.batch / latency_s)

    def step_s(self, answers: Num, length: Num) -> Num:
        """Return the seconds in which each of some answers grows by a token, behind a length."""
        groups = smaller(self.strategy.pp, larger(answers, 1.0))
        return round_s(self.passes(answers / groups, 1.0, length), self.strategy.pp, groups)

    def host_s(self, prompt: Num) -> Num:
        """Return the server's own time for each request until its first token [s]."""
        return host_of_prompt_s(self.problem.constants, prompt)

    def prompts_s(self, sequences: Num, prompt: Num) -> Num:
        """Return the seconds in which the prompts of some sequences pass, in equal parts.

        A part reads the cache of the parts before it, so that attention costs as much as on whole
        prompts. Parts follow each other through the stages.
        """
        tokens = sequences * prompt
        parts = larger(ceil_div(tokens, float(self.server.most_pass_tokens)), 1.0)
        length = smaller(tokens / parts, prompt)
        part = self.passes(tokens / parts / length, length, 0.0)
        core_s = self.passes(1.0, prompt, 0.0).whole.attention_s
        price = with_core(part, part, core_s * sequences / parts, self.strategy.pp)
        later_s = (parts - 1.0) * price.slowest_s * (1.0 + price.jitter)
        return round_s(price, self.strategy.pp, 1.0) + later_s

    def _loop(self, requests: EqualRequests, room: Num) -> Served:
        """Return the steady state of clients that each send a request when another one ends.

        Clients beyond the room wait for a place: of N clients with room for A, (N - A) / rate. An
        endless queue has all the clients that have room, up to the number at which their tokens of
        a mean step fill a pass.
        """
        prompt, answer = requests.prompt_tokens, requests.answer_tokens
        of_pass = self.strategy.pp * self.server.most_pass_tokens / (1.0 + prompt / answer)
        allowed = larger(smaller(room, most_at_once(self.server)), 1.0)
        is_queue = np.isinf(requests.batch)
        limit = smaller(smaller(room, float(self.server.most_sequences)), of_pass)
        clients = where(is_queue, larger(np.floor(limit), 1.0), requests.batch)
        at_once = smaller(clients, allowed)
        groups = smaller(self.strategy.pp, larger(at_once, 1.0))
        mine = at_once / groups + 0.0 * prompt
        shape = self._shape(self._middle(requests))
        passing = partial(
            price_requests,
            self.problem,
            self.plan_options,
            self._columns(mine),
            prompt,
            answer,
            shape,
        )
        # Prompts that are sent at once fill their passes.
        filled = passing(waiting=at_once)
        stays = requests.are_equal and not self.server.mixes_phases
        priced = partial(
            price_clients, self.problem, self.strategy, clients=at_once, request=(prompt, answer),
            num_groups=groups, are_equal=requests.are_equal, stay_together=stays,
        )  # fmt: skip
        wave = priced(made=filled)
        found = wave if stays else priced(made=passing())
        step_s = found.time.total_s
        per_s = requests_per_s(at_once, found.first_s, step_s, answer)
        per_s = where(is_queue, at_once / (answer * step_s), per_s)
        first_s = found.first_s
        if not stays:
            mean_s = after_first_wave(wave.loop, found.state, requests.rounds)
            first_s = mean_s + self.host_s(requests.prompt_tokens)
        return Served(room, at_once, first_s + (clients - at_once) / per_s, step_s,
                      np.inf + step_s, per_s)  # fmt: skip

    def _shape(self, past: Num) -> PassShape:
        """Return a pass of one token behind some others."""
        return replace(self.problem.shape, new_tokens=1.0, past_tokens=past)

    def _middle(self, requests: EqualRequests) -> Num:
        """Return the tokens in the cache when half of an answer is there."""
        return requests.prompt_tokens + requests.answer_tokens / 2.0

    def passes(
        self, sequences: Num, new: Num, past: Num, kept: Num = 0.0, answered: Num = 1.0
    ) -> PassPrice:
        """Return passes of some sequences, each with some new and some cached tokens."""
        shape = replace(
            self.problem.shape, new_tokens=new, past_tokens=past, kept_tokens=kept,
            answered_share=answered,
        )  # fmt: skip
        number = sequences + 0.0 * new + 0.0 * past + 0.0 * kept + np.zeros(1)
        return price_passes(self.problem, self.plan_options, self._columns(number), shape)

    def _columns(self, sequences: Num) -> StrategyColumns:
        """Return the strategy with this number of sequences in a pass."""
        return StrategyColumns(
            **{
                entry.name: getattr(self.strategy, entry.name) + 0.0 * sequences
                for entry in fields(self.strategy)
                if entry.name != "micro_batch_size"
            },
            micro_batch_size=column(sequences),
        )

    def _room(self, requests: EqualRequests, *, is_loop: bool) -> Num:
        """Return the number of sequences with room for their cache on one replica.

        Of full length; where requests follow each other and may be evicted, answers in flight are
        half grown.

        With the cache there are weights, buffers and the largest pass of prompts, which is cut
        where it would take more than the cache.
        """
        full = requests.prompt_tokens + requests.answer_tokens
        full = self._middle(requests) if is_loop and self.server.evicts else full
        held = self.passes(1.0, 1.0, 0.0, full).held
        one = self._columns(1.0 + 0.0 * full)
        reserved = reserved_bytes(self.problem, self.plan_options, one, requests.prompt_tokens)
        rooms = [
            held_room(self.problem, self.strategy, stage, 0.0, most)[1].sequences(stage.cache_bytes)
            for stage, most in zip(held, reserved, strict=True)
        ]
        return np.floor(reduce(smaller, rooms))
