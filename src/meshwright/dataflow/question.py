"""A graph by its name or file: of the catalog, of a user, of a family, or of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from meshwright.base.errors import Fault, SpecError, UnknownNameError, nearest
from meshwright.catalog.files import find_name
from meshwright.catalog.graphs.files import (
    catalog_graph,
    checked,
    graph_names,
    is_graph_file,
    read_graph,
)
from meshwright.catalog.graphs.programs import is_program, read_program
from meshwright.catalog.models import load_model, model_names
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.graph import DataflowGraph, chained
from meshwright.graph.kernels.models import model_graphs
from meshwright.graph.kernels.workloads import fft, hpl
from meshwright.spec.graph import GraphSpec
from meshwright.spec.system import DType
from meshwright.spec.workload import BYTES_OF

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
    name_or_path: str,
    *,
    tokens: int | None = None,
    training: bool = False,
    precision: DType | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Sequence[str] = (),
    repeats: int = 1,
) -> DataflowGraph:
    """Return a graph by name or file, checked.

    Parameters
    ----------
    name_or_path
        A graph of the catalog (``dlrm-a``), a YAML or JSON file of a graph, a program
        (``model.pt2``, ``model.onnx``, ``module:function``; see :func:`read_program`), a
        member of a family (``hpl-16384x1024``), or a model (``llama3-70b``, ``config.json``):
        its layer, which repeats. A part of a model has its name behind a dot:
        ``deepseek-v3.layer1``, ``.embedding``, ``.head``, or ``.whole`` for all layers unrolled.
    tokens
        Length of the sequence of a model, 2048 where none is said. All other graphs state
        their sizes.
    training
        Whether the graph has the gradients of all inputs and weights.
    precision
        Type of the numbers; tensors with their own word keep it.
    sizes
        Sizes of dims of a file or of a program.
    inputs, repeats
        Shapes of the inputs, and repetitions, of a program.

    Raises
    ------
    UnknownNameError
        When there is none of that name; lists the near ones.
    SpecError
        With all faults of the file; a length for a graph that states its sizes.
    """
    text = name_or_path.strip()
    if is_program(text):
        graph: DataflowGraph | None = to_graph(
            read_program(text, sizes=sizes, inputs=inputs, repeats=repeats)
        )
    else:
        graph = _stated(text, sizes or {})
        idle = {"--input": inputs, "--repeats": repeats > 1, "--dim": sizes if not graph else ()}
        faults = [Fault(name, "applies only with a program") for name in idle if idle[name]]
        if faults:
            raise SpecError(faults, origin=text)
    if graph is None:
        graph = _of_model(text, TOKENS if tokens is None else tokens)
    elif tokens is not None:
        message = f"{graph.name} states its own sizes"
        raise SpecError(Fault("length of the sequence", message, "it applies only with a model"))
    if precision is not None:
        graph = replace(graph, word_bytes=BYTES_OF[precision] * graph.numbers_per_word)
    return with_backward(graph) if training else graph


def names_graph(text: str) -> bool:
    """Return whether a text names a graph by itself: not a model, which has several."""
    name, dot, _ = text.strip().rpartition(".")
    is_part = bool(dot and find_name(name, model_names()))
    return is_program(text) or is_part or _stated(text.strip(), {}) is not None


def linpack_sizes(name: str) -> tuple[int, int]:
    """Return the sides of the matrix and of its blocks in the name of a run of Linpack.

    Raises
    ------
    SpecError
        Where it names something else.
    """
    member = _MEMBER.fullmatch(name.strip())
    if member is None or member["family"] != "hpl":
        message = f"{name!r} is not dealt out over a grid of devices"
        raise SpecError(Fault("--process-grid", message, "only Linpack is: hpl-131072x1024"))
    return int(member["first"]), int(member["second"])


def _stated(text: str, sizes: Mapping[str, int]) -> DataflowGraph | None:
    """Return a graph that states its sizes; None where the text may name a model."""
    member = _MEMBER.fullmatch(text)
    if find_name(text, graph_names()):
        return to_graph(_with_sizes(catalog_graph(text), sizes))
    if _FILE.fullmatch(text) and is_graph_file(text):
        return to_graph(_with_sizes(read_graph(text), sizes))
    if member and member["family"] in FAMILIES:
        return FAMILIES[member["family"]](int(member["first"]), int(member["second"]))
    outside = _OUTSIDE.fullmatch(text)
    if outside and outside["family"] in FAMILIES:
        message = f"{text!r} has no two whole numbers above 0, of 12 digits at most"
        raise SpecError(Fault("graph", message, f"such as {outside['family']}-1024x128"))
    return None


def _with_sizes(spec: GraphSpec, sizes: Mapping[str, int]) -> GraphSpec:
    """Return a graph with other sizes of some dims, checked."""
    unknown = [name for name in sizes if name not in spec.dims]
    if unknown:
        faults = [
            Fault(f"--dim {n}", "is not a dim of the graph", nearest(n, spec.dims)) for n in unknown
        ]
        raise SpecError(faults, origin=spec.name)
    return checked(spec.model_copy(update={"dims": {**spec.dims, **sizes}})) if sizes else spec


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
