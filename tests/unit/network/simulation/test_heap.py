"""The queue of the simulations: items leave by their keys, equal ones by their numbers."""

import random

import pytest

from meshwright.network.simulation.fluid import make_heap, pop, put


@pytest.mark.parametrize("seed", range(10))
def test_items_leave_in_order(seed):
    draw = random.Random(seed)
    keys = [float(draw.randint(0, 6)) for _ in range(draw.randint(1, 40))]
    heap = make_heap(len(keys))
    for item, key in enumerate(keys):
        put.plain(heap, item, 9.0 - key)
    for item in draw.sample(range(len(keys)), len(keys)):
        put.plain(heap, item, keys[item])
    left = [pop.plain(heap) for _ in keys]
    assert left == sorted(range(len(keys)), key=lambda item: (keys[item], item))
    assert heap.size[0] == 0
    assert (heap.place == -1).all()
