"""YAML, JSON and TOML files as trees; nothing in them is run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import Fault, SpecError

_MOST_VALUES = 100_000
"""Aliases of YAML can stand for more than any memory holds."""
SUFFIXES = (".yaml", ".yml", ".json", ".toml")


def trees_of(text: str, suffix: str, origin: str) -> list[dict[str, Any]]:
    """Return the trees of a file: several of YAML documents, else one.

    Raises
    ------
    SpecError
        The text is no such file, or holds no names at its top.
    """
    import yaml

    try:
        if suffix == ".toml":
            found: list[Any] = [tomllib.loads(text)]
        elif suffix == ".json":
            found = [json.loads(text)]
        else:
            found = [tree for tree in yaml.safe_load_all(text) if tree is not None]
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = suffix[1:].upper().replace("YML", "YAML")
        message = f"is no {kind}: {' '.join(str(error).split())}"
        raise SpecError(Fault("", message), origin=origin) from error
    if _is_huge(found):
        raise SpecError(Fault("", f"holds more than {_MOST_VALUES:,} values"), origin=origin)
    if not found or not all(isinstance(tree, Mapping) for tree in found):
        raise SpecError(Fault("", "expected names with values at its top"), origin=origin)
    return [{str(key): value for key, value in tree.items()} for tree in found]


def _is_huge(tree: Any) -> bool:
    """Return whether a tree has too many values, those behind aliases counted each time."""
    left, count = [tree], 0
    while left and count <= _MOST_VALUES:
        value = left.pop()
        count += 1
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return count > _MOST_VALUES
