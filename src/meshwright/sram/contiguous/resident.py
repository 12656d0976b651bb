"""Which layers of a stage stay in the near memory when not all of them have room there."""

from __future__ import annotations

from collections.abc import Sequence


def most_worth(
    sizes: Sequence[float], worths: Sequence[float], capacity: float
) -> tuple[float, list[int]]:
    """Return the largest worth of items within a capacity, and which items they are.

    A knapsack, exact: sets of items in the order of their size, without those that another one
    beats in size and worth. Few sizes, as those of a model, leave few sets; random ones may not.

    Parameters
    ----------
    sizes, worths
        Of each item, none negative: bytes, and the seconds or bytes that its place saves.
    """
    sets: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    for item, (size, worth) in enumerate(zip(sizes, worths, strict=True)):
        further = [
            (held + size, saved + worth, (*items, item))
            for held, saved, items in sets
            if held + size <= capacity
        ]
        sets = _undominated([*sets, *further])
    _, worth, items = sets[-1]
    return worth, list(items)


def _undominated(
    sets: list[tuple[float, float, tuple[int, ...]]],
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return the sets that are worth more than every smaller one, smallest first."""
    kept: list[tuple[float, float, tuple[int, ...]]] = []
    for entry in sorted(sets, key=lambda entry: (entry[0], -entry[1])):
        if not kept or entry[1] > kept[-1][1]:
            kept.append(entry)
    return kept
