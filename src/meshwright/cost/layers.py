"""The prices of all layers for columns of strategies: graph, shardings and network joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from meshwright.base.arrays import larger
from meshwright.collectives.selection import affine_forms, best_affine_candidates
from meshwright.cost.data_parallel import Transfer
from meshwright.cost.layer import LayerCost
from meshwright.cost.layer_price import (
    BlockCost,
    OpSums,
    chosen_block,
    comm_cost,
    joined_sums,
    kept_bytes,
    largest_transient_bytes,
    layer_cost,
    op_sums,
    parameters_on_device,
)
from meshwright.cost.network import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.cost.streaming import Way, ways_to_stream
from meshwright.graph.op import LayerGraph
from meshwright.sharding.derivation import SavedTensor
from meshwright.sharding.strategy import Recompute, Streamed, Structure
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class LayerPrices:
    """Prices of each kind of layer and of both edges, under one kind of recomputation."""

    kinds: tuple[LayerCost, ...]
    embedding: LayerCost
    head: LayerCost


class Collectives:
    """Times of collectives over the axes of columns of strategies; forms are found once.

    With ``all_forms`` every algorithm keeps its place, so that tables of equal shape arise.
    """

    def __init__(self, network: AxisNetwork, launch_s: Any, *, all_forms: bool = False) -> None:
        self.network = network
        self.launch_s = launch_s
        self.candidates = affine_forms if all_forms else best_affine_candidates
        self._transfers: dict[tuple[CollectiveKind, str], Transfer] = {}

    def transfer(self, kind: CollectiveKind, axis: str) -> Transfer:
        """Return the affine forms of a collective over an axis, the start of it included."""
        key = (kind, axis)
        if key not in self._transfers:
            group = self.network.group(axis)
            if not group.spans:
                return Transfer(((0.0 * self.network.strategy.tp, 0.0 * self.network.strategy.tp),))
            size = reduce(np.multiply, [span.size for span in group.spans])
            start_s = self.launch_s * (size > 1)
            forms = self.candidates(kind, group)
            self._transfers[key] = Transfer(
                tuple((fixed_s + start_s, slope) for _, fixed_s, slope in forms)
            )
        return self._transfers[key]

    def time_s(self, kind: CollectiveKind, axis: str, num_bytes: Any) -> Any:
        """Return the seconds of one collective."""
        return self.transfer(kind, axis).time_s(num_bytes, 1.0)


def price_layers(
    problem: Problem,
    structure: Structure,
    network: AxisNetwork,
    recomputes: tuple[Recompute, ...],
    *,
    uses_tatp: bool,
) -> dict[Recompute, LayerPrices]:
    """Return the prices of all pieces of the model, for each kind of recomputation.

    Parameters
    ----------
    network
        Columns of degrees with the groups of their axes; only what a layer sees matters.
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    """
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    pieces: dict[Recompute, list[LayerCost]] = {recompute: [] for recompute in recomputes}
    for index in range(len(problem.pieces)):
        ways = ways_to_stream(problem, structure, network, index, uses_tatp=uses_tatp)
        priced = [PricedWay(way, collectives) for way in ways]
        alone = on_links_of_their_own(priced)
        for recompute in recomputes:
            again = Recompute.NONE if index >= len(problem.graph.layers) else recompute
            blocks = priced[0].blocks(again)
            if len(priced) > 1:
                takes = takes_inputs(alone, again)
                pairs = zip(takes, blocks, priced[1].blocks(again), strict=True)
                blocks = [chosen_block(*pair) for pair in pairs]
            cost = layer_cost(blocks, problem.engine, 0.0 * network.strategy.tp)
            if index == len(problem.pieces) - 1:
                cost = _with_all_at_work(cost)
            pieces[recompute].append(cost)
    return {r: LayerPrices(tuple(p[:-2]), p[-2], p[-1]) for r, p in pieces.items()}


def _with_all_at_work(head: LayerCost) -> LayerCost:
    """Return the head, which goes backward at once: what it keeps is part of its work."""
    working = head.working_bytes + head.kept_bytes
    return replace(head, working_bytes=working, kept_bytes=head.kept_bytes * 0.0)


@dataclass(frozen=True)
class PricedWay:
    """One kind of layer, or an edge, that streams one tensor, with the prices of its blocks."""

    way: Way
    collectives: Collectives

    @cached_property
    def sums(self) -> list[OpSums]:
        """The operators of each block, added up."""
        way, problem = self.way, self.way.problem
        work = problem.workload
        return [
            op_sums(
                block, way.local, problem.engine, way.streams,
                causal=work.causal, selective=work.software.selective_recompute,
            )
            for block in way.blocks
        ]  # fmt: skip

    @cached_property
    def transient_bytes(self) -> list[Any]:
        """The largest transient of each block [bytes]."""
        way, word = self.way, self.way.problem.engine.activation_bytes
        return [
            reduce(larger, [largest_transient_bytes(op, way.local, word) for op in block.ops])
            for block in way.blocks
        ]

    @cached_property
    def params(self) -> list[tuple[Any, Any]]:
        """Parameters of each block on one device, outside of routed experts and in them [1]."""
        way = self.way
        strategy = way.network.strategy
        return [parameters_on_device(block, way.structure, strategy) for block in way.blocks]

    def blocks(self, recompute: Recompute) -> list[BlockCost]:
        """Return the price of each block."""
        if recompute not in self._known:
            self._known[recompute] = self._blocks(recompute)
        return self._known[recompute]

    @cached_property
    def _known(self) -> dict[Recompute, list[BlockCost]]:
        return {}

    def _blocks(self, recompute: Recompute) -> list[BlockCost]:
        way = self.way
        strategy, word = way.network.strategy, way.problem.engine.activation_bytes
        calls, whole = way.calls_of_blocks(recompute), joined_sums(self.sums)
        together = [call for of_block in calls for call in of_block]

        def bytes_of(saved: Sequence[SavedTensor]) -> Any:
            return kept_bytes(saved, way.sizes, strategy, word)

        kept = way.saved_of_blocks(recompute)
        core_alone = way.problem.keeping.selective == "attention"
        replays = recompute is Recompute.FULL or (
            recompute is Recompute.SELECTIVE and not core_alone
        )
        back = way.saved_of_blocks(Recompute.NONE) if replays else [[] for _ in kept]
        return [
            BlockCost(
                everything=sums.everything,
                again=sums.again(recompute),
                comm=comm_cost(
                    calls[number], whole, way.sizes, strategy, way.structure,
                    self.collectives.time_s, word, together,
                ),
                kept_bytes=bytes_of(kept[number]),
                recomputed_bytes=bytes_of(back[number]),
                transient_bytes=self.transient_bytes[number],
                dense_params=self.params[number][0],
                expert_params=self.params[number][1],
            )
            for number, sums in enumerate(self.sums)
        ]  # fmt: skip


def on_links_of_their_own(priced: Sequence[PricedWay]) -> Sequence[PricedWay]:
    """Return the same ways on links that nobody else uses.

    What streams is decided there, so that a plan is the same one at every fidelity.
    """
    network = priced[0].way.network
    if len(priced) == 1 or not network.slowdown:
        return priced
    private = replace(network, slowdown={})
    collectives = Collectives(private, priced[0].collectives.launch_s)
    ways = ways_to_stream(
        priced[0].way.problem, replace(priced[0].way.structure, streamed=Streamed.AUTO), private,
        priced[0].way.index, uses_tatp=True,
    )  # fmt: skip
    return [PricedWay(way, collectives) for way in ways]


def takes_inputs(priced: Sequence[PricedWay], recompute: Recompute) -> list[Any]:
    """Return for each block whether its inputs stream, for each row.

    They do where that is legal and takes less time in a micro-batch; sums once a step and memory
    do not decide.
    """
    weights, inputs = priced
    engine = weights.way.problem.engine
    pairs = zip(weights.blocks(recompute), inputs.blocks(recompute), strict=True)
    return [
        (two.total_s(engine) < one.total_s(engine)) & is_legal
        for (one, two), is_legal in zip(pairs, inputs.way.is_legal, strict=True)
    ]


def streamed_blocks(
    problem: Problem, structure: Structure, network: AxisNetwork
) -> list[list[tuple[Way, LayerGraph]]]:
    """Return how each block of each piece of the model streams, under one strategy.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    """
    uses_tatp = bool((network.strategy.tatp > 1).any())
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    found = []
    for index in range(len(problem.pieces)):
        ways = ways_to_stream(problem, structure, network, index, uses_tatp=uses_tatp)
        takes = [False] * len(ways[0].blocks)
        if len(ways) > 1:
            priced = on_links_of_their_own([PricedWay(way, collectives) for way in ways])
            takes = [bool(np.all(taken)) for taken in takes_inputs(priced, structure.recompute)]
        found.append(
            [(ways[int(t)], block) for t, block in zip(takes, ways[0].blocks, strict=True)]
        )
    return found
