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
from meshwright.catalog.graphs.operators import RULES, Call, made_by
from meshwright.catalog.graphs.tracing import (
    GraphBuilder,
    Value,
    refuse_unknown,
    refuse_wrong_names,
)
from meshwright.spec.graph import GraphSpec

DimNames = Mapping[str, Sequence[str]]


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
        How often the whole repeats: export one block, or two, of a model of many equal ones. Its
        inputs then have gradients, for the block before.
    dims
        Names of the dims of inputs, by the names of the arguments: ``{"x": ("batch", "tokens",
        "hidden")}``. Other dims are named by what operators use them for.
    sizes
        Of dims of inputs, other than the examples have: by their name in the graph, or by their
        place (``x.0``).
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
        places = _places(_functional(program), name, dims)
        wanted = _wanted(sizes, places, name)
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
        message = f"torch.export: {str(error).strip().splitlines()[0]}"
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
    program = _functional(program)
    unknown: dict[str, str] = {}
    for node in program.graph.nodes:
        operator = _operator(node) if node.op == "call_function" else "getitem"
        if operator != "getitem" and operator not in RULES and any(map(_is_tensor, _made(node))):
            unknown.setdefault(operator, f"{name}.{node.name}")
    refuse_unknown(unknown, RULES, name)
    bound = _bound(program, sizes or {}, name, dims)
    reader = _ProgramReader(program, name, bound, repeats=repeats > 1)
    outputs = reader.read(dims or {})
    about = f"Imported from torch.export, PyTorch {torch_or_refusal().__version__}."
    return reader.to.graph(name, outputs, origin=name, repeats=repeats, tiled=tiled, about=about)


def _functional(program: Any) -> Any:
    """Return a program that overwrites tensors as one that does not."""
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
    if any(schema is not None and schema.is_mutable for schema in schemas):
        with quiet():
            return program.run_decompositions({})
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what PyTorch prints and warns of while it traces."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


Place = tuple[str, int]
"""An input and the number of one of its axes."""


def _bound(
    program: Any, sizes: Mapping[str, int], name: str, dims: DimNames | None
) -> dict[Any, int]:
    """Return a size for each symbol of a program.

    Raises
    ------
    SpecError
        Symbols without a size, a size out of their range, or of a dim that is fixed.
    """
    axes = {
        (node.name, axis): size
        for node in _inputs(program)
        for axis, size in enumerate(node.meta["val"].shape)
    }
    at = {place: _expression(size) for place, size in axes.items()}
    symbols = {found for expr in at.values() for found in getattr(expr, "free_symbols", ())}
    if not symbols and not sizes:
        return {}
    examples = {at[p]: size.node.hint for p, size in axes.items() if at[p] in symbols}
    trial = {symbol: max(2, examples.get(symbol) or 2) for symbol in symbols}
    places = _places(program, name, dims, trial)
    faults, bound = [], {}
    for place, size in _wanted(sizes, places, name).items():
        symbol, key = next(iter(getattr(at[place], "free_symbols", ())), None), _spelled(place)
        number = _solved(at[place], symbol, size) if symbol else None
        if number is not None:
            bound[symbol] = number
            if symbol in program.range_constraints:
                faults += _outside(program.range_constraints[symbol], number, f"--dim {key}")
        elif at[place] != size:
            message = f"is {at[place]} in this program"
            faults.append(Fault(f"--dim {key}", message, "export it with dynamic shapes"))
    for symbol in symbols - bound.keys():
        shown = [
            word
            for word, found in places.items()
            if any(symbol in getattr(at[place], "free_symbols", ()) for place in found)
        ]
        best = min(shown, key=lambda word: (word in map(_spelled, at), len(word)))
        faults.append(Fault(f"--dim {best}", "has no size", f"such as --dim {best}=8"))
    if faults:
        raise SpecError(faults, origin=name)
    return bound


def _expression(size: Any) -> Any:
    """Return a size as an expression of symbols, where it is one."""
    return getattr(getattr(size, "node", None), "expr", size)


def _solved(expression: Any, symbol: Any, size: int) -> int | None:
    """Return what a symbol must be for an expression to have a size; None: no whole number."""
    from sympy import solve

    found = [root for root in solve(expression - size, symbol) if root.is_Integer and root > 0]
    return int(found[0]) if found else None


def _outside(stated: Any, number: int, key: str) -> list[Fault]:
    """Return a complaint where a number is out of the range that a program states for a symbol."""
    low, high = int(stated.lower), int(stated.upper) if stated.upper.is_Integer else None
    if number >= low and (high is None or number <= high):
        return []
    least = f"at least {low}" if high is None else f"from {low} to {high}"
    return [Fault(key, f"{number} is out of range", least)]


def _spelled(place: Place) -> str:
    return f"{place[0]}.{place[1]}"


def _inputs(program: Any) -> list[Any]:
    """Return the nodes of the tensors that a user gives."""
    names = set(program.graph_signature.user_inputs)
    return [n for n in program.graph.nodes if n.name in names and _is_tensor(n.meta.get("val"))]


def _places(
    program: Any, name: str, dims: DimNames | None, bound: Mapping[Any, int] | None = None
) -> dict[str, list[Place]]:
    """Return where each dim of the inputs is, by its name in the graph and by its place."""
    reader = _ProgramReader(program, name, bound or {}, repeats=True)
    spec = reader.to.graph(name, reader.read(dims or {}), origin=name)
    found: dict[str, list[Place]] = {}
    for node in _inputs(program):
        named = iter(spec.inputs.get(node.name, ()))
        for axis, size in enumerate(reader.shape_of(node, node.meta["val"])):
            place = (node.name, axis)
            found.setdefault(_spelled(place), []).append(place)
            if size > 1 and (dim := next(named, None)):
                found.setdefault(dim, []).append(place)
    if "batch" not in found:  # an axis of one element is no dim
        found["batch"] = [(node.name, 0) for node in _inputs(program) if node.meta["val"].dim() > 1]
    return found


