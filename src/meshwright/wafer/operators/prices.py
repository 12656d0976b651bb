"""Groups of operators, their price under every option, and the whole step of one option for each.

A group has one matrix product or attention core, with the norm before it and the light operators
after it. Experts stay together: their routing ties them. The step has the same formulas as for one
strategy: the layers are means over the chosen options, gradients are summed for each kind of
parameters, one per option in use, and resharding comes on top. With one option for all it is
the price of that strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from meshwright.base.arrays import (
    FloatArray,
    IntArray,
    Num,
    column,
    joined,
    larger,
    number_at,
    take_rows,
)
from meshwright.cost.communication import Collectives, CollectiveTime, plain
from meshwright.cost.layer import LayerCost, layer_cost, priced_pieces, weighted_sum
from meshwright.cost.memory import ShardDegrees, step_memory
from meshwright.cost.parts import MemoryUse, StepTime
from meshwright.cost.pipeline import PipelinePrice, jitter_fraction, price_pipeline, table_params
from meshwright.cost.problem import Problem
from meshwright.cost.step import (
    DataParallelLinks,
    SyncLinks,
    gradient_sync,
    optimizer_step_s,
    step_time,
    sync_links,
)
from meshwright.graph.op import LayerGraph, OpKind, Tensor
from meshwright.search.choices.elimination import ChoiceGraph, Load, Pair, make_load
from meshwright.sharding.strategy import PlanOptions, Recompute, Streamed, stack
from meshwright.topology.network import Network
from meshwright.wafer.messages import HeldParams
from meshwright.wafer.operators.options import TENSORS, Options
from meshwright.wafer.operators.resharding import Resharding
from meshwright.wafer.price import contention_of

ANCHORS = (OpKind.MATMUL, OpKind.ATTENTION)
BEFORE = -1
"""Number of the source before the first group: the layer before, or the embedding."""


@dataclass(frozen=True)
class Handover:
    """Tensors that pass from one group of a layer to a later one."""

    first: int
    """Number of the group, or ``BEFORE``."""
    second: int
    tensors: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    """Tensors that the second group keeps for its backward pass, after the first did."""


def groups_of_pieces(problem: Problem) -> tuple[tuple[LayerGraph, ...], ...]:
    """Return the groups of each kind of layer, of the embedding, and of the head."""
    return tuple(operator_groups(piece) for piece in problem.pieces)


def operator_groups(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut into its groups, in order."""
    starts, has_anchor, has_any_anchor = [0], False, False
    for number, op in enumerate(layer.ops):
        begins = op.kind is OpKind.NORM or (op.kind in ANCHORS and has_anchor)
        # Inside experts and at edges an operator stays with the one before it, and so does a norm
        # before the first anchor of the layer.
        before = layer.ops[max(number - 1, 0)]
        is_inside = op.region == before.region and op.region in ("experts", "edge")
        is_early = op.kind is OpKind.NORM and not has_any_anchor
        if begins and number and not (is_inside or is_early):
            starts.append(number)
            has_anchor = False
        has_anchor |= op.kind in ANCHORS
        has_any_anchor |= op.kind in ANCHORS
    bounds = [*starts, len(layer.ops)]
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(bounds))


def handovers(groups: Sequence[LayerGraph]) -> list[Handover]:
    """Return the tensors that pass between the groups of a layer, by pairs of groups.

    A tensor that several groups read passes from reader to reader: the first one has laid it out
    as it needs it, and the residual stream goes on from there.
    """
    made = {t.name: n for n, group in enumerate(groups) for op in group.ops for t in op.outputs}
    readers_of: dict[Tensor, dict[int, None]] = {}
    for number, group in enumerate(groups):
        for op in group.ops:
            for tensor in op.inputs:
                readers_of.setdefault(tensor, {})[number] = None
    passed: dict[tuple[int, int], list[Tensor]] = {}
    for tensor, readers in readers_of.items():
        source = made.get(tensor.name, BEFORE)
        stops = [source, *(reader for reader in readers if reader != source)]
        for pair in pairwise(stops):
            passed.setdefault(pair, []).append(tensor)
    keepers = [{t.name for op in group.ops for t in op.saved} for group in groups]
    return [
        Handover(
            first, second, tuple(tensors),
            tuple(t for t in tensors if first != BEFORE and t.name in keepers[first]
                  and t.name in keepers[second]),
        )
        for (first, second), tensors in sorted(passed.items())
    ]  # fmt: skip


@dataclass(frozen=True)
class GroupCost:
    """The price of one group, and the parts of its working memory: columns of options."""

    layer: LayerCost
    transient_bytes: Num
    """Alive for a moment [bytes]."""
    recomputed_bytes: Num
    """Activations that recomputation brings back for the whole layer [bytes]."""


