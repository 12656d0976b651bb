"""What the devices of a plan compute and send, in order: in a pass, in a window, in a step.

The same operators and collectives that :mod:`~meshwright.cost.layer` adds up, kept apart: for
link loads, and for a simulation of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import Num
from meshwright.cost.communication import AxisNetwork, is_overlapped
from meshwright.cost.layer import PricedPiece, op_cost, streamed_blocks
from meshwright.cost.operator import DeviceRates, OpCost, exposed_launch_s
from meshwright.cost.pipeline import send_bytes
from meshwright.cost.problem import Problem
from meshwright.cost.streaming import call_word_bytes
from meshwright.graph.op import Op, Phase
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy, stack
from meshwright.spec.collective import CollectiveKind

DATA_AXES = ("dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
"""Those that shard optimizer states, those that repeat them, and both together."""


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


Sent = Iterator[tuple[Message, float]]
"""Messages, each with how often it is sent."""


@dataclass(frozen=True)
class Work:
    """One operator in one direction: what it waits for, and how long it computes."""

    name: str
    compute_s: Num
    """One number, or a column with one for each speed of the devices [s]."""
    messages: tuple[Message, ...] = ()
    later_s: Num = 0.0
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


@dataclass(frozen=True)
class _Step:
    """One operator with its price, and how its block streams."""

    op: Op
    cost: OpCost
    piece: PricedPiece
    calls: Sequence[tuple[CollectiveCall, str, bool]]
    """Of its layer: each with the operator that needs it, and whether it travels in rounds."""


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
        for piece, block in blocks:
            calls, causal = piece.senders(recompute), problem.workload.causal
            for op in block.ops:
                cost = op_cost(op, piece.local, rates, piece.streams, causal=causal)
                steps.append(_Step(op, cost, piece, calls))
        passes.append(_passes(rates, steps, strategy, recompute))
    return tuple(passes)


def _passes(
    rates: DeviceRates, steps: Sequence[_Step], strategy: Strategy, recompute: Recompute
) -> PiecePasses:
    """Return both passes of one piece."""

    def messages(step: _Step, *, is_forward: bool, again: bool = False) -> tuple[Message, ...]:
        return tuple(_messages(step, strategy, is_forward=is_forward, again=again))

    forward = [
        Work(step.op.name, only(step.cost.forward_s), messages(step, is_forward=True))
        for step in steps
    ]
    repeated = [
        step
        for step in steps
        if recompute is Recompute.FULL
        or (recompute is Recompute.SELECTIVE and step.op.is_recomputed_selectively)
    ]
    backward = [
        Work(
            f"{step.op.name} again",
            only(step.cost.forward_s),
            messages(step, is_forward=True, again=True),
        )
        for step in repeated
    ]
    backward += [
        Work(
            f"{step.op.name} gradient",
            only(step.cost.input_gradient_s) + only(step.cost.weight_gradient_s),
            messages(step, is_forward=False),
            only(step.cost.weight_gradient_s),
        )
        for step in reversed(steps)
    ]
    kernels_forward = sum(only(step.cost.forward_kernels) for step in steps)
    kernels_backward = sum(only(step.cost.backward_kernels) for step in steps)
    kernels_backward += sum(only(step.cost.forward_kernels) for step in repeated)
    # Waiting for the host to launch kernels comes last.
    for works, num_kernels in ((forward, kernels_forward), (backward, kernels_backward)):
        waits_s = only(exposed_launch_s(sum(w.compute_s for w in works), num_kernels, rates))
        if waits_s > 0:
            works.append(Work("launch", waits_s))
    return PiecePasses(tuple(forward), tuple(backward))


def _messages(
    step: _Step, strategy: Strategy, *, is_forward: bool, again: bool
) -> Iterator[Message]:
    """Yield what an operator sends in one pass of a micro-batch, or when it is computed again."""
    problem = step.piece.problem
    overlaps_tp = step.piece.structure.overlap_tensor_parallel
    gradient = problem.workload.optimizer.reduced_gradient_bytes_per_param
    waits = only(step.cost.forward_waits if is_forward else step.cost.backward_waits)
    for call, sender, in_rounds in step.calls:
        ahead = call.phase is Phase.FORWARD or call.replayed
        axis = call.axis.partition("/")[0]  # without the dim that its ranks share
        if call.per_step or sender != step.op.name or degree_of(axis, strategy) == 1:
            continue
        if ahead is is_forward and call.replayed is again:
            elements = local_elements(call.tensor, call.split, step.piece.sizes, strategy)
            num_bytes = call_word_bytes(call, problem.rates, gradient) * elements
            overlaps = in_rounds and not waits
            overlaps = overlaps or is_overlapped(call, overlaps_tensor_parallel=overlaps_tp)
            yield Message(call.axis, call.kind, only(num_bytes), overlaps, call.streamed)


def window_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, network: AxisNetwork,
    params: float,
) -> Sent:  # fmt: skip
    """Yield what one stage sends in the backward pass of a micro-batch, and how often.

    With the sums of gradients, and where weights were dropped also their gathering.
    """
    passes = piece_passes(problem, structure, strategy, network)
    yield from _layer_messages(problem, strategy, passes, 1.0, is_forward=False)
    gather, scatter, sums = data_messages(problem, structure, strategy, params)
    drops = structure.zero_stage == 3 and structure.reshard_after_forward
    for message in (*scatter, *sums, *(gather if drops else ())):
        yield message, 1.0
    yield from _pipeline_messages(problem, structure, strategy, 1.0)


def step_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, network: AxisNetwork,
    params: float, num_passes: float,
) -> Sent:  # fmt: skip
    """Yield what all stages send in a step, and how often; edges are on one stage of ``pp``.

    Parameters
    ----------
    params
        Dense parameters on one device of the fullest stage [1].
    num_passes
        Micro-batches of the step.
    """
    passes = piece_passes(problem, structure, strategy, network)
    for is_forward in (True, False):
        yield from _layer_messages(problem, strategy, passes, num_passes, is_forward=is_forward)
    for edge in passes[len(problem.graph.layers) :]:
        for work in (*edge.forward, *edge.backward):
            yield from ((message, num_passes / strategy.pp) for message in work.messages)
    yield from _pipeline_messages(problem, structure, strategy, num_passes)
    gather, scatter, sums = data_messages(problem, structure, strategy, params)
    drops = structure.zero_stage == 3 and structure.reshard_after_forward
    num_gathers = num_passes * (1 + drops) if structure.zero_stage == 3 else 1.0
    num_scatters = num_passes if structure.zero_stage >= 2 else 1.0
    yield from ((message, num_gathers) for message in gather)
    yield from ((message, num_scatters) for message in scatter)
    yield from ((message, 1.0) for message in sums)


def _layer_messages(
    problem: Problem, strategy: Strategy, passes: Sequence[PiecePasses], num_passes: float,
    *, is_forward: bool,
) -> Sent:  # fmt: skip
    """Yield what the layers of a stage send in a number of passes, and how often.

    Edges are left out: they are on one stage.
    """
    pattern = problem.model.layer_pattern
    for kind in range(len(problem.graph.layers)):
        times = num_passes * pattern.count(kind) / strategy.pp
        for work in passes[kind].forward if is_forward else passes[kind].backward:
            yield from ((message, times) for message in work.messages)


def _pipeline_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, num_passes: float
) -> Sent:
    """Yield what neighbouring stages hand each other, both ways, and how often."""
    if strategy.pp > 1:
        num_bytes = send_bytes(problem, structure, stack([strategy]))
        message = Message("pp", CollectiveKind.SEND, only(num_bytes), structure.wraps)
        yield message, num_passes * strategy.num_virtual_stages


def data_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, params: float
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Return gathering of parameters, scattering of gradients, and their sums over replicas.

    Of one stage, each once; without ZeRO there are sums alone.
    """
    optimizer = problem.workload.optimizer
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    weight_bytes = params * optimizer.gathered_weight_bytes_per_param
    overlaps, shards = structure.overlap_data_parallel, strategy.dp_shard * strategy.cp
    shard, replicate, everyone = DATA_AXES
    if structure.zero_stage == 0:
        sums = Message(everyone, CollectiveKind.ALL_REDUCE, gradient_bytes, overlaps)
        return (), (), (sums,) if shards * strategy.dp_replicate > 1 else ()
    gather = Message(shard, CollectiveKind.ALL_GATHER, weight_bytes, overlaps)
    scatter = Message(shard, CollectiveKind.REDUCE_SCATTER, gradient_bytes, overlaps)
    sums = Message(replicate, CollectiveKind.ALL_REDUCE, gradient_bytes / shards, overlaps)
    return (
        (gather,) if shards > 1 else (),
        (scatter,) if shards > 1 else (),
        (sums,) if strategy.dp_replicate > 1 else (),
    )


def only(column: object) -> float:
    """Return the only row of a column, or a number, as a float."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])
