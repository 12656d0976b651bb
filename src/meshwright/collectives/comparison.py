"""Algorithms side by side for one size and one group: time, bus bandwidth, share of the bound."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.arrays import N
from meshwright.collectives.bounds import lower_bound_s
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import affine_candidates
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class TimedAlgorithm:
    """What one algorithm needs for one collective."""

    name: str
    time_s: float
    bus_bandwidth_bytes_per_s: float
    bound_fraction: float
    """Lower bound over time: 1 where nothing can be faster."""


def bus_bytes(kind: CollectiveKind, num_bytes: N, size: N) -> N:
    """Return the bytes that a member must send, for a bandwidth that compares with a link [bytes].

    2 (n - 1)/n for an all-reduce, (n - 1)/n for gathers, reductions and all-to-all, 1 otherwise.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md (definition of bus bandwidth).
    """
    share = (size - 1.0) / size
    if kind is CollectiveKind.ALL_REDUCE:
        return 2.0 * share * num_bytes
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.SEND):
        return num_bytes
    return share * num_bytes


def timed_algorithms(
    kind: CollectiveKind, num_bytes: float, group: Group[float]
) -> list[TimedAlgorithm]:
    """Return every algorithm that applies to a group of two or more, fastest first."""
    bound_s = float(lower_bound_s(kind, num_bytes, group))
    moved = float(bus_bytes(kind, num_bytes, group_size(group)))
    rows = []
    for name, fixed_s, seconds_per_byte in affine_candidates(kind, group):
        time_s = float(fixed_s + num_bytes * seconds_per_byte)
        rows.append(TimedAlgorithm(name, time_s, moved / time_s, bound_s / time_s))
    return sorted(rows, key=lambda row: row.time_s)
