"""Operators that share a strategy, and the tensors that pass from one group to the next.

A group has one matrix product or attention core, with the norm before it and the light operators
after it. Experts stay together: their routing ties them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor

ANCHORS = (OpKind.MATMUL, OpKind.ATTENTION)
BEFORE = -1
"""What comes before the first group: the layer before, or the embedding."""


@dataclass(frozen=True)
class Handover:
    """Tensors that pass from one group of a layer to a later one."""

    first: int
    """Number of the group, or ``BEFORE``."""
    second: int
    tensors: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    """Those of them that the second group keeps for its backward pass, after the first did."""


def operator_groups(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut into its groups, in order."""
    starts, has_anchor = [0], False
    for number, op in enumerate(layer.ops):
        begins = op.kind is OpKind.NORM or (op.kind in ANCHORS and has_anchor)
        if begins and number and not _stays(layer.ops, number):
            starts.append(number)
            has_anchor = False
        has_anchor |= op.kind in ANCHORS
    bounds = [*starts, len(layer.ops)]
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(bounds))


def _stays(ops: Sequence[Op], number: int) -> bool:
    """Return whether an operator stays with the one before it: inside experts, and at edges."""
    op, before = ops[number], ops[number - 1]
    is_inside = op.region == before.region and op.region in ("experts", "edge")
    has_anchor = any(other.kind in ANCHORS for other in ops[:number])
    return is_inside or (op.kind is OpKind.NORM and not has_anchor)


def handovers(groups: Sequence[LayerGraph]) -> list[Handover]:
    """Return what passes between the groups of a layer, by pairs of groups.

    A tensor that several groups read passes from reader to reader: the first one has laid it out
    as it needs it, and the residual stream goes on from there.
    """
    made = {t.name: n for n, group in enumerate(groups) for op in group.ops for t in op.outputs}
    passed: dict[tuple[int, int], list[Tensor]] = {}
    for tensor, readers in _readers(groups).items():
        source = made.get(tensor.name, BEFORE)
        stops = [source, *(reader for reader in readers if reader != source)]
        for pair in pairwise(stops):
            passed.setdefault(pair, []).append(tensor)
    keepers = [{t.name for op in group.ops for t in op.saved} for group in groups]
    return [
        Handover(
            first, second, tuple(tensors),
            tuple(t for t in tensors if first != BEFORE and t.name in keepers[first]
                  and t.name in keepers[second]),
        )
        for (first, second), tensors in sorted(passed.items())
    ]  # fmt: skip


def _readers(groups: Sequence[LayerGraph]) -> dict[Tensor, list[int]]:
    """Return the groups that read each activation, in order."""
    found: dict[Tensor, list[int]] = {}
    for number, group in enumerate(groups):
        for op in group.ops:
            for tensor in op.inputs:
                readers = found.setdefault(tensor, [])
                if number not in readers:
                    readers.append(number)
    return found
