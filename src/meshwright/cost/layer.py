"""The price of one layer on one device for one micro-batch, by part; and sums of such prices.

A :class:`LayerCost` is the unit that everything above composes: a stage is so many layers of each
kind, a step so many micro-batches through a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

from meshwright.base.arrays import larger

_TRANSIENT = "working_bytes"


@dataclass(frozen=True)
class LayerCost:
    """Seconds, bytes and FLOPs of one layer (or of an edge: embedding, head) on one device.

    Numbers, or columns with one row per way to split the layer. Communication is what shows
    outside of computation. ``kept`` is what a micro-batch leaves behind for its backward pass.
    """

    forward_s: Any
    """Computation of the forward pass [s]."""
    input_gradient_s: Any
    weight_gradient_s: Any
    recompute_s: Any
    """Forward computation that the backward pass repeats [s]."""
    launch_s: Any
    """What launching kernels adds to forward, backward and recomputation [s]."""
    tp_s: Any
    """Communication over tp that shows, all phases [s]."""
    cp_s: Any
    ep_s: Any
    stream_s: Any
    """Tensor streams over tatp: rounds that wait for a link or for HBM [s]."""
    forward_share: Any
    """Seconds of the forward pass, communication and launches included [s]."""
    per_step_s: Any
    """Communication over tp once for each optimizer step [s]."""
    kept_bytes: Any
    """Activations kept for the backward pass [bytes]."""
    working_bytes: Any
    """Largest transient of this layer: recomputed activations, stream buffers, logits [bytes]."""
    dense_params: Any
    """Parameters on this device outside of routed experts [1]."""
    expert_params: Any
    flops: Any
    """FLOPs executed, forward and backward [FLOP]."""
    memory_traffic_bytes: Any
    """Bytes that cross the main memory [bytes]."""
    hidden_s: Any
    """Communication that runs beside computation [s]."""
    link_traffic_bytes: Any
    """Bytes that this device sends at the least, each over one link [bytes]."""

    @property
    def busy_s(self) -> Any:
        """Computation and launches [s]."""
        return (
            self.forward_s
            + self.input_gradient_s
            + self.weight_gradient_s
            + self.recompute_s
            + self.launch_s
        )

    @property
    def exposed_comm_s(self) -> Any:
        """Communication that shows [s]."""
        return self.tp_s + self.cp_s + self.ep_s + self.stream_s

    @property
    def total_s(self) -> Any:
        """Time of one micro-batch through this layer, forward and backward [s]."""
        return self.busy_s + self.exposed_comm_s


LAYER_PARTS = tuple(field.name for field in fields(LayerCost))


def weighted_part(costs: Sequence[LayerCost], counts: Sequence[Any], name: str) -> Any:
    """Return one part of ``counts[k]`` layers of each kind k; of transients the largest."""
    largest = name == _TRANSIENT
    weights = [count > 0 for count in counts] if largest else counts
    terms = [getattr(cost, name) * weight for cost, weight in zip(costs, weights, strict=True)]
    return reduce(larger if largest else add, terms)


def weighted_sum(costs: Sequence[LayerCost], counts: Sequence[Any]) -> LayerCost:
    """Return the price of ``counts[k]`` layers of each kind k; the largest transient is kept."""
    return LayerCost(**{name: weighted_part(costs, counts, name) for name in LAYER_PARTS})
