"""Graphs from PyTorch: a module that ``torch.export`` can trace, on the meta device if it is large.

Nothing is computed and no weight is needed, so a block of a model with 405 billion parameters
takes seconds. Needs the extra ``torch``; PyTorch is imported when a function of this file runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.catalog.graphs.torch_operations import RULES, Call
from meshwright.catalog.graphs.tracing import (
    GraphBuilder,
    UnevenError,
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
        with torch.no_grad():
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
    if any(_changes_in_place(node) for node in program.graph.nodes):
        program = program.run_decompositions({})
    unknown: dict[str, str] = {}
    for node in program.graph.nodes:
        operator = _operator(node) if node.op == "call_function" else "getitem"
        if operator != "getitem" and operator not in RULES and _makes_tensors(node):
            unknown.setdefault(operator, f"{name}.{node.name}")
    refuse_unknown(unknown, RULES, name)
    reader = _ProgramReader(program, dict(dims or {}), name)
    reader.read()
    about = f"Imported from torch.export, PyTorch {_torch().__version__}."
    return reader.to.graph(
        name, reader.outputs, origin=name, repeats=repeats, tiled=tiled, about=about
    )


class _ProgramReader:
    """Reads the nodes of one program in order."""

    def __init__(self, program: Any, dims: dict[str, Sequence[str]], name: str) -> None:
        self.program, self.dims, self.name = program, dims, name
        signature = program.graph_signature
        self.weights: Mapping[str, str] = signature.inputs_to_parameters
        self.others: Mapping[str, str] = {
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self.known: dict[Any, Any] = {}
        self.outputs: list[Value] = []
        self.to = GraphBuilder(self._word_bytes())

    def read(self) -> None:
        """Read inputs, then weights and buffers, then all operators."""
        nodes = self.program.graph.nodes
        given = {spec.arg.name for spec in self.program.graph_signature.input_specs}
        held = [node for node in nodes if node.name in given]
        shapes = {node.name: node.meta["val"].shape for node in held if self._is_input(node)}
        refuse_wrong_names(self.dims, shapes, self.name)
        for node in sorted(held, key=lambda n: n.name in self.weights or n.name in self.others):
            self._input(node)
        for node in nodes:
            if node.op == "call_function":
                self.known[node] = self._called(node)
            elif node.op == "output":
                wanted = self.program.graph_signature.user_outputs
                by_name = {n.name: self.known.get(n) for n in nodes}
                found = (by_name.get(output) for output in wanted)
                self.outputs = [value for value in found if isinstance(value, Value)]

    def _word_bytes(self) -> float:
        """Return the word of most parameters, or of the first input that has one."""
        words = [float(p.element_size()) for p in self.program.state_dict.values()]
        metas = (node.meta.get("val") for node in self.program.graph.nodes)
        words += [float(meta.element_size()) for meta in metas if hasattr(meta, "element_size")]
        return words[0] if words else 2.0

    def _is_input(self, node: Any) -> bool:
        is_user = node.name not in self.weights and node.name not in self.others
        return is_user and hasattr(node.meta.get("val"), "element_size")

    def _input(self, node: Any) -> None:
        """Take in an input, a weight or a buffer."""
        meta = node.meta.get("val")
        if not hasattr(meta, "element_size"):
            self.known[node] = meta
            return
        shape, word = self._shape(node, meta), float(meta.element_size())
        if node.name in self.weights:
            self.known[node] = self.to.weight(self.weights[node.name], shape, word)
        else:
            name = self.others.get(node.name, node.name)
            is_constant = node.name in self.others or not meta.is_floating_point()
            dims = self.dims.get(node.name)
            self.known[node] = self.to.input(name, shape, word, dims, is_constant=is_constant)

    def _shape(self, node: Any, meta: Any) -> list[int]:
        sizes = list(meta.shape)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            message = f"has the shape {sizes}; sizes are whole numbers above 0"
            raise SpecError(Fault(node.name, message, "export with fixed shapes"), origin=self.name)
        return sizes

    def _called(self, node: Any) -> Any:
        """Return what a node makes."""
        operator = _operator(node)
        if operator == "getitem":
            made, place = node.args
            parts = self.known[made]
            return parts[place] if isinstance(parts, list) else parts
        metas = node.meta.get("val")
        metas = list(metas) if isinstance(metas, list | tuple) else [metas]
        if not all(hasattr(meta, "element_size") for meta in metas):
            return None
        schema = node.target._schema.arguments
        names = [argument.name for argument in schema]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        arguments = {key: self._argument(value) for key, value in given.items()}
        shapes = [self._shape(node, meta) for meta in metas]
        word = float(metas[0].element_size())
        call = Call(self._kernel_name(node, arguments), arguments, shapes, word)
        try:
            return RULES[operator](self.to, call)
        except UnevenError as error:
            message = f"{operator}: {error}"
            raise SpecError(Fault(node.name, message), origin=self.name) from error

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._argument(entry) for entry in value]
        return self.known.get(value, value) if hasattr(value, "op") else value

    def _kernel_name(self, node: Any, arguments: Mapping[str, Any]) -> str:
        """Return the name of a module that holds a weight, or that of the node."""
        weight = arguments.get("weight")
        if isinstance(weight, Value) and weight.is_weight and weight.source.endswith(".weight"):
            return weight.source.removesuffix(".weight")
        return str(node.name)


def _changes_in_place(node: Any) -> bool:
    """Tell whether a node overwrites a tensor; PyTorch can write such a program without."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _makes_tensors(node: Any) -> bool:
    made = node.meta.get("val")
    first = made[0] if isinstance(made, list | tuple) and made else made
    return hasattr(first, "element_size")


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