@dataclass(frozen=True)
class OperatorPrices:
    """The price of every group under every option."""

    problem: Problem
    options: Options
    costs: tuple[tuple[GroupCost, ...], ...]
    """Costs by piece (kinds of layers, embedding, head) and group: one row for each option."""

    @cached_property
    def groups(self) -> tuple[tuple[LayerGraph, ...], ...]:
        """The groups of each piece."""
        return groups_of_pieces(self.problem)

    @cached_property
    def links(self) -> SyncLinks:
        """Collectives over the data-parallel axes of each option."""
        launch_s = self.problem.calibration.collective_launch_s
        return sync_links(self.problem, Collectives(self.options.network, launch_s))

    def held(self, place: Place) -> list[tuple[DataParallelLinks, Num]]:
        """Return the dense parameters of a group on one device, and those of its experts.

        Each with the collectives that synchronise them.
        """
        layer = self.costs[place[0]][place[1]].layer
        found = [(self.links.dense, layer.dense_params)]
        if self.links.expert is not None:
            found.append((self.links.expert, layer.expert_params))
        return found

    def under(self, plan_options: PlanOptions) -> OperatorPrices:
        """Return the prices under a set of plan options that changes no layer."""
        return OperatorPrices(self.problem, self.options.under(plan_options), self.costs)

    def take(self, rows: IntArray) -> OperatorPrices:
        """Return the prices of some of the options."""
        return OperatorPrices(self.problem, self.options.take(rows), take_rows(self.costs, rows))


def operator_prices(problem: Problem, options: Options) -> OperatorPrices:
    """Return the prices of all options, those of one streamed tensor at a time."""
    streamed = options.streamed
    parts = [np.flatnonzero(streamed == place) for place in range(len(TENSORS))]
    used = [(rows, tensor) for rows, tensor in zip(parts, TENSORS, strict=True) if len(rows)]
    found = [_of_tensor(problem, options.take(rows), tensor) for rows, tensor in used]
    place = np.argsort(np.concatenate([rows for rows, _ in used]))
    costs = tuple(
        tuple(take_rows(joined(list(group)), place) for group in zip(*piece, strict=True))
        for piece in zip(*found, strict=True)
    )
    return OperatorPrices(problem, options, costs)


def _of_tensor(problem: Problem, options: Options, streamed: Streamed) -> list[list[GroupCost]]:
    """Return the prices of options that all stream one kind of tensor."""
    network = options.network
    plan_options = replace(options.frame.plan_options, streamed=streamed)
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    uses_tatp = bool((network.strategy.tatp > 1).any())
    found = []
    for index in range(len(problem.pieces)):
        is_edge = index >= len(problem.graph.layers)
        recompute = Recompute.NONE if is_edge else plan_options.recompute
        piece = priced_pieces(
            problem, plan_options, collectives, index, uses_tatp=uses_tatp, cut=operator_groups
        )[0]
        zero = 0.0 * network.strategy.tp
        found.append(
            [
                GroupCost(
                    layer_cost([block], problem.rates, zero),
                    block.transient_bytes + zero,
                    block.recomputed_bytes + zero,
                )
                for block in piece.blocks(recompute)
            ]
        )
    return found


Slowdown = Mapping[str, float]
"""Slowdown by axis: time of its messages on shared links over that on private links."""


def slowdown_of(
    problem: Problem, options: Options, index: int, params: HeldParams[float], physical: Network
) -> Slowdown:
    """Return the slowdown of the messages of one option where the whole model has it, by axis.

    Parameters
    ----------
    params
        Parameters of the model on one device under this option.
    """
    ranks, plan_options = options.ranks(problem, index, physical), options.option_sets[index]
    strategy = options.strategy(index)
    return contention_of(problem, plan_options, strategy, ranks, params, physical).slowdown


def slowed_prices(
    prices: OperatorPrices, rows: IntArray, slowdowns: Sequence[Slowdown]
) -> OperatorPrices:
    """Return prices in which some of the options have a slowdown each, and all others their own."""
    part = prices.options.take(rows)
    axes = dict.fromkeys(axis for entry in slowdowns for axis in entry)
    columns = {axis: np.array([entry.get(axis, 1.0) for entry in slowdowns]) for axis in axes}
    slower = replace(part, network=replace(part.network, slowdown=columns))
    found = operator_prices(prices.problem, slower)
    index = np.arange(len(prices.options))
    index[rows] = len(prices.options) + np.arange(len(rows))
    whole = dict(prices.options.network.slowdown)
    for axis in axes:
        slower_by = np.array(whole.get(axis, np.ones(len(index))))
        slower_by[rows] = columns[axis]
        whole[axis] = slower_by
    network = replace(prices.options.network, slowdown=whole)
    return OperatorPrices(
        prices.problem,
        replace(prices.options, network=network),
        take_rows(joined([prices.costs, found.costs]), index),
    )


