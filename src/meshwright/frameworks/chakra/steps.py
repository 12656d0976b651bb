"""Steps of a device in one pass through a piece of the model: work, exchanges and streams.

The operators, their prices and their derived collectives are those of the plan; nothing is listed
by hand. Streams of weights over tatp are separate steps, all other collectives are exchanges, with
those of activations that move piece by piece (keys and values).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.base.arrays import number_at
from meshwright.cost.communication import Collectives
from meshwright.cost.layer import PricedPiece, op_cost
from meshwright.cost.operator import OpCost
from meshwright.cost.problem import Problem
from meshwright.cost.streaming import call_word_bytes, stream_links
from meshwright.graph.op import Op, OpKind, Phase
from meshwright.graph.recompute import repeated_ops
from meshwright.schedule.pipeline_schedules import TaskKind
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy, Streamed, stack
from meshwright.spec.collective import CollectiveKind

INPUT_OF_LAYER = "layer input gradient"
"""Site of the sums that close the backward pass of a layer."""


@dataclass(frozen=True)
class RankWork:
    """Computation."""

    name: str
    flops: float
    traffic_bytes: float
    seconds: float
    """Time without launches and without waiting for links [s]."""


@dataclass(frozen=True)
class RankExchange:
    """A collective over an axis, or over a group of axes."""

    name: str
    kind: CollectiveKind
    axis: str
    num_bytes: float
    """The full tensor on one rank [bytes]."""
    is_early: bool = False
    """Whether the tensor is there before the pass: the exchange may run ahead."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Sizes of dims that the group depends on."""


@dataclass(frozen=True)
class Stream:
    """An operator that streams its weights over tatp while it computes, round by round."""

    work: RankWork
    item_bytes: float
    """Size of one streamed sub-weight; 0 where none is streamed [bytes]."""
    accumulator_bytes: float
    """Size of one streamed gradient; 0 where none is streamed [bytes]."""


Step = RankWork | RankExchange | Stream


class Pieces:
    """Steps of each kind of layer, of the embedding and of the head, each computed once."""

    def __init__(self, problem: Problem, plan_options: PlanOptions, strategy: Strategy) -> None:
        self.problem, self.strategy = problem, strategy
        self.plan_options = replace(plan_options, streamed=Streamed.WEIGHTS)
        self.network = problem.network(plan_options.axis_order, stack([strategy]))
        self.collectives = Collectives(self.network, problem.calibration.collective_launch_s)
        self.links = stream_links(self.network, plan_options)[0] if strategy.tatp > 1 else None
        """The links of the streams; None without tatp."""
        self._known: dict[tuple[int, TaskKind], tuple[Step, ...]] = {}

    def streamed_piece(self, index: int) -> PricedPiece:
        """Return a piece with its weights streamed over tatp."""
        return PricedPiece(self.problem, self.plan_options, self.collectives, index, self.links)

    def steps(self, index: int, kind: TaskKind) -> tuple[Step, ...]:
        """Return the steps of a device in a task with one piece of the model."""
        if (index, kind) not in self._known:
            self._known[index, kind] = tuple(_merged(self._steps(index, kind)))
        return self._known[index, kind]

    def sums(self, index: int) -> list[RankExchange]:
        """Return the all-reduces of weight gradients over axes other than data, once per step."""
        calls = [call for call in self._calls(index) if call.per_step]
        return [self._exchange(index, c) for c in calls if not c.axis.startswith(("dp", "edp"))]

    def _recompute(self, index: int) -> Recompute:
        """Return the recomputation of a piece; none for edges."""
        is_edge = index >= len(self.problem.graph.layers)
        return Recompute.NONE if is_edge else self.plan_options.recompute

    def _calls(self, index: int) -> list[CollectiveCall]:
        """Return the collectives of a piece over more than one device."""
        plan_options = replace(self.plan_options, recompute=self._recompute(index))
        sizes = self.problem.pieces[index].sizes
        return [
            call
            for call in self.problem.derived_shardings(plan_options)[index].calls
            if degree_of(call.axis, self.strategy, sizes) > 1
        ]

    def _costs(self, index: int) -> list[tuple[Op, OpCost]]:
        """Return the price of each operator of a piece on one device."""
        priced = self.streamed_piece(index)
        rates, causal = self.problem.rates, self.problem.workload.causal
        return [
            (op, op_cost(op, priced.local, rates, priced.streams, causal=causal))
            for op in priced.piece.ops
        ]

    def _steps(self, index: int, kind: TaskKind) -> Iterator[Step]:
        """Yield the steps of a pass, operator by operator."""
        costs, calls = self._costs(index), self._calls(index)
        calls = [call for call in calls if not call.per_step]
        if kind is TaskKind.FORWARD:
            for op, cost in costs:
                now = [c for c in calls if c.phase is Phase.FORWARD]
                yield from self._op_steps(index, op, _forward(op, cost), now)
            return
        phases = _PHASES[kind]
        if Phase.INPUT_GRADIENT in phases:
            again = [c for c in calls if c.replayed]
            for op, cost in costs:
                if self._runs_again(index, op):
                    work = replace(_forward(op, cost), name=f"{op.name} again")
                    yield from self._op_steps(index, op, work, again)
        now = [c for c in calls if c.phase in phases and not c.replayed]
        for op, cost in reversed(costs):
            yield from self._op_steps(index, op, _backward(op, cost, phases), now)
        yield from (self._exchange(index, c) for c in now if c.site == INPUT_OF_LAYER)

    def _runs_again(self, index: int, op: Op) -> bool:
        """Return whether the backward pass repeats the forward pass of an operator."""
        recompute = self._recompute(index)
        if recompute is Recompute.SELECTIVE:
            modules = self.plan_options.recompute_modules
            stored = self.plan_options.stored_tensors
            return op.name in repeated_ops(self.problem.pieces[index], modules, stored)
        return recompute is Recompute.FULL

    def _op_steps(
        self, index: int, op: Op, work: RankWork, calls: Sequence[CollectiveCall]
    ) -> Iterator[Step]:
        """Yield the exchanges of an operator before its work, then the work, then the others."""
        own = [call for call in calls if call.site.partition(":")[0] == op.name]
        streamed = [call for call in own if call.streamed and call.of_weight]
        plain = [call for call in own if not (call.streamed and call.of_weight)]
        late = [call for call in plain if call.site.endswith(_SITES_AFTER_WORK)]
        yield from (self._exchange(index, call) for call in plain if call not in late)
        if streamed:
            gathers = [c for c in streamed if c.kind is CollectiveKind.ALL_GATHER]
            scatters = [c for c in streamed if c.kind is not CollectiveKind.ALL_GATHER]
            members = self.strategy.tatp
            yield Stream(
                work,
                sum(self._num_bytes(index, call) for call in gathers) / members,
                sum(self._num_bytes(index, call) for call in scatters) / members,
            )
        else:
            yield work
        yield from (self._exchange(index, call) for call in late)

    def _exchange(self, index: int, call: CollectiveCall) -> RankExchange:
        """Return a call with its bytes."""
        name = f"{call.tensor.name} {call.kind}"
        is_early = call.is_regather or call.of_weight
        sizes = tuple(self.problem.pieces[index].sizes.items()) if "/" in call.axis else ()
        return RankExchange(
            name, call.kind, call.axis, self._num_bytes(index, call), is_early, sizes
        )

    def _num_bytes(self, index: int, call: CollectiveCall) -> float:
        """Return the bytes of the full tensor of a call on one rank [bytes]."""
        problem = self.problem
        sizes = problem.bound_sizes(problem.pieces[index], self.strategy.micro_batch_size)
        gradient = problem.workload.optimizer.reduced_gradient_bytes_per_param
        word = call_word_bytes(call, problem.rates, gradient)
        return float(word * local_elements(call.tensor, call.split, sizes, self.strategy))


