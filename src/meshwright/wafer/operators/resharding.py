"""What it costs to pass tensors between groups of operators that have different options.

The busiest link of the default routes, the longest latency and one launch, there and back: the
gradients return the same way. Options whose tiles are equal need nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.cost.problem import Problem
from meshwright.graph.op import LayerGraph, Tensor
from meshwright.network.ranks import Ranks, block_ranks
from meshwright.network.resharding import LayoutMoves, Way, all_ways, tiles
from meshwright.sharding.strategy import PlanOptions, Recompute
from meshwright.sharding.tensor_sharding import activation_sharding
from meshwright.topology.network import Network
from meshwright.wafer.operators.options import Options

AXES_OF = {"dp": ("dp_replicate", "dp_shard")}
"""Axes of a placement that an axis of a layout stands for; the others stand for themselves."""
Split = tuple[tuple[str, ...], ...]
"""The axes that split a tensor: between sequences, within them, and its inner dims."""


@dataclass(frozen=True)
class TensorMoves:
    """Passing one tensor between all pairs of options, for one micro-batch."""

    time_s: FloatArray
    """(options before, options after): activations there, and gradients back [s]."""
    held_bytes: FloatArray
    """Of the tensor on the fullest device under each option after [bytes]."""
    differs: FloatArray
    """1 where the two layouts differ."""


@dataclass(frozen=True)
class Resharding:
    """The moves between the options of a problem."""

    problem: Problem
    options: Options
    physical: Network

    def _ranks(self, index: int) -> Ranks:
        """Return where the ranks of an option lie."""
        choice = self.options.choices[index]
        found = block_ranks(self.physical, self.problem.grid_sides, choice.axes, choice.shapes)
        assert found is not None
        return found

    @cached_property
    def devices(self) -> IntArray:
        """All devices in use, ascending: the same ones under each option."""
        return np.sort(self._ranks(0).device.reshape(-1))

    @cached_property
    def way(self) -> Way:
        """Routes between them."""
        return all_ways(self.physical, self.devices)

    @cached_property
    def layouts(self) -> LayoutMoves:
        """What is known of the moves between layouts."""
        return LayoutMoves(self.way)

    @cached_property
    def _known(self) -> dict[tuple[Split, int], tuple[int, float]]:
        return {}

    def moves(
        self, tensor: Tensor, layer: LayerGraph, rows: Sequence[int] | None = None
    ) -> TensorMoves:
        """Return what it costs to pass a tensor of a layer.

        Parameters
        ----------
        rows
            The options that are looked at, where not all are.
        """
        numbers = range(len(self.options)) if rows is None else rows
        laid = [self._layout(tensor, index) for index in numbers]
        kind = np.array([number for number, _ in laid])
        busy, latency = self.layouts.between(list(dict.fromkeys(kind.tolist())))
        place = {number: at for at, number in enumerate(dict.fromkeys(kind.tolist()))}
        at = np.array([place[number] for number in kind.tolist()])
        rates = self.problem.rates
        word = rates.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        num_bytes = self._elements(tensor, layer) * word
        launch_s = float(np.asarray(self.problem.calibration.collective_launch_s))
        once_s = busy * num_bytes + np.where(busy > 0, latency + launch_s, 0.0)
        again = 2.0 if self.options.frame.structure.recompute is Recompute.FULL else 1.0
        both_s = again * once_s + once_s.T
        return TensorMoves(
            time_s=both_s[np.ix_(at, at)],
            held_bytes=np.array([volume for _, volume in laid]) * num_bytes,
            differs=(kind[:, None] != kind[None, :]).astype(float),
        )

    def _layout(self, tensor: Tensor, index: int) -> tuple[int, float]:
        """Return the number of the layout of a tensor, and the share that the fullest holds."""
        key = (_split(tensor, self.options.structures[index]), index)
        if key not in self._known:
            ranks = self._ranks(index)
            order = np.argsort(ranks.device.reshape(-1, order="F"))
            layout = tiles(ranks, key[0])[order]
            volume = float((layout[..., 1] - layout[..., 0]).prod(axis=1).max())
            self._known[key] = self.layouts.number(layout), volume
        return self._known[key]

    def _elements(self, tensor: Tensor, layer: LayerGraph) -> float:
        """Return the elements of a tensor in one micro-batch of all ranks."""
        length = float(self.problem.pass_length)
        sizes: dict[str, Any] = layer.bind(length * self.options.frame.num_sequences, length)
        return float(np.prod([float(sizes[dim]) for dim in tensor.dims]))


def _split(tensor: Tensor, structure: PlanOptions) -> Split:
    """Return the axes that split a tensor: between sequences, within them, and its inner dims."""
    between: list[str] = []
    within: list[str] = []
    inner: list[str] = []
    for dim, names in activation_sharding(tensor, structure).split.items():
        for name in names:
            physical = AXES_OF.get(name, (name,))
            if dim not in ("tokens", "routed_tokens"):
                inner.extend(physical)
            elif name in AXES_OF:
                between.extend(physical)
            else:
                within.extend(physical)
    return tuple(between), tuple(within), tuple(inner)
