"""Branches of a graph that are alike, such as experts: of equal ways to cut them one is kept.

Two branches are alike when exchanging them kernel by kernel leaves the graph as it was. A state of
a branch is which of its kernels are in an ideal. Of all ideals that differ only by exchanges, the
one whose states do not rise from branch to branch stands for all; the same holds for the second
ideal of a step among branches that are equal in the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.dataflow.fusion.problem import FusionProblem

MOST_KERNELS = 60
"""In a branch, so that its state is a whole number of 64 bits."""


@dataclass(frozen=True)
class Branches:
    """Groups of branches that are alike, each of shape (branches, kernels of a branch)."""

    groups: tuple[IntArray, ...]

    def are_canonical(self, before: BoolArray, after: BoolArray) -> BoolArray:
        """Return which steps stand for all that differ from them by exchanges."""
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
    kernels = [_facts(problem, kernel) for kernel in range(problem.num_kernels)]
    rows = _tensor_rows(problem)
    colours = _colours(kernels, rows)
    by_form: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for branch in _components(problem.reads, _repeated(colours)):
        by_form[tuple(sorted(colours[kernel] for kernel in branch))].append(branch)
    groups = []
    for form, branches in by_form.items():
        if len(branches) > 1 and len(set(form)) == len(form) <= MOST_KERNELS:
            group = _aligned(sorted(branches), colours)
            if group is not None and _are_exchangeable(group, kernels, rows):
                groups.append(group)
    return Branches(tuple(groups))


class _Tensor(NamedTuple):
    """A tensor: its writer, its readers with their buffers, and its sizes."""

    writer: int
    readers: frozenset[tuple[int, float, float]]
    sizes: tuple[float, float]

    def moved(self, to: Mapping[int, int]) -> _Tensor:
        """Return the tensor after kernels have changed places."""
        readers = frozenset({(to.get(reader, reader), a, b) for reader, a, b in self.readers})
        return _Tensor(to.get(self.writer, self.writer), readers, self.sizes)


def _facts(problem: FusionProblem, kernel: int) -> tuple[object, ...]:
    """Return everything that is stated of a kernel by itself."""
    columns = (
        problem.held_bytes, problem.setup_bytes, problem.looked_up_bytes, problem.network_s,
        problem.phase,
    )  # fmt: skip
    cores, cycles = problem.choices[kernel]
    return (cores.tobytes(), cycles.tobytes(), *(float(column[kernel]) for column in columns))


def _tensor_rows(problem: FusionProblem) -> list[_Tensor]:
    """Return all tensors."""
    tensors = problem.tensors
    ends: list[frozenset[tuple[int, float, float]]] = [
        frozenset({(int(reader), float(here), float(there)) for reader, here, there in row})
        for row in np.stack([tensors.readers, tensors.inside_bytes, tensors.read_bytes], axis=2)
    ]
    sizes = zip(tensors.sequence_bytes.tolist(), tensors.written_bytes.tolist(), strict=True)
    rows = zip(tensors.writer.tolist(), ends, sizes, strict=True)
    return [_Tensor(writer, readers, size) for writer, readers, size in rows]


def _colours(kernels: Sequence[tuple[object, ...]], tensors: Sequence[_Tensor]) -> list[int]:
    """Return a colour for each kernel; kernels that can be exchanged have the same one.

    Colours start from what is stated of a kernel and are refined by those of its neighbours until
    nothing changes.
    """
    colours = _numbered(kernels)
    while True:
        seen: list[list[str]] = [[] for _ in [*colours, -1]]
        outside = [*colours, -1]
        for writer, readers, sizes in tensors:
            ends = sorted((outside[reader], *buffers) for reader, *buffers in readers)
            seen[writer].append(repr(("writes", ends, sizes)))
            for reader, *buffers in readers:
                seen[reader].append(repr(("reads", outside[writer], buffers, ends, sizes)))
        refined = _numbered([(c, *sorted(s)) for c, s in zip(colours, seen, strict=False)])
        if len(set(refined)) == len(set(colours)):
            return refined
        colours = refined


def _numbered(values: Sequence[tuple[object, ...]]) -> list[int]:
    """Return a number for each value, the same for equal ones."""
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _repeated(colours: list[int]) -> list[int]:
    """Return the kernels whose colour others have too."""
    return [kernel for kernel, colour in enumerate(colours) if colours.count(colour) > 1]


def _components(reads: BoolArray, kernels: list[int]) -> list[list[int]]:
    """Return the parts of a graph that hang together through these kernels alone."""
    left, found = set(kernels), []
    joined = reads | reads.T
    while left:
        branch: set[int] = set()
        edge = {min(left)}
        while edge:
            branch |= edge
            left -= edge
            edge = {other for kernel in edge for other in left if joined[kernel, other]}
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
    group: IntArray, kernels: Sequence[tuple[object, ...]], tensors: Sequence[_Tensor]
) -> bool:
    """Tell whether exchanging any two neighbours leaves all kernels and tensors as they were."""
    counted = Counter(tensors)
    for one, other in zip(group[:-1].tolist(), group[1:].tolist(), strict=True):
        swap = {**dict(zip(one, other, strict=True)), **dict(zip(other, one, strict=True))}
        if any(kernels[a] != kernels[b] for a, b in swap.items()):
            return False
        if Counter(tensor.moved(swap) for tensor in tensors) != counted:
            return False
    return True
