"""Two replays of a list of transfers: who holds what at the end, and when it ends."""

from __future__ import annotations

from collections import defaultdict

from meshwright.spec.collective import CollectiveKind

REDUCTIONS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


def starting_data(kind, size, num_chunks):
    """Return (member, chunk) -> the contributions it holds before the collective."""
    per_owner = num_chunks // size
    if kind in REDUCTIONS:
        return {(r, c): frozenset([r]) for r in range(size) for c in range(num_chunks)}
    if kind is CollectiveKind.ALL_GATHER:
        return {(c // per_owner, c): frozenset([c // per_owner]) for c in range(num_chunks)}
    if kind is CollectiveKind.ALL_TO_ALL:
        ids = range(size * num_chunks)
        return {(c // num_chunks, c): frozenset([c // num_chunks]) for c in ids}
    if kind is CollectiveKind.BROADCAST:
        return {(0, c): frozenset([0]) for c in range(num_chunks)}
    return {
        (r, r * num_chunks + c): frozenset([r]) for r in range(size) for c in range(num_chunks)
    }


def wanted_data(kind, size, num_chunks):
    """Return (member, chunk) -> what it must hold at the end."""
    everybody, per_owner = frozenset(range(size)), num_chunks // size
    every = [(r, c) for r in range(size) for c in range(num_chunks)]
    if kind is CollectiveKind.ALL_REDUCE:
        return {place: everybody for place in every}
    if kind is CollectiveKind.REDUCE_SCATTER:
        return {(c // per_owner, c): everybody for c in range(num_chunks)}
    if kind is CollectiveKind.ALL_GATHER:
        return {(r, c): frozenset([c // per_owner]) for r, c in every}
    if kind is CollectiveKind.ALL_TO_ALL:
        ids = range(size * num_chunks)
        return {((c % num_chunks) // per_owner, c): frozenset([c // num_chunks]) for c in ids}
    if kind is CollectiveKind.BROADCAST:
        return {(r, c): frozenset([0]) for r, c in every}
    return {
        (r + 1, r * num_chunks + c): frozenset([r])
        for r in range(size - 1)
        for c in range(num_chunks)
    }


def final_data(kind, size, num_chunks, transfers):
    """Return who holds what after the transfers; what one step sends was held before it."""
    held = starting_data(kind, size, num_chunks)
    steps = defaultdict(list)
    for transfer in transfers:
        steps[transfer.step].append(transfer)
    for step in sorted(steps):
        arrivals = []
        for transfer in steps[step]:
            for chunk in transfer.chunks:
                place = (transfer.source, chunk)
                assert place in held, f"{transfer}: sends what it does not have"
                arrivals.append((transfer, chunk, held[place]))
        for transfer, chunk, content in arrivals:
            place = (transfer.destination, chunk)
            if transfer.reduces and place in held:
                assert not (held[place] & content), f"{transfer}: adds a contribution twice"
                held[place] = held[place] | content
            else:
                held[place] = content
    return held


def replay_s(group, transfers):
    """Return when the last message arrives: each lane of a sender is a private link.

    A message occupies its link for (bytes + message_half) / (bandwidth x share) and arrives a
    latency later. A link serves its messages in the order of their steps and waits for the next.
    """
    ordered = sorted(enumerate(transfers), key=lambda entry: (entry[1].step, entry[0]))
    free_s, arrived_s, end_s = defaultdict(float), defaultdict(list), 0.0
    for _, transfer in ordered:
        span = group.spans[transfer.level]
        rate = span.bandwidth_bytes_per_s * transfer.share
        link = transfer.source, transfer.level, transfer.lane
        held = [(transfer.source, chunk) for chunk in transfer.chunks]
        ready_s = max(
            (at for place in held for step, at in arrived_s[place] if step < transfer.step),
            default=0.0,
        )
        start_s = max(ready_s, free_s[link])
        free_s[link] = start_s + (transfer.num_bytes + span.message_half_bytes) / rate
        arrival_s = free_s[link] + span.latency_s
        for chunk in transfer.chunks:
            arrived_s[transfer.destination, chunk].append((transfer.step, arrival_s))
        end_s = max(end_s, arrival_s)
    return end_s
