"""Layers as somebody measured them: what each one holds, how long it takes, what it hands on.

A file is YAML or JSON with a list of layers, or CSV with a line for each. A quantity carries its
unit in the value (``size: 875 MB``), or the name of its field does and the value is a number
(``size_bytes: 875000000``), as profilers write them.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import (
    Location,
    PlainValues,
    Tree,
    fault_at,
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


def table_tree(text: str, *, name: str, origin: str) -> Tree:
    """Return the tree of a CSV text: its head names fields, each further line is a layer.

    An empty cell states nothing.

    Raises
    ------
    SpecError
        With all faults of the form: unknown or repeated columns, lines of another length.
    """
    lines = [line for line in enumerate(csv.reader(io.StringIO(text)), start=1) if line[1]]
    if not lines:
        raise SpecError(Fault("", "the file is empty", "a head such as name,size"), origin=origin)
    (_, head), *rows = lines
    columns = [cell.strip() for cell in head]
    faults = _column_faults(columns)
    layers: list[Any] = []
    places: dict[Location, int] = {}
    for number, cells in rows:
        if len(cells) != len(columns):
            message = f"{len(cells)} cells under {len(columns)} columns"
            faults.append(Fault(f"line {number}", message))
        places[("layers", len(layers))] = number
        filled = zip(columns, (cell.strip() for cell in cells), strict=False)
        layers.append({column: _value(column, cell) for column, cell in filled if cell})
    if faults:
        raise SpecError(faults, origin=origin)
    return Tree({"name": name, "layers": layers}, places)


def _column_faults(columns: list[str]) -> list[Fault]:
    """Return the columns that are no field of a layer, and those that stand there twice."""
    keys = file_keys(LayerFootprint)
    faults = [
        Fault(f"column {column!r}", "unknown field", nearest(column, keys))
        for column in columns
        if file_key(column) not in keys
    ]
    fields = [file_key(column) for column in columns]
    repeated = {field for field in fields if fields.count(field) > 1}
    return faults + [Fault(f"column {field!r}", "is there twice") for field in sorted(repeated)]


def _value(column: str, cell: str) -> object:
    """Return what a cell states: a number under a unit or of a count, otherwise text."""
    if (column != "name" and column not in file_keys(LayerFootprint)) or column == "repeat":
        try:
            return int(cell) if column == "repeat" else float(cell)
        except ValueError:
            return cell
    return cell


_UNITS = {"_bytes": "B", "_s": "s"}


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
        tree = table_tree(text, name=place.stem, origin=origin)
    else:
        tree = read_tree(text, origin)
    plain = plain_values(tree)
    _write_units(plain, tree)
    return load_plain(FootprintFile, tree, plain, origin=origin)


def _write_units(plain: PlainValues, tree: Tree) -> None:
    """Replace numbers whose unit stands in the name of the field by quantities with that unit."""
    layers = plain.value.get("layers")
    for index, layer in enumerate(layers if isinstance(layers, list) else []):
        for name in [*layer] if isinstance(layer, dict) else []:
            unit = next((u for end, u in _UNITS.items() if str(name).endswith(end)), None)
            if unit is None:
                continue
            value, at = layer.pop(name), ("layers", index, file_key(name))
            if at[-1] in layer:
                plain.faults.append(fault_at(tree.lines, at, f"is stated twice, also as {name}"))
            if isinstance(value, bool) or not isinstance(value, int | float):
                message = f"{name}: expected a number, found {value!r:.40}"
                plain.faults.append(fault_at(tree.lines, at, message))
                plain.reported.append(at)
            elif not math.isfinite(value):
                plain.faults.append(fault_at(tree.lines, at, f"{name}: found {value}"))
                plain.reported.append(at)
            layer[at[-1]] = f"{value} {unit}"
