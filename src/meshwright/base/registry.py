"""Named entries of one kind, and installed packages: entry points, the version of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Generic, TypeVar

from meshwright.base.errors import UnknownNameError

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """Named entries of one kind, in order; asking for a wrong name lists the right ones."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> T:
        raise UnknownNameError(self.kind, name, self)

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds an entry; two entries of one name are an error."""

        def add(entry: T) -> T:
            if name in self:
                raise ValueError(f"two entries of kind {self.kind} are called {name!r}")
            self[name] = entry
            return entry

        return add

    def fill(self, entries: Mapping[str, T], group: str) -> None:
        """Add these entries, then those of the entry point group ``meshwright.<group>``."""
        for name, entry in entries.items():
            self.register(name)(entry)
        load_entry_points(group)


def import_siblings(package: ModuleType, group: str = "") -> None:
    """Import each module of a package once, so that a file that exists is registered."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    if group:
        load_entry_points(group)


def load_entry_points(group: str) -> dict[str, Any]:
    """Return the objects that packages name in the entry points ``meshwright.<group>``."""
    entries = _installed_entries().select(group=f"meshwright.{group}")
    return {entry.name: entry.load() for entry in entries}


def extending_packages() -> list[str]:
    """Return the folders of the packages that name entry points ``meshwright.<group>``."""
    every = _installed_entries()
    groups = [group for group in every.groups if group.startswith("meshwright.")]
    modules = {entry.module for group in groups for entry in every.select(group=group)}
    specs = [find_spec(name) for name in sorted({name.partition(".")[0] for name in modules})]
    folders = (spec.submodule_search_locations for spec in specs if spec is not None)
    return [folder for found in folders for folder in found or ()]


@cache
def _installed_entries() -> Any:
    """Return the entry points of all installed packages; reading them takes a while."""
    return entry_points()


@cache
def version() -> str:
    """Return the version of this package."""
    try:
        return installed_version("meshwright")
    except PackageNotFoundError:
        return "source"
