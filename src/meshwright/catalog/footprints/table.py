"""A CSV table of layers as the tree that a YAML file would give."""

from __future__ import annotations

import csv
import io
from typing import Any

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import file_keys
from meshwright.catalog.yaml_tree import Location, Tree
from meshwright.spec.declaration import file_key
from meshwright.spec.footprint import LayerFootprint


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
