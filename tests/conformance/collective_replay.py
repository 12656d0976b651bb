"""Two replays of a list of transfers: who holds what at the end, and when it ends."""

from __future__ import annotations

import heapq
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
    latency later. A link serves what is ready in the order of the steps.
    """
    ordered = sorted(enumerate(transfers), key=lambda entry: (entry[1].step, entry[0]))
    listed = [transfer for _, transfer in ordered]
    waiting, followers = _dependencies(listed)
    ready, idle_since, end_s = defaultdict(list), defaultdict(float), 0.0
    events = [(0.0, index) for index, count in enumerate(waiting) if count[0] == 0]
    heapq.heapify(events)
    while events:
        now = events[0][0]
        links = set()
        while events and events[0][0] == now:
            _, index = heapq.heappop(events)
            if index >= 0:
                link = _link(listed[index])
                heapq.heappush(ready[link], index)
                links.add(link)
            else:
                links.add(_link(listed[-1 - index]))
        for link in links:
            if idle_since[link] > now or not ready[link]:
                continue
            index = heapq.heappop(ready[link])
            free_s, arrival_s = _serve(group, listed[index], now)
            idle_since[link] = free_s
            heapq.heappush(events, (free_s, -1 - index))
            end_s = max(end_s, arrival_s)
            for follower in followers[index]:
                waiting[follower][0] -= 1
                waiting[follower][1] = max(waiting[follower][1], arrival_s)
                if waiting[follower][0] == 0:
                    heapq.heappush(events, (waiting[follower][1], follower))
    return end_s


def _link(transfer):
    return transfer.source, transfer.level, transfer.lane


def _serve(group, transfer, now):
    span = group.spans[transfer.level]
    rate = span.bandwidth_bytes_per_s * transfer.share
    free_s = now + (transfer.num_bytes + span.message_half_bytes) / rate
    return free_s, free_s + span.latency_s


def _dependencies(listed):
    """Return what each transfer still waits for, and who waits for each."""
    arrivals = defaultdict(list)
    for index, transfer in enumerate(listed):
        for chunk in transfer.chunks:
            arrivals[transfer.destination, chunk].append(index)
    waiting, followers = [], defaultdict(list)
    for index, transfer in enumerate(listed):
        needs = {
            earlier
            for chunk in transfer.chunks
            for earlier in arrivals[transfer.source, chunk]
            if listed[earlier].step < transfer.step
        }
        waiting.append([len(needs), 0.0])
        for earlier in needs:
            followers[earlier].append(index)
    return waiting, followers
