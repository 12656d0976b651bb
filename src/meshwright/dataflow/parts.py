"""A part of a graph between two cuts: what its kernels cost for each layout of what crosses.

A tensor crosses a cut in one layout. The stage that makes it brings it there; the stages that read
it change it again as they like, and stages in between hand it on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.choices import SplitChoices
from meshwright.dataflow.splits import WHOLE, KernelSplit, Layout
from meshwright.dataflow.tables import SplitTables
from meshwright.graph.dataflow.kernel import Kernel, Operand, Unit
from meshwright.graph.ideals import members
from meshwright.search.choices.elimination import Reduced


@dataclass(frozen=True)
class Cuts:
    """Which tensors cross the cut behind a set of kernels, and in which layouts they may."""

    sums: tuple[SplitTables, ...]
    """A stage takes the largest of several sums over one graph and its ways."""

    @property
    def tables(self) -> SplitTables:
        """The graph and its ways."""
        return self.sums[0]

    @cached_property
    def readers(self) -> dict[int, int]:
        """The set of kernels that read each tensor, by the number of its producer."""
        found: dict[int, int] = {}
        for edge in self.tables.graph.edges:
            found[edge.producer] = found.get(edge.producer, 0) | 1 << edge.consumer
        return found

    def crossing(self, ideal: int) -> tuple[int, ...]:
        """Return the producers inside a set of kernels that have readers outside."""
        return tuple(
            producer for producer in members(ideal) if self.readers.get(producer, 0) & ~ideal
        )

    @cached_property
    def layouts(self) -> tuple[tuple[Layout, ...], ...]:
        """Layouts in which what a kernel writes may cross: no open sums."""
        written = [{split.writes for split in ways} for ways in self.tables.splits]
        for edge in self.tables.graph.edges:
            written[edge.producer] |= {
                split.reads[edge.place] for split in self.tables.splits[edge.consumer]
            }
        return tuple(
            tuple(sorted({WHOLE, *(x for x in found if not x.is_partial)}, key=str))
            for found in written
        )


@dataclass(frozen=True)
class Part:
    """The kernels between two cuts; its table has one axis for each tensor that comes or goes."""

    cuts: Cuts
    before: int
    after: int
    """The sets of kernels on the near side of each cut."""

    @cached_property
    def kernels(self) -> tuple[int, ...]:
        """Kernels of the part."""
        return members(self.after & ~self.before)

    @cached_property
    def arrivals(self) -> tuple[int, ...]:
        """Producers before the part that it reads."""
        inside = self.after & ~self.before
        crossing = self.cuts.crossing(self.before)
        return tuple(n for n in crossing if self.cuts.readers[n] & inside)

    @cached_property
    def departures(self) -> tuple[int, ...]:
        """Producers of the part that others read later."""
        return tuple(n for n in self.cuts.crossing(self.after) if not self.before >> n & 1)

    @property
    def tensors(self) -> tuple[int, ...]:
        """Producers of the tensors of each axis."""
        return (*self.arrivals, *self.departures)

    def _tables(self, whole: SplitTables) -> SplitTables:
        """Return the ways of arrivals, of the kernels of the part, and of departures."""
        graph, inside = whole.graph, self.kernels
        coming = [self._arrival(n) for n in self.arrivals]
        going = [self._departure(n) for n in self.departures]
        place = {n: at for at, n in enumerate(inside, len(coming))}
        kernels = [k for k, _ in coming] + [graph.kernels[n] for n in inside]
        kernels += [k for k, _ in going]
        names = {kernel.name for kernel in kernels}
        outputs = tuple(name for name in graph.outputs if name in names)
        splits = [w for _, w in coming] + [whole.splits[n] for n in inside] + [w for _, w in going]
        return replace(
            whole,
            graph=replace(graph, kernels=tuple(kernels), outputs=outputs),
            splits=tuple(splits),
            costs=self._padded([self._alone(whole, n) for n in inside]),
            held_bytes=self._padded([whole.held_bytes[n] for n in inside]),
            bonds={
                (place[a], place[b]): bond
                for (a, b), bond in whole.bonds.items()
                if a in place and b in place
            },
        )

    def _alone(self, whole: SplitTables, number: int) -> FloatArray:
        """Return what a kernel costs when others that it is bound to are in later stages.

        What would stay on the chip goes through memory: the maker pays for both ways.
        """
        costs = whole.costs[number]
        for (first, second), bond in whole.bonds.items():
            if first == number and not self.after >> second & 1:
                costs = costs + bond.costs.max(axis=1)
        return costs

    def _padded(self, columns: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
        """Return columns of the kernels of the part, with zeros for what comes and goes."""
        layouts = self.cuts.layouts
        return (
            *(np.zeros(len(layouts[n])) for n in self.arrivals),
            *columns,
            *(np.zeros(len(layouts[n])) for n in self.departures),
        )

    def _arrival(self, producer: int) -> tuple[Kernel, tuple[KernelSplit, ...]]:
        maker = self.cuts.tables.graph.kernels[producer]
        kernel = Kernel(maker.name, Unit.NONE, maker.dims, word_bytes=maker.word_bytes)
        layouts = self.cuts.layouts[producer]
        return kernel, tuple(KernelSplit(None, (), layout) for layout in layouts)

    def _departure(self, producer: int) -> tuple[Kernel, tuple[KernelSplit, ...]]:
        maker = self.cuts.tables.graph.kernels[producer]
        read = (Operand(maker.name, maker.dims),)
        kernel = Kernel(f"{maker.name}.send", Unit.NONE, maker.dims, read)
        layouts = self.cuts.layouts[producer]
        return kernel, tuple(KernelSplit(None, (layout,), layout) for layout in layouts)

    @property
    def _gates(self) -> tuple[int, ...]:
        """Numbers of arrivals and departures among the kernels of the tables."""
        coming, inside = len(self.arrivals), len(self.kernels)
        return (*range(coming), *range(coming + inside, coming + inside + len(self.departures)))

    @cached_property
    def _choices(self) -> tuple[SplitChoices, ...]:
        return tuple(SplitChoices(self._tables(whole)) for whole in self.cuts.sums)

    @cached_property
    def _reduced(self) -> tuple[Reduced, ...]:
        return tuple(Reduced(sums.graph, kept=self._gates) for sums in self._choices)

    @cached_property
    def bound(self) -> FloatArray:
        """For each layout of each tensor, what the part costs at least: exact for a single sum."""
        largest: FloatArray = np.maximum.reduce([reduced.table for reduced in self._reduced])
        return largest

    def best_ways(self, layouts: Sequence[int]) -> tuple[tuple[int, ...], float]:
        """Return ways of the kernels, given a layout on each axis, and the largest of the sums."""
        fixed = dict(zip(self._gates, layouts, strict=True))
        found = [reduced.choices(fixed) for reduced in self._reduced]
        costs = [max(sums.graph.time_s(ways) for sums in self._choices) for ways in found]
        best = int(np.argmin(costs))
        first = len(self.arrivals)
        return found[best][first : first + len(self.kernels)], costs[best]
