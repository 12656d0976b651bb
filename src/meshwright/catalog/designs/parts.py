"""Memories and links of the catalog, one YAML file each, or a file of one's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.catalog.files import data_path, load_file
from meshwright.spec.parts import LinkPart, MemoryPart


def load_memory(name_or_path: str) -> MemoryPart:
    """Return a memory by its name in the catalog, or the one in a YAML file."""
    return _memory(data_path("memories", "memory", name_or_path))


def load_link(name_or_path: str) -> LinkPart:
    """Return a link by its name in the catalog, or the one in a YAML file."""
    return _link(data_path("links", "link", name_or_path))


@cache
def _memory(path: Path) -> MemoryPart:
    return load_file(MemoryPart, path)


@cache
def _link(path: Path) -> LinkPart:
    return load_file(LinkPart, path)
