"""The links that the sends of a stream cross, each listed, and their count in one pass."""

from __future__ import annotations

from meshwright.streams.forms import Send, StreamRounds


def links_of(rounds: StreamRounds, send: Send) -> list[tuple[int, int]]:
    """Return the directed links of a send: along the line, or the closing link of a cycle."""
    source, destination = send.source, send.destination
    if abs(source - destination) == 1:
        return [(source, destination)]
    if rounds.is_cycle and abs(source - destination) == rounds.num_members - 1:
        return [(source, destination)]
    step = 1 if destination > source else -1
    return [(member, member + step) for member in range(source, destination, step)]


def counted_transfers(rounds: StreamRounds) -> float:
    """Return how many sub-tensors cross a link in one pass, each link of a send counted."""
    return sum(len(links_of(rounds, send)) for send in rounds.sends) / rounds.num_parts
