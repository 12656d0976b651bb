"""How the layers of a model stream over tatp: links, what travels, and the choice block by block.

A block ends where its result is added to the residual stream; there tokens are split whatever
streams, so each block of a layer streams its weights or its inputs, whichever is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.base.arrays import larger, smaller, where
from meshwright.collectives.group import Group
from meshwright.cost.local import LocalLayer
from meshwright.cost.network import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.cost.streamed.rounds import LayerStreams, StreamLinks
from meshwright.cost.streamed.travels import AXIS, ROWS, Travel, beside, layer_travels
from meshwright.graph.op import LayerGraph
from meshwright.sharding.axes.tatp import may_stream_inputs, streams_inputs
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.derivation import CAST, SavedTensor
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import Recompute, Streamed, StreamForm, Structure
from meshwright.streams.registry import TensorStream, streams


def stream_links(network: AxisNetwork, structure: Structure) -> StreamLinks:
    """Return the links between neighbours of the tensor streams: the slowest that they cross."""
    is_open = structure.stream_form in (StreamForm.AUTO, StreamForm.CYCLE)
    return _links(network, AXIS, _forms(structure), may_cycle=is_open)


def row_links(network: AxisNetwork) -> StreamLinks:
    """Return the links along the rows of blocks, over tp.

    What has arrived there stays, so a form that sends nothing twice is right.
    """
    return _links(network, ROWS, (streams["cycle"], streams["hold"]), may_cycle=True)


def _links(
    network: AxisNetwork, axis: str, forms: tuple[TensorStream, TensorStream], *, may_cycle: bool
) -> StreamLinks:
    """Return the links of the streams over an axis; the first form is taken where it may cycle."""
    group = network.group(axis)
    bandwidths = [np.where(s.size > 1, s.bandwidth_bytes_per_s, np.inf) for s in group.spans]
    crossed = [s.size > 1 for s in group.spans]
    bandwidth = reduce(smaller, bandwidths)
    members = degree_of(axis, network.strategy)
    has_cycle = _has_cycle(group) & may_cycle

    def of_form(quantity: Callable[[TensorStream], Any]) -> Any:
        cycle, other = (quantity(form) for form in forms)
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
        num_sends=of_form(lambda form: _num_sends(form, members)) / members,
        num_shared_rounds=of_form(lambda form: form.num_shared_rounds(members)),
        num_exchange_rounds=of_form(lambda form: form.num_exchange_rounds(members)),
    )


def _num_sends(form: TensorStream, members: Any) -> Any:
    """Return the sub-tensors that are sent in a pass, whatever the links that they cross.

    Where sends cross several links, none is repeated: each goes once to all other members.
    """
    return where(form.num_hops(members) > 1, members * (members - 1.0), form.transfers(members))


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


def residual_blocks(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut after each addition to the residual stream."""
    ends = [number for number, op in enumerate(layer.ops, 1) if op.region == "residual"]
    cuts = sorted({0, *ends, len(layer.ops)})
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(cuts))


Cut = Callable[[LayerGraph], tuple[LayerGraph, ...]]
"""Cuts a layer into parts, in order."""


