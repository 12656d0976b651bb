"""Carrying real arrays round by round: items to their uses, partial sums to their homes.

Everything that a replay computes goes through these two, so a block that is used, sent or summed
before it is there raises, and what members receive and hold is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
