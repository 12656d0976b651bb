"""Cost of one block: seconds by pass, tensor-parallel transfers, bytes, optimizer step.

The last block of a chunk is the *edge* block: it may reduce differently where the pipeline sends
split activations. All other blocks are *base* blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import Num, where
from meshwright_papers.calculon.block import (
    NO_WORK,
    BlockChoices,
    BlockStructure,
    Joint,
    Layer,
    Work,
    block_layers,
)
from meshwright_papers.calculon.machine import Application, Machine

ADAM_FLOPS_PER_WEIGHT = 11
FULL_WORD_BYTES = 4.0


@dataclass(frozen=True)
class Pair:
    """A time of a base block and of an edge block [s]."""

    base: Num
    edge: Num

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.base + other.base, self.edge + other.edge)

    def __mul__(self, factor: Num) -> Pair:
        return Pair(self.base * factor, self.edge * factor)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.base - other.base, self.edge - other.edge)

    def plus(self, base: Num, edge: Num) -> Pair:
        """Return the pair with a time added to each side."""
        return Pair(self.base + base, self.edge + edge)

    def of_chunk(self, num_blocks: Num) -> Num:
        """Return the time of a chunk: base blocks, then one edge block [s]."""
        return (num_blocks - 1) * self.base + self.edge


NO_TIME = Pair(0.0, 0.0)


@dataclass(frozen=True)
class PassCost:
    """One pass over a layer or over a block."""

    compute_s: Num = 0.0
    memory_s: Num = 0.0
    busy_s: Num = 0.0
    """Compute and memory as the system combines them, transfers that slow it included."""
    link: Pair = NO_TIME
    """Tensor-parallel transfers, hidden or not."""
    exposed: Pair = NO_TIME

    def __add__(self, other: PassCost) -> PassCost:
        return PassCost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: Num) -> PassCost:
        return PassCost(*(getattr(self, f.name) * factor for f in fields(self)))


@dataclass(frozen=True)
class BlockCost:
    """One block, one micro-batch; sizes per processor."""

    forward: PassCost
    input_gradient: PassCost
    weight_gradient: PassCost
    again: PassCost
    """Recomputation, and the transfers that are repeated for it.

    Its compute and memory seconds are running totals over the block, as the peer counts them;
    they only enter the window in which gradients may be summed.
    """
    useful_flops: Num
    """Work without recomputation and optimizer [FLOP]."""
    weights: tuple[Num, ...]
    """Weights of each layer [elements]."""
    weight_bytes: Num
    working_bytes: Num
    """Activations of the block at work [B]."""
    kept_bytes: Num
    """Activations kept from forward to backward; 0 where all is recomputed [B]."""
    checkpoint_bytes: Num
    gradient_bytes: Num
    """Activation gradients of the block at work [B]."""

    def take(self, rows: NDArray[Any]) -> BlockCost:
        """Return some of the columns."""
        cost: BlockCost = _each_column(self, lambda column: column[rows])
        return cost


def _each_column(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a nested record with every column changed; numbers stay."""
    if isinstance(value, np.ndarray):
        return change(value) if value.ndim else value
    if isinstance(value, tuple):
        return tuple(_each_column(entry, change) for entry in value)
    if hasattr(value, "__dataclass_fields__"):
        parts = {f.name: _each_column(getattr(value, f.name), change) for f in fields(value)}
        return type(value)(**parts)
    return value


@dataclass(frozen=True)
class _Transfers:
    """The tensor-parallel transfers of one activation tensor, base and edge [s]."""

    gather: Pair
    """All-gather where split; nothing where not."""
    reduce: Pair
    """Reduce-scatter where split; all-reduce where not."""
    addition_s: Num
    """The additions of a reduction on the vector engine."""


def _transfers(app: Application, machine: Machine, choices: BlockChoices) -> _Transfers:
    tp, links = choices.tp, choices.links
    size = choices.micro_batch_size * app.sequence_size * app.hidden_size * (tp > 1)
    num_bytes, exists = size * machine.bytes_per_element, tp > 1
    gather = links.seconds("all_gather", num_bytes, tp) * exists
    scatter = links.seconds("reduce_scatter", num_bytes, tp) * exists
    whole = links.seconds("all_reduce", num_bytes, tp) * exists
    base, edge = choices.is_split > 0, choices.is_split_at_ends > 0
    return _Transfers(
        gather=Pair(where(base, gather, 0.0), where(edge, gather, 0.0)),
        reduce=Pair(where(base, scatter, whole), where(edge, scatter, whole)),
        addition_s=machine.vector.seconds(size * (tp - 1) / tp),
    )


