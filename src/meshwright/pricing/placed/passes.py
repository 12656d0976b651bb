"""What one device does in a pass through each piece of the model, in order, for one strategy.

The same operators and collectives that :mod:`~meshwright.pricing.layers` adds up, kept apart: for
link loads, and for a simulation of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.cost.compute import launch_bound_s
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import OpCost
from meshwright.cost.operator import op_cost
from meshwright.graph.op import LayerGraph, Op, Phase
from meshwright.pricing.layers import stream_links
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.problem import Problem
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.calls import CollectiveCall, call_elements
from meshwright.strategy.local_sizes import degree_of
from meshwright.strategy.strategy import Recompute, Strategy, Structure, stack


@dataclass(frozen=True)
class Message:
    """One collective or stream over an axis."""

    axis: str
    """One axis, or a group of several written as their product."""
    kind: CollectiveKind
    num_bytes: float
    """Of the full tensor on one rank [bytes]."""
    is_beside: bool = False
    """It runs beside the computation of its operator, not before it."""
    is_stream: bool = False
    """It travels piece by piece round the group."""


@dataclass(frozen=True)
class Work:
    """One operator in one direction: what it waits for, and how long it computes."""

    name: str
    compute_s: float
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class PiecePasses:
    """One kind of layer, or an edge, through both passes of a micro-batch."""

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    """Recomputation first."""


def piece_passes(
    problem: Problem, structure: Structure, strategy: Strategy, network: AxisNetwork
) -> tuple[PiecePasses, ...]:
    """Return the passes of each kind of layer, then of the embedding, then of the head.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    """
    accumulator = problem.workload.optimizer.reduced_gradient_bytes_per_param
    links = stream_links(network, structure, accumulator) if strategy.tatp > 1 else None
    passes = []
    for index, piece in enumerate(problem.pieces):
        is_edge = index >= len(problem.graph.layers)
        recompute = Recompute.NONE if is_edge else structure.recompute
        local = LocalLayer(
            sizes=piece.sizes,
            degrees=stack([strategy]),
            sequence_length=float(problem.workload.sequence_length),
            sequence_parallel=structure.sequence_parallel,
            expert_load_imbalance=problem.workload.expert_load_imbalance,
        )
        costs = [
            (op, op_cost(op, local, problem.engine, links, causal=problem.workload.causal))
            for op in piece.ops
        ]
        calls = problem.layouts(replace(structure, recompute=recompute))[index][0]
        messages = _Messages(problem, structure, strategy, piece, calls)
        passes.append(_passes(problem, costs, messages, recompute))
    return tuple(passes)


def _passes(
    problem: Problem, costs: Sequence[tuple[Op, OpCost]], messages: _Messages, recompute: Recompute
) -> PiecePasses:
    """Return both passes of one piece."""
    forward = [
        Work(op.name, _number(cost.forward_s), messages.of(op, is_forward=True, replayed=False))
        for op, cost in costs
    ]
    again = [(op, cost) for op, cost in costs if _runs_again(op, recompute)]
    backward = [
        Work(f"{op.name} again", _number(cost.forward_s), messages.of(op, True, True))
        for op, cost in again
    ]
    backward += [
        Work(
            f"{op.name} gradient",
            _number(cost.input_gradient_s) + _number(cost.weight_gradient_s),
            messages.of(op, is_forward=False, replayed=False),
        )
        for op, cost in reversed(costs)
    ]
    kernels_forward = sum(_number(cost.forward_kernels) for _, cost in costs)
    kernels_backward = sum(_number(cost.backward_kernels) for _, cost in costs)
    kernels_backward += sum(_number(cost.forward_kernels) for _, cost in again)
    return PiecePasses(
        tuple(_launched(problem, forward, kernels_forward)),
        tuple(_launched(problem, backward, kernels_backward)),
    )


def _runs_again(op: Op, recompute: Recompute) -> bool:
    """Return whether the backward pass computes an operator once more."""
    return recompute is Recompute.FULL or (
        recompute is Recompute.SELECTIVE and op.is_recomputed_selectively
    )


def _launched(problem: Problem, works: Sequence[Work], num_kernels: float) -> Iterator[Work]:
    """Yield the works of a pass, and what waiting for the host to launch kernels adds."""
    yield from works
    busy_s = sum(work.compute_s for work in works)
    waits_s = _number(launch_bound_s(busy_s, num_kernels, problem.engine))
    if waits_s > 0:
        yield Work("launch", waits_s)


class _Messages:
    """The collectives of one piece, by operator."""

    def __init__(
        self, problem: Problem, structure: Structure, strategy: Strategy, piece: LayerGraph,
        calls: Sequence[CollectiveCall],
    ) -> None:  # fmt: skip
        self._problem, self._structure, self._strategy = problem, structure, strategy
        self._sizes = problem.bound_sizes(piece, strategy.micro_batch_size)
        self._calls = [
            call
            for call in calls
            if not call.per_step and degree_of(call.axis.split("/")[0], strategy) > 1
        ]

    def of(self, op: Op, is_forward: bool, replayed: bool) -> tuple[Message, ...]:
        """Return what an operator sends in one pass."""
        return tuple(
            self._message(call)
            for call in self._calls
            if call.site.split(":")[0] == op.name
            and call.replayed is replayed
            and (call.phase is Phase.FORWARD or replayed) is is_forward
        )

    def _message(self, call: CollectiveCall) -> Message:
        cut = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        decomposed = call.axis == "tp" and self._structure.overlap_tensor_parallel and cut
        num_bytes = self._word_bytes(call) * call_elements(call, self._sizes, self._strategy)
        return Message(
            call.axis,
            call.kind,
            float(num_bytes),
            is_beside=call.streamed or decomposed or (call.is_regather and not call.of_weight),
            is_stream=call.streamed,
        )

    def _word_bytes(self, call: CollectiveCall) -> float:
        """Return the bytes of one element: of a weight, of its accumulator, or of an activation."""
        engine, optimizer = self._problem.engine, self._problem.workload.optimizer
        if call.of_weight and call.streamed:
            is_gradient = call.phase is Phase.WEIGHT_GRADIENT
            weight, gradient = engine.matmul_word_bytes, optimizer.reduced_gradient_bytes_per_param
            return gradient if is_gradient else weight
        word = call.tensor.word_bytes
        return engine.activation_bytes if word is None else word


def _number(value: Any) -> float:
    """Return a number, or the only row of a column, as a float."""
    return float(np.asarray(value).reshape(-1)[0])
