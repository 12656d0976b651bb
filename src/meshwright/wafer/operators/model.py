"""All operators of a model with their options: the stages of a pipeline, and the whole step.

Equal stages choose alike: the layers of one stage have their own options, and each other stage
has the same ones at the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from meshwright.base.arrays import (
    FloatArray,
    IntArray,
    Num,
    column,
    larger,
    number_at,
    take_rows,
)
from meshwright.cost.communication import CollectiveTime, plain
from meshwright.cost.layer import (
    LayerCost,
    split_backward,
    weighted_sum,
)
from meshwright.cost.memory import ShardDegrees, step_memory
from meshwright.cost.parts import MemoryUse, StepTime
from meshwright.cost.pipeline import (
    POSITIONS,
    PipelinePrice,
    exposed_sends_s,
    jitter_fraction,
    price_pipeline,
    stages_of,
    table_params,
)
from meshwright.cost.problem import Problem
from meshwright.cost.step import (
    gradient_sync,
    optimizer_step_s,
    step_time,
)
from meshwright.graph.op import LayerGraph
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.search.choices.elimination import ChoiceGraph, Load, Pair, make_load
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import (
    PlanOptions,
    make_strategy,
    stack,
)
from meshwright.wafer.messages import HeldParams
from meshwright.wafer.operators.options import SharedChoices
from meshwright.wafer.operators.prices import (
    BEFORE,
    Handover,
    Launches,
    OperatorPrices,
    Place,
    handovers,
    places_among,
)
from meshwright.wafer.operators.resharding import Resharding


@dataclass(frozen=True)
class Assigned:
    """The option of each group of operators, in the order of the model, and its cost."""

    places: tuple[Place, ...]
    options: tuple[int, ...]
    time: StepTime
    reshard_s: float
    """Passing tensors between different layouts, in the whole step [s]."""
    memory: MemoryUse
    pipeline: PipelinePrice

    @property
    def total_s(self) -> float:
        """The whole step [s]."""
        return float(column(self.time.total_s)[0]) + self.reshard_s

    @property
    def memory_bytes(self) -> float:
        """Memory of the fullest device [bytes]."""
        return float(np.max(self.memory.total_bytes))


Layers = Counter[tuple[int, tuple[int, ...]]]
"""Number of layers, or edges, by their piece and the option of each of their groups."""


def _mean_layers(prices: OperatorPrices, layers: Layers) -> tuple[LayerCost, ...]:
    """Return the mean layer of each kind, and the edges."""
    found = []
    for number, piece in enumerate(prices.problem.pieces):
        used: Counter[tuple[int, int]] = Counter()
        waits: dict[str, Num] = dict.fromkeys(LAUNCHES, 0.0)
        for (kind, own), count in layers.items():
            if kind != number:
                continue
            used.update(dict.fromkeys(enumerate(own), count))
            launches = [prices.costs[kind][group].launches for group, _ in enumerate(own)]
            for name in LAUNCHES:
                beyond_s = sum(
                    number_at(getattr(launch, name), option)
                    for launch, option in zip(launches, own, strict=True)
                )
                waits[name] += max(beyond_s, 0.0) * count / piece.count
        costs = {
            (group, option): take_rows(prices.costs[number][group], [option])
            for group, option in used
        }
        shares = [count / piece.count for count in used.values()]
        mean = weighted_sum([cost.layer for cost in costs.values()], shares)
        # The largest transient, and the tensors that recomputation of a whole layer restores.
        brought_back: dict[int, Num] = {}
        for (group, _), cost in costs.items():
            before = brought_back.get(group, 0.0)
            brought_back[group] = larger(before, cost.recomputed_bytes)
        transient = reduce(larger, [cost.transient_bytes for cost in costs.values()])
        working = transient + sum(brought_back.values())
        found.append(replace(with_launches(mean, waits), working_bytes=working))
    return (*found[:-1], found[-1].at_once())


LAUNCHES = tuple(one.name for one in fields(Launches))


def with_launches(cost: LayerCost, waits: Mapping[str, Num]) -> LayerCost:
    """Return a price with other waits for launches, by pass [s]."""
    more_s = waits["forward_launch_s"] - cost.forward_launch_s
    return replace(cost, forward_total_s=cost.forward_total_s + more_s, **waits)


@dataclass(frozen=True)
class StageLayers:
    """The layers of a pipeline: those of all stages that choose alike, and the number in each."""

    kinds: tuple[int, ...]
    """Kinds of the layers that choose for themselves."""
    layer_of: tuple[int, ...]
    """The one of them that each layer of the model equals."""
    stage_of: tuple[int, ...]
    """Stage of each layer of the model."""
    is_sent: tuple[bool, ...]
    """Whether the next layer is in another chunk, for each layer of the model."""
    counts: Mapping[str, FloatArray]
    """Pieces of the model in the first, the fullest middle and the last stage, by position."""


def stage_layers(problem: Problem, frame: SharedChoices) -> StageLayers:
    """Return the layers that choose for themselves in the pipeline of a frame.

    Without a pipeline all do. In a pipeline of stages with equal layers those of one stage do, and
    all other stages choose as it does; where stages differ, all layers of a kind choose alike.
    """
    pattern = problem.model.layer_pattern
    stages, chunks = frame.num_stages, frame.num_virtual_stages
    strategy = make_strategy(pp=stages, num_virtual_stages=chunks)
    layout = stages_of(problem, frame.plan_options, stack([strategy]))
    lengths = chunk_lengths(len(pattern), stages * chunks, frame.plan_options)
    chunk_of = np.repeat(np.arange(len(lengths)), lengths)
    each = [tuple(np.array(pattern)[chunk_of % stages == stage]) for stage in range(stages)]
    if stages == 1:
        layer_of = np.arange(len(pattern))
    elif len(set(each)) == 1 and len(set(lengths.tolist())) == 1:
        place = np.arange(len(pattern)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        layer_of = chunk_of // stages * lengths[0] + place
    else:
        layer_of = np.array([list(dict.fromkeys(pattern)).index(kind) for kind in pattern])
    first = np.unique(layer_of, return_index=True)[1]
    return StageLayers(
        tuple(pattern[layer] for layer in first.tolist()),
        tuple(layer_of.tolist()),
        tuple((chunk_of % stages).tolist()),
        tuple((np.diff(chunk_of, append=chunk_of[-1]) > 0).tolist()),
        {
            position: np.array([number_at(count) for count in layout.counts[position]])
            for position in (POSITIONS[:1], POSITIONS[::2], POSITIONS)[min(stages, 3) - 1]
        },
    )


Entry = tuple[int, int, int]
"""Entry between two groups: the piece of the second one, and the numbers of both."""


@dataclass(frozen=True)
class Passed:
    """Tensors that pass between two nodes of a model."""

    first: int
    second: int
    entry: Entry
    stage: int
    """Stage that lays them out anew."""


@dataclass(frozen=True)
class ModelGraph:
    """All operators of a model under one frame."""

    prices: OperatorPrices
    """Prices of the options to choose among."""
    every_way: OperatorPrices
    """Prices of all ways to lay them, which bound a plan wherever it runs."""
    rows: IntArray
    """Numbers of the options among all ways."""
    resharding: Resharding
    """Moves between all ways to lay the options, as far as they are known."""
    moves: Mapping[Entry, Load]
    """Passing tensors between two groups, for one micro-batch."""

    @property
    def frame(self) -> SharedChoices:
        """The choices that all options share."""
        return self.prices.options.frame

    @property
    def num_micro_batches(self) -> float:
        """Number of micro-batches in one step."""
        batch = self.prices.problem.workload.global_batch_size
        return float(-(-batch // self.frame.num_sequences))

    @cached_property
    def layers(self) -> StageLayers:
        """The layers that choose for themselves, and the stages."""
        return stage_layers(self.prices.problem, self.frame)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The group at each node: embedding, layers that choose for themselves in order, head."""
        return places_among(self.prices.problem, self.layers.kinds)

    @cached_property
    def first_nodes(self) -> tuple[int, ...]:
        """The node of the first group of each layer that chooses for itself, and of the head."""
        lengths = [len(self.prices.groups[kind]) for kind in self.layers.kinds]
        return tuple(np.cumsum([1, *lengths]).tolist())

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each group of the model: embedding, the groups of all layers, head."""
        starts = self.first_nodes
        inner = [n for layer in self.layers.layer_of for n in range(*starts[layer : layer + 2])]
        return (0, *inner, starts[-1])

    @cached_property
    def times_of(self) -> FloatArray:
        """Number of groups of the model at each node [1]."""
        found: FloatArray = np.bincount(self.node_of).astype(float)
        return found

    def share(self, node: int, position: str) -> float:
        """Return the mean number of groups of a node in the stage at a position [1]."""
        piece = self.places[node][0]
        count = self.prices.problem.pieces[piece].count
        return float(self.layers.counts[position][piece] * self.times_of[node] / count)

    @cached_property
    def passed(self) -> tuple[Passed, ...]:
        """All tensors that pass between groups, in the order of the model."""
        return tuple(self._passed())

    def _passed(self) -> Iterator[Passed]:
        groups, starts, before = self.prices.groups, self.first_nodes, 0
        passed = {piece: handovers(of_piece) for piece, of_piece in enumerate(groups)}
        layers = [*zip(self.layers.layer_of, self.layers.stage_of, strict=True),
                  (len(self.layers.kinds), self.layers.stage_of[-1])]  # fmt: skip
        head = len(groups) - 1
        for layer, stage in layers:
            kind, start = (*self.layers.kinds, head)[layer], starts[layer]
            for one in passed[kind] if kind != head else passed[kind][:1]:
                first = before if one.first == BEFORE else start + one.first
                yield Passed(first, start + one.second, (kind, one.first, one.second), stage)
            before = start + len(groups[kind]) - 1

    @cached_property
    def handovers(self) -> Mapping[Entry, Handover]:
        """The tensors of each entry."""
        return {
            (piece, one.first, one.second): one
            for piece, groups in enumerate(self.prices.groups)
            for one in handovers(groups)
        }

    @cached_property
    def senders(self) -> tuple[int, ...]:
        """Nodes that end a chunk of layers, and send to the next one."""
        starts, layers = self.first_nodes, self.layers
        ends = zip(layers.layer_of, layers.is_sent, strict=True)
        return tuple({starts[layer + 1] - 1: None for layer, is_sent in ends if is_sent})

    def graph(self, window_share: float = 0.0) -> ChoiceGraph:
        """Return the choices with their costs; the cheapest ones bound every plan.

        Parameters
        ----------
        window_share
            Data-parallel messages expose their last bucket, or their time beyond the computation
            that overlaps with them, whichever is more. That is no sum over operators, but any mean
            of the two bounds it from below: this is the weight of the second [1].
        """
        return ChoiceGraph(self.graph_nodes(window_share), self.edges)

    def graph_nodes(self, window_share: float) -> list[Load]:
        """Return the cost of each operator alone; equal ones share one load."""
        sends = self.senders[:1]
        keys = [
            (place, self.times_of[node], node in sends) for node, place in enumerate(self.places)
        ]
        first = {key: node for node, key in reversed(list(enumerate(keys)))}
        loads = {key: self._alone(node, window_share) for key, node in first.items()}
        return [loads[key] for key in keys]

    @cached_property
    def edges(self) -> Mapping[Pair, Load]:
        """Costs of passing tensors in a step, by pair of nodes: the earlier one first."""
        return self.edges_of({entry: (load.time_s, load.num_bytes)
                              for entry, load in self.moves.items()})  # fmt: skip

    def edges_of(
        self, tables: Mapping[Entry, tuple[FloatArray, FloatArray]]
    ) -> Mapping[Pair, Load]:
        """Return the costs of passing tensors in a step from seconds and bytes of a micro-batch.

        The slowest stage passes at least the mean of all stages in each micro-batch.
        """
        stages = self.frame.num_stages
        times = (self.num_micro_batches + self.fills.forward * (stages - 1)) / stages
        times *= 1.0 + self.jitter
        held = self.in_flight / stages
        terms: dict[Pair, Counter[tuple[Entry, bool]]] = {}
        for one in self.passed:
            is_turned = one.first > one.second
            pair = (one.second, one.first) if is_turned else (one.first, one.second)
            if one.first != one.second:
                terms.setdefault(pair, Counter())[one.entry, is_turned] += 1
        known: dict[object, Load] = {}
        for counted in terms.values():
            key = tuple(counted.items())
            if key not in known:
                parts = [
                    [count * (table.T if is_turned else table) for table in tables[entry]]
                    for (entry, is_turned), count in key
                ]
                time_s, num_bytes = (sum(each[1:], each[0]) for each in zip(*parts, strict=True))
                known[key] = make_load(time_s * times, num_bytes * held)
        return {pair: known[tuple(counted.items())] for pair, counted in terms.items()}

    @cached_property
    def jitter(self) -> float:
        """Share by which waiting for the slowest of all devices prolongs a step."""
        spread = self.prices.problem.calibration.jitter
        return float(column(jitter_fraction(np.array([self.frame.num_devices]), spread))[0])

    @cached_property
    def in_flight(self) -> float:
        """Micro-batches with activations on the first stage [1]."""
        frame, m = self.frame, np.array([self.num_micro_batches])
        peak = schedules[frame.plan_options.schedule].peak_in_flight
        return number_at(peak(0.0 * m, frame.num_stages, frame.num_virtual_stages, m))

    @cached_property
    def fills(self) -> Fills:
        """The bubble for each second of the stages besides the slowest."""
        return fills_of(self.frame, self.num_micro_batches)

    @cached_property
    def waits(self) -> float:
        """The weight of launches beyond computation in the bound of a layer: 0 or 1.

        A layer waits for at least any share of their sum between the two.
        """
        groups = [cost for costs in self.prices.costs for cost in costs]
        whole_s = np.sum([column(cost.layer.total_s) for cost in groups], axis=0)
        beyond_s = np.sum(
            [column(getattr(cost.launches, name)) for cost in groups for name in LAUNCHES[:2]],
            axis=0,
        )
        return float(beyond_s[int(np.argmin(whole_s))] > 0.0)

    @cached_property
    def position(self) -> str:
        """The stage that bounds a step: the slowest under the option that is fastest for all."""
        of_piece = [
            np.sum([column(cost.layer.total_s) for cost in costs], axis=0)
            for costs in self.prices.costs
        ]
        by_position = {
            position: sum(count * s for count, s in zip(counts, of_piece, strict=True))
            for position, counts in self.layers.counts.items()
        }
        fastest = int(np.argmin(np.max(list(by_position.values()), axis=0)))
        return max(by_position, key=lambda position: by_position[position][fastest])

    def _alone(self, node: int, window_share: float) -> Load:
        """Return the cost of a group in a step under each option."""
        problem, place = self.prices.problem, self.places[node]
        group, plan_options = self.prices.costs[place[0]][place[1]], self.frame.plan_options
        waits = {name: self.waits * getattr(group.launches, name) for name in LAUNCHES}
        (cost,) = split_backward([with_launches(group.layer, waits)], plan_options)
        optimizer, stage = problem.workload.optimizer, plan_options.zero_stage
        m, kinds = self.num_micro_batches, self.prices.held(place)
        params = sum(number for _, number in kinds)
        sharded = sum(number / links.degrees for links, number in kinds)
        held = sharded if stage >= 1 else params
        update_s = optimizer.step_traffic_bytes_per_param * held / problem.rates.memory_bytes_per_s
        shown_s, all_s = self._synced(place, window_share)
        window_s = cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s
        slower_s = problem.calibration.overlap_slowdown * np.minimum(
            m * cost.hidden_s + all_s - shown_s, m * (window_s + cost.recompute_s)
        )
        # Seconds of the slowest stage in a step, and of all stages while the pipeline fills.
        fills = self.fills
        slowest_s = (m - fills.forward) * cost.total_s + cost.per_step_s + update_s + shown_s
        busy_s = self.share(node, self.position) * (slowest_s + slower_s)
        weight_s = cost.weight_gradient_pass_s
        passed_s = fills.forward * (cost.total_s - weight_s) + fills.weight * weight_s
        least = min(self.share(node, position) for position in self.layers.counts)
        busy_s = busy_s + self.times_of[node] * passed_s
        busy_s = busy_s + least * (fills.forward - fills.weight) * weight_s
        if node in self.senders[:1]:
            busy_s = busy_s + self.num_sends * self.prices.sends_s
        # Gradients that come and go need not meet the activations.
        gradient = optimizer.gradient_bytes_per_param
        gradient *= not problem.workload.software.shards_by_unit
        num_bytes = (
            optimizer.weight_bytes_per_param * (sharded if stage >= 3 else params)
            + gradient * (sharded if stage >= 2 else params)
            + optimizer.state_bytes_per_param * held
            + self.in_flight * cost.kept_bytes * (place[0] < len(problem.pieces) - 1)
        )
        share = self.share(node, POSITIONS[0])
        return make_load(busy_s * (1.0 + self.jitter), share * num_bytes)

    @cached_property
    def num_sends(self) -> float:
        """Sends of one micro-batch that a step waits for at least [1]."""
        frame, m = self.frame, self.num_micro_batches
        p, v, plan_options = frame.num_stages, frame.num_virtual_stages, frame.plan_options
        if p == 1:
            return 0.0
        waits = exposed_sends_s(self.prices.problem, plan_options, np.inf, 1.0, p, v, m)
        return float(number_at(waits)) + fills_of(frame, m).sends

    def _synced(self, place: Place, window_share: float) -> tuple[FloatArray, FloatArray]:
        """Return the least exposed part of a group's data-parallel messages, and all of them [s].

        Latencies, which buckets share, are left out.
        """
        problem, kinds = self.prices.problem, self.prices.held(place)
        cost = self.prices.costs[place[0]][place[1]].layer
        plan_options, optimizer = self.frame.plan_options, problem.workload.optimizer
        reduced = optimizer.reduced_gradient_bytes_per_param
        gathered = optimizer.gathered_bytes_per_param(plan_options.zero_stage)

        def least_s(times: Sequence[CollectiveTime], bytes_per_param: float) -> FloatArray:
            """Return the seconds of all kinds of parameters, which share the links."""
            each = [
                _least_s(time, column(number) * bytes_per_param)
                for time, (_, number) in zip(times, kinds, strict=True)
            ]
            total_s: FloatArray = np.sum(each, axis=0)
            return total_s

        backward_s = cost.input_gradient_s + cost.weight_gradient_s + cost.recompute_s
        m = self.num_micro_batches
        if plan_options.zero_stage == 0:
            terms = [(1.0, least_s([k.all_reduce for k, _ in kinds], reduced), backward_s)]
        else:
            scatter_s = least_s([k.reduce_scatter for k, _ in kinds], reduced)
            gather_s = least_s([k.all_gather for k, _ in kinds], gathered)
            again = plan_options.zero_stage == 3 and plan_options.reshard_after_forward
            terms = [
                (m if plan_options.zero_stage == 3 else 1.0, gather_s, cost.forward_s),
                (
                    m if plan_options.zero_stage >= 2 else 1.0,
                    scatter_s + again * gather_s,
                    backward_s,
                ),
            ]
        all_s: FloatArray = np.sum([times * term_s for times, term_s, _ in terms], axis=0)
        if not plan_options.overlap_data_parallel:
            return all_s, all_s
        buckets = max(counts[:-2].sum() for counts in self.layers.counts.values())
        shown = [
            times * ((1.0 - window_share) * term_s / buckets + window_share * (term_s - window_s))
            for times, term_s, window_s in terms
        ]
        return np.sum(shown, axis=0), all_s

    def under(self, plan_options: PlanOptions) -> ModelGraph:
        """Return the graph under another stage of ZeRO, which changes no layer."""
        prices, every_way = self.prices, self.every_way
        return replace(
            self, prices=prices.under(plan_options), every_way=every_way.under(plan_options)
        )

    def price_of(self, assignment: Sequence[int]) -> Assigned:
        """Return the price of the whole step for one choice of each group of the model."""
        first = {node: group for group, node in reversed(list(enumerate(self.node_of)))}
        return self.price(tuple(assignment[first[node]] for node in range(len(first))))

    def price(self, choices: tuple[int, ...]) -> Assigned:
        """Return the price of the whole step for one choice of each node."""
        prices, places = self.prices, self.places
        problem, plan_options = prices.problem, self.frame.plan_options
        strategy = stack([prices.options.strategy(choices[-1])])
        send_s = max((prices.sends_s[choices[node]] for node in self.senders), default=0.0)
        price = price_pipeline(
            problem, plan_options, strategy, _mean_layers(prices, self._chosen(choices)),
            np.array([send_s]),
        )  # fmt: skip
        is_alone = self.frame.num_stages == 1
        if problem.graph.tied and is_alone and choices[0] != choices[-1]:
            # The ends split the tied table differently: it is held twice.
            table = self._table_params(choices[0])
            states = tuple(replace(s, dense_params=s.dense_params + table) for s in price.states)
            heaviest = replace(price.heaviest, dense_params=price.heaviest.dense_params + table)
            price = replace(price, states=states, heaviest=heaviest)
        optimizer, parts = problem.workload.optimizer, self._held(choices)
        positions = list(parts)
        dense = max(positions, key=lambda position: sum(parts[position][0].values()))
        expert = max(positions, key=lambda position: sum(parts[position][1].values()))
        kinds = [
            (np.array([number]), take_rows(links, [option]))
            for links, held in (
                (prices.links.dense, parts[dense][0]), (prices.links.expert, parts[expert][1])
            )
            if links is not None
            for option, number in held.items()
        ]  # fmt: skip
        shards = self._shards((parts[dense][0], parts[expert][1]))
        time = step_time(
            price,
            gradient_sync(kinds, price, plan_options, optimizer, problem.workload.software).total,
            optimizer_step_s(price.heaviest, shards, plan_options, optimizer, problem.rates),
            plain(np.zeros(1)),
            sigma=problem.calibration.overlap_slowdown,
        )
        by_position = dict(zip(POSITIONS, price.states, strict=True))
        memory = [
            step_memory(problem, plan_options, self._shards(parts[at]), [by_position[at]])[0]
            for at in positions
        ]
        return Assigned(
            places=places,
            options=tuple(choices),
            time=time,
            reshard_s=self._reshard_s(choices) * (1.0 + float(column(price.jitter)[0])),
            memory=max(memory, key=lambda use: float(np.max(use.total_bytes))),
            pipeline=price,
        )

    def _chosen(self, choices: Sequence[int]) -> Layers:
        """Return the number of layers and edges with the same options, by piece of the model."""
        head, starts = len(self.prices.groups) - 1, self.first_nodes
        found: Layers = Counter({(head - 1, (choices[0],)): 1, (head, (choices[-1],)): 1})
        for kind, (first, end) in zip(self.layers.kinds, pairwise(starts), strict=True):
            found[kind, tuple(choices[first:end])] += int(self.times_of[first])
        return found

    def _table_params(self, option: int) -> float:
        """Return the parameters of the token table on one device under an option [1]."""
        strategy = stack([self.prices.options.strategy(option)])
        return float(column(table_params(self.prices.problem, strategy))[0])

    def _held(self, choices: Sequence[int]) -> dict[str, tuple[dict[int, float], dict[int, float]]]:
        """Return dense and expert parameters on one device, by position and option [1]."""
        found: dict[str, tuple[dict[int, float], dict[int, float]]] = {}
        size = len(self.prices.options)
        for position in self.layers.counts:
            held: tuple[dict[int, float], dict[int, float]] = ({}, {})
            for node, option in enumerate(choices):
                share = self.share(node, position)
                if not share:
                    continue
                kinds = self.prices.held(self.places[node])
                for (_, number), of_option in zip(kinds, held, strict=False):
                    each = float(np.broadcast_to(number, size)[option])
                    of_option[option] = of_option.get(option, 0.0) + share * each
            found[position] = held
        is_one_copy = self.frame.num_stages == 1 and choices[0] == choices[-1]
        if self.prices.problem.graph.tied and is_one_copy:
            found[POSITIONS[0]][0][choices[0]] -= self._table_params(choices[0])
        return found

    def _shards(self, held: Sequence[Mapping[int, float]]) -> ShardDegrees:
        """Return the degrees that shard all parameters into as much as their options do."""
        degrees, links = [], (self.prices.links.dense, self.prices.links.expert)
        for of_option, over in zip(held, links, strict=True):
            sharded = 0.0
            if over is not None:
                for option, number in of_option.items():
                    sharded += number / number_at(take_rows(over, [option]).degrees)
            degrees.append(sum(of_option.values()) / sharded if sharded else 1.0)
        return ShardDegrees(*degrees)

    def _reshard_s(self, choices: Sequence[int]) -> float:
        """Return the seconds of passing tensors between layouts in a step, jitter left out [s].

        Those of the slowest stage in each micro-batch, and of the others while the pipeline fills.
        """
        by_stage = np.zeros(self.frame.num_stages)
        for one in self.passed:
            table = self.moves[one.entry].time_s
            by_stage[one.stage] += table[choices[one.first], choices[one.second]]
        slowest_s = float(by_stage.max())
        filling_s = self.fills.forward * (float(by_stage.sum()) - slowest_s)
        return self.num_micro_batches * slowest_s + filling_s

    def whole_params(self) -> HeldParams[FloatArray]:
        """Return the parameters on one device of the fullest stage, by option for all [1]."""
        problem, columns = self.prices.problem, self.prices.options.columns
        dense: list[Num] = []
        experts: list[Num] = []
        for position in self.layers.counts:
            costs = [
                (self.share(node, position), self.prices.costs[place[0]][place[1]].layer)
                for node, place in enumerate(self.places)
            ]
            dense.append(sum(share * column(layer.dense_params) for share, layer in costs))
            experts.append(sum(share * column(layer.expert_params) for share, layer in costs))
            if problem.graph.tied and self.frame.num_stages == 1:
                dense[-1] = dense[-1] - table_params(problem, columns)
        most: FloatArray = column(reduce(larger, dense))
        return HeldParams(most, 0.0 * most + column(reduce(larger, experts)))


@dataclass(frozen=True)
class Fills:
    """The bubble for each second of another stage than the slowest, and its sends."""

    forward: float
    """Seconds for each one of a forward pass, or of a pass for gradients of activations [1]."""
    weight: float
    """Seconds for each one of a pass for gradients of weights, where these fill most [1]."""
    sends: float


def fills_of(frame: SharedChoices, num_micro_batches: float) -> Fills:
    """Return the weights in the bubble of a schedule.

    Two stages of zero bubble: a forward pass waits once, a pass for weight gradients fills one.
    """
    p, v, m = frame.num_stages, frame.num_virtual_stages, num_micro_batches
    if p == 1:
        return Fills(0.0, 0.0, 0.0)
    bubble_s = schedules[frame.plan_options.schedule].bubble_s
    at = number_at(bubble_s(2.0, 2.0, 1.0, 0.0, p, v, m))
    more = ((3.0, 2.0, 1.0, 0.0), (2.0, 2.0, 1.5, 0.0), (2.0, 2.0, 1.0, 1.0))
    forward, weight, sends = (number_at(bubble_s(*one, p, v, m)) - at for one in more)
    weight *= 2.0
    return Fills(forward / (p - 1), weight / (p - 1), sends)


def moves_of(
    prices: OperatorPrices, resharding: Resharding, rows: Sequence[int] | None = None
) -> dict[Entry, Load]:
    """Return the cost of passing tensors between groups, for one micro-batch.

    Parameters
    ----------
    rows
        Numbers of the options among those of ``resharding``, where they are not all of them.
    """
    return {
        (piece, one.first, one.second): handed_over(
            resharding, prices.problem.pieces[piece], one, rows
        )
        for piece, groups in enumerate(prices.groups)
        for one in handovers(groups)
        if piece != len(prices.groups) - 2
    }


def handed_over(
    resharding: Resharding, layer: LayerGraph, handover: Handover, rows: Sequence[int] | None = None
) -> Load:
    """Return the cost of passing tensors between all pairs of options, or of some of them."""
    moves = {tensor: resharding.moves(tensor, layer, rows) for tensor in handover.tensors}
    once_s = np.sum([move.time_s for move in moves.values()], axis=0)
    twice = [moves[tensor] for tensor in handover.kept]
    held = sum((m.differs * m.held_bytes[None, :] for m in twice), np.zeros(once_s.shape))
    return make_load(once_s, held)


def _least_s(transfer: CollectiveTime, num_bytes: FloatArray) -> FloatArray:
    """Return the seconds of a transfer without its latency: over the best slope of each row."""
    slopes = [np.where(np.isfinite(fixed_s), slope, np.inf) for fixed_s, slope in transfer.forms]
    least: FloatArray = num_bytes * np.min(slopes, axis=0)
    return least