def _wanted(
    sizes: Mapping[str, int], places: Mapping[str, Sequence[Place]], name: str
) -> dict[Place, int]:
    """Return the size of each axis of the inputs that is to have one."""
    faults = [
        Fault(f"--dim {dim}", "is no dim of an input", f"one of {', '.join(places)}")
        for dim in sizes
        if dim not in places
    ]
    if faults:
        raise SpecError(faults, origin=name)
    return {place: size for dim, size in sizes.items() for place in places[dim]}


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
    """Return the configuration of a module whose experts cannot be traced, or None."""
    config = getattr(part, "config", None)
    way = getattr(config, "_experts_implementation", None)
    return config if isinstance(way, str) and way not in ("grouped_mm", "batched_mm") else None


class _ProgramReader:
    """Reads the nodes of one program in order."""

    def __init__(self, program: Any, name: str, bound: Mapping[Any, int], *, repeats: bool) -> None:
        self.bound, self.repeats = bound, repeats
        self.nodes, self.name, self.signature = program.graph.nodes, name, program.graph_signature
        self.weights: Mapping[str, str] = self.signature.inputs_to_parameters
        self.others: Mapping[str, str] = {
            **self.signature.inputs_to_buffers,
            **self.signature.inputs_to_lifted_tensor_constants,
        }
        self.known: dict[Any, Any] = {}
        # the word of the graph is that of the first parameter, or of the first tensor
        tensors = [*program.state_dict.values(), *(node.meta.get("val") for node in self.nodes)]
        words = (float(tensor.element_size()) for tensor in tensors if _is_tensor(tensor))
        self.to = GraphBuilder(next(words, 2.0))

    def read(self, dims: DimNames) -> list[Value]:
        """Read inputs, then weights and buffers, then all operators; return the outputs."""
        given = {spec.arg.name for spec in self.signature.input_specs}
        held = [node for node in self.nodes if node.name in given]
        users = [n for n in held if n.name not in self.weights and n.name not in self.others]
        shapes = {n.name: n.meta["val"].shape for n in users if _is_tensor(n.meta.get("val"))}
        refuse_wrong_names(dims, shapes, self.name)
        for node in [*users, *(node for node in held if node not in users)]:
            self.known[node] = self._input(node, dims.get(node.name))
        for node in self.nodes:
            if node.op == "call_function":
                self.known[node] = self._called(node)
        by_name = {node.name: self.known.get(node) for node in self.nodes}
        found = (by_name.get(output) for output in self.signature.user_outputs)
        return [value for value in found if isinstance(value, Value)]

    def _input(self, node: Any, dims: Sequence[str] | None) -> Any:
        """Return an input, a weight or a buffer; what is no tensor is itself."""
        meta = node.meta.get("val")
        if not _is_tensor(meta):
            return self._number(meta)
        shape, word = self.shape_of(node, meta), float(meta.element_size())
        if 0 in shape:
            message = f"has the shape {shape}"
            raise SpecError(Fault(node.name, message, "sizes above 0"), origin=self.name)
        if node.name in self.weights:
            return self.to.weight(self.weights[node.name], shape, word)
        is_held = node.name in self.others
        name = self.others.get(node.name, node.name)
        is_constant = is_held or not (meta.requires_grad or self.repeats)
        return self.to.input(name, shape, word, dims, is_constant=is_constant, is_held=is_held)

    def shape_of(self, node: Any, meta: Any) -> list[int]:
        """Return the sizes of a tensor, those of dynamic dims as they are bound."""
        sizes = [self._number(size) for size in meta.shape]
        if not all(isinstance(size, int) for size in sizes):
            message, fix = f"has the shape {sizes}", "no size may depend on data"
            raise SpecError(Fault(node.name, message, fix), origin=self.name)
        return sizes

    def _number(self, size: Any) -> Any:
        """Return a size as a number; what depends on data stays what it is."""
        expression = _expression(size)
        if expression is size:
            return size
        known = expression.subs(self.bound)
        return int(known) if getattr(known, "is_Integer", False) else size

    def _called(self, node: Any) -> Any:
        """Return what a node makes; its kernel is named after the module that holds its weight."""
        operator = _operator(node)
        if operator == "getitem":
            made, place = node.args
            parts = self.known[made]
            return parts[place] if isinstance(parts, list) else parts
        metas = _made(node)
        if not all(map(_is_tensor, metas)):
            return self._number(metas[0]) if len(metas) == 1 else None
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        arguments = {key: self._argument(value) for key, value in given.items()}
        shapes = [self.shape_of(node, meta) for meta in metas]
        if len(shapes) == 1 and 0 in shapes[0]:
            return None
        weight, node_name = arguments.get("weight"), str(node.name)
        name = node_name
        if isinstance(weight, Value) and weight.is_weight and weight.source.endswith(".weight"):
            name = weight.source.removesuffix(".weight")
        call = Call(name, arguments, shapes, float(metas[0].element_size()))
        return made_by(self.to, operator, call, node=node_name, written=operator, origin=self.name)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._argument(entry) for entry in value]
        return self.known.get(value, value) if hasattr(value, "op") else value


def _is_tensor(meta: Any) -> bool:
    return hasattr(meta, "element_size")


def _made(node: Any) -> list[Any]:
    """Return what a node makes, as a list."""
    made = node.meta.get("val")
    return list(made) if isinstance(made, list | tuple) else [made]


def _operator(node: Any) -> str:
    """Return the name of the operator of a node, without namespace and overload."""
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