def block_cost(
    app: Application, machine: Machine, structure: BlockStructure, choices: BlockChoices
) -> BlockCost:
    """Return the cost of one block for each column of choices."""
    word = machine.bytes_per_element
    layers = block_layers(app, structure, choices, word)
    transfers = _transfers(app, machine, choices)
    totals = _totals(layers, _LayerClock(machine, choices, transfers), structure.is_training)
    whole = choices.micro_batch_size * app.sequence_size * app.hidden_size
    kept = sum(_kept_bytes(layer, structure.is_training) for layer in layers)
    trains = float(structure.is_training)
    return BlockCost(
        forward=totals[0],
        input_gradient=totals[1],
        weight_gradient=totals[2],
        again=totals[3],
        useful_flops=sum(_useful_flops(layer, structure.is_training) for layer in layers),
        weights=tuple(layer.num_weights for layer in layers if _has_weights(layer)),
        weight_bytes=sum(layer.num_weights * word for layer in layers),
        working_bytes=sum(
            layer.activation_bytes for layer in layers if not layer.shares_input
        ),
        kept_bytes=kept * (1 - choices.recomputes_all),
        checkpoint_bytes=whole * word * choices.recomputes_all,
        gradient_bytes=sum(layer.gradient_bytes for layer in layers) * trains,
    )  # fmt: skip


def _has_weights(layer: Layer) -> bool:
    return layer.weight_gradient is not NO_WORK


def _useful_flops(layer: Layer, is_training: bool) -> Num:
    if not is_training:
        return layer.forward.flops
    return layer.forward.flops + layer.input_gradient.flops + layer.weight_gradient.flops


def _kept_bytes(layer: Layer, is_training: bool) -> Num:
    """Return the bytes that a layer keeps for backward: its input, less dropped outputs [B]."""
    if not is_training:
        return layer.activation_bytes
    dropped = (1 - layer.keeps_output) * layer.output_bytes
    return layer.activation_bytes * layer.keeps_input - dropped


def _totals(
    layers: list[Layer], clock: _LayerClock, is_training: bool
) -> tuple[PassCost, PassCost, PassCost, PassCost]:
    """Return the passes of a block: forward, input gradient, weight gradient, again."""
    forward, inputs, weights, again = PassCost(), PassCost(), PassCost(), PassCost()
    for layer in layers:
        once = clock.forward(layer)
        forward = forward + once
        if is_training:
            inputs = inputs + clock.input_gradient(layer)
            weights = weights + clock.weight_gradient(layer)
            running = PassCost(forward.compute_s, forward.memory_s, once.busy_s)
            again = again + running * layer.recomputed + clock.repeated(layer, once)
    return forward, inputs, weights, again


