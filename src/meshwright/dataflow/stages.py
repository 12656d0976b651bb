"""A graph cut into pipeline stages so that the slowest stage is as fast as possible, exactly.

Stages are a chain of order ideals, and what two stages owe each other is the layout of each tensor
that crosses. So the best chain is found by dynamic programming over ideals with the layouts of
their cuts: the least, over all chains, of the largest stage. Stages that certainly take longer than
a limit are left out; the limit grows until a chain exists, which is then the best.

A tensor that skips stages is handed on by each of them. It counts in every stage from the one that
makes it to the last that reads it, as in Ko et al. 2024 (arXiv 2412.16432), equation 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.parts import Cuts, Part
from meshwright.dataflow.tables import SplitTables
from meshwright.graph.ideals import as_bits, members, order_ideals

MOST_IDEALS = 1_000
"""Every two of them may bound a stage."""
GROWTH = 1.25
"""Of the limit on a stage, until stages within it exist."""
ROUNDING = 1.0 + 1e-9
SendTime = Callable[[float], float]
"""Seconds in which a device hands so many bytes to the next stage."""


@dataclass(frozen=True)
class Stage:
    """Kernels that share a group of devices."""

    kernels: tuple[int, ...]
    ways: tuple[int, ...]
    """Of each of them."""
    busy: float
    """Computation and collectives."""
    send: float
    """Handing on what crosses, beside them."""

    @property
    def cost(self) -> float:
        """What sets the pace."""
        return max(self.busy, self.send)

    def held_bytes(self, tables: SplitTables) -> float:
        """Return the memory that its kernels take on one device [bytes]."""
        chosen = zip(self.kernels, self.ways, strict=True)
        return sum(float(tables.held_bytes[kernel][way]) for kernel, way in chosen)


@dataclass(frozen=True)
class Stages:
    """The best cut into so many stages or fewer."""

    stages: tuple[Stage, ...]
    lower_bound: float
    """No cut has a slowest stage that is faster."""
    num_ideals: int
    num_parts: int
    """Different stages that were priced."""

    @property
    def cost(self) -> float:
        """Of the slowest stage."""
        return max(stage.cost for stage in self.stages)


def cut_stages(
    sums: Sequence[SplitTables], num_stages: int, send_time: SendTime, *, most: float = np.inf
) -> Stages | None:
    """Return the cut of a graph into stages whose slowest one is the fastest.

    Parameters
    ----------
    sums
        A stage takes the largest of these, over the same graph and ways: a single one where
        collectives run before and after computation. Where both run beside each other: one, the
        other, and means of both, which tighten the bound. With several the cut may have a gap.
    most
        What a stage may take; None comes back where every cut has one that takes more.

    Raises
    ------
    UnsupportedError
        When the graph has too many order ideals to look at each of them.
    """
    return _Cutting(Cuts(tuple(sums)), send_time).solve(num_stages, most)


@dataclass
class _Cutting:
    """Parts of a graph, priced when they are first looked at."""

    cuts: Cuts
    send_time: SendTime
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)

    @property
    def tables(self) -> SplitTables:
        return self.cuts.tables

    @cached_property
    def ideals(self) -> tuple[int, ...]:
        """Sets of kernels as bits, the smaller ones first."""
        return as_bits(order_ideals(self.tables.graph.reads, MOST_IDEALS))

    @cached_property
    def crossing(self) -> dict[int, tuple[int, ...]]:
        return {ideal: self.cuts.crossing(ideal) for ideal in self.ideals}

    @cached_property
    def least(self) -> FloatArray:
        """What each kernel costs at least in each sum, (sums, kernels)."""
        return np.array([[float(c.min()) for c in sums.costs] for sums in self.cuts.sums])

    def solve(self, num_stages: int, most: float) -> Stages | None:
        """Return the best chain of ideals whose stages take no more than a limit."""
        limit = max(float(self.least.max()), float(self.least.sum(axis=1).max()) / num_stages)
        limit = limit or np.finfo(float).tiny
        while limit <= most:
            values = self._values(num_stages, limit)
            done = [step for step in values if self.ideals[-1] in step]
            best = min((float(step[self.ideals[-1]]) for step in done), default=np.inf)
            if best <= limit:
                return self._found(values, best)
            limit = min(best, limit * GROWTH)
        return None

    def _found(self, values: list[dict[int, FloatArray]], best: float) -> Stages:
        """Return the stages with the best slowest one."""
        number = next(n for n, s in enumerate(values) if self.ideals[-1] in s
                      and float(s[self.ideals[-1]]) == best)  # fmt: skip
        stages = tuple(self._way_back(values, number))
        return Stages(stages, best, len(self.ideals), len(self.parts))

    def _values(self, num_stages: int, limit: float) -> list[dict[int, FloatArray]]:
        """Return, after each stage and for each ideal, the best slowest stage by layouts."""
        values: list[dict[int, FloatArray]] = [{0: np.zeros(())}]
        for left in reversed(range(num_stages)):
            step: dict[int, FloatArray] = {}
            for before, reached in values[-1].items():
                for after in self._next(before, limit, left):
                    found = self._through(before, after, reached)
                    step[after] = np.minimum(step[after], found) if after in step else found
            values.append({i: v for i, v in step.items() if v.min() <= limit})
        return values

    def _next(self, before: int, limit: float, left: int) -> Iterator[int]:
        """Yield where a stage may end so that it and those that are left may keep to a limit."""
        every = self.ideals[-1]
        for after in self.ideals:
            if before & ~after == 0 and before != after:
                inside, rest = (list(members(part)) for part in (after & ~before, every & ~after))
                if (
                    self.least[:, inside].sum(axis=1).max() <= limit
                    and self.least[:, rest].sum(axis=1).max() <= left * limit * ROUNDING
                ):
                    yield after

    def _through(self, before: int, after: int, reached: FloatArray) -> FloatArray:
        """Return the best slowest stage after one more, for each layout of what crosses then."""
        axes, total = self._slowest(before, after, reached)
        gone = tuple(n for n, tensor in enumerate(axes) if tensor not in self.crossing[after])
        left = [tensor for tensor in axes if tensor in self.crossing[after]]
        least = total.min(axis=gone) if gone else total
        order = [left.index(tensor) for tensor in self.crossing[after]]
        return least.transpose(order) if order else least

    def _slowest(
        self, before: int, after: int, reached: FloatArray
    ) -> tuple[tuple[int, ...], FloatArray]:
        """Return the slowest stage so far, for each layout of what crosses either cut."""
        part = self._part(before, after)
        axes = self._axes(before, after)
        spread = self._spread(reached, self.crossing[before], axes)
        busy = self._spread(part.bound, part.tensors, axes)
        return axes, np.maximum(spread, np.maximum(busy, self._sends(axes)))

    def _axes(self, before: int, after: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.crossing[before], *self.crossing[after])))

    def _sends(self, axes: Sequence[int]) -> FloatArray:
        """Return what handing on takes: each tensor that crosses either cut, in its layout."""
        total = np.zeros([len(self.cuts.layouts[tensor]) for tensor in axes])
        for tensor in axes:
            kernel = self.tables.graph.kernels[tensor]
            num_bytes = self.tables.graph.tensor_bytes(kernel)
            shares = [
                1 if layout.place is None else self.tables.degree
                for layout in self.cuts.layouts[tensor]
            ]
            seconds = np.array([self.send_time(num_bytes / share) for share in shares])
            total = total + self._spread(seconds, (tensor,), axes)
        return total

    def _spread(self, table: FloatArray, tensors: Sequence[int], axes: Sequence[int]) -> FloatArray:
        """Return a table with one axis for each of the wanted ones."""
        order = sorted(range(len(tensors)), key=lambda place: axes.index(tensors[place]))
        shape = [len(self.cuts.layouts[axis]) if axis in tensors else 1 for axis in axes]
        return table.transpose(order).reshape(shape)

    def _part(self, before: int, after: int) -> Part:
        if (before, after) not in self.parts:
            self.parts[before, after] = Part(self.cuts, before, after)
        return self.parts[before, after]

    def _way_back(self, values: list[dict[int, FloatArray]], number: int) -> list[Stage]:
        """Return the stages that reach the end in the best way."""
        stages: list[Stage] = []
        after, layouts = self.ideals[-1], dict[int, int]()
        while number:
            target = float(values[number][after][tuple(layouts[t] for t in self.crossing[after])])
            before, layouts = self._step_back(values[number - 1], after, layouts, target)
            part = self._part(before, after)
            at = [layouts[tensor] for tensor in part.tensors]
            sends = self._sends(self._axes(before, after))
            send = float(sends[tuple(layouts[t] for t in self._axes(before, after))])
            stages.append(Stage(part.kernels, *part.best_ways(at), send))
            after, number = before, number - 1
        return stages[::-1]

    def _step_back(
        self, reached: dict[int, FloatArray], after: int, layouts: dict[int, int], target: float
    ) -> tuple[int, dict[int, int]]:
        """Return the cut before, with the layouts of both, from which a value was reached."""
        for before, values in reached.items():
            if (before, after) not in self.parts:
                continue
            axes, total = self._slowest(before, after, values)
            at = tuple(layouts[t] if t in layouts and t in self.crossing[after] else slice(None)
                       for t in axes)  # fmt: skip
            fixed = np.full(total.shape, np.inf)
            fixed[at] = total[at]
            if fixed.size and fixed.min() <= target:
                best = np.unravel_index(int(fixed.argmin()), fixed.shape)
                return before, {t: int(n) for t, n in zip(axes, best, strict=True)}
        raise AssertionError("a value without a way to it")
