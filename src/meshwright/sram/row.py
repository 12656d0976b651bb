"""The row of layers that is cut into stages: what each layer holds, takes and hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.spec.footprint import FootprintFile
from meshwright.sram.contiguous.loads import LayerLoads


@dataclass(frozen=True)
class LayerRow:
    """Layers on one device each, or on each device of a group that splits them; in their order."""

    names: tuple[str, ...]
    resident_bytes: Mapping[str, FloatArray]
    """What stays on the device, by part: weights, their state, key-value cache [bytes]."""
    transient_bytes: Mapping[str, FloatArray]
    """What is there while a layer works, by part: activations, buffers [bytes]."""
    kept_bytes: FloatArray
    """Activations that each micro-batch leaves for its backward pass [bytes]."""
    time_parts_s: Mapping[str, FloatArray]
    """Seconds of one pass of one group of sequences, by part; empty where nobody knows them [s]."""
    output_bytes: FloatArray
    """Handed to the next layer in one pass; after the last one, what goes back to the first."""

    @cached_property
    def loads(self) -> LayerLoads:
        """The same as columns that cuts are made of."""
        zero = np.zeros(len(self.names))
        return LayerLoads(
            sum(self.resident_bytes.values(), zero), sum(self.transient_bytes.values(), zero),
            self.kept_bytes,
        )  # fmt: skip

    @property
    def has_times(self) -> bool:
        """Whether the seconds of the layers are known."""
        return bool(self.time_parts_s)

    @cached_property
    def layer_s(self) -> FloatArray:
        """Seconds of each layer: the sum of its parts [s]."""
        return sum(self.time_parts_s.values(), np.zeros(len(self.names)))

    def parts_bytes(self, first: int, stop: int, in_flight: int) -> dict[str, float]:
        """Return what fills the device of a stage; the parts sum to its load.

        Transients are those of the layer whose sum is largest.
        """
        run = slice(first, stop)
        parts = {name: float(column[run].sum()) for name, column in self.resident_bytes.items()}
        kept = in_flight * float(self.kept_bytes[run].sum())
        largest = first + int(self.loads.transient_bytes[run].argmax())
        return {
            **parts,
            "kept_activations": kept,
            **{name: float(column[largest]) for name, column in self.transient_bytes.items()},
        }


def measured_row(file: FootprintFile) -> LayerRow:
    """Return the row of a file of measured layers; a ``size`` counts as weights."""
    rows = file.rows
    names = [
        layer.name if layer.repeat == 1 else f"{layer.name} {number}"
        for layer in file.layers
        for number in range(layer.repeat)
    ]

    def column(field: str) -> FloatArray:
        return np.array([getattr(layer, field) or 0.0 for layer in rows])

    is_timed = rows[0].time_s is not None
    return LayerRow(
        names=tuple(names),
        resident_bytes={
            "weights": column("size_bytes") + column("weights_bytes"),
            "kv_cache": column("kv_cache_bytes"),
        },
        transient_bytes={
            "activations": column("activations_bytes"), "buffers": column("buffers_bytes"),
        },
        kept_bytes=np.zeros(len(rows)),
        time_parts_s={"measured_s": column("time_s")} if is_timed else {},
        output_bytes=column("output_bytes"),
    )  # fmt: skip