@dataclass(frozen=True)
class _LayerClock:
    """Times the passes of a layer on one machine."""

    machine: Machine
    choices: BlockChoices
    transfers: _Transfers

    def forward(self, layer: Layer) -> PassCost:
        """Return the forward pass."""
        return self._pass(layer, layer.forward, gathers=_opens(layer))

    def input_gradient(self, layer: Layer) -> PassCost:
        """Return the backward pass to the input; its transfers are the conjugates."""
        return self._pass(layer, layer.input_gradient, gathers=not _opens(layer))

    def weight_gradient(self, layer: Layer) -> PassCost:
        """Return the backward pass to the weights; a tiled layer hides a repeated gather here."""
        cost = self._plain(layer, layer.weight_gradient)
        if layer.joint is None or not layer.joint.is_tiled:
            return cost
        repeated = self._link(layer.joint).base * layer.joint.again
        busy_s, _ = self._tiled(cost, repeated)
        return PassCost(cost.compute_s, cost.memory_s, busy_s)

    def repeated(self, layer: Layer, forward: PassCost) -> PassCost:
        """Return the repeated transfers; a tiled one has the exposed time of the forward pass."""
        joint = layer.joint
        if joint is None:
            return PassCost()
        link = self._link(joint)
        exposed = forward.exposed if joint.is_tiled else link
        return PassCost(link=link, exposed=exposed) * joint.again

    def _link(self, joint: Joint) -> Pair:
        return self.transfers.gather if joint.is_opening else self.transfers.reduce

    def _plain(self, layer: Layer, work: Work) -> PassCost:
        """Return a pass without its transfers."""
        if work is NO_WORK:
            return PassCost()
        engine = self.machine.matrix if layer.is_matrix else self.machine.vector
        compute_s, memory_s = (
            engine.seconds(work.flops),
            self.machine.memory.seconds(work.num_bytes),
        )
        return PassCost(compute_s, memory_s, self.machine.busy_s(compute_s, memory_s))

    def _pass(self, layer: Layer, work: Work, *, gathers: bool) -> PassCost:
        """Return a pass with its transfers, which gather or reduce."""
        cost = self._plain(layer, work)
        if layer.joint is None:
            return cost
        link = self.transfers.gather if gathers else self.transfers.reduce
        if not layer.joint.is_tiled:
            link = link.plus(cost.busy_s, cost.busy_s)
            return PassCost(cost.compute_s, cost.memory_s, 0.0, link, link)
        if not gathers:
            link = link.plus(self.transfers.addition_s, self.transfers.addition_s)
        busy_s, exposed_s = self._tiled(cost, link.base)
        return PassCost(cost.compute_s, cost.memory_s, busy_s, link, Pair(exposed_s, exposed_s))

    def _tiled(self, cost: PassCost, link_s: Num) -> tuple[Num, Num]:
        """Return busy and exposed time of a product with a transfer hidden behind its tiles [s].

        One tile per peer. While a tile is in flight the transfer takes ``processor_usage`` of
        the engine. A transfer longer than its product leaves the excess of every tile but one;
        ``pipe`` leaves the first tile of the transfer too, and counts it as busy time as well.
        """
        tiles, usage = self.choices.tp, self.choices.links.processor_usage
        slowed_s = cost.compute_s / (1 - usage)
        slowed_busy_s = self.machine.busy_s(slowed_s, cost.memory_s)
        excess_s = link_s / tiles - slowed_s / tiles
        long = excess_s > 0
        busy_tile_s, overlapped = cost.busy_s / tiles, tiles - 1
        busy_s = busy_tile_s + overlapped * where(
            long, slowed_busy_s / tiles, busy_tile_s + link_s / tiles * usage
        )
        first_s = link_s / tiles * self.choices.waits_for_tile
        exposed_s = where(long, overlapped * excess_s, 0.0) + first_s
        transfers = link_s != 0
        return where(transfers, busy_s + first_s, cost.busy_s), where(transfers, exposed_s, 0.0)


def _opens(layer: Layer) -> bool:
    return layer.joint is not None and layer.joint.is_opening


@dataclass(frozen=True)
class OptimizerCost:
    """One block on one processor."""

    flops: Num
    compute_s: Num
    memory_s: Num
    busy_s: Num
    state_bytes: Num
    gradient_bytes: Num
    """Gradients of a block at rest, sharded with the optimizer [B]."""
    whole_gradient_bytes: Num
    """Gradients of the block at work, in full precision, never sharded [B]."""


def optimizer_cost(machine: Machine, weights: Sequence[Num], num_shards: Num) -> OptimizerCost:
    """Return the optimizer step of one block with layers of these weights [elements].

    Two moments in full precision, and a master copy where the weights themselves are smaller.
    ``num_shards`` is the data-parallel degree with a sharded optimizer, 1 without.
    """
    word = machine.bytes_per_element
    copies = 3 if word < FULL_WORD_BYTES else 2
    flops: Num = 0.0
    compute_s: Num = 0.0
    memory_s: Num = 0.0
    busy_s: Num = 0.0
    for count in weights:
        layer_flops = count / num_shards * ADAM_FLOPS_PER_WEIGHT
        states = count * FULL_WORD_BYTES * copies / num_shards
        layer_compute_s = machine.vector.seconds(layer_flops)
        layer_memory_s = machine.memory.seconds(states)
        flops = flops + layer_flops
        compute_s = compute_s + layer_compute_s
        memory_s = memory_s + layer_memory_s
        busy_s = busy_s + machine.busy_s(layer_compute_s, layer_memory_s)
    total: Num = sum(weights)
    return OptimizerCost(
        flops=flops,
        compute_s=compute_s,
        memory_s=memory_s,
        busy_s=busy_s,
        state_bytes=total * FULL_WORD_BYTES * copies / num_shards,
        gradient_bytes=total * word / num_shards,
        whole_gradient_bytes=total * FULL_WORD_BYTES,
    )
