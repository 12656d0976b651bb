"""What brings the gradients of weights to the layouts of their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.memory import Holdings
from meshwright.dataflow.splits import KernelSplit
from meshwright.dataflow.tables import ChangeCost
from meshwright.graph.dataflow.backward import gradient_name
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.op import Phase


def gradient_sums(
    graph: DataflowGraph,
    splits: Sequence[Sequence[KernelSplit]],
    holdings: Holdings,
    change_cost: ChangeCost,
) -> Iterator[tuple[tuple[int, int], FloatArray]]:
    """Yield the numbers of a kernel that holds a weight and of the maker of its gradient.

    Beside them what the change of layout costs, for each way of the one and of the other.
    """
    for first, kernel in enumerate(graph.kernels):
        for place, held in enumerate(kernel.weights):
            second = graph.number.get(gradient_name(kernel, held))
            if second is None or kernel.phase is not Phase.FORWARD:
                continue
            num_bytes = graph.tensor_bytes(graph.kernels[second])
            wanted = [holdings.weight_layout(first, place, way) for way in splits[first]]
            costs = [
                [change_cost(num_bytes, way.writes, want) for way in splits[second]]
                for want in wanted
            ]
            yield (first, second), np.array(costs)
