"""A graph by its name or file: of the catalog, of a user, of a family, or of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import find_name
from meshwright.catalog.graphs.files import (
    catalog_graph,
    checked,
    graph_names,
    is_graph_file,
    read_graph,
)
from meshwright.catalog.graphs.onnx_files import import_onnx
from meshwright.catalog.models import load_model, model_names
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec
from meshwright.graph.kernels.graph import DataflowGraph, chained
from meshwright.graph.kernels.models import model_graphs
from meshwright.graph.kernels.workloads import fft, hpl

Family = Callable[[int, int], DataflowGraph]
FAMILIES: Mapping[str, Family] = {"hpl": hpl, "fft": fft}
"""Workloads named by two numbers: ``hpl-16384x1024`` is a matrix and the width of its blocks,
``fft-4096x8192`` the two sides of the points."""
_MEMBER = re.compile(r"(?P<family>[a-z]+)-(?P<first>[1-9][0-9]{0,11})x(?P<second>[1-9][0-9]{0,11})")
_OUTSIDE = re.compile(r"(?P<family>[a-z]+)-[-0-9x.]*")
_FILE = re.compile(r".*(\.ya?ml|\.json)", re.IGNORECASE)
WHOLE = "whole"
TOKENS = 2048
"""Length of a sequence where none is said."""


def load_graph(
    name_or_path: str, *, tokens: int | None = None, training: bool = False
) -> DataflowGraph:
    """Return a graph by name or file, checked.

    Parameters
    ----------
    name_or_path
        A graph of the catalog (``dlrm-a``), a YAML or JSON file of a graph, an ONNX file, a
        member of a family (``hpl-16384x1024``), or a model (``llama3-70b``, ``config.json``):
        its layer, which repeats. A part of a model has its name behind a dot:
        ``deepseek-v3.layer1``, ``.embedding``, ``.head``, or ``.whole`` for all layers unrolled.
    tokens
        Length of the sequence of a model, 2048 where none is said. All other graphs state
        their sizes.
    training
        With the gradients of all inputs and weights.

    Raises
    ------
    UnknownNameError
        When there is none of that name; lists the near ones.
    SpecError
        With all faults of the file; a length for a graph that states its sizes.
    """
    text = name_or_path.strip()
    graph = _stated(text)
    if graph is None:
        graph = _of_model(text, TOKENS if tokens is None else tokens)
    elif tokens is not None:
        message = f"{graph.name} states its own sizes"
        raise SpecError(Fault("length of the sequence", message, "it is of use with a model only"))
    return with_backward(graph) if training else graph


def check_graph(graph: DataflowGraph) -> DataflowGraph:
    """Return a graph that was built in Python, once it is found right.

    Raises
    ------
    SpecError
        With all faults, each with its place.
    """
    checked(to_spec(graph))
    return graph


def _stated(text: str) -> DataflowGraph | None:
    """Return a graph that states its sizes; None where the text may name a model."""
    member = _MEMBER.fullmatch(text)
    if find_name(text, graph_names()):
        return to_graph(catalog_graph(text))
    if _FILE.fullmatch(text) and is_graph_file(text):
        return to_graph(read_graph(text))
    if text.lower().endswith(".onnx"):
        return to_graph(import_onnx(text))
    if member and member["family"] in FAMILIES:
        return FAMILIES[member["family"]](int(member["first"]), int(member["second"]))
    outside = _OUTSIDE.fullmatch(text)
    if outside and outside["family"] in FAMILIES:
        message = f"{text!r} has no two whole numbers above 0, of 12 digits at most"
        raise SpecError(Fault("graph", message, f"such as {outside['family']}-1024x128"))
    return None


def _of_model(text: str, tokens: int) -> DataflowGraph:
    """Return the layer of a model, or the part of it that is named behind a dot."""
    try:
        return _part(model_graphs(load_model(text), tokens), "")
    except UnknownNameError:
        name, dot, part = text.rpartition(".")
        if not dot or not find_name(name, model_names()):
            shapes = (f"{family}-1024x128" for family in FAMILIES)
            known = (*graph_names(), *shapes, *model_names())
            raise UnknownNameError("graph", text, known) from None
    return _part(model_graphs(load_model(name), tokens), part)


def _part(parts: tuple[DataflowGraph, ...], wanted: str) -> DataflowGraph:
    """Return a part of a model by name; without one the only kind of layer."""
    by_name = {part.name.rpartition(".")[2]: part for part in parts}
    model = parts[0].name.rpartition(".")[0]
    if wanted == WHOLE:
        return chained(f"{model}.{WHOLE}", parts)
    layers = [name for name in by_name if name.startswith("layer")]
    if not wanted and len(layers) == 1:
        return by_name[layers[0]]
    if not wanted:
        message = f"{len(layers)} kinds of layers; name one: {', '.join(layers)}"
        raise SpecError(Fault("graph", message, f"such as {model}.{layers[-1]}"), origin=model)
    if wanted not in by_name:
        raise UnknownNameError(f"part of {model}", wanted, (*by_name, WHOLE))
    return by_name[wanted]
