"""Carrying real arrays round by round: items to their uses, partial sums to their homes.

Everything that a replay computes goes through these two, so a block that is used, sent or summed
before it is there raises, and what members receive and hold is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.streams.forms import Buffers, Send, StreamRounds, reverse


class Collected(NamedTuple):
    """Sums of partials, each at the home of its item."""

    sums: list[FloatArray]
    """One for each item."""
    num_received: int
    """Elements that all members together received [1]."""
    accumulators: Buffers
    """Most accumulators of others that a member held while it computed, and with those it sent."""


def deliver(
    rounds: StreamRounds,
    items: Sequence[FloatArray],
    use: Callable[[int, int, FloatArray], None],
) -> int:
    """Carry each item to every member, call ``use(member, item, block)`` in its round.

    Returns
    -------
    int
        Elements that all members together received [1].

    Raises
    ------
    KeyError
        When a block is used or sent before it has arrived.
    """
    held = {(rounds.home(item), item): block for item, block in enumerate(items)}
    sends = _by_round(rounds.sends)
    for turn, used in enumerate(rounds.uses):
        for member, item in _pairs(used):
            use(member, item, held[member, item])
        held |= {(s.destination, s.item): held[s.source, s.item] for s in sends[turn]}
    return _sent(rounds, items)


def collect(rounds: StreamRounds, form: Callable[[int, int], FloatArray]) -> Collected:
    """Sum the partials ``form(member, item)`` of all members at the home of each item.

    Runs on the reversal of the rounds: in the reversed round in which a member used an item it
    forms its partial and adds it to the accumulator that has arrived.

    Parameters
    ----------
    rounds
        The forward rounds.

    Raises
    ------
    KeyError
        When an accumulator is sent before it exists.
    """
    back = reverse(rounds)
    sums: dict[tuple[int, int], FloatArray] = {}
    by_round = _by_round(back.sends)
    resident, with_outgoing, num_received = [0], [0], 0
    for turn, used in enumerate(back.uses):
        sends = by_round[turn]
        moving = [((s.destination, s.item), sums.pop((s.source, s.item))) for s in sends]
        formed = [(pair, form(*pair)) for pair in _pairs(used)]
        for key, part in formed + moving:
            sums[key] = sums[key] + part if key in sums else part
        num_received += sum(part.size for _, part in moving)
        held = Counter(m for m, item in sums if m != back.home(item))
        resident.append(max(held.values(), default=0))
        held.update(s.source for s in sends)
        with_outgoing.append(max(held.values(), default=0))
    homes = [sums[back.home(item), item] for item in range(back.num_items)]
    counted = Buffers(max(resident) / back.num_parts, max(with_outgoing) / back.num_parts)
    return Collected(homes, num_received, counted)


class Exchanged(NamedTuple):
    """Sums of partials that were formed from the items themselves."""

    sums: list[FloatArray]
    num_received_items: int
    """Elements of items that all members together received [1]."""
    num_received_sums: int
    """Elements of accumulators that all members together received [1]."""
    num_rounds: int
    """Rounds of the whole exchange: N + 1 on a ring, 2 N - 1 on a line."""
    num_kept: float
    """Most partials of others that a member kept until their accumulator came, in sub-tensors."""


def exchange(
    rounds: StreamRounds,
    items: Sequence[FloatArray],
    form: Callable[[int, int, FloatArray], FloatArray],
) -> Exchanged:
    """Deliver items and sum, at their homes, the partials that are formed from them on arrival.

    A partial that needs the item itself cannot wait for the reversal without the item. On a ring
    the accumulator walks behind its item and is home one round after the pass. On a line it
    must turn round at the ends, so partials are kept, and collected in rounds N - 1 .. 2 N - 2.

    Parameters
    ----------
    form
        Returns the partial of (member, item, block), of any shape.
    """
    if not _walks(rounds):
        return _exchange_and_return(rounds, items, form)
    sums: dict[tuple[int, int], FloatArray] = {}
    held = {(rounds.home(item), item): block for item, block in enumerate(items)}
    sends, behind = _by_round(rounds.sends), _by_round(walk_behind(rounds))
    received = 0
    for turn in range(rounds.num_members + 1):
        moving = [((s.destination, s.item), sums.pop((s.source, s.item))) for s in behind[turn]]
        used = rounds.uses[turn] if turn < rounds.num_members else []
        formed = [((m, j), form(m, j, held[m, j])) for m, j in _pairs(used)]
        for key, part in formed + moving:
            sums[key] = sums[key] + part if key in sums else part
        received += sum(part.size for _, part in moving)
        held |= {(s.destination, s.item): held[s.source, s.item] for s in sends[turn]}
    homes = [sums.pop((rounds.home(item), item)) for item in range(rounds.num_items)]
    num_rounds = rounds.num_members + (rounds.num_members > 1)
    return Exchanged(homes, _sent(rounds, items), received, num_rounds, 0.0)


def walk_behind(rounds: StreamRounds) -> list[Send]:
    """Return the sends of accumulators that walk behind their items, and home in round N.

    An accumulator begins at the second member on the path of its item.

    Raises
    ------
    ValueError
        When an item does not walk one path through all members, as on a line.
    """
    if not _walks(rounds):
        raise ValueError("items of this form do not walk one path through all members")
    last = rounds.num_members
    home = [
        Send(last, s.destination, rounds.home(s.item), s.item)
        for s in rounds.sends
        if s.round == last - 2
    ]
    return [s._replace(round=s.round + 1) for s in rounds.sends if s.round > 0] + home


def _walks(rounds: StreamRounds) -> bool:
    """Return whether each item leaves each member at most once, in every round but the last."""
    leaves = Counter((s.item, s.round) for s in rounds.sends)
    walked = (rounds.num_members - 1) * rounds.num_items
    return len(leaves) == len(rounds.sends) == walked


def _exchange_and_return(
    rounds: StreamRounds,
    items: Sequence[FloatArray],
    form: Callable[[int, int, FloatArray], FloatArray],
) -> Exchanged:
    """Keep all partials and collect them on the reversal."""
    kept: dict[tuple[int, int], FloatArray] = {}

    def keep(member: int, item: int, block: FloatArray) -> None:
        kept[member, item] = form(member, item, block)

    received = deliver(rounds, items, keep)
    held = Counter(member for member, item in kept if rounds.home(item) != member)
    result = collect(rounds, lambda member, item: kept[member, item])
    return Exchanged(
        result.sums, received, result.num_received, 2 * rounds.num_members - 1,
        max(held.values()) / rounds.num_parts,
    )  # fmt: skip


def _sent(rounds: StreamRounds, items: Sequence[FloatArray]) -> int:
    """Return the elements of items that members receive in a pass."""
    return sum(items[send.item].size for send in rounds.sends)


def _pairs(used: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (member, item) of every product of a round."""
    return [(member, item) for member, items in enumerate(used) for item in items]


