"""Chips of the catalog, one YAML file each, or a file of one's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.catalog.files import data_names, data_path, load_file, looks_like_path
from meshwright.spec.chip import ChipSpec


def chip_names() -> tuple[str, ...]:
    """Return the names of all chips of the catalog."""
    return tuple(data_names("chips"))


def load_chip(name_or_path: str) -> ChipSpec:
    """Return a chip of the catalog by name (letter case aside), or the one in a YAML file.

    Raises
    ------
    UnknownNameError
        When the catalog has no such chip.
    SpecError
        With all faults of the file.
    """
    path = data_path("chips", "chip", name_or_path)
    return load_file(ChipSpec, path) if looks_like_path(name_or_path) else _catalog_chip(path)


@cache
def _catalog_chip(path: Path) -> ChipSpec:
    """Return a chip of the catalog, read once."""
    return load_file(ChipSpec, path)