Place = tuple[int, int]
"""A group of operators: number of the piece of the model, and of the group in it."""


def places_of(problem: Problem) -> tuple[Place, ...]:
    """Return the groups of a model in order: embedding, those of each layer, head."""
    groups, kinds = groups_of_pieces(problem), len(problem.graph.layers)
    inner = [(kind, n) for kind in problem.model.layer_pattern for n in range(len(groups[kind]))]
    return ((kinds, 0), *inner, (kinds + 1, 0))


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


def _layers(prices: OperatorPrices, used: Counter[tuple[Place, int]]) -> tuple[LayerCost, ...]:
    """Return the mean layer of each kind, and the edges."""
    found = []
    for number, piece in enumerate(prices.problem.pieces):
        mine = {key: count for key, count in used.items() if key[0][0] == number}
        costs = {
            (place, option): take_rows(prices.costs[place[0]][place[1]], [option])
            for place, option in mine
        }
        shares = [count / piece.count for count in mine.values()]
        mean = weighted_sum([cost.layer for cost in costs.values()], shares)
        # The largest transient, and the tensors that recomputation of a whole layer restores.
        brought_back: dict[Place, Num] = {}
        for (place, _), cost in costs.items():
            before = brought_back.get(place, 0.0)
            brought_back[place] = larger(before, cost.recomputed_bytes)
        transient = reduce(larger, [cost.transient_bytes for cost in costs.values()])
        working = transient + sum(brought_back.values())
        found.append(replace(mean, working_bytes=working))
    return (*found[:-1], found[-1].at_once())


def whole_params(prices: OperatorPrices, places: Sequence[Place]) -> HeldParams[FloatArray]:
    """Return the parameters on one device where all groups have one option, by option [1]."""
    layers = [prices.costs[place[0]][place[1]].layer for place in places]
    dense = np.sum([column(layer.dense_params) for layer in layers], axis=0)
    if prices.problem.graph.tied:
        dense = dense - table_params(prices.problem, prices.options.columns)
    experts = np.sum([0.0 * dense + layer.expert_params for layer in layers], axis=0)
    return HeldParams(dense, experts)


