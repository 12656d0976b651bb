"""The step of a plan with a strategy for each operator, simulated.

Each group of operators sends its own messages. Where a tensor changes its layout between two
groups, the devices that hold a part of it send that part to those that lack it, and all wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from meshwright.base.arrays import IntArray, number_at, take_rows
from meshwright.cost.pipeline import table_params
from meshwright.cost.problem import Problem
from meshwright.graph.op import LayerGraph, Tensor
from meshwright.network.placement import Nesting
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraph, Timeline
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.schedule.tasks import pass_tasks
from meshwright.sharding.strategy import AXES, Recompute, ScheduleKind, stack
from meshwright.topology.network import Network
from meshwright.train.answer import OperatorOption, OperatorPlan
from meshwright.wafer.answer import SimulatedStep
from meshwright.wafer.messages import HeldParams, PiecePasses, piece_passes
from meshwright.wafer.operators.options import Options, SharedChoices
from meshwright.wafer.operators.prices import (
    BEFORE,
    ModelGraph,
    OperatorPrices,
    Place,
    handovers,
    operator_prices,
)
from meshwright.wafer.operators.resharding import Resharding
from meshwright.wafer.price import axes_laid, laid_network
from meshwright.wafer.simulation import (
    MOST_RUNS,
    MOST_TASKS,
    TASKS_PER_PASS,
    DataMessages,
    Exchanges,
    Handed,
    LayerRun,
    PlacedExchange,
    StepWork,
    messages_of_data,
    on_path_s,
    once_a_step_s,
    simulated_parts,
    step_tasks,
)


def laid_options(problem: Problem, plan: OperatorPlan) -> Options:
    """Return the options of a plan as columns, in the blocks that the plan states."""
    columns = stack([option.strategy for option in plan.options])
    choices = tuple(_nesting(problem, option) for option in plan.options)
    first = plan.options[0]
    frame = SharedChoices(
        replace(first.plan_options, axis_order=AXES),
        int(first.strategy.num_devices),
        plan.num_sequences,
    )
    return Options(
        frame,
        columns,
        tuple(option.plan_options for option in plan.options),
        choices,
        laid_network(problem, axes_laid(choices), columns),
    )


def _nesting(problem: Problem, option: OperatorOption) -> Nesting:
    """Return the way in which an option lays its axes."""
    unused = tuple(axis for axis in option.plan_options.axis_order if axis not in option.axes)
    alone = (1,) * len(problem.grid_sides)
    shapes = tuple(option.shapes[axis][::-1] for axis in option.axes)
    return Nesting((*option.axes, *unused), (*shapes, *(alone for _ in unused)))


@dataclass(frozen=True)
class _Played:
    """The groups of a plan with their computation and their messages."""

    prices: OperatorPrices
    physical: Network
    bare: Network
    """The links without latencies and message starts, which exchanges know."""

    @cached_property
    def resharding(self) -> Resharding:
        return Resharding(self.prices.problem, self.prices.options, self.physical)

    @cached_property
    def exchanges(self) -> tuple[Exchanges, ...]:
        """The exchanges of each option."""
        problem, options = self.prices.problem, self.prices.options
        launch_s = number_at(problem.calibration.collective_launch_s)
        found = []
        for index, own in enumerate(options.option_sets):
            ranks = options.ranks(problem, index, self.physical)
            row = np.array([index])
            found.append(Exchanges(own, options.take(row).network, ranks, self.bare, launch_s))
        return tuple(found)

    def passes(self, place: Place, option: int) -> PiecePasses:
        """Return both passes of one group under an option."""
        piece, group = place
        exchanges, problem = self.exchanges[option], self.prices.problem
        plan_options = exchanges.plan_options
        if piece >= len(problem.graph.layers):
            plan_options = replace(plan_options, recompute=Recompute.NONE)
        names = {op.name for op in self.prices.groups[piece][group].ops}
        network = exchanges.groups.network
        return piece_passes(problem, plan_options, network, names=names)[piece]

    def params(self, place: Place, option: int) -> HeldParams[float]:
        """Return the parameters of one group on one device [1]."""
        row = take_rows(self.prices.costs[place[0]][place[1]].layer, [option])
        return HeldParams(number_at(row.dense_params), number_at(row.expert_params))

    def data(self, params: HeldParams[float], option: int) -> DataMessages:
        """Return the data-parallel messages of some parameters under an option."""
        own = self.exchanges[option].plan_options
        strategy = self.prices.options.strategy(option)
        return messages_of_data(self.prices.problem, own, strategy, params)

    def handed(
        self, tensor: Tensor, layer: LayerGraph, one: int, other: int, times: float
    ) -> Iterator[Handed]:
        """Yield the passing of a tensor between two options; nothing where layouts are equal."""
        demands, routes = self.resharding.way(tensor, one, other)
        if len(demands) and times:
            latency_s = float(routes.latency_s(self.physical).max())
            launch_s = number_at(self.prices.problem.calibration.collective_launch_s)
            devices: IntArray = self.resharding.layouts.routes.devices[None, :]
            exchange = PlacedExchange(demands, routes, devices, latency_s + launch_s)
            yield Handed(exchange, self.resharding.num_bytes(tensor, layer), times)

    def run(
        self, place: Place, option: int, num_layers: float, before: Sequence[tuple[int, float]],
        own: Sequence[int], params: HeldParams[float],
    ) -> LayerRun:  # fmt: skip
        """Return one group of some equal layers.

        Parameters
        ----------
        before
            Options of the last group of the layer before, and the number of layers that follow it.
        own
            Options of the groups of its layer.
        params
            Parameters of one layer of it on one device [1].
        """
        piece, group = place
        layer = self.prices.problem.pieces[piece]
        arrives: list[Handed] = []
        returns: list[Handed] = []
        for one in handovers(self.prices.groups[piece]):
            if one.second != group:
                continue
            sources = before if one.first == BEFORE else [(own[one.first], num_layers)]
            for source, times in sources:
                for tensor in one.tensors:
                    arrives += self.handed(tensor, layer, source, option, times)
                    returns += self.handed(tensor, layer, option, source, times)
        recompute = self.prices.options.frame.plan_options.recompute
        return LayerRun(
            self.passes(place, option),
            num_layers,
            num_layers,
            self.data(params, option),
            self.exchanges[option],
            tuple(arrives),
            tuple(arrives) if recompute is Recompute.FULL else (),
            tuple(returns),
        )

    def runs(self, choices: Sequence[int]) -> list[LayerRun]:
        """Return the groups in the order of the forward pass; equal layers in a row together."""
        problem = self.prices.problem
        kinds = len(problem.graph.layers)
        layers = list(_by_layer(problem.model.layer_pattern, self.prices.groups, choices))
        embedding, head = (kinds, 0), (kinds + 1, 0)
        first, last = choices[0], choices[-1]
        found = [self.run(embedding, first, 1.0, [], [first], self.params(embedding, first))]
        before = first
        equal = [list(same) for _, same in groupby(layers)]
        most = max(1, MOST_RUNS // len(equal))
        for same in equal:
            kind, own = same[0]
            for part in np.array_split(np.arange(len(same)), min(most, len(same))):
                number = float(len(part))
                sources = [(before, 1.0), (own[-1], number - 1.0)]
                found += [
                    self.run(
                        (kind, group), option, number, sources, own,
                        self.params((kind, group), option),
                    )
                    for group, option in enumerate(own)
                ]  # fmt: skip
                before = own[-1]
        of_head = self.params(head, last)
        if problem.graph.tied and first == last:
            strategy = stack([self.prices.options.strategy(last)])
            table = number_at(table_params(problem, strategy))
            of_head = replace(of_head, dense=of_head.dense - table)
        return [*found, self.run(head, last, 1.0, [(before, 1.0)], [last], of_head)]


def _by_layer(
    pattern: Sequence[int], groups: Sequence[Sequence[LayerGraph]], choices: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the kind of each layer and the options of its groups."""
    start = 1
    for kind in pattern:
        end = start + len(groups[kind])
        yield kind, tuple(choices[start:end])
        start = end


