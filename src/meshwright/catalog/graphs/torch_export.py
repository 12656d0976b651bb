"""Graphs from PyTorch: a module that ``torch.export`` can trace, on the meta device if it is large.

Nothing is computed and no weight is needed, so a block of a model with 405 billion parameters
takes seconds. An operator (ATen) that has no rule is refused by name. Needs the extra ``torch``;
PyTorch is imported when a function of this file runs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.catalog.graphs.exported import (
    DimNames,
    Input,
    Program,
    ProgramStep,
    Ref,
    TensorMeta,
    graph_of,
    places_of,
    wanted_sizes,
)
from meshwright.catalog.graphs.expressions import Expression, read_expression
from meshwright.catalog.graphs.tracing import first_line
from meshwright.spec.graph import GraphSpec


def import_torch(
    module: Any,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
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
    if sizes:
        wanted = wanted_sizes(sizes, places_of(_plain(program), name, dims), name)
        from torch.utils import _pytree

        leaves, tree = _pytree.tree_flatten((tuple(arguments), dict(keywords or {})))
        for number, key in enumerate(program.graph_signature.user_inputs):
            changed = {axis: size for (node, axis), size in wanted.items() if node == key}
            if changed:
                shape = [changed.get(a, size) for a, size in enumerate(leaves[number].shape)]
                needs = leaves[number].requires_grad
                leaves[number] = leaves[number].new_zeros(shape).requires_grad_(needs)
        again = _pytree.tree_unflatten(leaves, tree)
        program = _exported(module, again[0], again[1], name)
    return graph_of_program(program, **shared)


def _exported(module: Any, arguments: Any, keywords: Any, name: str) -> Any:
    """Return the program of a module."""
    torch = torch_or_refusal()
    try:
        with torch.no_grad(), quiet(), _traceable_experts(module):
            return torch.export.export(module, arguments, keywords)
    except Exception as error:
        message = f"torch.export: {first_line(error)}"
        raise SpecError(Fault("", message, "make the module traceable"), origin=name) from error


def graph_of_program(
    program: Any,
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
    plain = _plain(program)
    return graph_of(plain, name=name, repeats=repeats, dims=dims, sizes=sizes, tiled=tiled)


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
def _traceable_experts(module: Any) -> Iterator[None]:
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


def _looped(part: Any) -> Any:
    """Return the configuration of a module with experts that cannot be traced, or None."""
    config = getattr(part, "config", None)
    way = getattr(config, "_experts_implementation", None)
    return config if isinstance(way, str) and way not in ("grouped_mm", "batched_mm") else None


def _plain(program: Any) -> Program:
    """Return an ``ExportedProgram`` as plain data."""
    signature = program.graph_signature
    weights: Mapping[str, str] = signature.inputs_to_parameters
    held = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants, **weights}
    metas = {node.name: node.meta.get("val") for node in program.graph.nodes}
    given = [spec.arg.name for spec in signature.input_specs]
    sizes = [size for name in given if _is_tensor(metas.get(name)) for size in metas[name].shape]
    examples = {str(expr): size.node.hint for size in sizes if (expr := _open(size)) is not None}
    return Program(
        inputs=tuple(
            Input(name, _meta(metas[name]), held.get(name, ""), name in weights)
            for name in given
            if name in metas
        ),
        steps=tuple(_steps(program.graph.nodes)),
        outputs=tuple(name for name in signature.user_outputs if isinstance(name, str)),
        version=torch_or_refusal().__version__,
        ranges={str(key): _range(found) for key, found in program.range_constraints.items()},
        examples={name: hint for name, hint in examples.items() if isinstance(hint, int)},
    )


def _steps(nodes: Any) -> Iterator[ProgramStep]:
    """Yield the calls of a graph; places of one that makes several things are its outputs."""
    parts: dict[str, dict[int, str]] = {}
    for node in nodes:
        if _operator(node) == "getitem":
            parts.setdefault(node.args[0].name, {})[node.args[1]] = node.name
    for node in nodes:
        if node.op != "call_function" or _operator(node) == "getitem":
            continue
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        names += [f"{place}" for place in range(len(names), len(node.args))]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        made, named = node.meta.get("val"), parts.get(node.name, {})
        outputs = [(node.name, _meta(made))]
        if isinstance(made, list | tuple):
            metas = enumerate(map(_meta, made))
            outputs = [(named.get(at, f"{node.name}.unused_{at}"), meta) for at, meta in metas]
        arguments = {key: _argument(value) for key, value in given.items()}
        yield ProgramStep(node.name, _operator(node), arguments, tuple(outputs))


def _argument(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_argument(entry) for entry in value]
    return Ref(value.name) if hasattr(value, "op") else _size(value)


def _meta(value: Any) -> Any:
    """Return the shape and type of a tensor, or the value of a number."""
    if not _is_tensor(value):
        return _size(value)
    shape = tuple(map(_size, value.shape))
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorMeta(shape, dtype, float(value.element_size()), value.requires_grad)


def _open(size: Any) -> Any:
    """Return a size that a program leaves open as sympy has it; None where it is a number."""
    return getattr(getattr(size, "node", None), "expr", None)


def _size(size: Any) -> Any:
    """Return a size as a number or an expression; anything else is returned unchanged."""
    expression = _open(size)
    if expression is None:
        return size
    from sympy import srepr

    try:
        return read_expression(srepr(expression))
    except ValueError:  # of what is no size: a condition, a number with a fraction
        return Expression(str(expression))


def _range(found: Any) -> tuple[int | None, int | None]:
    """Return the least and the largest number of a range of PyTorch."""
    low, high = (int(end) if end.is_Integer else None for end in (found.lower, found.upper))
    return low, high


def _is_tensor(meta: Any) -> bool:
    return hasattr(meta, "element_size")


def _operator(node: Any) -> str:
    """Return the name of the operator of a node, without namespace and overload."""
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    name = schema.name if schema is not None else getattr(node.target, "__name__", "")
    return str(name).rpartition("::")[2]


def torch_or_refusal() -> Any:
    """Return PyTorch, or say how to get it."""
    try:
        import torch
    except ImportError:
        message = "PyTorch is not installed; pip install 'meshwright[torch]'"
        raise UnsupportedError(message) from None
    return torch