def _by_round(sends: Sequence[Send]) -> defaultdict[int, list[Send]]:
    """Return the sends of each round."""
    by_round: defaultdict[int, list[Send]] = defaultdict(list)
    for send in sends:
        by_round[send.round].append(send)
    return by_round


class AttentionOutput(NamedTuple):
    """What attention leaves at each member."""

    outputs: list[FloatArray]
    """(heads, tokens of the member, head size)."""
    log_sums: list[FloatArray]
    """Logarithm of the softmax denominator of each head and token, for the backward pass."""
    num_received: int
    """Elements that all members together received [1]."""


class AttentionGradients(NamedTuple):
    """Gradients of the queries at each member, and of keys and values at the home of each item."""

    queries: list[FloatArray]
    keys_values: Exchanged


@dataclass(frozen=True)
class SplitAttention:
    """Causal attention over tokens that are split, grouped queries included.

    Attributes
    ----------
    queries
        Of each member: (heads, tokens, head size).
    keys_values
        Of each item: (2, key-value heads, tokens, head size). A whole number of query heads
        shares each key-value head.
    query_tokens, key_tokens
        Position of each token in the sequence, for each member and each item.
    """

    rounds: StreamRounds
    queries: Sequence[FloatArray]
    keys_values: Sequence[FloatArray]
    query_tokens: Sequence[IntArray]
    key_tokens: Sequence[IntArray]

    def forward(self) -> AttentionOutput:
        """Return softmax(Q K^T / sqrt d + mask) V, its softmax taken item after item.

        Source: online softmax of Milakov and Gimelshein 2018 (arXiv 1805.02867).
        """
        largest = [np.full(block.shape[:2], -np.inf) for block in self.queries]
        sums = [np.zeros(block.shape[:2]) for block in self.queries]
        outputs = [np.zeros_like(block) for block in self.queries]

        def absorb(member: int, item: int, block: FloatArray) -> None:
            scores = self._scores(member, item, block[0])
            seen = np.maximum(largest[member], scores.max(axis=-1))
            shift = np.where(np.isfinite(seen), seen, 0.0)
            kept = np.exp(largest[member] - shift)
            weights = np.exp(scores - shift[..., None])
            largest[member] = seen
            sums[member] = kept * sums[member] + weights.sum(axis=-1)
            added = weights @ self._for_each_head(block[1])
            outputs[member] = kept[..., None] * outputs[member] + added

        received = deliver(self.rounds, self.keys_values, absorb)
        scaled = [out / total[..., None] for out, total in zip(outputs, sums, strict=True)]
        logs = [top + np.log(total) for top, total in zip(largest, sums, strict=True)]
        return AttentionOutput(scaled, logs, received)

    def backward(
        self, result: AttentionOutput, output_gradient: Sequence[FloatArray]
    ) -> AttentionGradients:
        """Return dQ, summed in place, and dK and dV, their accumulators brought home.

        The probabilities are formed again from the scores, so a partial of dK and dV needs the
        keys and values themselves.
        """
        to_queries = [np.zeros_like(block) for block in self.queries]
        pairs = zip(output_gradient, result.outputs, strict=True)
        removed = [(gradient * out).sum(axis=-1, keepdims=True) for gradient, out in pairs]

        def form(member: int, item: int, block: FloatArray) -> FloatArray:
            keys, values = (self._for_each_head(part) for part in block)
            scores = self._scores(member, item, block[0])
            weights = np.exp(scores - result.log_sums[member][..., None])
            gradient = output_gradient[member]
            to_weights = gradient @ values.swapaxes(-1, -2) - removed[member]
            to_scores = weights * to_weights / np.sqrt(keys.shape[-1])
            to_queries[member] += to_scores @ keys
            to_keys = to_scores.swapaxes(-1, -2) @ self.queries[member]
            to_values = weights.swapaxes(-1, -2) @ gradient
            heads = (block.shape[1], -1, *block.shape[2:])
            return np.stack([part.reshape(heads).sum(axis=1) for part in (to_keys, to_values)])

        return AttentionGradients(to_queries, exchange(self.rounds, self.keys_values, form))

    def _scores(self, member: int, item: int, keys: FloatArray) -> FloatArray:
        """Return Q K^T / sqrt d, minus infinity for keys later than their query."""
        scores = self.queries[member] @ self._for_each_head(keys).swapaxes(-1, -2)
        is_seen = self.query_tokens[member][:, None] >= self.key_tokens[item][None, :]
        masked: FloatArray = np.where(is_seen, scores / np.sqrt(keys.shape[-1]), -np.inf)
        return masked

    def _for_each_head(self, block: FloatArray) -> FloatArray:
        """Return keys or values repeated for the query heads that share them."""
        return np.repeat(block, len(self.queries[0]) // len(block), axis=0)


class StreamedLayer(NamedTuple):
    """A linear layer Y = X W computed by a stream of W and its reversal."""

    output: FloatArray
    input_gradient: FloatArray
    weight_gradient: FloatArray
    accumulators: Buffers
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
    accumulators: Buffers


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
