"""Recipes of training programs: what a configuration that they ship states, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from meshwright.catalog.files import data_names, read_text, read_tree

FOLDER = "recipes"


@cache
def recipes(program: str) -> Mapping[str, Mapping[str, Any]]:
    """Return what each recipe of a program states, by its names; ``path`` is its source there."""
    path = data_names(FOLDER)[program]
    tree: dict[Any, Any] = read_tree(read_text(path), str(path)).value
    found: dict[str, Mapping[str, Any]] = {}
    for name, stated in tree["recipes"].items():
        other = stated.pop("also", name)
        found[name] = found[other] = tree["common"] | stated
    return found
