"""What one device of a pipeline stage does, for whoever knows better how long its kernels take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.dataflow.choices import SplitChoices
from meshwright.dataflow.sharding import Sharding
from meshwright.dataflow.splits import Layout
from meshwright.dataflow.tables import SplitTables
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.readings import readings


@dataclass(frozen=True)
class StageWork:
    """Some repetitions of a graph on the devices of one stage."""

    graph: DataflowGraph
    tp: int
    """Devices over which kernels are split."""
    sharding: Sharding
    network: SplitTables
    """Its ways with their collectives and messages alone [s]."""
    layers: int
    """Repetitions on the stage."""
    num_passes: int
    """Of a replica in a step."""
    most_s: float = float("inf")
    """A stage that certainly takes longer is of no use; its time may be infinite [s]."""

    @property
    def network_s(self) -> dict[str, float]:
        """Seconds of network that each kernel causes, for one repetition and one pass.

        Changes of layout of what it writes, the sum that it leaves open at the end, its messages,
        and its part of the sums of gradients of weights over the group.
        """
        return SplitChoices(self.network).costs_by_kernel(self.sharding.ways)


@dataclass(frozen=True)
class StagePrice:
    """What one pass through a stage takes, collectives included."""

    time_s: float
    bound_s: float
    """No way to split the kernels takes less [s]."""


StageTime = Callable[[StageWork], StagePrice | None]
"""None where the work does not fit."""


def sent_bytes(graph: DataflowGraph, tp: int, sharding: Sharding) -> float:
    """Return what a device hands to the next repetition: its part of each tensor [bytes].

    What is asked for split crosses split; the rest crosses whole.
    """
    wanted: dict[int, set[Layout]] = defaultdict(set)
    sizes: dict[int, float] = {}
    for read in readings(graph):
        if read.is_carried:
            wanted[read.producer].add(sharding.splits[read.consumer].reads[read.place])
            sizes[read.producer] = max(sizes.get(read.producer, 0.0), read.num_bytes)
    return sum(
        sizes[producer] / (tp if all(layout.place is not None for layout in layouts) else 1)
        for producer, layouts in wanted.items()
    )
