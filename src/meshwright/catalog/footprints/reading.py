"""Files of measured layers.

A quantity carries its unit in the value (``size: 875 MB``), or the name of its field does and the
value is a number (``size_bytes: 875000000``), as profilers write them.
"""

from __future__ import annotations

import math
from pathlib import Path

from meshwright.catalog.files import PlainValues, load_plain, plain_values, read_text
from meshwright.catalog.footprints.table import table_tree
from meshwright.catalog.yaml_tree import Tree, fault_at, read_tree
from meshwright.spec.declaration import file_key
from meshwright.spec.footprint import FootprintFile

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
