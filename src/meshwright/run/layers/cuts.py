"""Cuts of a dim into the items of a stream, even where the members do not divide it."""

from __future__ import annotations

from itertools import pairwise

Cuts = list[tuple[int, int]]


def cuts(length: int, num_members: int, num_parts: int = 1) -> Cuts:
    """Return start and stop of each item of a dim: first ones longer where it does not divide.

    >>> cuts(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    members = _even(0, length, num_members)
    return [part for start, stop in members for part in _even(start, stop, num_parts)]


def _even(start: int, stop: int, number: int) -> Cuts:
    size, longer = divmod(stop - start, number)
    return list(pairwise(start + k * size + min(k, longer) for k in range(number + 1)))
