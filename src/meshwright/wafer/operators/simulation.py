"""The step of a plan with a strategy for each operator, simulated.

Each group of operators sends its own messages. Where a tensor changes its layout between two
groups, the devices that hold a part of it send that part to those that lack it, and all wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np

from meshwright.base.arrays import IntArray, number_at, take_rows
from meshwright.cost.pipeline import table_params
from meshwright.cost.problem import Problem
from meshwright.graph.op import LayerGraph, Tensor
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import Recompute, stack
from meshwright.topology.network import Network
from meshwright.train.answer import OperatorPlan
from meshwright.wafer.answer import SimulatedStep
from meshwright.wafer.messages import HeldParams, OperatorWork, PiecePasses, piece_passes
from meshwright.wafer.operators.model import LAUNCHES, ModelGraph, moves_of
from meshwright.wafer.operators.options import Options, cut_of, frame_of
from meshwright.wafer.operators.prices import (
    BEFORE,
    OperatorPrices,
    Place,
    handovers,
    operator_prices,
)
from meshwright.wafer.operators.resharding import Resharding
from meshwright.wafer.price import axes_laid, laid_network, nesting_of
from meshwright.wafer.simulation import (
    MOST_TASKS,
    DataMessages,
    Exchanges,
    Handed,
    LayerRun,
    PlacedExchange,
    StepWork,
    extent,
    messages_of_data,
    on_path_s,
    once_a_step_s,
    play,
    sent_on,
    simulated_parts,
)


def laid_options(problem: Problem, plan: OperatorPlan) -> Options:
    """Return the options of a plan as columns, in the blocks that the plan states."""
    columns = stack([option.strategy for option in plan.options])
    levels = len(problem.grid_sides)
    choices = tuple(
        nesting_of(option.axes, option.shapes, option.plan_options, levels)
        for option in plan.options
    )
    first = plan.options[0]
    frame = frame_of(problem, first.strategy, first.plan_options, cut_of(choices[0]))
    return Options(
        frame,
        columns,
        tuple(option.plan_options for option in plan.options),
        choices,
        laid_network(problem, axes_laid(choices), columns),
    )


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

    def passes(self, place: Place, option: int, own: Sequence[int]) -> PiecePasses:
        """Return both passes of one group under an option.

        Its waits for launches are its part of those of the layer, whose groups have options of
        their own.
        """
        piece, group = place
        exchanges, problem = self.exchanges[option], self.prices.problem
        plan_options = exchanges.plan_options
        if piece >= len(problem.graph.layers):
            plan_options = replace(plan_options, recompute=Recompute.NONE)
        names = {op.name for op in self.prices.groups[piece][group].ops}
        network = exchanges.groups.network
        found = piece_passes(problem, plan_options, network, names=names)[piece]
        return PiecePasses(
            tuple(self._waiting(piece, own, found.forward, LAUNCHES[0])),
            tuple(self._waiting(piece, own, found.backward, LAUNCHES[1])),
        )

    def _waiting(
        self, piece: int, own: Sequence[int], works: Sequence[OperatorWork], name: str
    ) -> Iterator[OperatorWork]:
        """Yield the works of a group with its part of the waits of its layer in one pass."""
        beyond_s = [
            number_at(getattr(cost.launches, name), option)
            for cost, option in zip(self.prices.costs[piece], own, strict=True)
        ]
        alone_s = sum(max(each_s, 0.0) for each_s in beyond_s)
        share = max(sum(beyond_s), 0.0) / alone_s if alone_s else 1.0
        for work in works:
            is_wait = work.name == "launch"
            yield replace(work, compute_s=work.compute_s * share) if is_wait else work

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
        self, tensor: Tensor, layer: LayerGraph, one: int, other: int, times: float, stage: int
    ) -> Iterator[Handed]:
        """Yield the passing of a tensor between two options; nothing where layouts are equal."""
        of_stage = self.exchanges[one].stages[stage]
        demands, routes = self.resharding.way(tensor, one, other, of_stage)
        if len(demands) and times:
            latency_s = float(routes.latency_s(self.physical).max())
            launch_s = number_at(self.prices.problem.calibration.collective_launch_s)
            devices: IntArray = of_stage[None, :]
            exchange = PlacedExchange(demands, routes, devices, latency_s + launch_s)
            yield Handed(exchange, self.resharding.num_bytes(tensor, layer), times)

    def run(
        self, place: Place, option: int, num_layers: float, before: Sequence[tuple[int, float]],
        own: Sequence[int], params: HeldParams[float], stage: int = 0,
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
                    arrives += self.handed(tensor, layer, source, option, times, stage)
                    returns += self.handed(tensor, layer, option, source, times, stage)
        recompute = self.prices.options.frame.plan_options.recompute
        return LayerRun(
            self.passes(place, option, own),
            num_layers,
            num_layers,
            self.data(params, option),
            self.exchanges[option],
            tuple(arrives),
            tuple(arrives) if recompute is Recompute.FULL else (),
            tuple(returns),
        )

    def runs(self, choices: Sequence[int], num_runs: int) -> list[list[list[LayerRun]]]:
        """Return the groups of each stage and chunk; equal layers in a row together.

        Parameters
        ----------
        num_runs
            Runs of layers that a chunk is cut into, about.
        """
        problem, frame = self.prices.problem, self.prices.options.frame
        kinds, stages = len(problem.graph.layers), frame.num_stages
        layers = list(_by_layer(problem.model.layer_pattern, self.prices.groups, choices))
        chunks = stages * frame.num_virtual_stages
        ends = np.cumsum(chunk_lengths(len(layers), chunks, frame.plan_options)).tolist()
        before, num_chunks = choices[0], chunks // stages
        table: list[list[list[LayerRun]]] = [[[] for _ in range(num_chunks)] for _ in range(stages)]
        for number, (start, end) in enumerate(pairwise([0, *ends])):
            chunk, stage = divmod(number, stages)
            found: list[LayerRun] = table[stage][chunk]
            equal = [list(same) for _, same in groupby(layers[start:end])]
            most = max(1, num_runs // max(len(equal), 1))
            for same in equal:
                kind, own = same[0]
                for part in np.array_split(np.arange(len(same)), min(most, len(same))):
                    count = float(len(part))
                    sources = [(before, 1.0), (own[-1], count - 1.0)]
                    found += [
                        self.run(
                            (kind, group), option, count, sources, own,
                            self.params((kind, group), option), stage,
                        )
                        for group, option in enumerate(own)
                    ]  # fmt: skip
                    before = own[-1]
        embedding, head, first, last = (kinds, 0), (kinds + 1, 0), choices[0], choices[-1]
        start = self.run(embedding, first, 1.0, [], [first], self.params(embedding, first))
        of_head = self.params(head, last)
        if problem.graph.tied and first == last and stages == 1:
            strategy = stack([self.prices.options.strategy(last)])
            params = number_at(table_params(problem, strategy))
            of_head = replace(of_head, dense=of_head.dense - params)
        end_run = self.run(head, last, 1.0, [(before, 1.0)], [last], of_head, stages - 1)
        table[0][0].insert(0, start)
        table[-1][-1].append(end_run)
        return table


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
    moves = moves_of(prices, played.resharding)
    price = ModelGraph(prices, prices, rows, played.resharding, moves).price_of(plan.assignment)
    exchanges = played.exchanges[plan.assignment[-1]]
    strategy, plan_options = prices.options.strategy(plan.assignment[-1]), exchanges.plan_options
    total = round(number_at(price.pipeline.num_micro_batches))
    num_runs, number = extent(strategy, plan_options, total, most_tasks)
    work = StepWork(
        runs=played.runs(plan.assignment, num_runs),
        tasks=(),
        send=sent_on(problem, plan_options, strategy),
        overlaps_data=plan_options.overlap_data_parallel,
        speed=np.zeros(physical.num_devices, dtype=np.int64),
    )
    found = play(work, exchanges, strategy, total, number)
    once_s = once_a_step_s(problem, plan_options, exchanges.groups.network, price.pipeline)
    waits_s = on_path_s(found.graph, found.timeline, found.pipeline_s)
    parts = simulated_parts(plan.time_parts_s, price.pipeline, waits_s, found.pipeline_s, once_s)
    return SimulatedStep(
        sum(parts.values()), parts, found.graph, found.timeline, found.num_micro_batches
    )
