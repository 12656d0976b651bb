"""A heap of numbered items that can be moved while they stand in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.compiled import compiled_in_place


class Heap(NamedTuple):
    """Items ordered by key, then by number; an item stands in it once at most."""

    key: FloatArray
    items: IntArray
    place: IntArray
    """Where each item stands in ``items``, or -1."""
    size: IntArray


def make_heap(num_items: int) -> Heap:
    """Return an empty heap of items 0 to ``num_items`` - 1."""
    return Heap(
        key=np.zeros(num_items),
        items=np.zeros(num_items, dtype=np.int64),
        place=np.full(num_items, -1),
        size=np.zeros(1, dtype=np.int64),
    )


@compiled_in_place
def rise(heap: Heap, place: int) -> None:
    """Move an item towards the top until the one above comes first."""
    item = heap.items[place]
    key = heap.key[item]
    while place > 0:
        above = heap.items[(place - 1) // 2]
        if heap.key[above] < key or (heap.key[above] == key and above < item):
            break
        heap.items[place] = above
        heap.place[above] = place
        place = (place - 1) // 2
    heap.items[place] = item
    heap.place[item] = place


@compiled_in_place
def sink(heap: Heap, place: int) -> None:
    """Move an item away from the top until those below come after it."""
    item, size = heap.items[place], heap.size[0]
    key = heap.key[item]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        below = heap.items[child]
        if child + 1 < size:
            other = heap.items[child + 1]
            first, second = heap.key[other], heap.key[below]
            if first < second or (first == second and other < below):
                child, below = child + 1, other
        if key < heap.key[below] or (key == heap.key[below] and item < below):
            break
        heap.items[place] = below
        heap.place[below] = place
        place = child
    heap.items[place] = item
    heap.place[item] = place


@compiled_in_place
def put(heap: Heap, item: int, key: float) -> None:
    """Insert an item, or move it to another key."""
    place = heap.place[item]
    if place < 0:
        place = heap.size[0]
        heap.size[0] += 1
        heap.items[place] = item
    heap.key[item] = key
    heap.place[item] = place
    rise(heap, place)
    sink(heap, heap.place[item])


@compiled_in_place
def pop(heap: Heap) -> int:
    """Remove the first item and return it."""
    first: int = heap.items[0]
    heap.place[first] = -1
    heap.size[0] -= 1
    if heap.size[0] > 0:
        heap.items[0] = heap.items[heap.size[0]]
        sink(heap, 0)
    return first
