"""Computation and messages of the devices of a plan, in order: in a pass, in a step.

The same operators and collectives that :mod:`~meshwright.cost.layer` adds up, kept apart: for
link loads, and for a simulation of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from meshwright.base.arrays import FloatArray, Mask, N, Num, number_at, take_rows
from meshwright.cost.communication import AxisNetwork, is_overlapped
from meshwright.cost.layer import PricedPiece, layout_of, op_cost, streamed_blocks
from meshwright.cost.operator import DeviceRates, OpCost, exposed_launch_s
from meshwright.cost.pipeline import micro_batches, send_bytes
from meshwright.cost.problem import Problem
from meshwright.cost.streaming import ROWS, call_word_bytes
from meshwright.graph.op import Op, OpKind, Phase
from meshwright.graph.recompute import repeated_ops
from meshwright.schedule.pipeline_schedules import TaskKind
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, StrategyColumns, StrategyOf
from meshwright.spec.collective import CollectiveKind

DATA_AXES = ("dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
"""Axes that shard optimizer states, axes that repeat them, and both together."""
EXPERT_DATA_AXES = ("edp_shard", "edp_replicate", "edp")
"""Data-parallel axes of the experts."""


@dataclass(frozen=True)
class MessageOf(Generic[N]):
    """One collective or stream over an axis, of one strategy or of columns of them."""

    axis: str
    """One axis, or a group of several written as their product."""
    kind: CollectiveKind
    num_bytes: N
    """Bytes of the full tensor on one rank."""
    overlaps: Mask = False
    """It overlaps with the computation of its operator and does not precede it."""
    is_stream: bool = False
    """It travels piece by piece round the group."""
    rounds: str = ""
    """Name of the operator in whose rounds it travels, with all others of that name; empty: it
    travels alone."""
    since: N | float = 0.0
    """Share of the computation of its operator before which it does not begin [1]."""
    until: N | float = 1.0
    """Share of the computation by which it has ended; above 1 where rounds without computation
    follow [1]."""
    num_chunks: N | float = 1.0
    """Messages that each sub-tensor of a stream is cut into."""
    is_later: bool = False
    """It carries a weight gradient, which a schedule may put off with its computation."""
    beside_s: N | float = 0.0
    """Computation of the operator in whose rounds it travels [s]."""

    def of(self, row: int = 0) -> Message:
        """Return the message of one strategy of the columns."""
        overlaps = bool(number_at(1.0 * np.asarray(self.overlaps), row))
        size = number_at(self.num_bytes, row)
        since, until, num_chunks, beside_s = (
            number_at(number, row)
            for number in (self.since, self.until, self.num_chunks, self.beside_s)
        )
        return Message(
            self.axis, self.kind, size, overlaps, self.is_stream, self.rounds, since, until,
            num_chunks, self.is_later, beside_s,
        )  # fmt: skip


Message = MessageOf[float]
Sent = list[tuple[Message, float]]
"""Messages, each with its count."""


@dataclass(frozen=True)
class HeldParams(Generic[N]):
    """Parameters on one device of the fullest stage [1]."""

    dense: N
    expert: N
    """Parameters of routed experts on one device [1]."""


@dataclass(frozen=True)
class OperatorWork:
    """One operator in one direction: the messages that it waits for, and its computation."""

    name: str
    compute_s: Num
    """One number, or a column with one for each speed of the devices [s]."""
    messages: tuple[Message, ...] = ()
    later_s: Num = 0.0
    """Seconds of the weight gradient in the computation, which a schedule may put off."""

    def at_once(self) -> OperatorWork:
        """Return the work without the part that may be put off."""
        now = tuple(message for message in self.messages if not message.is_later)
        return OperatorWork(self.name, self.compute_s - self.later_s, now)

    def put_off(self) -> OperatorWork:
        """Return the part of the work that may be put off."""
        later = tuple(message for message in self.messages if message.is_later)
        return OperatorWork(self.name, self.later_s, later)

    def share(self, part: float) -> OperatorWork:
        """Return a part of the computation, without messages."""
        return OperatorWork(self.name, self.compute_s * part, (), self.later_s * part)


@dataclass(frozen=True)
class PiecePasses:
    """One kind of layer, or an edge, through both passes of a micro-batch."""

    forward: tuple[OperatorWork, ...]
    backward: tuple[OperatorWork, ...]
    """Recomputation first."""

    def works(self, kind: TaskKind) -> Sequence[OperatorWork]:
        """Return the operators of a kind of pass; with gradients apart their parts in it."""
        if kind is TaskKind.BACKWARD_INPUT:
            return [work.at_once() for work in self.backward]
        if kind is TaskKind.BACKWARD_WEIGHT:
            return [work.put_off() for work in self.backward if np.any(work.later_s)]
        return self.forward if kind is TaskKind.FORWARD else self.backward


@dataclass(frozen=True)
class _OperatorStep:
    """One operator with its price, and how its block streams; columns of strategies."""

    op: Op
    cost: OpCost
    piece: PricedPiece
    is_taken: Mask
    """Rows with this stream of the block; the others have another step for the operator."""
    calls: Sequence[tuple[CollectiveCall, str, bool]]
    """Calls of its layer: each with the operator that needs it, and whether it travels in
    rounds."""
    is_repeated: bool
    """The backward pass computes it again."""


def _steps(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork, rates: DeviceRates
) -> Iterator[list[_OperatorStep]]:
    """Yield the operators of each kind of layer, then of the embedding, then of the head."""
    for index, blocks in enumerate(streamed_blocks(problem, plan_options, network)):
        is_edge = index >= len(problem.graph.layers)
        recompute = Recompute.NONE if is_edge else plan_options.recompute
        selected: frozenset[str] = frozenset()
        if recompute is Recompute.SELECTIVE:
            selected = repeated_ops(
                problem.pieces[index], plan_options.recompute_modules, plan_options.stored_tensors
            )
        steps = []
        for piece, block, is_taken in blocks:
            calls, causal = piece.senders(recompute), problem.workload.causal
            for op in block.ops:
                cost = op_cost(op, piece.local, rates, piece.streams, causal=causal)
                again = recompute is Recompute.FULL or op.name in selected
                steps.append(_OperatorStep(op, cost, piece, is_taken, calls, again))
        yield steps


def piece_passes(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork,
    rates: DeviceRates | None = None, names: Collection[str] | None = None,
) -> tuple[PiecePasses, ...]:  # fmt: skip
    """Return the passes of each kind of layer, then of the embedding, then of the head.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    rates
        Rates of the device; those of the slowest one if not given.
    names
        Names of the operators to pass; all if not given.
    """
    rates = rates or problem.rates
    every = _steps(problem, plan_options, network, rates)
    return tuple(
        _passes(rates, [step for step in steps if names is None or step.op.name in names])
        for steps in every
    )


def _passes(rates: DeviceRates, steps: Sequence[_OperatorStep]) -> PiecePasses:
    """Return both passes of one piece, under one strategy."""

    def messages(
        step: _OperatorStep, *, is_forward: bool, again: bool = False
    ) -> tuple[Message, ...]:
        return tuple(m.of() for m in _messages(step, is_forward=is_forward, again=again))

    forward = [
        OperatorWork(step.op.name, number_at(step.cost.forward_s), messages(step, is_forward=True))
        for step in steps
    ]
    repeated = [step for step in steps if step.is_repeated]
    backward = [
        OperatorWork(
            f"{step.op.name} again",
            number_at(step.cost.forward_s),
            messages(step, is_forward=True, again=True),
        )
        for step in repeated
    ]
    backward += [
        OperatorWork(
            f"{step.op.name} gradient",
            number_at(step.cost.input_gradient_s) + number_at(step.cost.weight_gradient_s),
            messages(step, is_forward=False),
            number_at(step.cost.weight_gradient_s),
        )
        for step in reversed(steps)
    ]
    kernels_forward = sum(number_at(step.cost.forward_kernels) for step in steps)
    kernels_backward = sum(number_at(step.cost.backward_kernels) for step in steps)
    kernels_backward += sum(number_at(step.cost.forward_kernels) for step in repeated)
    # Waiting for the host to launch kernels comes last.
    for works, num_kernels in ((forward, kernels_forward), (backward, kernels_backward)):
        waits_s = number_at(exposed_launch_s(sum(w.compute_s for w in works), num_kernels, rates))
        if waits_s > 0:
            works.append(OperatorWork("launch", waits_s))
    return PiecePasses(tuple(forward), tuple(backward))


def _messages(
    step: _OperatorStep, *, is_forward: bool, again: bool = False
) -> Iterator[MessageOf[Num]]:
    """Yield the messages of an operator in one pass of a micro-batch, or in its recomputation.

    Tensors in the same rounds are one message, as they are priced: the weights of queries, keys
    and values, say.
    """
    problem, strategy = step.piece.problem, step.piece.network.strategy
    overlaps_tp = step.piece.plan_options.overlap_tensor_parallel
    gradient = problem.workload.optimizer.reduced_gradient_bytes_per_param
    waits = step.cost.forward_waits if is_forward else step.cost.backward_waits
    together: dict[object, MessageOf[Num]] = {}
    for number, (call, sender, in_rounds) in enumerate(step.calls):
        ahead = call.phase is Phase.FORWARD or call.replayed
        axis = call.axis.partition("/")[0]  # without the dim that its ranks share
        if call.per_step or sender != step.op.name or bool(np.all(degree_of(axis, strategy) == 1)):
            continue
        if ahead is is_forward and call.replayed is again:
            elements = local_elements(call.tensor, call.split, step.piece.sizes, strategy)
            num_bytes = call_word_bytes(call, problem.rates, gradient) * elements * step.is_taken
            overlaps: Mask = np.logical_not(waits) if in_rounds else False
            if is_overlapped(call, overlaps_tensor_parallel=overlaps_tp):
                overlaps = True
            key = (call.axis, call.kind) if in_rounds else number
            if key in together:
                num_bytes = num_bytes + together[key].num_bytes
            rounds = f"{step.op.name}{' again' * again}" if in_rounds else ""
            since, until = _rounds_of(step, call) if in_rounds else (0.0, 1.0)
            chunks = step.cost.forward_chunks if is_forward or again else step.cost.backward_chunks
            together[key] = MessageOf(
                call.axis, call.kind, num_bytes, overlaps, call.streamed, rounds, since, until,
                chunks if call.streamed else 1.0,
                is_later=call.of_weight and call.kind is CollectiveKind.REDUCE_SCATTER,
                beside_s=_seconds(step, is_forward=is_forward or again) if in_rounds else 0.0,
            )  # fmt: skip
    yield from together.values()


def _seconds(step: _OperatorStep, *, is_forward: bool) -> Num:
    """Return the computation of an operator in one pass [s]."""
    cost = step.cost
    seconds = cost.forward_s if is_forward else cost.input_gradient_s + cost.weight_gradient_s
    return seconds * step.is_taken


def _rounds_of(step: _OperatorStep, call: CollectiveCall) -> tuple[Num, Num]:
    """Return when a call is sent in the rounds of an operator, in shares of its computation [1].

    Of N rounds gathered tensors come in all but the last, for the next one, and sums leave in all
    but the first; partial sums of attention may leave after it has computed. On a block of r x c
    devices messages pass along the rows in the first, or the last, c of r c rounds.
    """
    streams, is_sum = step.piece.streams, call.kind is CollectiveKind.REDUCE_SCATTER
    assert streams is not None
    links = streams.links
    a_round = 1.0 / links.num_members
    if call.axis == ROWS:
        return (1.0 - a_round, 1.0) if is_sum else (0.0, a_round)
    if not is_sum:
        return 0.0, 1.0 - a_round
    rounds = links.num_members
    if step.op.kind is OpKind.ATTENTION:
        rounds = links.num_exchange_rounds
    last = rounds * a_round
    return last - 1.0 + a_round, last


def _passed(steps: Sequence[_OperatorStep], *, is_forward: bool) -> Iterator[MessageOf[Num]]:
    """Yield the messages of a piece in one pass of a micro-batch, recomputation included."""
    for step in steps:
        if not is_forward and step.is_repeated:
            yield from _messages(step, is_forward=True, again=True)
    for step in steps if is_forward else reversed(steps):
        yield from _messages(step, is_forward=is_forward)


@dataclass(frozen=True)
class PassWindow:
    """One pass of a micro-batch through a stage: its computation, and the messages beside it."""

    messages: Sent
    """Messages of the layers and edges."""
    compute_s: float
    """Computation, and waits for kernels [s]."""
    data: Sent
    """Data-parallel messages."""
    data_share: float
    """Share of the micro-batches with data-parallel messages in this pass [1]."""
    first_s: float
    """Computation of the head, before the first gradients leave a backward pass; 0 where parameters
    come from its start [s]."""


@dataclass(frozen=True)
class Window:
    """Both passes of a micro-batch through a stage."""

    forward: PassWindow
    backward: PassWindow
    between: Sent
    """Messages to the next stage and to the one before."""
    num_micro_batches: float


def stage_windows(
    problem: Problem, option_sets: Sequence[PlanOptions], network: AxisNetwork,
    params: HeldParams[FloatArray],
) -> list[Window]:  # fmt: skip
    """Return both passes of a micro-batch through a stage, for each row of the network.

    Rows of equal layers are worked out together.

    Parameters
    ----------
    problem
        Its pace may have a row for each of the network.
    option_sets
        Plan options of each row.
    params
        Columns with one entry for each row.
    """
    found: dict[int, Window] = {}
    layouts: dict[PlanOptions, dict[PlanOptions, list[int]]] = {}
    for row, plan_options in enumerate(option_sets):
        layout = replace(layout_of(plan_options), recompute=plan_options.recompute)
        layouts.setdefault(layout, {}).setdefault(plan_options, []).append(row)
    for layout, members in layouts.items():
        rows = [row for own in members.values() for row in own]
        part, paced = take_rows(network, rows), problem.of_rows(np.array(rows))
        pieces = list(_steps(paced, layout, part, paced.rates))
        counts = _counts(problem, part.strategy)
        columns = [
            [
                (replace(message, rounds=message.rounds and f"{message.rounds} {kind}"), count)
                for kind, (piece, count) in enumerate(zip(pieces, counts, strict=True))
                for message in _passed(piece, is_forward=is_forward)
            ]
            for is_forward in (True, False)
        ]
        seconds = [
            sum(
                count * _pass_s(piece, paced.rates, is_forward=is_forward)
                for piece, count in zip(pieces, counts, strict=True)
            )
            for is_forward in (True, False)
        ]
        head_s = counts[-1] * _pass_s(pieces[-1], paced.rates, is_forward=False)
        places = {row: place for place, row in enumerate(rows)}
        of_layers = [_of_rows(each, len(rows)) for each in columns]
        for plan_options, own in members.items():
            strategy = take_rows(network.strategy, own)
            held = take_rows(params, own)
            gather, scatter, sums = data_messages(problem, plan_options, strategy, held)
            stage, number = plan_options.zero_stage, micro_batches(problem, strategy)
            drops = stage == 3 and plan_options.reshard_after_forward
            data = [
                [(message, 1.0) for message in gather],
                [(m, 1.0) for part in (scatter, sums, gather if drops else ()) for m in part],
            ]
            each = [stage == 3, stage >= 2]
            between = _of_rows([_pipeline_message(problem, plan_options, strategy, 1.0)], len(own))
            of_data = [_of_rows(sent, len(own)) for sent in data]
            for place, row in enumerate(own):
                forward, backward = (
                    PassWindow(
                        of_layers[way][places[row]],
                        number_at(seconds[way], places[row]),
                        of_data[way][place],
                        1.0 if each[way] else 1.0 / number_at(number, place),
                        number_at(head_s, places[row]) if way and not drops else 0.0,
                    )
                    for way in (0, 1)
                )
                found[row] = Window(forward, backward, between[place], number_at(number, place))
    return [found[row] for row in range(len(option_sets))]


def _counts(problem: Problem, strategy: StrategyColumns) -> list[Num]:
    """Return the pieces of each kind in a stage, on average: layers, embedding and head."""
    pattern, kinds = problem.model.layer_pattern, range(len(problem.graph.layers))
    return [number / strategy.pp for number in (*map(pattern.count, kinds), 1.0, 1.0)]


def _pass_s(steps: Sequence[_OperatorStep], rates: DeviceRates, *, is_forward: bool) -> Num:
    """Return the computation of a piece in one pass, recomputation and launches included [s]."""
    again = () if is_forward else [step for step in steps if step.is_repeated]
    kernels = "forward_kernels" if is_forward else "backward_kernels"
    seconds = sum(_seconds(step, is_forward=is_forward) for step in steps)
    seconds = seconds + sum(_seconds(step, is_forward=True) for step in again)
    number = sum(getattr(step.cost, kernels) * step.is_taken for step in steps)
    number = number + sum(step.cost.forward_kernels * step.is_taken for step in again)
    return seconds + exposed_launch_s(seconds, number, rates)


def _of_rows(columns: Sequence[tuple[MessageOf[Num], Num]], number: int) -> list[Sent]:
    """Return the messages of each of a number of rows, except those without bytes."""
    found: list[Sent] = [[] for _ in range(number)]
    for message, times in columns:
        sizes, overlaps, since, until, chunks, beside_s, counts = (
            np.broadcast_to(np.asarray(column, dtype=float), number).tolist()
            for column in (
                message.num_bytes, message.overlaps, message.since, message.until,
                message.num_chunks, message.beside_s, times,
            )
        )  # fmt: skip
        for row, size in enumerate(sizes):
            if size:
                one = Message(
                    message.axis, message.kind, size, bool(overlaps[row]), message.is_stream,
                    message.rounds, since[row], until[row], chunks[row], message.is_later,
                    beside_s[row],
                )  # fmt: skip
                found[row].append((one, counts[row]))
    return found


def step_messages(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork, params: HeldParams[float],
    num_passes: float,
) -> Sent:  # fmt: skip
    """Return the messages of all stages in a step, each with its count.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    num_passes
        Micro-batches of the step.
    """
    strategy = network.strategy
    pieces = list(_steps(problem, plan_options, network, problem.rates))
    found: list[tuple[MessageOf[Num], Num]] = []
    for is_forward in (True, False):
        found += _layer_messages(problem, strategy, pieces, num_passes, is_forward=is_forward)
        for edge in pieces[len(problem.graph.layers) :]:
            sent = _passed(edge, is_forward=is_forward)
            found += ((message, num_passes / strategy.pp) for message in sent)
    found.append(_pipeline_message(problem, plan_options, strategy, num_passes))
    gather, scatter, sums = data_messages(problem, plan_options, strategy, params)
    drops = plan_options.zero_stage == 3 and plan_options.reshard_after_forward
    num_gathers = num_passes * (1 + drops) if plan_options.zero_stage == 3 else 1.0
    found += ((message, num_gathers) for message in gather)
    found += ((message, num_passes if plan_options.zero_stage >= 2 else 1.0) for message in scatter)
    found += ((message, 1.0) for message in sums)
    return _of_rows(found, 1)[0]


def _layer_messages(
    problem: Problem, strategy: StrategyColumns, pieces: Sequence[Sequence[_OperatorStep]],
    num_passes: float, *, is_forward: bool,
) -> Iterator[tuple[MessageOf[Num], Num]]:  # fmt: skip
    """Yield the messages of the layers of a stage in a number of passes, each with its count.

    Edges are left out: they are on one stage.
    """
    pattern = problem.model.layer_pattern
    for kind in range(len(problem.graph.layers)):
        times = num_passes * pattern.count(kind) / strategy.pp
        yield from ((message, times) for message in _passed(pieces[kind], is_forward=is_forward))


def _pipeline_message(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyColumns, num_passes: float
) -> tuple[MessageOf[Num], Num]:
    """Return the message between neighbouring stages, both ways, and its count."""
    num_bytes = send_bytes(problem, plan_options, strategy)
    message = MessageOf("pp", CollectiveKind.SEND, num_bytes, plan_options.wraps)
    return message, num_passes * strategy.num_virtual_stages


def data_messages(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num], params: HeldParams[Num]
) -> tuple[tuple[MessageOf[Num], ...], ...]:
    """Return gathering of parameters, scattering of gradients, and their sums over replicas.

    Of one stage, each once; without ZeRO there are sums alone. Axes of one device send nothing.
    """
    kinds = [(DATA_AXES, params.dense, strategy.dp_shard * strategy.cp)]
    if problem.num_experts:
        kinds.append((EXPERT_DATA_AXES, params.expert, degree_of("edp_shard", strategy)))
    optimizer, overlaps = problem.workload.optimizer, plan_options.overlap_data_parallel
    gather, scatter, sums = [], [], []
    for (shard, replicate, everyone), held, shards in kinds:
        gradient_bytes = held * optimizer.reduced_gradient_bytes_per_param
        weight_bytes = held * optimizer.gathered_bytes_per_param(plan_options.zero_stage)
        if plan_options.zero_stage == 0:
            sums.append(MessageOf(everyone, CollectiveKind.ALL_REDUCE, gradient_bytes, overlaps))
            continue
        gather.append(MessageOf(shard, CollectiveKind.ALL_GATHER, weight_bytes, overlaps))
        scatter.append(MessageOf(shard, CollectiveKind.REDUCE_SCATTER, gradient_bytes, overlaps))
        apart_bytes = gradient_bytes / shards
        sums.append(MessageOf(replicate, CollectiveKind.ALL_REDUCE, apart_bytes, overlaps))
    return tuple(
        tuple(message for message in part if np.any(degree_of(message.axis, strategy) > 1))
        for part in (gather, scatter, sums)
    )
