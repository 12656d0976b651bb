"""Graphs of the catalog and of users: YAML or JSON to checked declarations, and back to files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import PlainValues, data_names, find_name, load_plain, read_text
from meshwright.catalog.graphs.check import graph_faults
from meshwright.catalog.yaml_tree import fault_at, path_text, read_tree
from meshwright.spec.graph import GraphSpec

_PLAIN = re.compile(r"[A-Za-z_][\w.*/-]*")
_WORDS_OF_YAML = frozenset({"true", "false", "null", "Null", "NULL"})


def graph_record(spec: GraphSpec) -> dict[str, Any]:
    """Return a graph as plain values, what is as by default left out, but for its word."""
    record = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    first: dict[str, Any] = {}
    for key in ("name", "about", "sources", "tiled"):
        if key in record:
            first[key] = record.pop(key)
    return {**first, "word": f"{spec.word_bytes:.17g} B", **record}


def graph_yaml(spec: GraphSpec) -> str:
    """Return a graph as a file for people; reading it gives the same graph."""
    return "\n".join(_lines(graph_record(spec), 0)) + "\n"


def _lines(record: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield a mapping as lines: short lists of names in one line, all else below its key."""
    indent = "  " * depth
    for key, value in record.items():
        head = f"{indent}{_scalar(key)}:"
        if isinstance(value, Mapping):
            yield f"{head} {{}}" if not value else head
            yield from _lines(value, depth + 1)
        elif isinstance(value, list) and value and not _are_plain(value):
            yield head
            yield from (f"{indent}  - {_entry(entry)}" for entry in value)
        else:
            yield f"{head} {_entry(value)}"


def _entry(value: Any) -> str:
    """Return what stands on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_scalar(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """Return a scalar, in quotes where YAML would take it for something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    is_tensor = re.fullmatch(r"[A-Za-z_][\w./-]*\[[\w., *]*\]( of [0-9.]+ bytes)?", value)
    is_quantity = re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)? B", value)
    is_plain = _PLAIN.fullmatch(value) and value not in _WORDS_OF_YAML
    return value if is_plain or is_tensor or is_quantity else json.dumps(value)


def _are_plain(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) and "[" not in value for value in values)


_FOLDER = "graphs"


def graph_names() -> tuple[str, ...]:
    """Return the graphs of the catalog."""
    return tuple(data_names(_FOLDER))


def catalog_graph(name: str) -> GraphSpec:
    """Return a graph of the catalog.

    Raises
    ------
    UnknownNameError
        When there is no such graph; lists the near ones.
    """
    found = find_name(name, graph_names())
    if found is None:
        raise UnknownNameError("graph", name, graph_names())
    return read_graph(data_names(_FOLDER)[found])


def read_graph(path: str | Path) -> GraphSpec:
    """Return the graph of a file.

    Raises
    ------
    SpecError
        With all faults of the file, each with its place.
    """
    return graph_of_text(read_text(Path(path)), origin=str(path))


def is_graph_file(path: str | Path) -> bool:
    """Tell whether a file may hold a graph: YAML does, JSON where it has kernels."""
    if Path(path).suffix.lower() != ".json":
        return True
    return "kernels" in read_tree(read_text(Path(path)), str(path)).value


def graph_of_text(text: str, *, origin: str = "") -> GraphSpec:
    """Return the graph of a YAML or JSON text; see :func:`read_graph`."""
    tree = read_tree(text, origin)
    plain = PlainValues(value=tree.value)
    for at, message, fix in graph_faults(tree.value):
        plain.faults.append(fault_at(tree.lines, at, message, fix))
    return load_plain(GraphSpec, tree, plain, origin=origin)


def checked(spec: GraphSpec) -> GraphSpec:
    """Return a graph that was not read from a file, once it is found right.

    Raises
    ------
    SpecError
        With all faults, each with its place.
    """
    found = graph_faults(graph_record(spec))
    if found:
        faults = [Fault(path_text(at), message, fix) for at, message, fix in found]
        raise SpecError(faults, origin=spec.name)
    return spec
