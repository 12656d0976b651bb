"""A product of two streams on a block of r rows and c columns of devices.

Y = X W: row a of the block owns tokens a, column b outputs b. Member (a, b) holds 1 / c of the
inputs of its row and 1 / r of the weights of its column, and ends with tokens a of outputs b.
Inputs stream along the rows in the first c rounds and stay; each weight that streams along a
column then serves c rounds. Rows alone (r = 1) are input streaming, columns alone weight streaming,
so layers chain as they do there: an output of a column layer enters a row layer as it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from meshwright.base.arrays import Num
from meshwright.streams.registry import Buffers, TensorStream
from meshwright.streams.rounds import StreamRounds, enumerate_rounds

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

    def num_rounds(self, num_rows: Num, num_columns: Num) -> Num:
        """One product of a sub-input and a sub-weight a round: r c."""
        return num_rows * num_columns

    def resident_inputs(self, num_columns: Num) -> Num:
        """Foreign sub-inputs that a member keeps: all of its row."""
        return num_columns - 1

    def weight_buffers(self, num_rows: Num) -> Buffers[Num]:
        """Foreign sub-weights, as in the form along the columns."""
        return self.weights.buffers(num_rows)

    def transfers(self, num_rows: Num, num_columns: Num) -> OfBoth[Num]:
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
