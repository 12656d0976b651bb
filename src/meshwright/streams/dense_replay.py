"""Playing streams on real matrices: outputs and both gradients must equal the dense ones.

Two layers cover both ways to stream. In a *streamed* product one operand travels, and its gradient
comes home as accumulators: weight streaming, and, with everything transposed, a column layer under
input streaming. In a *reduced* product the accumulators of the output travel, and backward its
gradient: a row layer under input streaming. Lists hold one array for each member, or for each item
where the name says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.streams.carriage import collect, deliver
from meshwright.streams.registry import Buffers
from meshwright.streams.rounds import StreamRounds


class StreamedLayer(NamedTuple):
    """A linear layer Y = X W computed by a stream of W and its reversal."""

    output: FloatArray
    input_gradient: FloatArray
    weight_gradient: FloatArray
    accumulators: Buffers[float]
    """Most accumulators of others that a member held while it computed, and with those it sent."""


class Product(NamedTuple):
    """The result of a product at each member, and what all members together received."""

    outputs: list[FloatArray]
    num_received: int


class ProductGradients(NamedTuple):
    """Gradients of both operands of a product, and what all members together received."""

    stationary: list[FloatArray]
    streamed: list[FloatArray]
    num_received: int
    accumulators: Buffers[float]


def stream_layer(
    rounds: StreamRounds, inputs: FloatArray, weights: FloatArray, output_gradient: FloatArray
) -> StreamedLayer:
    """Compute Y, dX = dY W^T and dW = X^T dY with each block where and when the stream has it.

    Parameters
    ----------
    rounds
        The forward rounds; the weight gradient runs on their reversal.
    inputs, weights, output_gradient
        X (S x H), W (H x F) and dY (S x F).

    Raises
    ------
    KeyError
        When a block is used or sent before it has arrived.
    """
    rows = np.array_split(inputs, rounds.num_members)
    gradient = np.array_split(output_gradient, rounds.num_members)
    items = np.array_split(weights, rounds.num_items, axis=1)
    forward = streamed_product(rounds, rows, items)
    backward = streamed_product_gradients(rounds, rows, items, gradient)
    return StreamedLayer(
        np.concatenate(forward.outputs),
        np.concatenate(backward.stationary),
        np.concatenate(backward.streamed, axis=1),
        backward.accumulators,
    )


def streamed_product(
    rounds: StreamRounds, rows: Sequence[FloatArray], items: Sequence[FloatArray]
) -> Product:
    """Return X_i W of each member i, the columns of W delivered one item after the other.

    Parameters
    ----------
    rows
        X_i of each member.
    items
        Columns of W, one block for each item.
    """
    outputs: dict[tuple[int, int], FloatArray] = {}

    def multiply(member: int, item: int, block: FloatArray) -> None:
        outputs[member, item] = rows[member] @ block

    received = deliver(rounds, items, multiply)
    whole = [
        np.concatenate([outputs[member, item] for item in range(rounds.num_items)], axis=1)
        for member in range(rounds.num_members)
    ]
    return Product(whole, received)


def streamed_product_gradients(
    rounds: StreamRounds,
    rows: Sequence[FloatArray],
    items: Sequence[FloatArray],
    output_gradient: Sequence[FloatArray],
) -> ProductGradients:
    """Return dX_i = dY_i W^T, summed in place, and dW = sum X_i^T dY_i, its accumulators collected.

    W is delivered again; parameters as :func:`streamed_product`, and dY_i of each member.
    """
    borders = np.cumsum([block.shape[1] for block in items])[:-1]
    pieces = [np.split(block, borders, axis=1) for block in output_gradient]
    to_rows = [np.zeros_like(block) for block in rows]

    def add(member: int, item: int, block: FloatArray) -> None:
        to_rows[member] += pieces[member][item] @ block.T

    received = deliver(rounds, items, add)
    back = collect(rounds, lambda member, item: rows[member].T @ pieces[member][item])
    return ProductGradients(to_rows, back.sums, received + back.num_received, back.accumulators)


def reduced_product(
    rounds: StreamRounds,
    columns: Sequence[FloatArray],
    weights: Sequence[FloatArray],
    num_rows: Sequence[int],
) -> Product:
    """Return Z = sum_j Y_j W_j, cut by rows into items, each collected at its home.

    Parameters
    ----------
    columns, weights
        Y_j (all rows) and W_j of each member j.
    num_rows
        Rows of each item [1].
    """
    pieces = _by_rows(columns, num_rows)
    result = collect(rounds, lambda member, item: pieces[member][item] @ weights[member])
    return Product(result.sums, result.num_received)


def reduced_product_gradients(
    rounds: StreamRounds,
    columns: Sequence[FloatArray],
    weights: Sequence[FloatArray],
    item_gradients: Sequence[FloatArray],
) -> ProductGradients:
    """Return dW_j = Y_j^T dZ (stationary) and dY_j = dZ W_j^T (streamed), both at member j.

    One delivery of dZ serves both, and no accumulator travels. Parameters as
    :func:`reduced_product`; ``item_gradients`` is dZ of each item.
    """
    num_rows = [len(block) for block in item_gradients]
    pieces = _by_rows(columns, num_rows)
    to_weights = [np.zeros_like(block) for block in weights]
    to_columns: dict[tuple[int, int], FloatArray] = {}

    def add(member: int, item: int, block: FloatArray) -> None:
        to_weights[member] += pieces[member][item].T @ block
        to_columns[member, item] = block @ weights[member].T

    received = deliver(rounds, item_gradients, add)
    whole = [
        np.concatenate([to_columns[member, item] for item in range(rounds.num_items)])
        for member in range(rounds.num_members)
    ]
    return ProductGradients(to_weights, whole, received, Buffers(0.0, 0.0))


def _by_rows(columns: Sequence[FloatArray], num_rows: Sequence[int]) -> list[list[FloatArray]]:
    """Return the rows of each item, at each member."""
    borders = np.cumsum(num_rows)[:-1]
    return [np.split(block, borders) for block in columns]
