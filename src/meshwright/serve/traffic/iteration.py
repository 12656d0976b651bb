"""Seconds of one iteration of a worker that batches continuously, as tables.

An iteration is a pass of one token of each answer in flight, and of parts of prompts. Its price is
that of :mod:`meshwright.serve.passes`, asked for once on a grid of sizes: products, elementwise
work and collectives by the tokens of both kinds, attention of each kind on its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, Num, column, take_rows
from meshwright.serve.operators import PassShape, host_s
from meshwright.serve.passes import PassPrice, ServingProblem, price_passes, reserved_bytes
from meshwright.serve.price import held_room
from meshwright.sharding.strategy import PlanOptions, Strategy, StrategyColumns, stack
from meshwright.spec.workload import Server

LEAST_LENGTH = 16.0
"""Shortest length of the tables of attention [tokens]."""
LENGTHS_OF_OCTAVE = 4
"""Entries of the tables of attention in each octave: a quadratic lies within 1 % of them."""


@dataclass(frozen=True)
class Worker:
    """One worker: a split of its devices, without a pipeline, under a server."""

    problem: ServingProblem
    plan_options: PlanOptions
    strategy: Strategy
    longest: int
    """Tokens of the longest request, prompt and answer."""

    @property
    def server(self) -> Server:
        """Server that batches the requests."""
        return self.problem.server

    @property
    def num_devices(self) -> int:
        """Devices of the worker."""
        return int(self.strategy.num_devices)

    # ----------------------------------------------------------------------------------- the grid

    @cached_property
    def tokens(self) -> FloatArray:
        """Numbers of tokens of a pass: all up to 8, then eight in each octave."""
        whole = 0 if self.server.cuts_prompts else self.longest
        most = max(self.server.most_pass_tokens, whole) + self.server.most_sequences
        return _grid(1.0, float(most), 8)

    @cached_property
    def sequences(self) -> FloatArray:
        """Numbers of answers in flight."""
        return _grid(1.0, float(self.server.most_sequences), 2)

    @cached_property
    def lengths(self) -> FloatArray:
        """Lengths of a cache, and of a prompt."""
        return _grid(LEAST_LENGTH, max(float(self.longest), 2.0 * LEAST_LENGTH), LENGTHS_OF_OCTAVE)

    @cached_property
    def tokens_s(self) -> FloatArray:
        """Seconds of a pass by its tokens, without attention, with logits of one of them."""
        found = self._passes(self.tokens, answered_share=1.0 / self.tokens)
        return column(found.whole.total_s - found.whole.attention_s) * self._waits(found)

    @cached_property
    def logits_s(self) -> FloatArray:
        """Seconds that logits of some tokens add to those of one, by their number."""
        most = self.tokens[-1]
        found = self._passes(most + 0.0 * self.tokens, answered_share=self.tokens / most)
        total_s = column(found.whole.total_s) * self._waits(found)
        return column(total_s - total_s[0])

    @cached_property
    def caches_s(self) -> FloatArray:
        """Seconds of attention over caches: a row for each number of answers, a length a column."""
        answers, lengths = (grid.ravel() for grid in np.meshgrid(
            self.sequences, self.lengths, indexing="ij"))  # fmt: skip
        found = self._passes(answers, past_tokens=lengths)
        seconds = column(found.whole.attention_s) * self._waits(found)
        return seconds.reshape(len(self.sequences), len(self.lengths))

    @cached_property
    def prompts_s(self) -> FloatArray:
        """Seconds of attention of a whole prompt, by its length."""
        found = self._passes(1.0 + 0.0 * self.lengths, new_tokens=self.lengths)
        return column(found.whole.attention_s) * self._waits(found)

    @cached_property
    def cache_tokens(self) -> int:
        """Tokens for which the cache of the worker has room; 0: the model does not fit."""
        full = replace(self.problem.shape, new_tokens=1.0, past_tokens=0.0, kept_tokens=1.0)
        one = np.ones(1)
        columns = self._columns(one)
        held = price_passes(self.problem, self.plan_options, columns, full).held
        more = price_passes(
            self.problem, self.plan_options, columns, replace(full, kept_tokens=1.0 + self.longest)
        ).held
        reserved = reserved_bytes(self.problem, self.plan_options, columns)
        rooms = []
        for stage, grown, most in zip(held, more, reserved, strict=True):
            each = column(grown.cache_bytes)[0] / (1.0 + self.longest)
            free = held_room(self.problem, self.strategy, take_rows(stage, [0]), 0.0, most)[1]
            room = float(column(free.cache_bytes)[0])
            rooms.append(np.inf if each <= 0 else room / each)
        return int(max(min(rooms), 0.0)) if np.isfinite(min(rooms)) else MOST_TOKENS

    # ----------------------------------------------------------------------------------- its parts

    def pass_s(self, tokens: Num, answered: Num) -> Num:
        """Return the seconds of a pass of some tokens without attention and host [s]."""
        base: Num = np.interp(tokens, self.tokens, self.tokens_s)
        return base + np.interp(answered, self.tokens, self.logits_s)

    def host_s(self, sequences: Num) -> Num:
        """Return the seconds of the server in a pass of some sequences [s]."""
        return host_s(self.problem.constants, sequences)

    def cache_s(self, answers: Num, mean_length: float) -> Num:
        """Return the seconds of attention of answers with caches of a mean length [s]."""
        of_length = [float(np.interp(mean_length, self.lengths, row)) for row in self.caches_s]
        found: Num = np.interp(answers, self.sequences, of_length)
        return found

    def prompt_s(self, done: float, tokens: float) -> float:
        """Return the seconds of attention of a part of a prompt behind others [s].

        All parts together cost as much as the whole prompt, and each reads the cache before it.
        """
        ends = np.interp([done, done + tokens], self.lengths, self.prompts_s, left=0.0)
        least = float(self.cache_s(1.0, done)) if done > 0 else 0.0
        return max(float(ends[1] - ends[0]), least)

    def step_s(self, answers: Num, mean_length: float) -> Num:
        """Return the seconds of an iteration of answers alone [s]."""
        alone_s = self.pass_s(answers, answers) + self.host_s(answers)
        return alone_s + self.cache_s(answers, mean_length)

    # ----------------------------------------------------------------------------------- the price

    def _columns(self, rows: FloatArray) -> StrategyColumns:
        return replace(stack([self.strategy] * len(rows)), micro_batch_size=rows)

    def _passes(
        self, rows: FloatArray, *, new_tokens: FloatArray | float = 1.0,
        past_tokens: FloatArray | float = 0.0, answered_share: FloatArray | float = 1.0,
    ) -> PassPrice:  # fmt: skip
        """Return passes of some sequences each."""
        shape: PassShape = replace(
            self.problem.shape, new_tokens=new_tokens + 0.0 * rows,
            past_tokens=past_tokens + 0.0 * rows, kept_tokens=0.0,
            answered_share=answered_share,
        )  # fmt: skip
        return price_passes(self.problem, self.plan_options, self._columns(rows), shape)

    def _waits(self, found: PassPrice) -> FloatArray:
        """Return the factor of waiting for the slowest device."""
        return 1.0 + column(found.jitter)


MOST_TOKENS = 1 << 40
"""Room for models without a cache that grows."""


def _grid(least: float, most: float, of_octave: int) -> FloatArray:
    """Return sizes from the least to the most, so many in each octave, as whole numbers."""
    count = int(np.ceil(of_octave * np.log2(max(most / least, 2.0)))) + 1
    sizes = np.unique(np.rint(np.geomspace(least, max(most, 2.0 * least), count)))
    first = np.arange(least, min(least + 8.0, sizes[-1]))
    return np.unique(np.concatenate([first, sizes])) if least <= 1.0 else sizes
