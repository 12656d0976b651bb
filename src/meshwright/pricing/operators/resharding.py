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
from meshwright.graph.op import LayerGraph, Tensor
from meshwright.placement.ranks import Ranks, block_ranks
from meshwright.placement.resharding import Overlaps, Way, all_ways, busiest_s, tiles
from meshwright.pricing.operators.options import Options
from meshwright.pricing.problem import Problem
from meshwright.strategy.layout import home
from meshwright.strategy.strategy import Recompute, Structure
from meshwright.topology.network import Network

DECIMALS = 12
AXES_OF = {"dp": ("dp_replicate", "dp_shard")}
"""Axes of a placement that an axis of a layout stands for; the others stand for themselves."""


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

    @cached_property
    def ranks(self) -> tuple[Ranks, ...]:
        """Where the ranks of each option lie."""
        return tuple(self._ranks(index) for index in range(len(self.options)))

    def _ranks(self, index: int) -> Ranks:
        choice = self.options.choices[index]
        found = block_ranks(self.physical, self.problem.grid_sides, choice.axes, choice.shapes)
        assert found is not None
        return found

    @cached_property
    def devices(self) -> IntArray:
        """All devices in use, ascending: the same ones under each option."""
        return np.sort(self.ranks[0].device.reshape(-1))

    @cached_property
    def way(self) -> Way:
        """Routes between them."""
        return all_ways(self.physical, self.devices)

    @cached_property
    def _known(self) -> dict[bytes, tuple[FloatArray, FloatArray]]:
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
        layouts = np.stack([self._tiles(tensor, index) for index in numbers])
        elements = self._elements(tensor, layer)
        flat = np.round(layouts.reshape(len(layouts), -1), DECIMALS)
        _, first, kind = np.unique(flat, axis=0, return_index=True, return_inverse=True)
        kind = kind.reshape(-1)
        key = flat[first].tobytes()
        if key not in self._known:
            self._known[key] = self._between(layouts[first])
        per_byte, fixed_s = self._known[key]
        engine = self.problem.engine
        word = engine.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        once_s = per_byte * elements * word + fixed_s
        again = 2.0 if self.options.frame.structure.recompute is Recompute.FULL else 1.0
        both_s = again * once_s + once_s.T
        volume = (layouts[..., 1] - layouts[..., 0]).prod(axis=2).max(axis=1)
        return TensorMoves(
            time_s=both_s[np.ix_(kind, kind)],
            held_bytes=volume * elements * word,
            differs=(kind[:, None] != kind[None, :]).astype(float),
        )

    def _between(self, layouts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return seconds for each byte, and fixed seconds, between all pairs of layouts.

        Where each part of a tensor has one holder, either way may take the links of the other one
        backwards: dimension order, or its reverse.
        """
        overlaps = Overlaps(layouts)
        found = [busiest_s(overlaps.moved(one), self.way) for one in range(len(layouts))]
        per_byte = np.stack([busy_s for busy_s, _ in found]).astype(float)
        latency = np.stack([latency_s for _, latency_s in found]).astype(float)
        if overlaps.is_partition:
            per_byte, latency = np.minimum(per_byte, per_byte.T), np.maximum(latency, latency.T)
        launch_s = float(np.asarray(self.problem.calibration.collective_launch_s))
        return per_byte, np.where(per_byte > 0, latency + launch_s, 0.0)

    def _tiles(self, tensor: Tensor, index: int) -> FloatArray:
        """Return the part of a tensor on each device, devices ascending."""
        structure, ranks = self.options.structures[index], self.ranks[index]
        order = np.argsort(ranks.device.reshape(-1, order="F"))
        return tiles(ranks, _split(tensor, structure))[order]

    def _elements(self, tensor: Tensor, layer: LayerGraph) -> float:
        """Return the elements of a tensor in one micro-batch of all ranks."""
        length = float(self.problem.pass_length)
        sizes: dict[str, Any] = layer.bind(length * self.options.frame.num_sequences, length)
        return float(np.prod([float(sizes[dim]) for dim in tensor.dims]))


def _split(tensor: Tensor, structure: Structure) -> Sequence[Sequence[str]]:
    """Return the axes that split a tensor: between sequences, within them, and its inner dims."""
    between: list[str] = []
    within: list[str] = []
    inner: list[Sequence[str]] = []
    for dim, names in home(tensor, structure).split.items():
        for name in names:
            physical = AXES_OF.get(name, (name,))
            if dim not in ("tokens", "routed_tokens"):
                inner.append(physical)
            elif name in AXES_OF:
                between.extend(physical)
            else:
                within.extend(physical)
    heads = [axis for physical in inner for axis in physical]
    return [between, within, heads]
