"""What one device does in a pass through each piece of the model, in order, for one strategy.

The same operators and collectives that :mod:`~meshwright.cost.layer` adds up, kept apart: for
link loads, and for a simulation of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cost.communication import AxisNetwork, is_overlapped
from meshwright.cost.layer import PricedPiece, op_cost, streamed_blocks
from meshwright.cost.operator import DeviceRates, OpCost, exposed_launch_s
from meshwright.cost.problem import Problem
from meshwright.cost.streaming import call_word_bytes
from meshwright.graph.op import Op, Phase
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Message:
    """One collective or stream over an axis."""

    axis: str
    """One axis, or a group of several written as their product."""
    kind: CollectiveKind
    num_bytes: float
    """Of the full tensor on one rank [bytes]."""
    overlaps: bool = False
    """It overlaps with the computation of its operator and does not precede it."""
    is_stream: bool = False
    """It travels piece by piece round the group."""


@dataclass(frozen=True)
class Work:
    """One operator in one direction: what it waits for, and how long it computes."""

    name: str
    compute_s: Any
    """One number, or a column with one for each speed of the devices [s]."""
    messages: tuple[Message, ...] = ()
    later_s: Any = 0.0
    """Of the computation: the weight gradient, which a schedule may put off."""

    def share(self, part: float, messages: tuple[Message, ...] = ()) -> Work:
        """Return a part of the computation, with these messages."""
        return Work(self.name, self.compute_s * part, messages, self.later_s * part)


@dataclass(frozen=True)
class PiecePasses:
    """One kind of layer, or an edge, through both passes of a micro-batch."""

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    """Recomputation first."""


def piece_passes(
    problem: Problem, structure: PlanOptions, strategy: Strategy, network: AxisNetwork,
    rates: DeviceRates | None = None,
) -> tuple[PiecePasses, ...]:  # fmt: skip
    """Return the passes of each kind of layer, then of the embedding, then of the head.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    rates
        What computes; that of the slowest device if not given.
    """
    rates = rates or problem.rates
    passes = []
    for index, blocks in enumerate(streamed_blocks(problem, structure, network)):
        is_edge = index >= len(problem.graph.layers)
        recompute = Recompute.NONE if is_edge else structure.recompute
        steps = []
        for way, block in blocks:
            calls, causal = way.senders(recompute), problem.workload.causal
            for op in block.ops:
                cost = op_cost(op, way.local, rates, way.streams, causal=causal)
                steps.append(_Step(op, cost, way, recompute, calls))
        passes.append(_passes(rates, steps, strategy))
    return tuple(passes)


@dataclass(frozen=True)
class _Step:
    """One operator with its price, and how its block streams."""

    op: Op
    cost: OpCost
    way: PricedPiece
    recompute: Recompute
    calls: Sequence[tuple[CollectiveCall, str, bool]]
    """Of its layer: each with the operator that needs it, and whether it travels in rounds."""

    @property
    def runs_again(self) -> bool:
        """Whether the backward pass computes it once more."""
        is_core = self.recompute is Recompute.SELECTIVE and self.op.is_recomputed_selectively
        return self.recompute is Recompute.FULL or is_core

    def messages(self, strategy: Strategy, *, is_forward: bool, again: bool) -> Iterator[Message]:
        """Yield what it sends in one pass of a micro-batch."""
        waits = _number(self.cost.forward_waits if is_forward else self.cost.backward_waits)
        for call, sender, in_rounds in self.calls:
            ahead = call.phase is Phase.FORWARD or call.replayed
            if call.per_step or sender != self.op.name or degree_of(_axis(call), strategy) == 1:
                continue
            if ahead is is_forward and call.replayed is again:
                yield self._message(call, strategy, in_rounds=in_rounds and not waits)

    def _message(self, call: CollectiveCall, strategy: Strategy, *, in_rounds: bool) -> Message:
        problem, overlaps = self.way.problem, self.way.structure.overlap_tensor_parallel
        gradient = problem.workload.optimizer.reduced_gradient_bytes_per_param
        elements = local_elements(call.tensor, call.split, self.way.sizes, strategy)
        num_bytes = call_word_bytes(call, problem.rates, gradient) * elements
        overlaps = in_rounds or is_overlapped(call, overlaps_tensor_parallel=overlaps)
        return Message(call.axis, call.kind, _number(num_bytes), overlaps, call.streamed)


def _axis(call: CollectiveCall) -> str:
    """Return the axes of a call without the dim that its ranks share."""
    return call.axis.partition("/")[0]


def _passes(rates: DeviceRates, steps: Sequence[_Step], strategy: Strategy) -> PiecePasses:
    """Return both passes of one piece."""

    def messages(step: _Step, *, is_forward: bool, again: bool = False) -> tuple[Message, ...]:
        return tuple(step.messages(strategy, is_forward=is_forward, again=again))

    forward = [
        Work(step.op.name, _number(step.cost.forward_s), messages(step, is_forward=True))
        for step in steps
    ]
    again = [step for step in steps if step.runs_again]
    backward = [
        Work(
            f"{step.op.name} again",
            _number(step.cost.forward_s),
            messages(step, is_forward=True, again=True),
        )
        for step in again
    ]
    backward += [
        Work(
            f"{step.op.name} gradient",
            _number(step.cost.input_gradient_s) + _number(step.cost.weight_gradient_s),
            messages(step, is_forward=False),
            _number(step.cost.weight_gradient_s),
        )
        for step in reversed(steps)
    ]
    kernels_forward = sum(_number(step.cost.forward_kernels) for step in steps)
    kernels_backward = sum(_number(step.cost.backward_kernels) for step in steps)
    kernels_backward += sum(_number(step.cost.forward_kernels) for step in again)
    return PiecePasses(
        tuple(_launched(rates, forward, kernels_forward)),
        tuple(_launched(rates, backward, kernels_backward)),
    )


def _launched(rates: DeviceRates, works: Sequence[Work], num_kernels: float) -> Iterator[Work]:
    """Yield the works of a pass, and what waiting for the host to launch kernels adds."""
    yield from works
    busy_s = sum(work.compute_s for work in works)
    waits_s = _number(exposed_launch_s(busy_s, num_kernels, rates))
    if waits_s > 0:
        yield Work("launch", waits_s)


def _number(value: Any) -> float:
    """Return a number, or the only row of a column, as a float."""
    return float(np.asarray(value).reshape(-1)[0])
