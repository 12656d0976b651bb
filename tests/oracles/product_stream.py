"""A product of two streams on a block of r rows and c columns of devices.

Y = X W: row a of the block owns tokens a, column b outputs b. Member (a, b) holds 1 / c of the
inputs of its row and 1 / r of the weights of its column, and ends with tokens a of outputs b.
Inputs stream along the rows in the first c rounds and stay; each weight that streams along a
column then serves c rounds. Rows alone (r = 1) are input streaming, columns alone weight streaming,
so layers chain as they do there: an output of a column layer enters a row layer as it lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from meshwright.base.arrays import FloatArray, N
from meshwright.streams.forms import Buffers, StreamRounds, TensorStream, enumerate_rounds, reverse

T = TypeVar("T")


class OfBoth(NamedTuple, Generic[T]):
    """A quantity of the stream along the rows and of that along the columns."""

    inputs: T
    weights: T


class BlockSend(NamedTuple):
    """An item on its way from one device of the block to another; usable after its last round."""

    first_round: int
    num_rounds: int
    source: tuple[int, int]
    destination: tuple[int, int]
    is_weight: bool
    item: int


@dataclass(frozen=True)
class ProductStream:
    """Inputs stream along each row of a block, weights along each column.

    Inputs stay where they have arrived, so a form that sends nothing twice is right for them:
    ``hold`` on a line, or any ring.

    Source: derived; proven by replay. In volume it is the stationary-output form of SUMMA (van de
    Geijn and Watts 1997), with sends between neighbours in place of broadcasts.
    """

    inputs: TensorStream
    weights: TensorStream

    def num_rounds(self, num_rows: N, num_columns: N) -> N:
        """One product of a sub-input and a sub-weight a round: r c."""
        return num_rows * num_columns

    def resident_inputs(self, num_columns: N) -> N:
        """Foreign sub-inputs that a member keeps: all of its row."""
        return num_columns - 1

    def weight_buffers(self, num_rows: N) -> Buffers:
        """Foreign sub-weights, as in the form along the columns."""
        return self.weights.buffers(num_rows)

    def transfers(self, num_rows: N, num_columns: N) -> OfBoth[N]:
        """Sub-tensors that cross a link in one pass: those of r rows, and those of c columns."""
        return OfBoth(
            num_rows * self.inputs.transfers(num_columns),
            num_columns * self.weights.transfers(num_rows),
        )


class BlockRounds(NamedTuple):
    """One pass of a product stream, written out."""

    rows: StreamRounds
    """Of the inputs, in each row."""
    columns: StreamRounds
    """Of the weights, in each column; one of its rounds lasts as many as there are columns."""

    @property
    def num_rounds(self) -> int:
        """Rounds of the block."""
        return self.rows.num_members * self.columns.num_members

    def uses(self, turn: int, member: tuple[int, int]) -> OfBoth[tuple[int, ...]]:
        """Return the input and the weight items that a member multiplies with each other."""
        outer, inner = divmod(turn, self.rows.num_members)
        return OfBoth(self.rows.uses[inner][member[1]], self.columns.uses[outer][member[0]])

    def sends(self) -> list[BlockSend]:
        """Return every send of one pass."""
        length = self.rows.num_members
        along_rows = [
            BlockSend(s.round, 1, (row, s.source), (row, s.destination), False, s.item)
            for row in range(self.columns.num_members)
            for s in self.rows.sends
        ]
        along_columns = [
            BlockSend(
                s.round * length, length, (s.source, column), (s.destination, column), True, s.item
            )
            for column in range(length)
            for s in self.columns.sends
        ]
        return along_rows + along_columns


def enumerate_block(product: ProductStream, num_rows: int, num_columns: int) -> BlockRounds:
    """Return the rounds of a product stream on a block."""
    return BlockRounds(
        enumerate_rounds(product.inputs, num_columns), enumerate_rounds(product.weights, num_rows)
    )


_Member = tuple[int, int]
_Copies = dict[tuple[_Member, int], FloatArray]
"""What each member holds: ((row, column), item) to block."""


class ProductLayer(NamedTuple):
    """A linear layer Y = X W on a block of devices."""

    output: FloatArray
    input_gradient: FloatArray
    weight_gradient: FloatArray
    num_received_inputs: int
    """Elements of X that all members together received in the forward pass [1]."""
    num_received_weights: int


class _Shares(NamedTuple):
    """Operands as the block holds them: by row and item, by column and item, by member."""

    inputs: list[list[FloatArray]]
    weights: list[list[FloatArray]]
    output_gradient: dict[tuple[_Member, int, int], FloatArray]
    """Of each member, input item and weight item."""


def play_product(
    block: BlockRounds, inputs: FloatArray, weights: FloatArray, output_gradient: FloatArray
) -> ProductLayer:
    """Compute Y, dX = dY W^T and dW = X^T dY with each piece where and when the block has it.

    Parameters
    ----------
    inputs, weights, output_gradient
        X (S x H), W (H x F) and dY (S x F).

    Raises
    ------
    KeyError
        When a piece is used, sent or added before it is there.
    """
    shares = _shares(block, inputs, weights, output_gradient)
    output, received = _play_forward(block, shares)
    to_inputs = _sum_input_gradient(block, shares)
    to_weights = _sum_weight_gradient(block, shares)
    tokens = [(a, i) for a in range(block.columns.num_members) for i in range(block.rows.num_items)]
    outs = [(b, j) for b in range(block.rows.num_members) for j in range(block.columns.num_items)]
    rows, columns = block.rows, block.columns
    return ProductLayer(
        np.block([[output[(a, b), i, j] for b, j in outs] for a, i in tokens]),
        np.concatenate([to_inputs[(a, rows.home(i)), i] for a, i in tokens]),
        np.concatenate([to_weights[(columns.home(j), b), j] for b, j in outs], axis=1),
        *received,
    )


def _shares(
    block: BlockRounds, inputs: FloatArray, weights: FloatArray, output_gradient: FloatArray
) -> _Shares:
    """Cut the operands: rows of the block, then items; columns of the block, then items."""

    def cut(array: FloatArray, axis: int) -> list[list[FloatArray]]:
        groups, items = (
            (block.columns.num_members, block.rows.num_items)
            if axis == 0
            else (block.rows.num_members, block.columns.num_items)
        )
        pieces = np.array_split(array, groups * items, axis=axis)
        return [pieces[group * items : (group + 1) * items] for group in range(groups)]

    gradient = {
        ((a, b), i, j): piece
        for a, row in enumerate(cut(output_gradient, 0))
        for i, strip in enumerate(row)
        for b, column in enumerate(cut(strip, 1))
        for j, piece in enumerate(column)
    }
    return _Shares(cut(inputs, 0), cut(weights, 1), gradient)


def _play_forward(
    block: BlockRounds, shares: _Shares
) -> tuple[dict[tuple[_Member, int, int], FloatArray], tuple[int, int]]:
    """Return the pieces of Y, and the elements of X and of W that were received."""
    output: dict[tuple[_Member, int, int], FloatArray] = {}
    received = [0, 0]
    for turn, held_inputs, held_weights in _arrivals(block, shares, received):
        for member in _members(block):
            for i, j in _pairs(block, turn, member):
                output[member, i, j] = held_inputs[member, i] @ held_weights[member, j]
    return output, (received[0], received[1])


def _sum_input_gradient(block: BlockRounds, shares: _Shares) -> _Copies:
    """Return dX, each piece at its home: complete once the last weights are in use."""
    back, sums = reverse(block.rows), _Copies()
    num_rows = block.columns.num_members
    for turn, _, held in _arrivals(block, shares, [0, 0]):
        outer, inner = divmod(turn, block.rows.num_members)
        is_last = outer == num_rows - 1
        moving = _taken(sums, back, inner, range(num_rows), is_row=True) if is_last else []
        order = back if is_last else block.rows
        for a, b in _members(block):
            for i in order.uses[inner][b]:
                for j in block.columns.uses[outer][a]:
                    part = shares.output_gradient[(a, b), i, j] @ held[(a, b), j].T
                    _add(sums, ((a, b), i), part)
        for key, part in moving:
            _add(sums, key, part)
    return sums


def _sum_weight_gradient(block: BlockRounds, shares: _Shares) -> _Copies:
    """Return dW, each piece at its home: its accumulators walk the columns back."""
    back, sums = reverse(block.columns), _Copies()
    length = block.rows.num_members
    for turn, held, _ in _arrivals(block, shares, [0, 0]):
        outer, inner = divmod(turn, length)
        if inner == 0:
            moving = _taken(sums, back, outer, range(length), is_row=False)
        for a, b in _members(block):
            for i in block.rows.uses[inner][b]:
                for j in back.uses[outer][a]:
                    part = held[(a, b), i].T @ shares.output_gradient[(a, b), i, j]
                    _add(sums, ((a, b), j), part)
        if inner == length - 1:
            for key, part in moving:
                _add(sums, key, part)
    return sums


def _arrivals(
    block: BlockRounds, shares: _Shares, received: list[int]
) -> Iterator[tuple[int, _Copies, _Copies]]:
    """Yield each round with the copies that members hold in it; count what they receive."""
    held_inputs: _Copies = {
        ((a, block.rows.home(i)), i): piece
        for a, row in enumerate(shares.inputs)
        for i, piece in enumerate(row)
    }
    held_weights: _Copies = {
        ((block.columns.home(j), b), j): piece
        for b, column in enumerate(shares.weights)
        for j, piece in enumerate(column)
    }
    ending: defaultdict[int, list[BlockSend]] = defaultdict(list)
    for send in block.sends():
        ending[send.first_round + send.num_rounds - 1].append(send)
    for turn in range(block.num_rounds):
        yield turn, held_inputs, held_weights
        for send in ending[turn]:
            held = held_weights if send.is_weight else held_inputs
            piece = held[send.source, send.item]
            held[send.destination, send.item] = piece
            received[send.is_weight] += piece.size


def _taken(
    sums: _Copies, rounds: StreamRounds, turn: int, lines: range, *, is_row: bool
) -> list[tuple[tuple[_Member, int], FloatArray]]:
    """Take the accumulators that leave in a round; return them with where they go."""
    moving = []
    for send in (s for s in rounds.sends if s.round == turn):
        for line in lines:
            ends = [(line, m) if is_row else (m, line) for m in (send.source, send.destination)]
            moving.append(((ends[1], send.item), sums.pop((ends[0], send.item))))
    return moving


def _add(sums: _Copies, key: tuple[_Member, int], part: FloatArray) -> None:
    """Add a part to an accumulator, or begin it."""
    sums[key] = sums[key] + part if key in sums else part


def _members(block: BlockRounds) -> list[_Member]:
    """Return the devices of the block."""
    return [(a, b) for a in range(block.columns.num_members) for b in range(block.rows.num_members)]


def _pairs(block: BlockRounds, turn: int, member: _Member) -> list[tuple[int, int]]:
    """Return the input and weight items whose products a member forms in a round."""
    used = block.uses(turn, member)
    return [(i, j) for i in used.inputs for j in used.weights]
