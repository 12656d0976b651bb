"""Training frameworks of the catalog, in their versions."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import (
    FileFields,
    Tree,
    data_names,
    find_name,
    load_plain,
    plain_values,
    read_text,
    read_tree,
)
from meshwright.catalog.workloads import server_names
from meshwright.spec.framework import Framework

FOLDER = "frameworks"
VERSIONS = "versions"
"""Key of the differences of other versions, by version."""


def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks."""
    return tuple(data_names(FOLDER))


def framework_versions(name: str) -> tuple[str, ...]:
    """Return the versions that the catalog holds of a framework, the usual one first."""
    tree = _tree(data_names(FOLDER)[name])
    return (str(tree.value.get("version", "")), *map(str, tree.value.get(VERSIONS, {})))


@cache
def load_framework(text: str) -> Framework:
    """Return a framework by ``NAME`` or ``NAME==VERSION``, letter case aside.

    Raises
    ------
    UnknownNameError
        When there is no such framework; lists the near ones.
    SpecError
        When the catalog does not hold that version; lists those that it holds. When it serves,
        and does not train. When others have the name in their title.
    """
    stated, _, version = text.partition("==")
    name = find_name(stated, framework_names())
    if name is None and find_name(stated, server_names()) is not None:
        raise SpecError(
            Fault("framework", f"{stated} serves requests", f"serve --framework {stated}")
        )
    if name is None:
        titles = {
            one: str(_tree(data_names(FOLDER)[one]).value["title"]) for one in framework_names()
        }
        titled = [one for one, title in titles.items() if stated.lower() in title.lower().split()]
        if titled:
            fix = f"did you mean {' or '.join(titled)}?"
            raise SpecError(Fault("framework", f"unknown name {stated!r}", fix))
        raise UnknownNameError("framework", stated, framework_names())
    path = data_names(FOLDER)[name]
    tree = _tree(path)
    others = tree.value.pop(VERSIONS, {})
    if version and version != str(tree.value.get("version", "")):
        if version not in others:
            known = " or ".join(filter(None, framework_versions(name))) or "none: leave it out"
            raise SpecError(Fault("framework", f"{name} in version {version!r}", f"known: {known}"))
        tree = Tree({**_merged(tree.value, others[version]), "version": version}, tree.lines)
    return load_plain(Framework, plain_values(tree), origin=str(path))


def _tree(path: Path) -> Tree:
    return read_tree(read_text(path), str(path))


def _merged(value: FileFields, other: FileFields) -> FileFields:
    """Return a mapping with its entries replaced by those of another, level by level."""
    both = {
        key: _merged(value[key], entry)
        if isinstance(entry, dict) and isinstance(value.get(key), dict)
        else entry
        for key, entry in other.items()
    }
    return {**value, **both}
