"""Prices every plan of the peer's search space and keeps the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright_papers.baselines.calculon.portions import Counts, PricedBlock, portions
from meshwright_papers.baselines.calculon.space import Space


@dataclass(frozen=True)
class Ranked:
    """One of the best plans."""

    samples_per_s: float
    total_s: float
    near_bytes: float
    order: int
    """Its turn in the enumeration; settles equal rates."""
    block: PricedBlock
    place: int

    @property
    def execution(self) -> dict[str, Any]:
        """The plan under the peer's field names."""
        return self.block.executions(np.array([self.place])).row(0)


@dataclass(frozen=True)
class SearchResult:
    """The counts of a space, and its best plans by samples per second."""

    counts: Counts
    best: tuple[Ranked, ...]


def search(space: Space, num_best: int = 20) -> SearchResult:
    """Price every plan of the space and return the best.

    Parameters
    ----------
    space
        What to search.
    num_best
        How many plans to return; equal rates in the order of the enumeration.
    """
    counts, order = Counts(), 0
    best: list[Ranked] = []
    for portion in portions(space):
        counts = counts + portion.counts
        for block in portion.blocks():
            least = best[-1].samples_per_s if len(best) == num_best else 0.0
            best = _merged(best, _candidates(block, least, order, num_best), num_best)
            order += block.total_s.size
    return SearchResult(counts, tuple(best))


def _merged(best: list[Ranked], new: list[Ranked], num_best: int) -> list[Ranked]:
    if not new:
        return best
    return sorted([*best, *new], key=lambda plan: (-plan.samples_per_s, plan.order))[:num_best]


def _candidates(block: PricedBlock, least: float, order: int, num_best: int) -> list[Ranked]:
    """Return the plans of a rectangle that beat a rate, the best of them only."""
    rates = np.where(block.fits, block.division.global_batch_size / block.total_s, 0.0).ravel()
    places = np.flatnonzero(rates > least)
    if places.size > num_best:
        chosen = np.argsort(-rates[places], kind="stable")[:num_best]
        places = places[chosen]
    total_s, near_bytes = block.total_s.ravel(), block.near_bytes.ravel()
    return [
        Ranked(
            float(rates[p]), float(total_s[p]), float(near_bytes[p]), order + int(p), block, int(p)
        )
        for p in places
    ]
