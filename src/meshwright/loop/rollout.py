"""Rollout: the answers to all prompts of a step, made by an inference engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

import numpy as np

from meshwright.base.arrays import BoolArray, larger, number_at, take_rows
from meshwright.base.errors import InfeasibleError
from meshwright.loop.lengths import Growth, growth
from meshwright.loop.question import Work
from meshwright.search.exhaustive import Counts
from meshwright.serve.passes import ServingProblem, StageHeld, reserved_bytes
from meshwright.serve.price import CacheRoom, cache_room, held_room
from meshwright.serve.requests import Serving, most_at_once
from meshwright.serve.search import (
    ServingSpace,
    legal_splits,
    memory_shortfall,
)
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import row, stack


@dataclass(frozen=True)
class Rolled:
    """The time of a rollout; the parts sum to ``total_s``."""

    prompts_s: float
    full_s: float
    """Time in which all places are taken, or all answers grow [s]."""
    tail_s: float
    """Time in which fewer than half of the places are taken [s]."""
    in_flight: float
    """Most answers in flight on one replica."""
    mean_in_flight: float
    """Answers in flight on one replica, on average over the steps."""
    steps: float
    """Steps of the engine until the last answer has ended."""

    @property
    def total_s(self) -> float:
        """All of it [s]."""
        return self.prompts_s + self.full_s + self.tail_s


NOTHING_ROLLED = Rolled(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Engine:
    """An inference engine on some devices, with replicas of one split and without a pipeline."""

    work: Work
    serving: Serving
    known: dict[tuple[float, int], Rolled] = field(default_factory=dict, compare=False, repr=False)
    """Rollouts by places and batches."""

    @property
    def replicas(self) -> int:
        """Replicas, which share the samples of a step."""
        return int(self.serving.strategy.dp)

    @property
    def kept_tokens(self) -> float:
        """Tokens in the cache of one sample: an answer, and its share of a prompt.

        Samples of a prompt share its blocks.
        """
        return self.work.prompt / self.work.samples + self.work.lengths.mean

    @cached_property
    def held(self) -> StageHeld:
        """Weights of a device, and the cache of one sample [bytes]."""
        return take_rows(self.serving.passes(1.0, 1.0, 0.0, self.kept_tokens).held[0], [0])

    @cached_property
    def working_bytes(self) -> float:
        """Transients of the largest pass of prompts on a device [bytes]."""
        serving = self.serving
        one, prompt = stack([serving.strategy]), float(self.work.prompt)
        return number_at(reserved_bytes(serving.problem, serving.plan_options, one, prompt)[0])

    @cached_property
    def buffers_bytes(self) -> float:
        """Runtime and communication library; they stay while the engine sleeps [bytes]."""
        serving = self.serving
        return number_at(held_room(serving.problem, serving.strategy, self.held, 0.0, 0.0)[0])

    def memory(self, share: float) -> dict[str, float]:
        """Return the memory of a device of which the engine fills a share, by part [bytes]."""
        room = self._room(share)
        return {
            "engine_weights_bytes": number_at(self.held.weights_bytes),
            "engine_buffers_bytes": self.buffers_bytes,
            "engine_working_bytes": number_at(room.working_bytes),
            "cache_room_bytes": number_at(room.cache_bytes),
        }

    def _room(self, share: float) -> CacheRoom:
        capacity = self.serving.problem.system.chip.main_memory.capacity_bytes
        server = self.serving.server.model_copy(
            update={"memory_fraction": share, "of_free_memory": False}
        )
        return cache_room(
            server, capacity, self.held.weights_bytes, self.buffers_bytes, 0.0, self.working_bytes
        )

    def places(self, share: float, batches: int = 1) -> float:
        """Return the samples of some batches in flight on a replica; 0: the model does not fit."""
        room = np.floor(number_at(self._room(share).sequences(self.held.cache_bytes)))
        return min(float(room), most_at_once(self.serving.server), self._number(batches))

    def _number(self, batches: int) -> float:
        return float(ceil(batches * self.work.num_samples / self.replicas))

    def rollout(self, share: float, batches: int = 1) -> Rolled:
        """Return the time of some batches that are rolled out together, and share one tail.

        Prompts pass once, whatever the number of their samples. Then steps follow: in each,
        those in flight grow by a token behind the mean length that they have.
        """
        key = self.places(share, batches), batches
        if key not in self.known:
            self.known[key] = self._rolled(*key)
        return self.known[key]

    def _rolled(self, places: float, batches: int) -> Rolled:
        work, serving, number = self.work, self.serving, self._number(batches)
        if not work.lengths.mean:
            return NOTHING_ROLLED
        grown = growth(work.lengths, number, places, float(self.replicas))
        flying = np.asarray(larger(grown.in_flight, 1.0))
        prompts = max(number / work.samples, 1.0)
        prompts_s = number_at(serving.prompts_s(prompts, float(work.prompt)))
        prompts_s += number_at(serving.host_s(float(work.prompt)))
        each_s = np.asarray(serving.step_s(flying, work.prompt + grown.grown))
        steps_s = grown.step * grown.goes_on * each_s
        is_tail = _is_tail(grown)
        steps = float(grown.step * grown.goes_on.sum())
        return Rolled(
            prompts_s, float(steps_s[~is_tail].sum()), float(steps_s[is_tail].sum()),
            float(flying.max()), grown.num_tokens / steps, steps,
        )  # fmt: skip


def _is_tail(grown: Growth) -> BoolArray:
    """Return the intervals of the tail: behind the last one with half of the most in flight."""
    busy = np.flatnonzero(grown.in_flight >= grown.in_flight.max() / 2.0)
    later: BoolArray = np.arange(len(grown.in_flight)) > busy[-1]
    return later


def engines(work: Work, problem: ServingProblem, tp: int | None) -> Iterator[Engine]:
    """Yield an engine for each legal split of all devices, without a pipeline.

    Raises
    ------
    InfeasibleError
        There is none.
    """
    allowed: dict[str, tuple[object, ...]] = {"pp": (1,), "micro_batch_size": (1,)}
    if tp is not None:
        allowed["tp"] = (tp,)
    space = ServingSpace(problem, Choices(allowed), (problem.system.num_alive,))
    counts, found = Counts(), False
    for plan_options, columns in legal_splits(space, counts):
        for index in range(len(columns.tp)):
            found = True
            strategy = row(columns, index)
            yield Engine(work, Serving(problem, problem.server, plan_options, strategy))
    if not found:
        raise InfeasibleError(memory_shortfall(space, counts))
