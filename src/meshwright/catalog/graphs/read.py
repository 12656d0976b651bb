"""Graphs of the catalog and of users, in YAML or JSON, to declarations that are checked."""

from __future__ import annotations

from pathlib import Path

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import PlainValues, data_names, find_name, load_plain, read_text
from meshwright.catalog.graphs.check import graph_faults
from meshwright.catalog.graphs.write import graph_record
from meshwright.catalog.yaml_tree import fault_at, path_text, read_tree
from meshwright.spec.graph import GraphSpec

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
