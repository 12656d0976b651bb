"""The prices of all layers for columns of strategies: graph, shardings and network joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from meshwright.base.arrays import larger, smaller, where
from meshwright.collectives.group import Group
from meshwright.collectives.selection import affine_forms, best_affine_candidates
from meshwright.cost.data_parallel import Transfer
from meshwright.cost.layer import LayerCost
from meshwright.cost.layer_price import (
    OpSums,
    comm_cost,
    kept_bytes,
    largest_transient_bytes,
    layer_cost,
    op_sums,
    parameters_on_device,
)
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import StreamLinks
from meshwright.graph.op import LayerGraph
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.problem import Problem
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.strategy import Recompute, StreamForm, Structure
from meshwright.streams import streams
from meshwright.streams.registry import TensorStream


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


def stream_links(
    network: AxisNetwork, structure: Structure, accumulator_bytes: float
) -> StreamLinks:
    """Return the links between neighbours of the tensor streams: the slowest that they cross."""
    group = network.group("tatp")
    bandwidths = [np.where(s.size > 1, s.bandwidth_bytes_per_s, np.inf) for s in group.spans]
    crossed = [s.size > 1 for s in group.spans]
    bandwidth = reduce(smaller, bandwidths)
    members = network.strategy.tatp
    has_cycle = _has_cycle(group) & (structure.stream_form in (StreamForm.AUTO, StreamForm.CYCLE))

    def of_form(quantity: Callable[[TensorStream], Any]) -> Any:
        cycle, other = (quantity(form) for form in _forms(structure))
        return where(has_cycle, cycle, other)

    return StreamLinks(
        num_members=members,
        bandwidth_bytes_per_s=np.where(np.isinf(bandwidth), 1.0e30, bandwidth),
        latency_s=reduce(
            larger, [s.latency_s * c for s, c in zip(group.spans, crossed, strict=True)]
        ),
        message_half_bytes=reduce(
            larger, [s.message_half_bytes * c for s, c in zip(group.spans, crossed, strict=True)]
        ),
        num_parts=of_form(lambda form: form.num_parts(members)),
        num_hops=of_form(lambda form: form.num_hops(members)),
        num_buffers=of_form(lambda form: form.buffers(members).with_incoming),
        num_shared_rounds=of_form(lambda form: form.num_shared_rounds(members)),
        accumulator_bytes=accumulator_bytes,
    )


def _has_cycle(group: Group[Any]) -> Any:
    """Return where the members of a group lie on a cycle of neighbours.

    A switch or a closed side is one; so is a block of two sides or more, one of them even.
    """
    num_long: Any = 0
    any_even: Any = False
    closes: Any = True
    for span in group.spans:
        is_long = span.size > 1
        num_long = num_long + is_long
        any_even = any_even | (is_long & (np.mod(span.size, 2) == 0))
        closes = closes & (~is_long | (span.closes == 1.0))
    return ((num_long > 1) & any_even) | closes


def _forms(structure: Structure) -> tuple[TensorStream, TensorStream]:
    """Return the stream on a cycle, and the one where there is none."""
    form = structure.stream_form
    is_open = form in (StreamForm.AUTO, StreamForm.CYCLE)
    return streams["cycle"], streams["stream" if is_open else str(form)]


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
    work, strategy = problem.workload, network.strategy
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    accumulator = work.optimizer.reduced_gradient_bytes_per_param
    links = stream_links(network, structure, accumulator) if uses_tatp else None
    pieces: dict[Recompute, list[LayerCost]] = {recompute: [] for recompute in recomputes}
    for index, piece in enumerate(problem.pieces):
        local = LocalLayer(
            sizes=piece.sizes,
            degrees=strategy,
            sequence_length=float(work.sequence_length),
            sequence_parallel=structure.sequence_parallel,
            expert_load_imbalance=work.expert_load_imbalance,
        )
        sums = op_sums(piece, local, problem.engine, links, causal=work.causal)
        for recompute in recomputes:
            chosen = replace(structure, recompute=recompute)
            pieces[recompute].append(
                _price_piece(problem, chosen, piece, index, local, sums, collectives)
            )
    return {r: LayerPrices(tuple(p[:-2]), p[-2], p[-1]) for r, p in pieces.items()}


def _price_piece(
    problem: Problem, structure: Structure, piece: LayerGraph, index: int, local: LocalLayer,
    sums: OpSums, collectives: Collectives,
) -> LayerCost:  # fmt: skip
    """Return the price of one kind of layer, or of an edge, under one kind of recomputation."""
    strategy, word = local.degrees, problem.engine.activation_bytes
    is_edge = index >= len(problem.graph.layers)
    recompute = Recompute.NONE if is_edge else structure.recompute
    calls, saved = problem.layouts(replace(structure, recompute=recompute))[index]
    sizes = problem.bound_sizes(piece, strategy.micro_batch_size)
    comm = comm_cost(calls, sums, sizes, strategy, structure, collectives.time_s, word)
    kept = kept_bytes(saved, sizes, strategy, word) + 0.0 * strategy.tp
    transient = [largest_transient_bytes(op, local, word) for op in piece.ops]
    working = reduce(larger, transient)
    if recompute is Recompute.FULL:
        everything = problem.layouts(replace(structure, recompute=Recompute.NONE))[index][1]
        working = working + kept_bytes(everything, sizes, strategy, word)
    params = parameters_on_device(piece, structure, strategy)
    if piece is problem.graph.head:
        working, kept = working + kept, kept * 0.0
    return layer_cost(sums, comm, problem.engine, recompute, kept, working, params)
