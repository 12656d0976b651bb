"""Playing a stream on real matrices: outputs and both gradients must equal the dense ones."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.streams.registry import Buffers, Send
from meshwright.streams.rounds import StreamRounds, reverse

_Held = dict[tuple[int, int], FloatArray]
"""What each member holds: (member, item) to block."""


class StreamedLayer(NamedTuple):
    """A linear layer Y = X W computed by a stream of W and its reversal."""

    output: FloatArray
    input_gradient: FloatArray
    weight_gradient: FloatArray
    accumulators: Buffers[float]
    """Most accumulators of others that a member held while it computed, and with those it sent."""


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
    gradient = [
        np.array_split(block, rounds.num_items, axis=1)
        for block in np.array_split(output_gradient, rounds.num_members)
    ]
    blocks = np.array_split(weights, rounds.num_items, axis=1)
    output, input_gradient = _run_forward(rounds, rows, blocks, gradient)
    weight_gradient, accumulators = _run_reversed(reverse(rounds), rows, gradient)
    return StreamedLayer(output, input_gradient, weight_gradient, accumulators)


def _run_forward(
    rounds: StreamRounds,
    rows: list[FloatArray],
    blocks: list[FloatArray],
    gradient: list[list[FloatArray]],
) -> tuple[FloatArray, FloatArray]:
    """Return Y and dX."""
    held: _Held = {(rounds.home(item), item): block for item, block in enumerate(blocks)}
    output: _Held = {}
    input_gradient = [np.zeros_like(block) for block in rows]
    by_round = _by_round(rounds)
    for turn, used in enumerate(rounds.uses):
        for member, item in _pairs(used):
            block = held[member, item]
            output[member, item] = rows[member] @ block
            input_gradient[member] += gradient[member][item] @ block.T
        held |= {(s.destination, s.item): held[s.source, s.item] for s in by_round[turn]}
    whole = [
        [output[member, item] for item in range(rounds.num_items)]
        for member in range(rounds.num_members)
    ]
    return np.block(whole), np.concatenate(input_gradient)


def _run_reversed(
    rounds: StreamRounds, rows: list[FloatArray], gradient: list[list[FloatArray]]
) -> tuple[FloatArray, Buffers[float]]:
    """Return dW, summed by accumulators on their way home, and how many of them there were."""
    sums: _Held = {}
    by_round = _by_round(rounds)
    resident, with_outgoing = [0], [0]
    for turn, used in enumerate(rounds.uses):
        sends = by_round[turn]
        moving = [((s.destination, s.item), sums.pop((s.source, s.item))) for s in sends]
        formed = [((m, j), rows[m].T @ gradient[m][j]) for m, j in _pairs(used)]
        for key, part in formed + moving:
            sums[key] = sums[key] + part if key in sums else part
        for member in range(rounds.num_members):
            held = sum(m == member != rounds.home(item) for m, item in sums)
            resident.append(held)
            with_outgoing.append(held + sum(s.source == member for s in sends))
    homes = [(rounds.home(item), item) for item in range(rounds.num_items)]
    parts = rounds.num_parts
    counted = Buffers(max(resident) / parts, max(with_outgoing) / parts)
    return np.concatenate([sums[key] for key in homes], axis=1), counted


def _pairs(used: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (member, item) of every product of a round."""
    return [(member, item) for member, items in enumerate(used) for item in items]


def _by_round(rounds: StreamRounds) -> defaultdict[int, list[Send]]:
    """Return the sends of each round."""
    sends: defaultdict[int, list[Send]] = defaultdict(list)
    for send in rounds.sends:
        sends[send.round].append(send)
    return sends
