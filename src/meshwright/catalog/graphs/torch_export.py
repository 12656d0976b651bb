"""Graphs from PyTorch: a module that ``torch.export`` can trace, on the meta device if it is large.

Nothing is computed and no weight is needed, so a block of a model with 405 billion parameters
takes seconds. An operator (ATen) that has no rule is refused by name. Needs the extra ``run``;
PyTorch is imported when a function of this file runs.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.files import Members
from meshwright.catalog.graphs.control_flow import with_counts
from meshwright.catalog.graphs.exported import DimNames, graph_of, places_of, wanted_sizes
from meshwright.catalog.graphs.operators import OperatorError
from meshwright.catalog.graphs.torch_files import MOST_BYTES, program_in
from meshwright.catalog.graphs.traced import TracedProgram
from meshwright.catalog.graphs.tracing import as_foreign, first_line
from meshwright.spec.graph import GraphSpec

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def import_torch(
    module: torch.nn.Module,
    arguments: Sequence[object],
    keywords: Mapping[str, object] | None = None,
    *,
    name: str = "",
    repeats: int = 1,
    dims: DimNames | None = None,
    sizes: Mapping[str, int] | None = None,
    tiled: str | None = None,
) -> GraphSpec:
    """Return the graph of a module.

    Parameters
    ----------
    module
        A ``torch.nn.Module``; in ``eval`` mode unless dropout is wanted.
    arguments, keywords
        Example inputs of the shapes that are meant; tensors on the meta device take no memory.
        Those that require a gradient get one in the backward pass.
    repeats
        Number of repetitions of the whole graph: export one block, or two, of a model of many equal
        ones. Its inputs then have gradients, for the block before.
    dims
        Names of the dims of inputs, by the names of the arguments: ``{"x": ("batch", "tokens",
        "hidden")}``. Other dims are named by their use in operators.
    sizes
        Sizes of dims of inputs, if not those of the examples: by their name in the graph, or by
        their place (``x.0``).
    tiled
        The dim that passes through a chip in tiles; otherwise the one that most kernels write.

    Raises
    ------
    UnsupportedError
        Without PyTorch, or where the module has operators that are not known: all of them.
    SpecError
        Where ``torch.export`` fails, a shape is not fixed, or a name of ``dims`` is none.
    """
    name = name or type(module).__name__.lower()
    shared: dict[str, Any] = {"name": name, "repeats": repeats, "dims": dims, "tiled": tiled}
    program = _exported(module, tuple(arguments), dict(keywords or {}), name)
    counts: dict[str, int] = {}
    if sizes:
        plain = _plain(program, name)
        steps, faults, counted = with_counts(plain.steps, sizes)
        if faults:
            raise SpecError(faults, origin=name)
        counts = {key: size for key, size in sizes.items() if key in counted}
        sizes = {key: size for key, size in sizes.items() if key not in counted}
        places = places_of(replace(plain, steps=steps), name, dims) if sizes else {}
        wanted = wanted_sizes(sizes, places, name)
        from torch.utils import _pytree

        leaves, tree = _pytree.tree_flatten((tuple(arguments), dict(keywords or {})))
        for number, key in enumerate(program.graph_signature.user_inputs):
            changed = {axis: size for (node, axis), size in wanted.items() if node == key}
            if changed:
                shape = [changed.get(a, size) for a, size in enumerate(leaves[number].shape)]
                needs = leaves[number].requires_grad
                leaves[number] = leaves[number].new_zeros(shape).requires_grad_(needs)
        again = _pytree.tree_unflatten(leaves, tree)
        program = _exported(module, again[0], again[1], name) if wanted else program
    return graph_of_program(program, sizes=counts, **shared)


def _exported(
    module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], name: str
) -> ExportedProgram:
    """Return the program of a module."""
    torch = torch_or_refusal()
    try:
        with torch.no_grad(), quiet(), _traceable_experts(module):
            return torch.export.export(module, arguments, keywords)
    except Exception as error:
        message = f"torch.export: {first_line(error)}"
        raise SpecError(Fault("", message, "make the module traceable"), origin=name) from error


def graph_of_program(
    program: ExportedProgram,
    *,
    name: str,
    repeats: int = 1,
    dims: DimNames | None = None,
    sizes: Mapping[str, int] | None = None,
    tiled: str | None = None,
) -> GraphSpec:
    """Return the graph of an ``ExportedProgram``; see :func:`import_torch`.

    Every dynamic dim needs a size.
    """
    shared: dict[str, Any] = {
        "name": name, "repeats": repeats, "dims": dims, "sizes": sizes, "tiled": tiled
    }  # fmt: skip
    try:
        return graph_of(_plain(program, name), **shared)
    except (UnsupportedError, OperatorError) as error:
        first = error
    with suppress(Exception), quiet():
        return graph_of(_plain(program.run_decompositions(), name), **shared)
    raise first


def _saveable(program: ExportedProgram) -> ExportedProgram:
    """Return a program that PyTorch can save: flex attention is written as attention.

    Its function of each score and its mask are not read: all scores are counted.
    """
    torch = torch_or_refusal()
    flex = torch.ops.higher_order.flex_attention
    if not any(node.target is flex for node in program.graph.nodes):
        return program
    program, ops = program.run_decompositions({}), torch.ops.aten
    graph = program.graph_module.graph
    for node in [node for node in graph.nodes if node.target is flex]:
        with graph.inserting_before(node):
            attention = graph.create_node(
                "call_function",
                ops._scaled_dot_product_flash_attention_for_cpu.default,
                node.args[:3],
                name=node.name,
            )
        attention.meta = {**node.meta, "val": node.meta["val"][:2]}
        for used in list(node.users):
            used.args = (attention, min(used.args[1], 1))
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "get_attr"):
            graph.erase_node(node)
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output and the warnings of PyTorch while it traces."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def _traceable_experts(module: torch.nn.Module) -> Iterator[None]:
    """Let experts of transformers multiply by groups while they are traced.

    Their other ways (a loop over the experts that were hit, kernels for single devices) cannot be
    traced, and multiply the same rows with the same weights.
    """
    configs = {id(found): found for part in module.modules() if (found := _looped(part))}
    before = [config._experts_implementation for config in configs.values()]
    for config in configs.values():
        config._experts_implementation = "grouped_mm"
    try:
        yield
    finally:
        for config, way in zip(configs.values(), before, strict=True):
            config._experts_implementation = way


def _looped(part: object) -> Any:
    """Return the configuration of a module with experts that cannot be traced, or None."""
    config = getattr(part, "config", None)
    way = getattr(config, "_experts_implementation", None)
    return config if isinstance(way, str) and way not in ("grouped_mm", "batched_mm") else None


def _plain(program: ExportedProgram, name: str) -> TracedProgram:
    """Return an ``ExportedProgram`` as its own file states it, which holds no weight."""
    program = _saveable(program)
    torch, weights, archive = torch_or_refusal(), dict(program.state_dict), BytesIO()
    for key, held in weights.items():
        empty = held.to("meta")
        if isinstance(held, torch.nn.Parameter):
            empty = torch.nn.Parameter(empty, held.requires_grad)
        program.state_dict[key] = empty
    try:
        with quiet():
            torch.export.save(program, archive)
    except Exception as error:
        message = f"torch.export.save: {first_line(error)}"
        raise SpecError(Fault("", message, "make the module traceable"), origin=name) from error
    finally:
        program.state_dict.update(weights)
    with as_foreign(name), ZipFile(archive) as written:
        return program_in(Members(written, MOST_BYTES), name)


def torch_or_refusal() -> Any:
    """Return PyTorch, or say how to get it."""
    try:
        import torch
    except ImportError:
        message = f"PyTorch is not installed for {sys.executable}; pip install 'meshwright[run]'"
        raise UnsupportedError(message) from None
    return torch
