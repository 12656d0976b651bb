"""Graphs from PyTorch: a module that ``torch.export`` can trace, on the meta device if it is large.

Nothing is computed and no weight is needed, so a block of a model with 405 billion parameters
takes seconds. An operator (ATen) that has no rule is refused by name. Needs the extra ``torch``;
PyTorch is imported when a function of this file runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    tiled: str | None = None,
) -> GraphSpec:
    """Return the graph of a module.

    Parameters
    ----------
    module
        A ``torch.nn.Module``; in ``eval`` mode unless dropout is wanted.
    arguments, keywords
        Example inputs of the shapes that are meant; tensors on the meta device take no memory.
    repeats
        How often the whole repeats: export one block, or two, of a model of many equal ones.
    dims
        Names of the dims of inputs, by the names of the arguments: ``{"x": ("batch", "tokens",
        "hidden")}``. Other dims are named after the inputs and weights where they first appear.
    tiled
        The dim that passes through a chip in tiles; otherwise the one that most kernels write.

    Raises
    ------
    UnsupportedError
        Without PyTorch, or where the module has operators that are not known: all of them.
    SpecError
        Where ``torch.export`` fails, a shape is not fixed, or a name of ``dims`` is none.
    """
    torch = _torch()
    name = name or type(module).__name__.lower()
    try:
        with torch.no_grad(), _traceable_experts(module):
            program = torch.export.export(module, tuple(arguments), dict(keywords or {}))
    except Exception as error:
        message = f"torch.export: {str(error).strip().splitlines()[0]}"
        raise SpecError(Fault("", message, "make the module traceable"), origin=name) from error
    return graph_of_program(program, name=name, repeats=repeats, dims=dims, tiled=tiled)


def graph_of_program(
    program: Any,
    *,
    name: str,
    repeats: int = 1,
    dims: DimNames | None = None,
    tiled: str | None = None,
) -> GraphSpec:
    """Return the graph of an ``ExportedProgram``; see :func:`import_torch`."""
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
    if any(schema is not None and schema.is_mutable for schema in schemas):
        # PyTorch can write a program that overwrites tensors as one that does not
        program = program.run_decompositions({})
    unknown: dict[str, str] = {}
    for node in program.graph.nodes:
        operator = _operator(node) if node.op == "call_function" else "getitem"
        if operator != "getitem" and operator not in RULES and any(map(_is_tensor, _made(node))):
            unknown.setdefault(operator, f"{name}.{node.name}")
    refuse_unknown(unknown, RULES, name)
    reader = _ProgramReader(program, name)
    outputs = reader.read(dims or {})
    about = f"Imported from torch.export, PyTorch {_torch().__version__}."
    return reader.to.graph(name, outputs, origin=name, repeats=repeats, tiled=tiled, about=about)


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

    def __init__(self, program: Any, name: str) -> None:
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
            return meta
        shape, word = self._shape(node, meta), float(meta.element_size())
        if node.name in self.weights:
            return self.to.weight(self.weights[node.name], shape, word)
        name = self.others.get(node.name, node.name)
        is_constant = node.name in self.others or not meta.is_floating_point()
        return self.to.input(name, shape, word, dims, is_constant=is_constant)

    def _shape(self, node: Any, meta: Any) -> list[int]:
        sizes = list(meta.shape)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            message = f"has the shape {sizes}; sizes are whole numbers above 0"
            raise SpecError(Fault(node.name, message, "export with fixed shapes"), origin=self.name)
        return sizes

    def _called(self, node: Any) -> Any:
        """Return what a node makes; its kernel is named after the module that holds its weight."""
        operator = _operator(node)
        if operator == "getitem":
            made, place = node.args
            parts = self.known[made]
            return parts[place] if isinstance(parts, list) else parts
        metas = _made(node)
        if not all(map(_is_tensor, metas)):
            return None
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        arguments = {key: self._argument(value) for key, value in given.items()}
        read = _read_parts(node)
        shapes = [
            self._shape(node, meta) if read is None or number in read else list(meta.shape)
            for number, meta in enumerate(metas)
        ]
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


def _read_parts(node: Any) -> set[int] | None:
    """Return which outputs of a node others read; None where it has one only.

    Statistics that nothing reads may have no element.
    """
    users = list(node.users)
    if not users or any(getattr(user.target, "__name__", "") != "getitem" for user in users):
        return None
    return {user.args[1] for user in users if user.users}


def _operator(node: Any) -> str:
    """Return the name of the operator of a node, without namespace and overload."""
    schema = getattr(node.target, "_schema", None)
    name = schema.name if schema is not None else getattr(node.target, "__name__", "")
    return str(name).rpartition("::")[2]


def _torch() -> Any:
    """Return PyTorch, or say how to get it."""
    try:
        import torch
    except ImportError:
        message = "PyTorch is not installed; pip install 'meshwright[torch]'"
        raise UnsupportedError(message) from None
    return torch
