"""Shardings: the mesh of each strategy, and the axes that split each dim of each tensor.

In the terms of ``jax.sharding`` (a ``Mesh`` of devices, a ``PartitionSpec`` of each tensor). A plan
with a strategy for each operator has one mesh for each strategy, and each group of operators names
its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.base.errors import Fault
from meshwright.cost.layer import streamed_blocks
from meshwright.cost.problem import Problem
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.refusals import choice_refusal
from meshwright.graph.op import LayerGraph, Tensor
from meshwright.sharding.algebra import FLAT, Sharding
from meshwright.sharding.axes import activation_sharding, weight_sharding
from meshwright.sharding.dealing import dealt_layers
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.train.answer import Plan
from meshwright.wafer.operators.prices import groups_of_pieces, places_of
from meshwright.wafer.operators.simulation import laid_options
from meshwright.wafer.price import physical_network

DATA = ("dp_replicate", "dp_shard")
"""Axes of a mesh that an axis of a sharding stands for."""


@dataclass(frozen=True)
class _Option:
    """One strategy on its devices."""

    text: str
    strategy: Strategy
    plan_options: PlanOptions
    axes: tuple[str, ...]
    """Axes of more than one device, outermost first."""
    devices: IntArray
    """Device of each rank: an array axis for each of ``axes``."""

    @property
    def mesh(self) -> Mapping[str, object]:
        """The mesh as data."""
        return {"plan": self.text, "axes": self.axes, "devices": self.devices.tolist()}

    def resolved(self, problem: Problem) -> list[dict[str, PlanOptions]]:
        """Return the plan options of each operator of each piece, with the tensor that streams."""
        network = problem.network(self.plan_options.axis_order, stack([self.strategy]))
        return [
            {op.name: piece.plan_options for piece, block, _ in blocks for op in block.ops}
            for blocks in streamed_blocks(problem, self.plan_options, network)
        ]

    def partition(
        self, tensor: Tensor, layout: Sharding, sizes: Mapping[str, float]
    ) -> Mapping[str, object]:
        """Return the dims of a tensor with the axes that split each, outermost first.

        Tokens are sequences and positions: data-parallel axes split the first, the others the
        second. Axes of the elements split what the dims leave to a device, in its memory order.
        """
        dims: list[Mapping[str, object]] = []
        for dim in tensor.dims:
            names = [name for axis in layout.split.get(dim, ()) for name in self._mesh_axes(axis)]
            if dim != "tokens":
                dims.append({"dim": dim, "size": int(sizes[dim]), "axes": names})
                continue
            apart = [name for name in names if name in DATA]
            within = [name for name in names if name not in DATA]
            number = int(self.strategy.dp * self.strategy.micro_batch_size)
            length = int(sizes[dim]) // number
            dims.append({"dim": "sequences", "size": number, "axes": apart})
            dims.append({"dim": "positions", "size": length, "axes": within})
        flat = [name for axis in layout.split.get(FLAT, ()) for name in self._mesh_axes(axis)]
        return {"dims": dims, "elements": flat}

    def _mesh_axes(self, axis: str) -> Iterator[str]:
        names = DATA if axis == "dp" else (axis,)
        yield from (name for name in names if name in self.axes)


@framework("shardings", writes="shardings")
class Shardings(LaunchFiles):
    """One JSON file with the devices and the partition of every tensor of a plan."""

    takes_operators = True

    def refusals(self, plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan with tensors that are in no equal parts."""
        best = plan.best
        faults = []
        if best.strategy.ep > 1:
            reason = "the rows of experts are dealt at run time: no mesh axis splits them"
            faults.append(choice_refusal("strategy.ep", int(best.strategy.ep), reason, "ep=1"))
        if best.plan_options.vocabulary_parallel:
            reason = "embedding and logits are split over pipeline stages"
            faults.append(
                choice_refusal(
                    "plan_options.vocabulary_parallel", True, reason, "vocabulary_parallel=false"
                )
            )
        return faults

    def render(self, plan: Plan) -> Mapping[str, str]:
        """Return the file."""
        return {"shardings.json": json.dumps(_Shown(plan).data, indent=1) + "\n"}


