"""Order ideals within limits, and the steps between them: every way to cut a graph into partitions.

Partitions that run one after the other are a chain of ideals; the difference of an ideal and the
one before it is a partition, and its price depends on that set alone. So the best partitions are a
shortest path over ideals.

Two branches, such as experts, are alike when exchanging them kernel by kernel leaves the graph as
it was. A state of a branch is which of its kernels are in an ideal. Of all ideals that differ only
by exchanges, the one whose states do not rise from branch to branch stands for all; the same holds
for the second ideal of a step among branches that are equal in the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.ideals import TooWideError, all_needs, larger_ideals, order_ideals

MOST_KERNELS = 60
"""Most kernels in a branch, so that its state is a whole number of 64 bits."""


@dataclass(frozen=True)
class Branches:
    """Groups of branches that are alike, each of shape (branches, kernels of a branch)."""

    groups: tuple[IntArray, ...]

    def are_canonical(self, before: BoolArray, after: BoolArray) -> BoolArray:
        """Return whether each step represents all steps that differ from it by exchanges."""
        kept = np.ones(len(after), bool)
        for group in self.groups:
            start, end = _states(before, group), _states(after, group)
            is_equal = start[:, 1:] == start[:, :-1]
            kept &= np.all(~is_equal | (end[:, 1:] <= end[:, :-1]), axis=1)
        return kept

    def canonical(self, ideals: BoolArray) -> BoolArray:
        """Return the ideals that stand for these."""
        found = ideals.copy() if self.groups else ideals
        for group in self.groups:
            states = -np.sort(-_states(ideals, group), axis=1)
            places = np.arange(group.shape[1])[::-1]
            found[:, group] = (states[:, :, None] >> places & 1).astype(bool)
        return found


def _states(ideals: BoolArray, group: IntArray) -> IntArray:
    """Return the state of each branch: its kernels as bits, the first one highest."""
    places = np.arange(group.shape[1], dtype=np.int64)[::-1]
    states: IntArray = np.sum(ideals[:, group].astype(np.int64) << places, axis=2)
    return states


def alike_branches(problem: FusionProblem) -> Branches:
    """Return the branches of a problem that are alike."""
    level = [0] * problem.num_kernels  # kernels of different depth are never exchanged
    for kernel, before in np.argwhere(problem.reads).tolist():
        level[kernel] = max(level[kernel], level[before] + 1)
    kernels = [(level[k], *_facts(problem, k)) for k in range(problem.num_kernels)]
    rows = _tensor_rows(problem)
    colours = _colours(kernels, rows)
    by_form: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for branch in _components(problem.reads, _repeated(colours)):
        by_form[tuple(sorted(colours[kernel] for kernel in branch))].append(branch)
    touching: list[set[int]] = [set() for _ in [*kernels, ()]]
    for row, tensor in enumerate(rows):
        for kernel in (tensor.writer, *(reader for reader, _ in tensor.readers)):
            touching[kernel].add(row)
    groups = []
    for form, branches in by_form.items():
        if len(branches) > 1 and len(set(form)) == len(form) <= MOST_KERNELS:
            group = _aligned(sorted(branches), colours)
            if group is not None and _are_exchangeable(group, kernels, rows, touching):
                groups.append(group)
    return Branches(tuple(groups))


Reader = tuple[int, tuple[float, ...]]
"""A kernel, its buffers inside and from outside, and 1 where it waits for all tiles: by tile."""


class _Tensor(NamedTuple):
    """A tensor: its writer, its readers with their buffers and waits, and its sizes."""

    writer: int
    readers: frozenset[Reader]
    sizes: tuple[float, ...]

    def moved(self, to: Mapping[int, int]) -> _Tensor:
        """Return the tensor after kernels have changed places."""
        readers = frozenset({(to.get(reader, reader), rest) for reader, rest in self.readers})
        return _Tensor(to.get(self.writer, self.writer), readers, self.sizes)


def _facts(problem: FusionProblem, kernel: int) -> tuple[object, ...]:
    """Return all facts on a kernel by itself."""
    columns = (
        problem.held_bytes, problem.setup_bytes, problem.looked_up_bytes, problem.network_s,
        problem.phase,
    )  # fmt: skip
    shapes = (part.tobytes() for tile in problem.tiles for part in tile.choices[kernel])
    return (*shapes, *(float(column[kernel]) for column in columns))


def _tensor_rows(problem: FusionProblem) -> list[_Tensor]:
    """Return all tensors."""
    tensors = problem.tensors
    columns: list[NDArray[Any]] = [tensors.readers]
    for tile in problem.tiles:
        waits = np.pad(tile.waits, ((0, 1), (0, 1)))[tensors.readers, tensors.writer[:, None]]
        columns += [tile.tensors.inside_bytes, tile.tensors.read_bytes, waits]
    ends: list[frozenset[Reader]] = [
        frozenset({(int(reader), tuple(map(float, rest))) for reader, *rest in row})
        for row in np.stack(columns, axis=2)
    ]
    written = (tile.tensors.written_bytes.tolist() for tile in problem.tiles)
    sizes = zip(tensors.sequence_bytes.tolist(), *written, strict=True)
    rows = zip(tensors.writer.tolist(), ends, sizes, strict=True)
    return [_Tensor(writer, readers, size) for writer, readers, size in rows]


def _colours(kernels: Sequence[tuple[object, ...]], tensors: Sequence[_Tensor]) -> list[int]:
    """Return a colour for each kernel; kernels that can be exchanged have the same one.

    Colours start from the facts on a kernel and are refined by those of its neighbours until
    nothing changes.
    """
    colours = _numbered(kernels)
    while True:
        seen: list[list[tuple[Any, ...]]] = [[] for _ in [*colours, -1]]
        outside = [*colours, -1]
        for writer, readers, sizes in tensors:
            ends = tuple(sorted((outside[reader], buffers) for reader, buffers in readers))
            seen[writer].append((0, ends, sizes))
            for reader, buffers in readers:
                seen[reader].append((1, outside[writer], buffers, ends, sizes))
        refined = _numbered([(c, *sorted(s)) for c, s in zip(colours, seen, strict=False)])
        if len(set(refined)) == len(set(colours)):
            return refined
        colours = refined


def _numbered(values: Sequence[tuple[object, ...]]) -> list[int]:
    """Return a number for each value, the same for equal ones."""
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _repeated(colours: list[int]) -> list[int]:
    """Return the kernels with a colour that other kernels have too."""
    counted = Counter(colours)
    return [kernel for kernel, colour in enumerate(colours) if counted[colour] > 1]


def _components(reads: BoolArray, kernels: list[int]) -> list[list[int]]:
    """Return the parts of a graph that hang together through these kernels alone."""
    left, found = set(kernels), []
    while left:
        branch: set[int] = set()
        edge = {min(left)}
        while edge:
            branch |= edge
            left -= edge
            ends = (np.flatnonzero(reads[kernel] | reads[:, kernel]) for kernel in edge)
            edge = left.intersection(other for row in ends for other in row.tolist())
        found.append(sorted(branch))
    return found


def _aligned(branches: list[list[int]], colours: list[int]) -> IntArray | None:
    """Return branches with equal colours in one column, where their kernels rise in both ways."""
    form = [colours[kernel] for kernel in branches[0]]
    rows = [sorted(branch, key=lambda kernel: form.index(colours[kernel])) for branch in branches]
    group = np.array(rows, np.int64)
    rises = np.all(np.diff(group, axis=0) > 0) and np.all(np.diff(group, axis=1) > 0)
    return group if rises else None


def _are_exchangeable(
    group: IntArray,
    kernels: Sequence[tuple[object, ...]],
    tensors: Sequence[_Tensor],
    touching: Sequence[set[int]],
) -> bool:
    """Return whether exchanging any two neighbours leaves all kernels and tensors as they were.

    ``touching`` lists the tensors of each kernel.
    """
    near = [tensors[row] for row in set().union(*(touching[k] for k in group.ravel().tolist()))]
    counted = Counter(near)
    for one, other in zip(group[:-1].tolist(), group[1:].tolist(), strict=True):
        swap = {**dict(zip(one, other, strict=True)), **dict(zip(other, one, strict=True))}
        if any(kernels[a] != kernels[b] for a, b in swap.items()):
            return False
        if Counter(tensor.moved(swap) for tensor in near) != counted:
            return False
    return True


ROUNDING = 1e-9
"""Relative tolerance of sums of the same bytes in another order."""
MOST_IDEALS = 20_000
"""Ideals beyond which a graph counts as wide."""
MOST_STEPS = 1_500_000
"""Steps beyond which a graph counts as wide: they take the memory and the time."""


@dataclass(frozen=True)
class Limits:
    """Limits on partitions; equal limits have the same lattice."""

    needs: BoolArray
    """Shape (kernels, kernels): whether the first comes only after the second."""
    phase: IntArray
    held_bytes: FloatArray
    sram_bytes: float
    branches: Branches
    """Equal branches; their orders count once."""

    @cached_property
    def key(self) -> tuple[object, ...]:
        """A value that equal limits share."""
        groups = tuple((group.shape, group.tobytes()) for group in self.branches.groups)
        columns = (self.needs, self.phase, self.held_bytes)
        return (*(column.tobytes() for column in columns), self.sram_bytes, groups)

    def allows(self, before: BoolArray, after: BoolArray, kernel: IntArray) -> BoolArray:
        """Return whether each step may be a partition, by the kernel that comes last.

        The kernels that a step adds are of one phase, and their weights fit the SRAM unless it is
        one kernel. No kernel comes before one of an earlier phase, so the last one has the latest
        of them.
        """
        counted = np.column_stack([self.held_bytes, self.phase, np.ones(len(self.phase))])
        held, phases, count = ((after ^ before) @ counted).T
        fits = (held <= self.sram_bytes) | (count == 1)
        is_mixed = phases < count * self.phase[kernel]
        allowed: BoolArray = fits & ~is_mixed & self.stand(before, after, kernel)
        return allowed

    def within(self, first: int, last: int) -> Limits:
        """Return the limits of the kernels from one to before another; no branches cross these."""
        inside = slice(first, last)
        groups = (g - first for g in self.branches.groups if first <= g.min() and g.max() < last)
        return Limits(
            self.needs[inside, inside], self.phase[inside], self.held_bytes[inside],
            self.sram_bytes, Branches(tuple(groups)),
        )  # fmt: skip

    def stand(self, before: BoolArray, after: BoolArray, kernel: IntArray) -> BoolArray:
        """Return which sets stand for all that differ from them by exchanges of branches."""
        return self.branches.are_canonical(before, after)


def limits_of(problem: FusionProblem) -> Limits:
    """Return the limits of a problem."""
    return Limits(
        problem.needs, problem.phase, problem.held_bytes, problem.grid.sram_bytes,
        alike_branches(problem),
    )  # fmt: skip


class Window(NamedTuple):
    """Sets of kernels that are close to one another."""

    first: int
    """Number of the kernel of the first column."""
    sets: BoolArray
    """Shape (sets, kernels of the window)."""


@dataclass(frozen=True)
class Lattice:
    """Ideals, the smaller ones first, and steps between them that may be partitions."""

    ideals: BoolArray
    """Shape (ideals, kernels)."""
    source: IntArray
    target: IntArray
    """Ideals before and after each step; steps are in the order of their targets."""
    partition: IntArray
    """Index of the set of kernels that each step runs."""
    windows: tuple[Window, ...]
    """The sets, in their order."""

    @cached_property
    def size(self) -> IntArray:
        """Kernels of each ideal."""
        found: IntArray = self.ideals.sum(axis=1)
        return found

    @cached_property
    def num_sets(self) -> int:
        """Number of sets."""
        return sum(len(window.sets) for window in self.windows)

    @cached_property
    def sets(self) -> BoolArray:
        """All sets in one, shape (sets, kernels): of a small graph."""
        found, row = np.zeros((self.num_sets, self.ideals.shape[1]), bool), 0
        for first, sets in self.windows:
            found[row : row + len(sets), first : first + sets.shape[1]] = sets
            row += len(sets)
        return found

    def members(self, step: int) -> BoolArray:
        """Return the kernels that a step runs, shape (kernels,)."""
        found: BoolArray = self.ideals[self.target[step]] & ~self.ideals[self.source[step]]
        return found

    def in_tiles(self, number: IntArray) -> Lattice:
        """Return the lattice with a step for each price of the set that it runs.

        Parameters
        ----------
        number
            The set of each price. The partition of a step is then the index of a price.
        """
        order = np.argsort(number, kind="stable")
        times = np.bincount(number, minlength=self.num_sets)
        first, often = np.cumsum(times) - times, times[self.partition]
        step = np.repeat(np.arange(len(self.partition)), often)
        place = np.arange(len(step)) - np.repeat(np.cumsum(often) - often, often)
        return replace(
            self, source=self.source[step], target=self.target[step],
            partition=order[first[self.partition[step]] + place],
        )  # fmt: skip

    def of_sets(self, chosen: BoolArray) -> Lattice:
        """Return the lattice of the steps that run some of the sets."""
        steps, number = chosen[self.partition], np.cumsum(chosen) - 1
        partition = number[self.partition[steps]]
        sets = (Window(0, self.sets[chosen]),)
        return Lattice(self.ideals, self.source[steps], self.target[steps], partition, sets)

    @cached_property
    def backwards(self) -> IntArray:
        """The steps in the order of falling sources."""
        found: IntArray = np.argsort(-self.source, kind="stable")
        return found


def chain_of(sets: BoolArray) -> Lattice:
    """Return the lattice of given partitions, shape (partitions, kernels), one after the other."""
    nothing = np.zeros((1, sets.shape[1]), bool)
    places = np.arange(len(sets))
    ideals = np.concatenate([nothing, np.logical_or.accumulate(sets, axis=0)])
    return Lattice(ideals, places, places + 1, places, (Window(0, sets),))


def row_of(limits: Limits, most_steps: int) -> Lattice:
    """Return the lattice of kernels in their own order alone; of too many steps the short ones."""
    held, numbers = np.append(0.0, np.cumsum(limits.held_bytes)), np.arange(len(limits.phase))
    last, first = np.tril_indices(len(numbers))
    fits = (held[last + 1] - held[first] <= limits.sram_bytes) | (first == last)
    fits &= limits.phase[first] == limits.phase[last]
    length = np.where(fits, last - first, len(numbers))
    rows = np.sort(np.argsort(length, kind="stable")[: min(int(fits.sum()), most_steps)])
    first, last = first[rows], last[rows]
    sets = (first[:, None] <= numbers) & (numbers <= last[:, None])
    ideals = numbers < np.arange(len(numbers) + 1)[:, None]
    return Lattice(ideals, first, last + 1, np.arange(len(rows)), (Window(0, sets),))


def lattice_of(
    limits: Limits, most_steps: int | None = None, most_ideals: int | None = None
) -> Lattice:
    """Return all ideals and steps within limits.

    Parameters
    ----------
    limits
        Limits on the partitions.
    most_steps, most_ideals
        Largest numbers allowed; None for the usual numbers.

    Raises
    ------
    TooWideError
        When there are too many ideals, or steps between them.
    """
    most = MOST_IDEALS if most_ideals is None else most_ideals
    ideals = order_ideals(limits.needs, most, kept=limits.stand)
    most = MOST_STEPS if most_steps is None else most_steps
    windows, steps = _Windows(limits, ideals), []
    grown: dict[tuple[object, ...], _Grown] = {}
    num_sets, found = 0, 0
    for rows in windows.rows:
        first, last = windows.around(rows)
        here, start = limits.within(first, last), ideals[rows, first:last]
        key = (start.shape, start.tobytes(), here.key)
        if key not in grown:
            grown[key] = _grown(here, start, most)
        one = grown[key]
        found += len(one.source)
        if found > most:
            raise TooWideError(f"more than {most} sets of kernels: too many lie side by side")
        target = windows.numbers(one.after, first, last)
        steps.append(
            (rows.start + one.source, target, num_sets + one.partition, Window(first, one.sets))
        )
        num_sets += len(one.sets)
    *columns, sets = zip(*steps, strict=True)
    source, target, partition = (np.concatenate(column) for column in columns)
    size = ideals.sum(axis=1)
    order = np.lexsort((source, size[target] - size[source], target))
    return Lattice(ideals, source[order], target[order], partition[order], sets)


@dataclass(frozen=True)
class _Grown:
    """Steps from some ideals, as columns of a window, and the different sets that they run."""

    source: IntArray
    after: BoolArray
    """The ideals behind the steps, shape (steps, kernels of the window)."""
    partition: IntArray
    sets: BoolArray


def _grown(limits: Limits, start: BoolArray, most: int) -> _Grown:
    """Return all steps from some ideals within limits."""
    steps = list(larger_ideals(start, limits.needs, most, kept=limits.allows))
    source = np.concatenate([origin for origin, _ in steps])
    after = np.concatenate([grown for _, grown in steps])
    beyond = after & ~start[source]
    _, first, partition = np.unique(row_keys(beyond), return_index=True, return_inverse=True)
    return _Grown(source, limits.branches.canonical(after), partition, beyond[first])


SPAN = 32
"""Sizes of ideals whose steps are found together, at least; of a smaller graph all."""
MOST_PERIOD = 512
"""Longest period of kernels that is looked for."""


class _Windows:
    """Ideals of similar sizes, and the kernels that steps from them may run.

    A long graph is a row of windows: a step runs kernels of one, and equal windows are alike. So
    the sizes of a window are a multiple of the period of the kernels.
    """

    def __init__(self, limits: Limits, ideals: BoolArray) -> None:
        self.limits, self.ideals = limits, ideals
        count = ideals.shape[1]
        self._begins = np.where(ideals.all(axis=1), count, ideals.argmin(axis=1))
        last = count - ideals[:, ::-1].argmax(axis=1)
        self._ends = np.where(ideals.any(axis=1), last, 0)
        before = all_needs(limits.needs)
        self._before_bytes = np.array([limits.held_bytes[row].sum() for row in before])

    @property
    def rows(self) -> list[slice]:
        """The ideals of each window; all but the last one have steps."""
        count = self.ideals.shape[1]
        period = _period(self.limits)
        span = count if count <= 2 * SPAN else period * -(-SPAN // period)
        starts = np.flatnonzero(np.diff(self.ideals[:-1].sum(axis=1) // span, prepend=-1))
        ends = [*starts[1:].tolist(), len(self.ideals) - 1]
        return [slice(*ends) for ends in zip(starts.tolist(), ends, strict=True)]

    def around(self, rows: slice) -> tuple[int, int]:
        """Return the first kernel that steps from some ideals may run, and the one after the last.

        What a kernel needs beyond the ideals must run in the same step: a single kernel has all
        before it, several hold no more than the SRAM. Branches that are alike are not cut.
        """
        limits, inside = self.limits, self.ideals[rows].any(axis=0)
        held = limits.held_bytes
        beyond = self._before_bytes - held[inside].sum()
        rounding = ROUNDING * float(self._before_bytes.max(initial=0.0))
        together = beyond + np.where(inside, 0.0, held) <= limits.sram_bytes + rounding
        may = together | (beyond <= rounding)
        first = int(self._begins[rows].min())
        last = max(first + 1, int(self._ends[rows].max()), int(np.flatnonzero(may)[-1]) + 1)
        crossing = [(int(g.min()), int(g.max()) + 1) for g in limits.branches.groups]
        while True:
            cut = [(low, high) for low, high in crossing if low < last and high > first]
            wider = min([first, *(low for low, _ in cut)]), max([last, *(high for _, high in cut)])
            if wider == (first, last):
                return wider
            first, last = wider

    def numbers(self, ideals: BoolArray, first: int, last: int) -> IntArray:
        """Return the numbers of ideals that differ in the kernels of a window alone."""
        here = np.flatnonzero((self._begins >= first) & (self._ends <= last))
        keys = row_keys(self.ideals[here, first:last])
        in_order = np.argsort(keys)
        found: IntArray = here[in_order[np.searchsorted(keys, row_keys(ideals), sorter=in_order)]]
        return found


def _period(limits: Limits) -> int:
    """Return the distance at which most kernels have an equal one, at least 1."""
    rows, columns = np.nonzero(limits.needs)
    back = np.bincount(rows, (rows - columns).astype(np.float64) ** 2, len(limits.phase))
    facts = np.column_stack([limits.held_bytes, limits.phase, back])
    for period in range(1, min(MOST_PERIOD, len(facts) // 2) + 1):
        if np.mean(np.all(facts[period:] == facts[:-period], axis=1)) > 0.5:
            return period
    return 1


def row_keys(rows: BoolArray) -> NDArray[Any]:
    """Return one value for each row of booleans, equal where rows are equal, that can be sorted."""
    bits = np.packbits(rows, axis=1)
    padded = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    if padded.shape[1] == 8:
        return padded.view(np.uint64)[:, 0]
    return padded.view(f"V{padded.shape[1]}")[:, 0]
