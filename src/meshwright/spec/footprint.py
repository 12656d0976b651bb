"""Layers as somebody measured them: what each one holds, how long it takes, what it hands on."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from meshwright.spec.declaration import Bytes, Count, Declaration, MessageBytes, Seconds


class LayerFootprint(Declaration):
    """One layer on one device; either its whole ``size`` is stated, or parts of it."""

    name: str
    repeat: Count = 1
    """So many layers of this kind follow each other."""
    size_bytes: Bytes | None = None
    """All of it: it stays on the device."""
    weights_bytes: MessageBytes = 0.0
    kv_cache_bytes: MessageBytes = 0.0
    activations_bytes: MessageBytes = 0.0
    """While the layer works."""
    buffers_bytes: MessageBytes = 0.0
    """Workspace of its operators, while it works."""
    time_s: Seconds | None = None
    """Of one pass."""
    output_bytes: MessageBytes = 0.0
    """Handed to the next layer in one pass."""

    @model_validator(mode="after")
    def _is_stated_once(self) -> Self:
        parts = (self.weights_bytes, self.kv_cache_bytes, self.activations_bytes,
                 self.buffers_bytes)  # fmt: skip
        if (self.size_bytes is None) == (sum(parts) == 0):
            raise ValueError(
                "size: state either it, or parts above 0 of weights, kv_cache, activations, buffers"
            )
        return self


MOST_LAYERS = 100_000
"""Of one file."""


class FootprintFile(Declaration):
    """The layers of a model in the order in which they run."""

    name: str
    layers: tuple[LayerFootprint, ...]

    @model_validator(mode="after")
    def _has_layers_of_one_form(self) -> Self:
        if not self.layers:
            raise ValueError("layers: at least one layer is needed")
        count = sum(layer.repeat for layer in self.layers)
        if count > MOST_LAYERS:
            raise ValueError(f"layers: {count} layers; at most {MOST_LAYERS} are read")
        untimed = [layer.name for layer in self.layers if layer.time_s is None]
        if untimed and len(untimed) < len(self.layers):
            raise ValueError(f"layers: {untimed[0]!r} has no time, but others have one")
        return self

    @property
    def rows(self) -> tuple[LayerFootprint, ...]:
        """Every layer by itself, first to last."""
        return tuple(layer for layer in self.layers for _ in range(layer.repeat))
