"""YAML, JSON and TOML files as trees; nothing in them is run."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.files import json_content

_MOST_VALUES = 100_000
"""Aliases of YAML can stand for more than any memory holds."""


def trees_of(text: str, suffix: str, origin: str) -> list[dict[str, Any]]:
    """Return the trees of a file: several of YAML documents, else one.

    Raises
    ------
    SpecError
        The text is no such file, or holds no names at its top.
    """
    try:
        if suffix == ".toml":
            found: list[Any] = [tomllib.loads(text)]
        elif suffix == ".json":
            found = [json_content(text, origin)]
        else:
            trees = yaml.load_all(text, Loader=_Loader)
            found = [tree for tree in trees if tree is not None]
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


class _Loader(yaml.SafeLoader):
    """YAML as programs read it; a field that one mapping states twice is a fault."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1 and name != "<<":
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"{name} is given twice below line {line}")
        return super().construct_mapping(node, deep=deep)
