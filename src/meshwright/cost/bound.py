"""Lower bounds over all placements: layers and pipelines with axes still to be placed.

Each axis alone is on the block of devices that suits it best, each block of a layer streams the
tensor of least time, and any stage may turn out to be the slowest. So every part of a price is
bounded by itself: a :class:`LayerBound` holds the time that is certain, and the most computation
that can hide communication or fill a bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np

from meshwright.base.arrays import BoolArray, Mask, Num, ceil_div, larger, smaller, take_rows, where
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.layer import (
    HeldMemory,
    LayerCost,
    PricedPiece,
    each_piece,
    layer_cost,
    price_layers,
    weighted_part,
    weighted_sum,
)
from meshwright.cost.parts import StepTime, TimePart
from meshwright.cost.pipeline import (
    POSITIONS,
    MeanWork,
    PipelinePrice,
    StageLayout,
    exposed_sends_s,
    heaviest_of,
    jitter_fraction,
    micro_batches,
    num_paired,
    price_pipeline,
    stage_states,
    stages_of,
    tied_sync_s,
)
from meshwright.cost.problem import Problem
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.sharding.strategy import (
    PlanOptions,
    Recompute,
    ScheduleKind,
    StrategyColumns,
    Streamed,
)


@dataclass(frozen=True, kw_only=True)
class LayerBound(HeldMemory):
    """One layer, or an edge, however its axes are placed; columns of shape (rows,).

    The least of every part, except windows and weight gradients, which are the most.
    """

    total_s: Num
    """One micro-batch, forward and backward [s]."""
    forward_window_s: Num
    """Computation of a forward pass if the layer takes ``total_s`` [s]; a layer that takes x
    seconds longer has at most x more."""
    backward_window_s: Num
    weight_gradient_s: Num
    """The most [s]."""
    paired_s: Num
    """The most [s]."""
    per_step_s: Num
    hidden_s: Num
    flops: Num

    @property
    def anywhere_s(self) -> Num:
        """Time of one micro-batch wherever the axes lie: the bound holds for all places [s]."""
        return self.total_s

    @classmethod
    def of(cls, cost: LayerCost) -> LayerBound:
        """Return the bound of one price: kernel launches, which blocks share, are left out."""
        return cls(
            total_s=cost.total_s - cost.launch_s,
            forward_window_s=cost.forward_s,
            backward_window_s=cost.input_gradient_s + cost.weight_gradient_s + cost.recompute_s,
            **{name: getattr(cost, name) for name in _OF_A_PRICE},
        )


_OF_A_PRICE = ("weight_gradient_s", "paired_s", "per_step_s", "hidden_s", "flops",
               *(entry.name for entry in fields(HeldMemory)))  # fmt: skip
_MOST = ("weight_gradient_s", "paired_s")
_WINDOWS = ("forward_window_s", "backward_window_s")


def least_of(bounds: Sequence[LayerBound], are_legal: Sequence[Mask]) -> LayerBound:
    """Return the lower bound of all legal bounds among some; the first one is always legal.

    A window of w seconds in a total of t is one of w - (t - t_least) in the least total: a slower
    layer may hide more by no more than that.
    """

    def combined(name: str, first: LayerBound, other: LayerBound, is_legal: Mask) -> Num:
        one, two = getattr(first, name), getattr(other, name)
        if name in _WINDOWS:
            least_s = smaller(first.total_s, other.total_s)
            most = larger(one - first.total_s + least_s, two - other.total_s + least_s)
        elif name in _MOST:
            most = larger(one, two)
        else:
            most = smaller(one, two)
        chosen: Num = where(is_legal, most, one)
        return chosen

    def either(first: LayerBound, other: tuple[LayerBound, Mask]) -> LayerBound:
        return LayerBound(**{f.name: combined(f.name, first, *other) for f in fields(LayerBound)})

    return reduce(either, zip(bounds[1:], are_legal[1:], strict=True), bounds[0])


def best_paces(problem: Problem, strategy: StrategyColumns) -> tuple[Num, Num, Num]:
    """Return the best pace of the last rank, the least of its work, and of states on a device [1].

    However the ranks lie, and whichever of them others host: all shares together are those of the
    whole batch, and all speeds together at most those of the fastest devices. Rows and sequences
    are whole, as in :func:`~meshwright.network.faults.shared_work`. Of n ranks on fewer devices, a
    of them, some stream of N members has floor(a N / n) that work, among which its weights are
    divided again; or a device holds all of two ranks.

    Worked: 48 ranks on 46 devices of full speed, in which 128 sequences and their rows divide
    evenly, have 48 / 46 = 1.043 of the work of an equal split, and 0.958 of the pace; streams of 8
    have 8 / floor(7.67) = 1.143 of the states.
    """
    number, speed = problem.fastest_devices(strategy.num_devices)
    rows_of_one = problem.workload.sequence_length / strategy.cp
    replica_rows = problem.workload.global_batch_size * rows_of_one / strategy.dp
    rows = replica_rows / micro_batches(problem, strategy) - 0.5
    equal_rows = ceil_div(strategy.micro_batch_size * rows_of_one, strategy.tatp) * strategy.tatp
    shares = strategy.num_devices * smaller(rows / equal_rows, 1.0)
    left = np.floor(number * strategy.tatp / strategy.num_devices)
    states = smaller(strategy.tatp / larger(left, 0.5), 2.0)
    return smaller(speed / shares, 1.0), larger(shares / number, 1.0), larger(states, 1.0)


def layer_bounds(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork,
    recomputes: Sequence[Recompute], *, uses_tatp: bool,
) -> dict[Recompute, tuple[LayerBound, ...]]:  # fmt: skip
    """Return the lower bound of each piece, as :func:`~meshwright.cost.layer.each_piece` does.

    Axes of ``network`` are still to be placed.
    """
    number = len(network.strategy.tp)

    def bound(pieces: Sequence[PricedPiece], recompute: Recompute) -> LayerBound:
        first = pieces[0]
        zero, rates = 0.0 * first.network.strategy.tp, first.problem.rates
        if len(pieces) == 1 and len(zero) == number:
            cost = layer_cost(first.blocks(recompute), rates, zero)
            least = LayerBound.of(cost)
            return replace(
                least,
                total_s=cost.total_s,
                forward_window_s=least.forward_window_s + cost.forward_launch_s,
                backward_window_s=least.backward_window_s + cost.backward_launch_s,
                weight_gradient_s=cost.weight_gradient_pass_s,
            )
        ways = [slice(start, start + number) for start in range(0, len(zero), number)]
        blocks = []
        for place in range(len(first.parts)):
            costs: list[LayerBound] = []
            are_legal: list[Mask] = []
            for piece in pieces:
                least = LayerBound.of(layer_cost([piece.blocks(recompute)[place]], rates, zero))
                costs += [take_rows(least, way) for way in ways]
                streams_inputs = piece.plan_options.streamed is Streamed.INPUTS
                legal = piece.may_stream_inputs[place] if streams_inputs else True
                are_legal += [take_rows(legal, way) for way in ways]
            blocks.append(least_of(costs, are_legal))
        return weighted_sum(blocks, [1.0] * len(blocks))

    return each_piece(problem, plan_options, network, recomputes, bound, uses_tatp=uses_tatp)


Layers = tuple[LayerCost, ...] | tuple[LayerBound, ...]
"""Prices of each piece of the model; lower bounds of every placement while axes are open."""


def layer_prices(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork,
    recomputes: Sequence[Recompute],
) -> Mapping[Recompute, Layers]:  # fmt: skip
    """Return the price of each piece of the model, or its bound where axes are to be placed."""
    price = layer_bounds if network.placement.is_open else price_layers
    uses_tatp = bool((network.strategy.tatp > 1).any())
    return price(problem, plan_options, network, recomputes, uses_tatp=uses_tatp)


def pipeline_price(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyColumns, layers: Layers,
    sends_s: Num,
) -> PipelinePrice:  # fmt: skip
    """Return the price of the pipeline of layers, or its bound."""
    if isinstance(layers[0], LayerBound):
        return pipeline_bound(problem, plan_options, strategy, layers, sends_s)
    return price_pipeline(problem, plan_options, strategy, layers, sends_s)


def slowest_bound(costs: Sequence[LayerBound], layout: StageLayout) -> tuple[LayerBound, Num]:
    """Return the lower bound of the slowest stage, and its most layers.

    The slowest stage takes at least the largest of the totals of all stages: windows grow by its
    excess over a stage.
    """
    stages = [weighted_sum(costs, layout.counts[position]) for position in POSITIONS]
    num_layers = [sum(layout.counts[p][1:-2], layout.counts[p][0]) for p in POSITIONS]
    total_s = reduce(larger, [stage.total_s for stage in stages])
    exists: list[BoolArray] = [np.asarray(stage.total_s > 0) for stage in stages]

    def parts(name: str) -> Num:
        values = [getattr(stage, name) for stage in stages]
        if name in _WINDOWS:
            values = [v + total_s - stage.total_s for v, stage in zip(values, stages, strict=True)]
        is_most = name in (*_WINDOWS, *_MOST, "total_s")
        absent = -np.inf if is_most else np.inf
        there = [where(here, v, absent) for here, v in zip(exists, values, strict=True)]
        found: Num = reduce(larger if is_most else smaller, there)
        return found

    bound = LayerBound(**{f.name: parts(f.name) for f in fields(LayerBound)})
    return bound, reduce(larger, num_layers)


def pipeline_bound(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyColumns,
    costs: Sequence[LayerBound], send_s: Num,
) -> PipelinePrice:  # fmt: skip
    """Return the lower bound of all micro-batches through the pipeline.

    Its time is one sum. Of its energy only the arithmetic is certain, at the full rate.

    Parameters
    ----------
    send_s
        Seconds to pass the activations of one micro-batch to the next stage [s].
    """
    layout = stages_of(problem, plan_options, strategy)
    slowest, num_layers = slowest_bound(costs, layout)
    p, v, m = strategy.pp, strategy.num_virtual_stages, micro_batches(problem, strategy)
    sends_s = exposed_sends_s(problem, plan_options, slowest.total_s, send_s, p, v, m)
    # One micro-batch through the mean of the other stages. The more of it is weight gradient, and
    # the more equal the rest of both passes, the more of a bubble they fill.
    whole_s = weighted_part(costs, layout.total, "total_s") - slowest.total_s
    others_s = whole_s / larger(p - 1.0, 1.0)
    delayed_s = slowest.weight_gradient_s
    half_s = 0.5 * (others_s - delayed_s)
    bubble_s = schedules[plan_options.schedule].bubble_s(half_s, half_s, delayed_s, send_s, p, v, m)
    gathers = schedules[plan_options.schedule].num_gathers(p, v, m)
    states = stage_states(problem, plan_options, strategy, costs, layout, m)
    paired_s = slowest.paired_s * num_paired(plan_options, v, m)
    flops_per_s = problem.rates.matmul_flops_per_s
    computation_s = m * slowest.flops / flops_per_s
    mean_flops = m * weighted_part(costs, layout.total, "flops") / p
    return PipelinePrice(
        time=StepTime({
            TimePart.COMPUTE: computation_s,
            TimePart.LAUNCH: m * slowest.total_s - paired_s + slowest.per_step_s - computation_s,
            TimePart.MAIN_MEMORY: 0.0 * m,
            TimePart.RECOMPUTE: 0.0 * m,
            TimePart.PP_COMM: sends_s * (p > 1),
            TimePart.BUBBLE: bubble_s,
        }),
        forward_window_s=slowest.forward_window_s,
        backward_window_s=slowest.backward_window_s,
        gradient_window_s=slowest.weight_gradient_s
        if plan_options.schedule is ScheduleKind.ZERO_BUBBLE
        else slowest.backward_window_s,
        computation_s=computation_s,
        num_micro_batches=m,
        num_stages=p,
        forward_gathers=gathers.forward,
        backward_gathers=gathers.backward,
        num_layers=num_layers,
        tied_sync_s=tied_sync_s(problem, plan_options, strategy, send_s),
        hidden_s=m * slowest.hidden_s,
        states=states,
        heaviest=heaviest_of(states),
        jitter=jitter_fraction(strategy.num_devices, problem.calibration.jitter),
        tp_per_step_s=slowest.per_step_s,
        flops=slowest.flops * m,
        memory_traffic_bytes=0.0 * m,
        mean=MeanWork(
            busy_s=mean_flops / flops_per_s,
            flops=mean_flops,
            memory_traffic_bytes=0.0 * m,
            link_traffic_bytes=0.0 * m,
            dense_params=0.0 * m,
            expert_params=0.0 * m,
        ),
    )  # fmt: skip
