"""Carrying real arrays round by round: items to their uses, partial sums to their homes.

Everything that a replay computes goes through these two, so a block that is used, sent or summed
before it is there raises, and what members receive and hold is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.streams.registry import Buffers, Send
from meshwright.streams.rounds import StreamRounds, reverse


class Collected(NamedTuple):
    """Sums of partials, each at the home of its item."""

    sums: list[FloatArray]
    """One for each item."""
    num_received: int
    """Elements that all members together received [1]."""
    accumulators: Buffers[float]
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
    sends = _by_round(rounds)
    for turn, used in enumerate(rounds.uses):
        for member, item in _pairs(used):
            use(member, item, held[member, item])
        held |= {(s.destination, s.item): held[s.source, s.item] for s in sends[turn]}
    return sum(items[send.item].size for send in rounds.sends)


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
    by_round = _by_round(back)
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


def pieces_of(
    rounds: StreamRounds, array: FloatArray, axis: int = 0
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return what each member and what each item holds of an array cut along one dim."""
    items = np.array_split(array, rounds.num_items, axis=axis)
    parts = rounds.num_parts
    members = [
        np.concatenate(items[member * parts : (member + 1) * parts], axis=axis)
        for member in range(rounds.num_members)
    ]
    return members, items


def _pairs(used: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (member, item) of every product of a round."""
    return [(member, item) for member, items in enumerate(used) for item in items]


def _by_round(rounds: StreamRounds) -> defaultdict[int, list[Send]]:
    """Return the sends of each round."""
    sends: defaultdict[int, list[Send]] = defaultdict(list)
    for send in rounds.sends:
        sends[send.round].append(send)
    return sends
