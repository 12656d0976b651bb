"""The time of the fastest algorithm, from the candidates that the search keeps."""

from __future__ import annotations

from functools import reduce

from meshwright.base.arrays import N, smaller
from meshwright.collectives.group import Group
from meshwright.collectives.registry import best_affine_candidates
from meshwright.spec.collective import CollectiveKind


def best_time_s(kind: CollectiveKind, num_bytes: N, group: Group[N]) -> N:
    """Return the time of the fastest algorithm [s]; a column chooses in each row."""
    candidates = best_affine_candidates(kind, group)
    times = [fixed_s + num_bytes * slope for _, fixed_s, slope in candidates]
    fastest_s: N = reduce(smaller, times)
    return fastest_s
