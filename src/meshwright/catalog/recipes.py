"""Recipes of training programs: settings of the configurations that they ship, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from meshwright.catalog.files import data_names, read_text, read_tree

FOLDER = "recipes"


@cache
def recipes(program: str) -> Mapping[str, Mapping[str, object]]:
    """Return the settings of each recipe of a program, by name; ``path`` is its source there."""
    path = data_names(FOLDER)[program]
    tree = read_tree(read_text(path), str(path)).value
    found: dict[str, Mapping[str, object]] = {}
    for name, stated in tree["recipes"].items():
        other = stated.pop("also", name)
        found[name] = found[other] = tree["common"] | stated
    return found
