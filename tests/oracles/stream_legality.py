"""Playing a stream round by round: the proof that it is legal.

Five conditions: (1) each member uses each item once, one sub-tensor's worth a round; (2) only what
is resident is used or sent, and nothing arrives for nothing; (3) sends go between neighbours, no
further than the form says; (4) a link carries at most one item in a direction and round; (5) what
is held and arriving is exactly what the closed form says (devices that only relay a send of several
hops are not counted). The sixth, that the results equal the dense ones, is in ``stream_arrays``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from meshwright.streams.forms import Buffers, StreamRounds
from oracles.stream_links import links_of


class Violation(NamedTuple):
    """A correctness condition that a stream breaks, and where."""

    condition: int
    message: str


class _Span(NamedTuple):
    """Rounds in which a member holds a copy of another's item."""

    member: int
    first: int
    last: int


def violations(rounds: StreamRounds, buffers: Buffers) -> list[Violation]:
    """Return where a forward pass breaks conditions 1 to 5; empty when it is correct."""
    spans, broken = _spans(rounds)
    return [
        *_broken_uses(rounds),
        *broken,
        *_broken_links(rounds),
        *_broken_buffers(counted_buffers(rounds, spans), buffers),
    ]


def counted_buffers(rounds: StreamRounds, spans: list[_Span] | None = None) -> Buffers:
    """Return the most copies held, and held or arriving, by any member in any round."""
    held = np.zeros((rounds.num_members, len(rounds.uses) + 1), dtype=np.int64)
    for span in _spans(rounds)[0] if spans is None else spans:
        held[span.member, span.first] += 1
        held[span.member, span.last + 1] -= 1
    held = np.cumsum(held, axis=1)
    arriving = np.zeros_like(held)
    for send in rounds.sends:
        arriving[send.destination, send.round] += 1
    parts = rounds.num_parts
    return Buffers(float(held.max()) / parts, float((held + arriving).max()) / parts)


def _broken_uses(rounds: StreamRounds) -> list[Violation]:
    """Condition 1: each member uses each item once, one sub-tensor's worth a round."""
    broken = []
    for member in range(rounds.num_members):
        used = [turn[member] for turn in rounds.uses]
        if any(len(items) != rounds.num_parts for items in used):
            broken.append(Violation(1, f"member {member} does not use one sub-tensor each round"))
        if sorted(item for items in used for item in items) != list(range(rounds.num_items)):
            broken.append(Violation(1, f"member {member} does not use each item once"))
    return broken


def _spans(rounds: StreamRounds) -> tuple[list[_Span], list[Violation]]:
    """Return how long foreign copies live, and what breaks condition 2."""
    arrivals, needs = _arrivals(rounds), _needs(rounds)
    spans: list[_Span] = []
    broken: list[Violation] = []
    for member, item in sorted(arrivals.keys() | needs.keys()):
        is_home = rounds.home(item) == member
        needed = [] if is_home else needs.get((member, item), [])
        copies = sorted(arrivals.get((member, item), []))
        if needed and (not copies or min(needed) < copies[0]):
            broken.append(Violation(2, f"member {member} needs item {item} before it arrives"))
        lives = _lives(copies, needed)
        if len(lives) < len(copies):
            broken.append(Violation(2, f"item {item} comes to member {member} for nothing"))
        spans += [_Span(member, first, last) for first, last in lives]
    return spans, broken


def _lives(copies: list[int], needed: list[int]) -> list[tuple[int, int]]:
    """Return first and last round of each copy that is needed.

    A copy lives from the round after its arrival to its last use or send before the same item
    arrives again.
    """
    lives = []
    ends = [*copies[1:], max(needed, default=0) + 1]
    for first, after in zip(copies, ends[: len(copies)], strict=True):
        last = max((turn for turn in needed if first <= turn < after), default=None)
        if last is not None:
            lives.append((first, last))
    return lives


def _arrivals(rounds: StreamRounds) -> dict[tuple[int, int], list[int]]:
    """Return for each member and item the rounds from which a copy is usable."""
    arrivals: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for send in rounds.sends:
        arrivals[send.destination, send.item].append(send.round + 1)
    return arrivals


def _needs(rounds: StreamRounds) -> dict[tuple[int, int], list[int]]:
    """Return for each member and item the rounds in which it is used or sent."""
    needs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for send in rounds.sends:
        needs[send.source, send.item].append(send.round)
    for turn, used in enumerate(rounds.uses):
        for member, items in enumerate(used):
            for item in items:
                needs[member, item].append(turn)
    return needs


def _broken_links(rounds: StreamRounds) -> list[Violation]:
    """Conditions 3 and 4: how far sends go, and what links carry in a round."""
    broken = []
    load: Counter[tuple[int, int, int]] = Counter()
    for send in rounds.sends:
        links = links_of(rounds, send)
        if not 1 <= len(links) <= rounds.num_hops:
            broken.append(Violation(3, f"{send} crosses {len(links)} links"))
        for link in links:
            load[send.round, *link] += 1
    broken += [
        Violation(4, f"link {a} > {b} carries {items} items in round {turn}")
        for (turn, a, b), items in load.items()
        if items > 1
    ]
    return broken


def _broken_buffers(counted: Buffers, stated: Buffers) -> list[Violation]:
    """Condition 5: the closed form says what is held."""
    if (counted.resident, counted.with_incoming) == (stated.resident, stated.with_incoming):
        return []
    return [Violation(5, f"held {tuple(counted)}, the closed form says {tuple(stated)}")]
