"""What the members of a collective hold before it, and what they must hold after it."""

from __future__ import annotations

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
    return {(r, r * num_chunks + c): frozenset([r]) for r in range(size) for c in range(num_chunks)}


def wanted_data(kind, size, num_chunks):
    """Return (member, chunk) -> what it must hold at the end."""
    everybody, per_owner = frozenset(range(size)), num_chunks // size
    every = [(r, c) for r in range(size) for c in range(num_chunks)]
    if kind is CollectiveKind.ALL_REDUCE:
        return dict.fromkeys(every, everybody)
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
