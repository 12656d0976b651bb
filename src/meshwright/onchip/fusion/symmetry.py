"""Branches of a graph that are alike, such as experts: of equal ways to cut them one is kept.

Two branches are alike when exchanging them kernel by kernel leaves the graph as it was. A state of
a branch is which of its kernels are in an ideal. Of all ideals that differ only by exchanges, the
one whose states do not rise from branch to branch stands for all; the same holds for the second
ideal of a step among branches that are equal in the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.onchip.fusion.problem import FusionProblem

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
    colours = _colours(problem)
    by_form: dict[Hashable, list[list[int]]] = defaultdict(list)
    for branch in _components(problem.reads, _repeated(colours)):
        by_form[tuple(sorted(colours[kernel] for kernel in branch))].append(branch)
    facts = _facts(problem)
    groups = []
    for form, branches in by_form.items():
        if len(branches) > 1 and len(set(form)) == len(form) <= MOST_KERNELS:
            group = _aligned(sorted(branches), colours)
            if group is not None and _are_exchangeable(group, facts):
                groups.append(group)
    return Branches(tuple(groups))


def _kernel_facts(problem: FusionProblem, kernel: int) -> Hashable:
    """Return everything that is stated of a kernel by itself."""
    return (
        id(problem.choices[kernel]), float(problem.weight_bytes[kernel]),
        float(problem.network_s[kernel]), int(problem.phase[kernel]),
    )  # fmt: skip


def _facts(problem: FusionProblem) -> tuple[list[Hashable], dict[Hashable, int]]:
    """Return what is stated of each kernel, and how often each tensor occurs."""
    count: dict[Hashable, int] = defaultdict(int)
    for tensor in _tensor_rows(problem):
        count[tensor] += 1
    return [_kernel_facts(problem, kernel) for kernel in range(problem.num_kernels)], count


def _tensor_rows(
    problem: FusionProblem,
) -> list[tuple[int, frozenset[tuple[int, float, float]], tuple[float, float]]]:
    """Return each tensor: its writer, its readers with their buffers, and its sizes."""
    tensors = problem.tensors
    return [
        (
            int(tensors.writer[t]),
            frozenset(
                zip(
                    tensors.readers[t].tolist(), tensors.inside_bytes[t].tolist(),
                    tensors.read_bytes[t].tolist(), strict=True,
                )
            ),
            (float(tensors.sequence_bytes[t]), float(tensors.written_bytes[t])),
        )
        for t in range(len(tensors.writer))
    ]  # fmt: skip


def _colours(problem: FusionProblem) -> list[int]:
    """Return a colour for each kernel; kernels that can be exchanged have the same one.

    Colours start from what is stated of a kernel and are refined by those of its neighbours until
    nothing changes.
    """
    rows = _tensor_rows(problem)
    colours = _numbered([_kernel_facts(problem, k) for k in range(problem.num_kernels)])
    while True:
        seen: list[list[Hashable]] = [[] for _ in colours]
        outside = [*colours, -1]
        for writer, readers, sizes in rows:
            ends = tuple(sorted((outside[reader], *buffers) for reader, *buffers in readers))
            if writer < len(colours):
                seen[writer].append(("writes", ends, sizes))
            for reader, *_ in readers:
                if reader < len(colours):
                    seen[reader].append(("reads", outside[writer], ends, sizes))
        signs = [(c, tuple(sorted(map(repr, s)))) for c, s in zip(colours, seen, strict=True)]
        refined = _numbered(signs)
        if len(set(refined)) == len(set(colours)):
            return refined
        colours = refined


def _numbered(values: list[Hashable] | list[tuple[int, tuple[str, ...]]]) -> list[int]:
    """Return a number for each value, the same for equal ones."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _repeated(colours: list[int]) -> list[int]:
    """Return the kernels whose colour others have too."""
    return [k for k, colour in enumerate(colours) if colours.count(colour) > 1]


def _components(reads: BoolArray, kernels: list[int]) -> list[list[int]]:
    """Return the parts of a graph that hang together through these kernels alone."""
    left, found = set(kernels), []
    joined = reads | reads.T
    while left:
        branch, edge = set(), {min(left)}
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


def _are_exchangeable(group: IntArray, facts: tuple[list[Hashable], dict[Hashable, int]]) -> bool:
    """Tell whether exchanging any two neighbours leaves all kernels and tensors as they were."""
    kernels, tensors = facts
    for one, other in zip(group[:-1].tolist(), group[1:].tolist(), strict=True):
        swap = {**dict(zip(one, other, strict=True)), **dict(zip(other, one, strict=True))}
        if any(kernels[a] != kernels[b] for a, b in swap.items()):
            return False
        moved: dict[Hashable, int] = defaultdict(int)
        for (writer, readers, sizes), count in tensors.items():
            ends = frozenset((swap.get(reader, reader), *rest) for reader, *rest in readers)
            moved[(swap.get(writer, writer), ends, sizes)] += count
        if moved != tensors:
            return False
    return True