@dataclass(frozen=True)
class Way:
    """One kind of layer, or an edge, with one tensor that streams: weights or inputs."""

    problem: Problem
    structure: Structure
    """Its streamed tensor is fixed."""
    network: AxisNetwork
    index: int
    links: StreamLinks | None
    """None without tatp."""
    cut: Cut = residual_blocks
    """Cuts the operators into the blocks that are priced apart."""

    @property
    def piece(self) -> LayerGraph:
        """The operators."""
        return self.problem.pieces[self.index]

    @cached_property
    def blocks(self) -> tuple[LayerGraph, ...]:
        """The operators of each block."""
        return self.cut(self.piece)

    @cached_property
    def sizes(self) -> Any:
        """Sizes of all dims, those of tokens for one micro-batch of one data-parallel rank."""
        strategy = self.network.strategy
        return self.problem.bound_sizes(self.piece, strategy.micro_batch_size)

    @cached_property
    def local(self) -> LocalLayer:
        """What one device holds of each dim."""
        work = self.problem.workload
        return LocalLayer(
            sizes=self.piece.sizes,
            degrees=self.network.strategy,
            sequence_length=float(work.sequence_length),
            sequence_parallel=self.structure.sequence_parallel,
            expert_load_imbalance=work.expert_load_imbalance,
            streams_inputs=streams_inputs(self.structure),
        )

    @cached_property
    def streams(self) -> LayerStreams | None:
        """What travels beside each operator."""
        if self.links is None:
            return None
        rows = None
        if self.structure.streamed is Streamed.BOTH:
            rows = LayerStreams(row_links(self.network), self._travels(ROWS))
        return LayerStreams(self.links, self._travels(AXIS), rows)

    def _travels(self, axis: str) -> dict[str, Travel]:
        """Return what travels along an axis beside each operator."""
        calls, _ = self.layout(Recompute.NONE)
        gradient = self.problem.workload.optimizer.reduced_gradient_bytes_per_param
        return layer_travels(
            self.piece, calls, self.structure, self.sizes, self.network.strategy,
            self.problem.engine, gradient, axis,
        )  # fmt: skip

    def layout(
        self, recompute: Recompute
    ) -> tuple[tuple[CollectiveCall, ...], tuple[SavedTensor, ...]]:
        """Return the collectives, and what is kept for the backward pass."""
        return self.problem.layouts(replace(self.structure, recompute=recompute))[self.index]

    def senders(self, recompute: Recompute) -> list[tuple[CollectiveCall, str, bool]]:
        """Return each call, the operator that needs it, and whether it travels in its rounds.

        What closes the backward pass belongs to the first operator.
        """
        names = {op.name for op in self.piece.ops}
        calls = self.layout(recompute)[0]
        found = []
        workers = beside(calls, self.piece, self.structure)
        for call, worker in zip(calls, workers, strict=True):
            site = call.site.partition(":")[0]
            name = site if site in names else self.piece.ops[0].name
            found.append((call, name if worker is None else worker.name, worker is not None))
        return found

    def calls_of_blocks(self, recompute: Recompute) -> list[list[CollectiveCall]]:
        """Return the collectives of each block that travel in no rounds of an operator."""
        found: list[list[CollectiveCall]] = [[] for _ in self.blocks]
        block_of = {op.name: n for n, block in enumerate(self.blocks) for op in block.ops}
        for call, sender, in_rounds in self.senders(recompute):
            if not in_rounds:
                found[block_of[sender]].append(call)
        return found

    def saved_of_blocks(self, recompute: Recompute) -> list[list[SavedTensor]]:
        """Return what each block keeps; what several keep belongs to the first of them."""
        found: list[list[SavedTensor]] = [[] for _ in self.blocks]
        block_of: dict[str, int] = {}
        ops = [(number, op) for number, block in enumerate(self.blocks) for op in block.ops]
        for number, tensor in (
            *((number, tensor) for number, op in ops for tensor in op.saved),
            *((number, tensor) for number, op in ops for tensor in op.outputs),
        ):
            block_of.setdefault(tensor.name, number)
        for entry in self.layout(recompute)[1]:
            found[block_of.get(entry.tensor.name.removesuffix(CAST), 0)].append(entry)
        return found

    @cached_property
    def is_legal(self) -> tuple[Any, ...]:
        """Whether each block can stream its inputs, for each row."""
        heads = [[op.attention for op in b.ops if op.attention is not None] for b in self.blocks]
        return tuple(
            may_stream_inputs(attentions, self.network.strategy, self.structure)
            for attentions in heads
        )


def ways_to_stream(
    problem: Problem, structure: Structure, network: AxisNetwork, index: int, *, uses_tatp: bool,
    cut: Cut = residual_blocks,
) -> tuple[Way, ...]:  # fmt: skip
    """Return the ways for one piece of the model; weights first, where the choice is left open.

    Edges split the vocabulary whatever streams.

    Parameters
    ----------
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    cut
        What is priced apart: by default what ends at each addition to the residual stream.
    """
    links = stream_links(network, structure) if uses_tatp else None
    is_edge = index >= len(problem.graph.layers)
    streamed = [structure.streamed]
    if structure.streamed is Streamed.AUTO:
        streamed = [Streamed.WEIGHTS, Streamed.INPUTS]
    if is_edge or not uses_tatp:
        streamed = [Streamed.WEIGHTS]
    return tuple(
        Way(problem, replace(structure, streamed=tensor), network, index, links, cut)
        for tensor in streamed
    )
