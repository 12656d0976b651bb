"""Measured layers: bytes of each one, its time, and the bytes it sends on.

A file is YAML or JSON with a list of layers, or CSV with a line for each. A quantity carries its
unit in the value (``size: 875 MB``), or the name of its field does and the value is a number
(``size_bytes: 875000000``), as profilers write them.
"""

from __future__ import annotations

import csv
import io
import math
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import model_validator

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import (
    Location,
    PlainValues,
    Tree,
    file_keys,
    load_plain,
    plain_values,
    read_text,
    read_tree,
)
from meshwright.spec.declaration import Bytes, Count, Declaration, MessageBytes, Seconds, file_key


class LayerFootprint(Declaration):
    """One layer on one device; either its whole ``size`` is stated, or parts of it."""

    name: str
    repeat: Count = 1
    """Number of equal layers in a row."""
    size_bytes: Bytes | None = None
    """All bytes of the layer, which stay on the device."""
    weights_bytes: MessageBytes = 0.0
    kv_cache_bytes: MessageBytes = 0.0
    activations_bytes: MessageBytes = 0.0
    """Bytes of activations while the layer runs."""
    buffers_bytes: MessageBytes = 0.0
    """Bytes of the workspace of its operators while the layer runs."""
    time_s: Seconds | None = None
    """Time of one pass."""
    output_bytes: MessageBytes = 0.0
    """Bytes sent to the next layer in one pass."""

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
"""Most layers in one file."""


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


def table_tree(text: str, *, name: str, origin: str) -> Tree:
    """Return the tree of a CSV text: its head names fields, each further line is a layer.

    A cell is a number under a column that states its unit (``size_bytes``) and under ``repeat``,
    otherwise text. An empty cell states nothing.

    Raises
    ------
    SpecError
        With all faults of the form: unknown or repeated columns, lines of another length.
    """
    try:
        lines = [line for line in enumerate(csv.reader(io.StringIO(text)), start=1) if line[1]]
    except csv.Error as error:
        raise SpecError(Fault("", f"not CSV: {error}"), origin=origin) from error
    if not lines:
        raise SpecError(Fault("", "the file is empty", "a head such as name,size"), origin=origin)
    (_, head), *rows = lines
    columns, keys = [cell.strip() for cell in head], file_keys(LayerFootprint)
    fields = [file_key(column) for column in columns]
    faults = [
        Fault(f"column {column!r}", "unknown field", nearest(column, keys))
        for column, field in zip(columns, fields, strict=True)
        if field not in keys
    ]
    repeated = sorted({field for field in fields if fields.count(field) > 1})
    faults += [Fault(f"column {field!r}", "occurs twice") for field in repeated]
    layers: list[object] = []
    places: dict[Location, int] = {}
    for number, cells in rows:
        if len(cells) != len(columns):
            message = f"{len(cells)} cells under {len(columns)} columns"
            faults.append(Fault(f"line {number}", message))
        places[("layers", len(layers))] = number
        layer: dict[str, object] = {}
        for column, cell in zip(columns, map(str.strip, cells), strict=False):
            layer |= {column: cell} if cell else {}
            if cell and (column == "repeat" or column not in keys):
                with suppress(ValueError):
                    layer[column] = int(cell) if column == "repeat" else float(cell)
        layers.append(layer)
    if faults:
        raise SpecError(faults, origin=origin)
    return Tree({"name": name, "layers": layers}, places)


def load_footprints(path: str | Path) -> FootprintFile:
    """Return the layers of a file: CSV by its suffix, otherwise YAML or JSON.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    place, origin = Path(path), str(path)
    text = read_text(place)
    if place.suffix.lower() == ".csv":
        plain = plain_values(table_tree(text, name=place.stem, origin=origin))
    else:
        plain = plain_values(read_tree(text, origin))
    _write_units(plain)
    return load_plain(FootprintFile, plain, origin=origin)


def _write_units(plain: PlainValues) -> None:
    """Replace numbers with the unit in the name of the field by quantities with that unit."""
    layers = plain.value.get("layers")
    for index, layer in enumerate(layers if isinstance(layers, list) else []):
        for name in [*layer] if isinstance(layer, dict) else []:
            unit = {"bytes": "B", "s": "s"}.get(str(name).rpartition("_")[2])
            if unit is None or "_" not in str(name):
                continue
            value, key = layer.pop(name), file_key(name)
            at = ("layers", index, key)
            if key in layer:
                plain.refuse(at, f"is stated twice, also as {name}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                message = f"{name}: expected a number, found {value!r:.40}"
                plain.refuse(at, message, is_last=True)
            elif not math.isfinite(value):
                plain.refuse(at, f"{name}: found {value}", is_last=True)
            layer[key] = f"{value} {unit}"