Entry = tuple[int, int, int]
"""Entry between two groups: the piece of the second one, and the numbers of both."""


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
    moves_s: Mapping[Pair, Load]
    """Passing tensors between two nodes, for one micro-batch; equal pairs share one load."""

    @property
    def num_micro_batches(self) -> float:
        """Number of micro-batches in one step."""
        batch = self.prices.problem.workload.global_batch_size
        return float(-(-batch // self.prices.options.frame.num_sequences))

    @property
    def places(self) -> tuple[Place, ...]:
        """The group at each node: embedding, layers in order, head."""
        return places_of(self.prices.problem)

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
        loads = {place: self._alone(place, window_share) for place in set(self.places)}
        return [loads[place] for place in self.places]

    @cached_property
    def edges(self) -> Mapping[Pair, Load]:
        """Costs of passing tensors in a step, by pair of nodes."""
        times = self.num_micro_batches * (1.0 + self.jitter)
        known = {id(load): make_load(load.time_s * times, load.num_bytes)
                 for load in self.moves_s.values()}  # fmt: skip
        return {pair: known[id(load)] for pair, load in self.moves_s.items()}

    @cached_property
    def jitter(self) -> float:
        """Share by which waiting for the slowest of all devices prolongs a step."""
        problem, frame = self.prices.problem, self.prices.options.frame
        spread = problem.calibration.jitter
        return float(column(jitter_fraction(np.array([frame.num_devices]), spread))[0])

    def _alone(self, place: Place, window_share: float) -> Load:
        """Return the cost of a group in a step under each option."""
        problem, options = self.prices.problem, self.prices.options
        cost, plan_options = self.prices.costs[place[0]][place[1]].layer, options.frame.plan_options
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
        busy_s = m * cost.total_s + cost.per_step_s + update_s + shown_s + slower_s
        # Gradients that come and go need not meet the activations.
        gradient = optimizer.gradient_bytes_per_param
        gradient *= not problem.workload.software.shards_by_unit
        num_bytes = (
            optimizer.weight_bytes_per_param * (sharded if stage >= 3 else params)
            + gradient * (sharded if stage >= 2 else params)
            + optimizer.state_bytes_per_param * held
            + cost.kept_bytes * (place[0] < len(problem.pieces) - 1)
        )
        return make_load(busy_s * (1.0 + self.jitter), num_bytes)

    def _synced(self, place: Place, window_share: float) -> tuple[FloatArray, FloatArray]:
        """Return the least exposed part of a group's data-parallel messages, and all of them [s].

        Latencies, which buckets share, are left out.
        """
        problem, kinds = self.prices.problem, self.prices.held(place)
        cost = self.prices.costs[place[0]][place[1]].layer
        plan_options, optimizer = self.prices.options.frame.plan_options, problem.workload.optimizer
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
        buckets = float(problem.model.num_layers)
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

    def price(self, choices: tuple[int, ...]) -> Assigned:
        """Return the price of the whole step for one choice of each node."""
        moves = self.moves_s.items()
        reshard_s = sum(float(load.time_s[choices[u], choices[v]]) for (u, v), load in moves)
        prices, places = self.prices, self.places
        problem, plan_options = prices.problem, prices.options.frame.plan_options
        used = Counter(zip(places, choices, strict=True))
        strategy = stack([prices.options.strategy(choices[-1])])
        price = price_pipeline(problem, plan_options, strategy, _layers(prices, used), np.zeros(1))
        params: dict[int, float] = {}
        """Dense parameters on one device, by the option that splits them [1]."""
        of_experts: dict[int, float] = {}
        for (place, option), count in used.items():
            for (_, number), found in zip(prices.held(place), (params, of_experts), strict=False):
                each = float(np.broadcast_to(number, len(prices.options))[option])
                found[option] = found.get(option, 0.0) + count * each
        if problem.graph.tied:
            first = stack([prices.options.strategy(choices[0])])
            table = float(column(table_params(problem, first))[0])
            is_one_copy = choices[0] == choices[-1]
            params[choices[0]] -= table * is_one_copy
            if not is_one_copy:
                # The ends split the tied table differently: it is held twice.
                states = tuple(
                    replace(s, dense_params=s.dense_params + table) for s in price.states
                )
                heaviest = replace(price.heaviest, dense_params=price.heaviest.dense_params + table)
                price = replace(price, states=states, heaviest=heaviest)
        # The degree that shards all parameters into as much as the options do.
        optimizer, degrees, kinds = problem.workload.optimizer, [], []
        for links, held in ((prices.links.dense, params), (prices.links.expert, of_experts)):
            used_links = {o: take_rows(links, [o]) for o in held} if links is not None else {}
            sharded = sum(n / number_at(used_links[o].degrees) for o, n in held.items())
            degrees.append(sum(held.values()) / sharded if sharded else 1.0)
            kinds += [(np.array([held[o]]), links) for o, links in used_links.items()]
        shards = ShardDegrees(*degrees)
        time = step_time(
            price,
            gradient_sync(kinds, price, plan_options, optimizer).total,
            optimizer_step_s(price.heaviest, shards, plan_options, optimizer, problem.rates),
            plain(np.zeros(1)),
            sigma=problem.calibration.overlap_slowdown,
        )
        times = float(column(price.num_micro_batches)[0]) * (1.0 + float(column(price.jitter)[0]))
        return Assigned(
            places=places,
            options=tuple(choices),
            time=time,
            reshard_s=reshard_s * times,
            memory=step_memory(problem, plan_options, shards, price.states)[0],
            pipeline=price,
        )


def moves_of(
    prices: OperatorPrices, resharding: Resharding, rows: Sequence[int] | None = None
) -> dict[Pair, Load]:
    """Return the cost of passing tensors between nodes of a model, for one micro-batch.

    Parameters
    ----------
    rows
        Numbers of the options among those of ``resharding``, where they are not all of them.
    """
    known: dict[Entry, Load] = {}
    found: dict[Pair, Load] = {}
    for pair, entry, handover in passed_tensors(prices):
        if entry not in known:
            known[entry] = handed_over(resharding, prices.problem.pieces[entry[0]], handover, rows)
        found[pair] = known[entry]
    return found


def passed_tensors(prices: OperatorPrices) -> Iterator[tuple[Pair, Entry, Handover]]:
    """Yield the nodes that pass tensors, and the tensors between them."""
    passed = {piece: handovers(groups) for piece, groups in enumerate(prices.groups)}
    start, head = 1, len(prices.groups) - 1
    for kind in prices.problem.model.layer_pattern:
        for handover in passed[kind]:
            first = start - 1 if handover.first == BEFORE else start + handover.first
            entry = (kind, handover.first, handover.second)
            yield (first, start + handover.second), entry, handover
        start += len(prices.groups[kind])
    last = passed[head][0]
    yield (start - 1, start), (head, last.first, last.second), last


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