_SITES_AFTER_WORK = (": output", ": weight gradient")
"""Sites of the collectives that an operator starts after its computation."""
_PHASES = {
    TaskKind.BACKWARD: (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT),
    TaskKind.BACKWARD_INPUT: (Phase.INPUT_GRADIENT,),
    TaskKind.BACKWARD_WEIGHT: (Phase.WEIGHT_GRADIENT,),
}


def _forward(op: Op, cost: OpCost) -> RankWork:
    """Return the work of an operator in the forward pass."""
    figures = (cost.forward_flops, cost.forward_traffic_bytes, cost.forward_s)
    return RankWork(op.name, *map(number_at, figures))


def _backward(op: Op, cost: OpCost, phases: tuple[Phase, ...]) -> RankWork:
    """Return the work of an operator in the phases of a backward pass.

    The two gradients of a matrix product have equal FLOPs; all other operators have one gradient.
    """
    is_product = op.kind is OpKind.MATMUL
    share_of = {
        Phase.INPUT_GRADIENT: 0.5 if is_product else 1.0,
        Phase.WEIGHT_GRADIENT: 0.5 if is_product else 0.0,
    }
    seconds_of = {
        Phase.INPUT_GRADIENT: cost.input_gradient_s,
        Phase.WEIGHT_GRADIENT: cost.weight_gradient_s,
    }
    share = sum(share_of[phase] for phase in phases)
    return RankWork(
        f"{op.name} gradient",
        share * number_at(cost.backward_flops),
        share * number_at(cost.backward_traffic_bytes),
        sum(number_at(seconds_of[phase]) for phase in phases),
    )


def _merged(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps with neighbouring work joined, and work that does nothing left out."""
    waiting: RankWork | None = None
    for step in steps:
        if not isinstance(step, RankWork):
            if waiting is not None:
                yield waiting
            waiting = None
            yield step
        elif step.flops or step.traffic_bytes:
            waiting = step if waiting is None else _both(waiting, step)
    if waiting is not None:
        yield waiting


def _both(first: RankWork, second: RankWork) -> RankWork:
    """Return two works as one."""
    return RankWork(
        f"{first.name.partition(' .. ')[0]} .. {second.name}",
        first.flops + second.flops,
        first.traffic_bytes + second.traffic_bytes,
        first.seconds + second.seconds,
    )
