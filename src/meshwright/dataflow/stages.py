"""A graph cut into pipeline stages so that the slowest stage is as fast as possible, exactly.

A tensor crosses a cut in one layout. The stage that makes it brings it there; the stages that read
it change it again as they like, and stages in between hand it on as it is.

Stages are a chain of order ideals, and two stages have to agree on the layout of each tensor that
crosses. So the best chain is found by dynamic programming over ideals with the layouts of their
cuts: the least, over all chains, of the largest stage. Stages that certainly take longer than a
limit are left out; the limit grows until a chain exists, which is then the best.

The backward kernels of a forward kernel are on its stage. Forward tensors cross a cut in one
direction, and gradients in the other.

A tensor that skips stages is forwarded by each of them. It counts in every stage from the one that
makes it to the last that reads it, as in Ko et al. 2024 (arXiv 2412.16432), equation 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.branches import OpenDims
from meshwright.dataflow.ideals import as_bits, members, order_ideals
from meshwright.dataflow.layouts import KernelSplit, TensorLayout, closed_layouts
from meshwright.dataflow.price import SplitTimes
from meshwright.dataflow.sharding import GraphSharding, SplitTables
from meshwright.graph.kernels.backward import forward_kernels
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit
from meshwright.graph.op import Phase
from meshwright.search.choices.elimination import ChoiceGraph, Reduced

MOST_IDEALS = 1_000
"""Most ideals: every two of them may bound a stage."""
GROWTH = 1.25
"""Growth of the limit on a stage, until stages within it exist."""
ROUNDING = 1.0 + 1e-9
SendTime = Callable[[float], float]
"""Seconds in which a device hands a number of bytes to the next stage."""


@dataclass(frozen=True)
class Cuts:
    """Tensors that cross the cut behind a set of kernels, and the layouts that they may have."""

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
        return dict(sorted(found.items()))

    def crossing(self, ideal: int) -> tuple[int, ...]:
        """Return the producers on one side of a cut that have readers on the other.

        Gradients cross from behind the cut to the kernels before it.
        """
        return tuple(
            producer
            for producer, readers in self.readers.items()
            if readers & (~ideal if ideal >> producer & 1 else ideal)
        )

    @cached_property
    def ideals(self) -> tuple[int, ...]:
        """Sets of kernels as bits, the smaller ones first: ideals of the forward pass.

        Each backward kernel is where its forward kernel is.
        """
        graph = self.tables.graph
        owners = forward_kernels(graph)
        assert owners is not None, "gradients without a forward kernel"
        forward = np.unique(owners)
        rows = order_ideals(graph.reads[np.ix_(forward, forward)], MOST_IDEALS)
        return as_bits(rows[:, np.searchsorted(forward, owners)])

    def kept(self, part: Part) -> Iterator[int]:
        """Yield the arrivals of a part that its backward kernels read: a copy a pass in flight."""
        graph, inside = self.tables.graph, set(part.kernels)
        back = {n for n in inside if graph.kernels[n].phase is not Phase.FORWARD}
        for number in part.arrivals:
            if graph.kernels[number].phase is Phase.FORWARD and any(
                self.readers[number] >> n & 1 for n in back
            ):
                yield number

    @cached_property
    def layouts(self) -> tuple[tuple[TensorLayout, ...], ...]:
        """Layouts in which the output of a kernel may cross: no open sums."""
        tables = self.tables
        return tuple(
            closed_layouts(kernel.dims, tables.graph.sizes, tables.degree)
            for kernel in tables.graph.kernels
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
        """Producers outside of the part that it reads."""
        inside = self.after & ~self.before
        return tuple(
            n for n in self._crossing if self.cuts.readers[n] & inside and not inside >> n & 1
        )

    @cached_property
    def departures(self) -> tuple[int, ...]:
        """Producers of the part that others read."""
        inside = self.after & ~self.before
        return tuple(n for n in self._crossing if inside >> n & 1)

    @property
    def _crossing(self) -> tuple[int, ...]:
        """Producers of tensors that cross one of both cuts."""
        ends = (*self.cuts.crossing(self.before), *self.cuts.crossing(self.after))
        return tuple(dict.fromkeys(ends))

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
            pair_costs={
                (place[a], place[b]): bond
                for (a, b), bond in whole.pair_costs.items()
                if a in place and b in place
            },
            exits={place[n]: leaves for n, leaves in whole.exits.items() if n in place},
        )

    def _alone(self, whole: SplitTables, number: int) -> FloatArray:
        """Return the cost of a kernel when others that it is fused with may be in other stages."""
        costs, cut_cost = whole.costs[number], whole.cut_cost
        if cut_cost is None:
            return costs
        ends = self.before, self.after
        more: FloatArray = np.array([cut_cost(number, s, *ends) for s in whole.splits[number]])
        return costs + more

    def _padded(self, columns: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
        """Return columns of the kernels of the part, with zeros for arrivals and departures."""
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
    def _choices(self) -> tuple[ChoiceGraph, ...]:
        return tuple(self._tables(whole).choices for whole in self.cuts.sums)

    @cached_property
    def _reduced(self) -> tuple[Reduced, ...]:
        return tuple(Reduced(choices, kept=self._gates) for choices in self._choices)

    @cached_property
    def bound(self) -> FloatArray:
        """Least cost of the part for each layout of each tensor: exact for a single sum."""
        largest: FloatArray = np.maximum.reduce([reduced.table for reduced in self._reduced])
        return largest

    def best_ways(self, layouts: Sequence[int]) -> tuple[tuple[int, ...], float]:
        """Return ways of the kernels, given a layout on each axis, and the largest of the sums."""
        fixed = dict(zip(self._gates, layouts, strict=True))
        found = [reduced.choices(fixed) for reduced in self._reduced]
        costs = [max(choices.time_s(ways) for choices in self._choices) for ways in found]
        best = int(np.argmin(costs))
        first = len(self.arrivals)
        return found[best][first : first + len(self.kernels)], costs[best]


@dataclass(frozen=True)
class KernelStage:
    """Kernels that share a group of devices."""

    kernels: tuple[int, ...]
    ways: tuple[int, ...]
    """Split of each kernel, by its number."""
    busy: float
    """Time of computation and collectives."""
    send: float
    """Time to send the tensors that cross, overlapped with the rest."""
    kept_bytes: float = 0.0
    """Tensors of earlier stages that each pass in flight keeps for its backward pass [bytes]."""

    @property
    def cost(self) -> float:
        """The larger of busy and send time."""
        return max(self.busy, self.send)

    def total(self, columns: Sequence[FloatArray]) -> float:
        """Return the sum of a number that each kernel has for each of its splits."""
        chosen = zip(self.kernels, self.ways, strict=True)
        return sum(float(columns[kernel][way]) for kernel, way in chosen)


@dataclass(frozen=True)
class Stages:
    """The best cut into a number of stages or fewer."""

    stages: tuple[KernelStage, ...]
    lower_bound: float
    """Lower bound of the slowest stage under any cut."""
    num_ideals: int
    num_parts: int
    """Number of different stages that were priced."""

    @property
    def cost(self) -> float:
        """Time of the slowest stage."""
        return max(stage.cost for stage in self.stages)


def cut_stages(
    sums: Sequence[SplitTables], num_stages: int, send_time: SendTime, *, most: float = np.inf
) -> Stages | None:
    """Return the cut of a graph into stages with the fastest slowest stage.

    Parameters
    ----------
    sums
        A stage takes the largest of these, over the same graph and ways: a single one where
        collectives run before and after computation. Where both overlap: one, the
        other, and means of both, which tighten the bound. With several the cut may have a gap.
    most
        Most that a stage may take; None comes back where every cut has one that takes more.

    Raises
    ------
    UnsupportedError
        When the graph has too many order ideals to look at each of them.
    """
    return _Cutting(Cuts(tuple(sums)), send_time).solve(num_stages, most)


@dataclass
class _Cutting:
    """Parts of a graph, priced when they are first needed."""

    cuts: Cuts
    send_time: SendTime
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)

    @property
    def tables(self) -> SplitTables:
        return self.cuts.tables

    @property
    def ideals(self) -> tuple[int, ...]:
        return self.cuts.ideals

    @cached_property
    def crossing(self) -> dict[int, tuple[int, ...]]:
        return {ideal: self.cuts.crossing(ideal) for ideal in self.ideals}

    @cached_property
    def least(self) -> FloatArray:
        """Least cost of each kernel in each sum, (sums, kernels)."""
        return np.array([[float(c.min()) for c in sums.costs] for sums in self.cuts.sums])

    def solve(self, num_stages: int, most: float) -> Stages | None:
        """Return the best chain of ideals with stages that take no more than a limit."""
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
        """Return the best slowest stage after one more, by layouts of crossing tensors."""
        axes, total = self._slowest(before, after, reached)
        gone = tuple(n for n, tensor in enumerate(axes) if tensor not in self.crossing[after])
        left = [tensor for tensor in axes if tensor in self.crossing[after]]
        least = total.min(axis=gone) if gone else total
        order = [left.index(tensor) for tensor in self.crossing[after]]
        return least.transpose(order) if order else least

    def _slowest(
        self, before: int, after: int, reached: FloatArray
    ) -> tuple[tuple[int, ...], FloatArray]:
        """Return the slowest stage so far, for each layout of the tensors that cross either cut."""
        part = self._part(before, after)
        axes = self._axes(before, after)
        spread = self._spread(reached, self.crossing[before], axes)
        busy = self._spread(part.bound, part.tensors, axes)
        return axes, np.maximum(spread, np.maximum(busy, self._sends(axes)))

    def _axes(self, before: int, after: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.crossing[before], *self.crossing[after])))

    def _sends(self, axes: Sequence[int]) -> FloatArray:
        """Return the time to send each tensor that crosses either cut, in its layout."""
        total = np.zeros([len(self.cuts.layouts[tensor]) for tensor in axes])
        for tensor in axes:
            seconds = np.array([self.send_time(b) for b in self._bytes_in_layouts(tensor)])
            total = total + self._spread(seconds, (tensor,), axes)
        return total

    def _bytes_in_layouts(self, tensor: int) -> list[float]:
        """Return the bytes of a tensor on a device in each layout in which it may cross [bytes]."""
        graph, layouts = self.tables.graph, self.cuts.layouts[tensor]
        num_bytes = graph.tensor_bytes(graph.kernels[tensor])
        return [num_bytes / (1 if at.place is None else self.tables.degree) for at in layouts]

    def _spread(self, table: FloatArray, tensors: Sequence[int], axes: Sequence[int]) -> FloatArray:
        """Return a table with one axis for each of the wanted ones."""
        order = sorted(range(len(tensors)), key=lambda place: axes.index(tensors[place]))
        shape = [len(self.cuts.layouts[axis]) if axis in tensors else 1 for axis in axes]
        return table.transpose(order).reshape(shape)

    def _part(self, before: int, after: int) -> Part:
        if (before, after) not in self.parts:
            self.parts[before, after] = Part(self.cuts, before, after)
        return self.parts[before, after]

    def _way_back(self, values: list[dict[int, FloatArray]], number: int) -> list[KernelStage]:
        """Return the stages that reach the end in the best way."""
        stages: list[KernelStage] = []
        after, layouts = self.ideals[-1], dict[int, int]()
        while number:
            target = float(values[number][after][tuple(layouts[t] for t in self.crossing[after])])
            before, layouts = self._step_back(values[number - 1], after, layouts, target)
            part = self._part(before, after)
            at = [layouts[tensor] for tensor in part.tensors]
            sends = self._sends(self._axes(before, after))
            send = float(sends[tuple(layouts[t] for t in self._axes(before, after))])
            kept = sum(self._bytes_in_layouts(n)[layouts[n]] for n in self.cuts.kept(part))
            stages.append(KernelStage(part.kernels, *part.best_ways(at), send, kept))
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


@dataclass(frozen=True)
class StageWork:
    """Some repetitions of a graph on the devices of one stage."""

    graph: DataflowGraph
    tp: int
    """Devices over which kernels are split."""
    sharding: GraphSharding
    network: SplitTables
    """Its ways with their collectives and messages alone [s]."""
    layers: int
    """Repetitions on the stage."""
    num_passes: int
    """Passes of a replica in a step."""
    most_s: float = float("inf")
    """Longest useful time of a stage; a price of one that is certainly longer may be infinite
    [s]."""

    @property
    def network_s(self) -> dict[str, float]:
        """Seconds of network that each kernel causes, for one repetition and one pass.

        Changes of layout of its output, the sum that it leaves open at the end, its messages, and
        its part of the sums of gradients of weights over the group.
        """
        return self.network.costs_by_kernel(self.sharding.ways)


@dataclass(frozen=True)
class StagePrice:
    """Time of one pass through a stage, collectives included."""

    time_s: float
    bound_s: float
    """Lower bound under any split of the kernels [s]."""


@dataclass(frozen=True)
class StageTime:
    """The price of stages of one kind of chip, in place of the roofline."""

    price: Callable[[StageWork], StagePrice | None]
    """Function that prices the work of a stage; None where it does not fit."""
    bound_s: Callable[[StageWork, OpenDims, float], float]
    """Function from work, the dims over which each kernel may be split, and the seconds of a known
    price, to seconds that none of these splits undercuts, collectives apart [s]."""
    compute_s: Callable[[SplitTimes], Sequence[FloatArray]]
    """Function that returns the least computation of each split of each kernel [s]."""


def sent_bytes(graph: DataflowGraph, tp: int, sharding: GraphSharding) -> float:
    """Return the bytes that a device sends to the next repetition: its part of each tensor [bytes].

    A tensor that every reader wants split crosses split; the rest crosses whole.
    """
    wanted: dict[int, set[TensorLayout]] = defaultdict(set)
    sizes: dict[int, float] = {}
    for read in graph.all_edges:
        if read.is_carried:
            wanted[read.producer].add(sharding.splits[read.consumer].reads[read.place])
            sizes[read.producer] = max(sizes.get(read.producer, 0.0), read.num_bytes)
    return sum(
        sizes[producer] / (tp if all(layout.place is not None for layout in layouts) else 1)
        for producer, layouts in wanted.items()
    )