def simulate_operators(
    problem: Problem, plan: OperatorPlan, physical: Network, *, most_tasks: int = MOST_TASKS
) -> SimulatedStep:
    """Return a simulated step of a plan with a strategy for each operator.

    Micro-batches that are left out take the time between two shorter steps.

    Parameters
    ----------
    most_tasks
        Most tasks to play, about.
    """
    none = np.zeros(physical.num_links)
    bare = replace(physical, latency_s=none, message_half_bytes=none.copy())
    prices = operator_prices(problem, laid_options(problem, plan))
    played = _Played(prices, physical, bare)
    rows = np.arange(len(prices.options))
    price = ModelGraph(prices, prices, rows, played.resharding, {}).price(plan.assignment)
    runs = played.runs(plan.assignment)
    exchanges = played.exchanges[plan.assignment[-1]]
    plan_options = exchanges.plan_options
    work = StepWork(
        runs=[[runs]],
        tasks=(),
        send=None,
        overlaps_data=plan_options.overlap_data_parallel,
        speed=np.zeros(physical.num_devices, dtype=np.int64),
    )

    def play(num_micro_batches: int) -> tuple[TaskGraph, Timeline]:
        tasks = pass_tasks(schedules[ScheduleKind.ONE_F_ONE_B], 1, 1, num_micro_batches)
        graph = step_tasks(replace(work, tasks=tasks), exchanges)
        return graph, simulate_tasks(graph, bare)

    total = round(number_at(price.pipeline.num_micro_batches))
    per_pass = prices.options.frame.num_devices * TASKS_PER_PASS * 2
    most = min(total, max(2, most_tasks // per_pass))
    graph, timeline = play(most)
    pipeline_s = timeline.makespan_s
    if most < total:
        pipeline_s += (total - most) * (pipeline_s - play(most - 1)[1].makespan_s)
    once_s = once_a_step_s(problem, plan_options, exchanges.groups.network, price.pipeline)
    waits_s = on_path_s(graph, timeline, pipeline_s)
    parts = simulated_parts(plan.time_parts_s, price.pipeline, waits_s, pipeline_s, once_s)
    return SimulatedStep(sum(parts.values()), parts, graph, timeline, most)