@dataclass(frozen=True)
class _Shown:
    """The shardings of a plan as data."""

    plan: Plan

    @property
    def data(self) -> Mapping[str, object]:
        """All of the file."""
        return {
            "model": self.plan.model.name,
            "system": self.plan.system.name,
            "zero_stage": self.options[0].plan_options.zero_stage,
            "meshes": [option.mesh for option in self.options],
            "layers": list(self._layers()),
        }

    @cached_property
    def problem(self) -> Problem:
        """The question."""
        return self.plan.problem

    @cached_property
    def options(self) -> tuple[_Option, ...]:
        """The strategy of all operators, or those of each."""
        operators = self.plan.operators
        if operators is None or not operators.assignment:
            return (self._one_for_all,)
        laid, physical = laid_options(self.problem, operators), physical_network(self.problem)
        found = []
        for index, option in enumerate(operators.options):
            ranks = laid.ranks(self.problem, index, physical)
            sizes = dict(zip(ranks.axes, ranks.device.shape, strict=True))
            found.append(_option(option.text, option.strategy, option.plan_options, sizes,
                                 ranks.device.reshape(-1, order="F")))  # fmt: skip
        return tuple(found)

    @property
    def _one_for_all(self) -> _Option:
        best, placement = self.plan.best, self.plan.best.placement
        if placement is None:
            sizes = {axis: int(getattr(best.strategy, axis)) for axis in
                     best.plan_options.axis_order}  # fmt: skip
            devices = np.arange(int(best.strategy.num_devices))
        else:
            sizes = {axis: int(getattr(best.strategy, axis)) for axis in placement.axes}
            devices = np.array(placement.devices)
        return _option(best.text, best.strategy, best.plan_options, sizes, devices)

    def _layers(self) -> Iterator[Mapping[str, object]]:
        """Yield the embedding, equal layers in a row, and the head."""
        problem, groups = self.problem, groups_of_pieces(self.problem)
        pattern, kinds = problem.model.layer_pattern, len(problem.graph.layers)
        operators = self.plan.operators
        chosen = operators.assignment if operators is not None else ()
        chosen = chosen or (0,) * len(places_of(problem))
        strategy = self.options[0].strategy
        stages, chunks = int(strategy.pp), int(strategy.num_virtual_stages)
        dealt = dealt_layers(pattern, kinds, stages * chunks, self.options[0].plan_options)
        stage_of = np.repeat(np.arange(len(dealt)), [len(part) for part in dealt]) % stages
        yield self._piece(kinds, "embedding", None, 0, chosen[:1])
        start, rows = 1, []
        for number, kind in enumerate(pattern):
            end = start + len(groups[kind])
            rows.append((kind, int(stage_of[number]), tuple(chosen[start:end])))
            start = end
        number = 0
        for (kind, stage, own), same in groupby(rows):
            count = len(list(same))
            yield self._piece(kind, "layer", (number, number + count - 1), stage, own)
            number += count
        yield self._piece(kinds + 1, "head", None, stages - 1, chosen[-1:])

    def _piece(
        self, index: int, name: str, layers: tuple[int, int] | None, stage: int, own: Sequence[int]
    ) -> Mapping[str, object]:
        """Return the operators of one kind of layer, or of an edge, group by group."""
        piece = self.problem.pieces[index]
        groups = groups_of_pieces(self.problem)[index]
        return {
            "part": name,
            "layers": layers,
            "pipeline_stage": stage,
            "groups": [
                {"mesh": option, "operators": list(self._operators(piece, group, index, option))}
                for group, option in zip(groups, own, strict=True)
            ],
        }

    def _operators(
        self, piece: LayerGraph, group: LayerGraph, index: int, number: int
    ) -> Iterator[Mapping[str, object]]:
        """Yield the operators of one group with the partition of each of their tensors."""
        option = self.options[number]
        strategy, length = option.strategy, float(self.problem.pass_length)
        sizes = {
            dim: float(size)
            for dim, size in piece.bind(
                length * float(strategy.dp * strategy.micro_batch_size), length
            ).items()
        }
        resolved = option.resolved(self.problem)[index]
        for op in group.ops:
            own = resolved[op.name]
            yield {
                "name": op.name,
                "streamed": str(own.streamed) if strategy.tatp > 1 else None,
                "inputs": {
                    t.name: option.partition(t, activation_sharding(t, own), sizes)
                    for t in op.inputs
                },
                "weights": {
                    t.name: option.partition(t, weight_sharding(t, own), sizes) for t in op.weights
                },
                "outputs": {
                    t.name: option.partition(t, activation_sharding(t, own), sizes)
                    for t in op.outputs
                },
            }


def _option(
    text: str, strategy: Strategy, plan_options: PlanOptions, sizes: Mapping[str, int],
    devices: IntArray,
) -> _Option:  # fmt: skip
    """Return a strategy on its devices; axes and devices come with the innermost axis first."""
    used = [axis for axis, size in sizes.items() if size > 1][::-1]
    shape = [sizes[axis] for axis in used]
    return _Option(text, strategy, plan_options, tuple(used), devices.reshape(shape))
