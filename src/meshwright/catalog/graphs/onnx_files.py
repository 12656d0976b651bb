"""Graphs from ONNX files, whose shapes must be fixed; no weight is read.

Needs the extra ``onnx``; the package is imported when a function of this file runs. An operator
that has no rule here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.catalog.graphs import tracing as make
from meshwright.catalog.graphs.tracing import (
    GraphBuilder,
    UnevenError,
    Value,
    refuse_unknown,
    refuse_wrong_names,
)
from meshwright.spec.graph import GraphSpec


@dataclass(frozen=True)
class OnnxCall:
    """One node: the tensors that it reads, its attributes, and the shapes of what it writes."""

    name: str
    inputs: Sequence[Value | None]
    """None for an input that is left out, is one number, or only states a shape."""
    constants: Sequence[list[int] | None]
    """Small tensors of whole numbers among the inputs: axes, shapes."""
    attributes: Mapping[str, Any]
    shapes: Sequence[Sequence[int]]
    word_bytes: float

    @property
    def first(self) -> Value:
        """The tensor that the node is about."""
        value = self.inputs[0]
        if value is None:
            raise UnevenError("reads one number only")
        return value

    @property
    def values(self) -> list[Value]:
        """All tensors that it reads."""
        return [value for value in self.inputs if value is not None]

    def optional(self, place: int) -> Value | None:
        """Return an input that may be left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def axes(self, place: int = 1) -> list[int]:
        """Return the axes of an attribute or of an input; all of them where neither is there."""
        stated = self.attributes.get("axes")
        if stated is None and place < len(self.constants):
            stated = self.constants[place]
        return list(range(len(self.first.axes))) if stated is None else list(stated)


Rule = Callable[[GraphBuilder, OnnxCall], Value | list[Value]]


def _gemm(to: GraphBuilder, call: OnnxCall) -> Value:
    left, right, *_ = call.values
    if call.attributes.get("transA"):
        left = left.permuted((1, 0))
    if call.attributes.get("transB"):
        right = right.permuted((1, 0))
    return make.matmul(to, call.name, left, right, call.optional(2))


def _convolution(to: GraphBuilder, call: OnnxCall) -> Value:
    value, weight, *_ = call.values
    groups, bias = call.attributes.get("group", 1), call.optional(2)
    return make.convolution(to, call.name, value, weight, bias, call.shapes[0], groups)


def _pooling(to: GraphBuilder, call: OnnxCall) -> Value:
    window = call.attributes.get("kernel_shape") or call.first.shape[2:]
    return make.pooling(to, call.name, call.first, call.shapes[0], window)


def _norm(to: GraphBuilder, call: OnnxCall) -> Value:
    value, *held = call.values
    first = value.axis(call.attributes.get("axis", -1))
    return make.along(to, call.name, value, range(first, len(value.axes)), held=held)


def _batch_norm(to: GraphBuilder, call: OnnxCall) -> Value:
    keys = list(range(len(call.first.axes)))
    operands = [(v, keys if len(v.axes) > 1 else [1]) for v in call.values]
    return to.emit(call.name, "vector", operands, keys)


def _reduce(needs_whole: bool) -> Rule:
    def rule(to: GraphBuilder, call: OnnxCall) -> Value:
        over, value = call.axes(), call.first
        made = make.along(to, call.name, value, over, kept=False, needs_whole=needs_whole)
        kept = call.attributes.get("keepdims", 1)
        return make.with_ones(made, over, len(value.axes)) if kept else made

    return rule


def _transpose(to: GraphBuilder, call: OnnxCall) -> Value:
    order = call.attributes.get("perm") or range(len(call.first.axes) - 1, -1, -1)
    return call.first.permuted(order)


def _part(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    """Return parts of a tensor, or a padded one: moves along the axes whose size changes."""
    value = call.first
    made = []
    for number, shape in enumerate(call.shapes):
        pairs = enumerate(zip(value.shape, shape, strict=True))
        changed = [axis for axis, (before, after) in pairs if before != after]
        name = call.name if len(call.shapes) == 1 else f"{call.name}.{number}"
        made.append(make.moved(to, name, [value], shape, changed) if changed else value)
    return made


def _concat(to: GraphBuilder, call: OnnxCall) -> Value:
    axis = call.first.axis(call.attributes["axis"])
    return make.moved(to, call.name, call.values, call.shapes[0], [axis])


def _gather(to: GraphBuilder, call: OnnxCall) -> Value:
    axis = call.attributes.get("axis", 0)
    return make.rows(to, call.name, call.first, axis, call.optional(1))


_ALL = 99
_RULES: tuple[tuple[Rule, int, str], ...] = (
    (
        lambda to, call: make.elementwise(to, call.name, call.values, word_bytes=call.word_bytes),
        _ALL,
        "Sub Mul Div Neg Pow Sqrt Reciprocal Exp Log Sin Cos Tanh Sigmoid Relu LeakyRelu PRelu Elu "
        "Gelu Erf HardSwish HardSigmoid Softplus Mish Swish Abs Sign Floor Ceil Round Clip Min Max "
        "Where Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Mod",
    ),
    (
        lambda to, call: make.elementwise(
            to, call.name, call.values, is_sum=True, word_bytes=call.word_bytes
        ),
        _ALL,
        "Add Sum",
    ),
    (lambda to, call: call.first, 1, "Identity Cast Dropout"),
    (lambda to, call: make.matmul(to, call.name, *call.values), _ALL, "MatMul"),
    (_gemm, _ALL, "Gemm"),
    (
        lambda to, call: make.einsum(
            to, call.name, call.attributes["equation"].decode(), call.values
        ),
        _ALL,
        "Einsum",
    ),
    (_convolution, _ALL, "Conv"),
    (_pooling, _ALL, "MaxPool AveragePool GlobalAveragePool GlobalMaxPool"),
    (
        lambda to, call: make.along(to, call.name, call.first, [call.attributes.get("axis", -1)]),
        _ALL,
        "Softmax LogSoftmax",
    ),
    (_norm, _ALL, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    (_batch_norm, _ALL, "BatchNormalization"),
    (_reduce(needs_whole=False), 1, "ReduceSum ReduceMean"),
    (_reduce(needs_whole=True), 1, "ReduceMax ReduceMin ReduceL2 ReduceProd"),
    (
        lambda to, call: make.reshaped(to, call.name, call.first, call.shapes[0]),
        1,
        "Reshape Flatten Squeeze Unsqueeze",
    ),
    (_transpose, _ALL, "Transpose"),
    (lambda to, call: call.first.expanded(call.shapes[0], to.num_names), 1, "Expand"),
    (_part, 1, "Split Slice Pad"),
    (_concat, _ALL, "Concat"),
    (_gather, _ALL, "Gather"),
)
RULES: Mapping[str, tuple[Rule, int]] = {
    name: (rule, data_inputs) for rule, data_inputs, names in _RULES for name in names.split()
}
"""By operator: the rule, and how many of the first inputs are data rather than shapes."""
_MOST_NUMBERS = 64
"""A constant of at most this many whole numbers may state axes or a shape."""


def import_onnx(
    model: str | Path | Any,
    *,
    name: str = "",
    repeats: int = 1,
    dims: Mapping[str, Sequence[str]] | None = None,
    tiled: str | None = None,
) -> GraphSpec:
    """Return the graph of an ONNX file, or of a loaded ``ModelProto``.

    Parameters
    ----------
    repeats
        How often the whole repeats.
    dims
        Names of the dims of inputs, by the names of the inputs.
    tiled
        The dim that passes through a chip in tiles; otherwise the one that most kernels write.

    Raises
    ------
    UnsupportedError
        Without the package, or where the file has operators that are not known: all of them.
    SpecError
        Where the file is none, or a shape in it is not fixed.
    """
    onnx = _onnx()
    origin = str(model) if isinstance(model, str | Path) else (name or "onnx")
    try:
        loaded = model
        if isinstance(model, str | Path):
            loaded = onnx.load(str(model), load_external_data=False)
        inferred = onnx.shape_inference.infer_shapes(loaded, data_prop=True)
    except Exception as error:
        message = f"cannot be read: {str(error).strip().splitlines()[0]}"
        raise SpecError(Fault("", message), origin=origin) from error
    graph = inferred.graph
    reader = _FileReader(graph, dict(dims or {}), origin)
    reader.read()
    about = f"Imported from ONNX, package {onnx.__version__}."
    name = name or str(graph.name) or "onnx"
    return reader.to.graph(
        name, reader.outputs, origin=origin, repeats=repeats, tiled=tiled, about=about
    )


class _FileReader:
    """Reads the nodes of one file that its outputs depend on, in order."""

    def __init__(self, graph: Any, dims: dict[str, Sequence[str]], origin: str) -> None:
        self.graph, self.dims, self.origin = graph, dims, origin
        self.types = {
            info.name: info.type.tensor_type
            for info in (*graph.input, *graph.value_info, *graph.output)
        }
        self.held = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.held[node.output[0]] = node.attribute[0].t
        self.known: dict[str, Value] = {}
        self.outputs: list[Value] = []
        self.to = GraphBuilder(self._graph_word())

    def read(self) -> None:
        """Read inputs, then all nodes that are needed."""
        nodes = self._needed()
        unknown = {n.op_type: n.name or n.output[0] for n in nodes if n.op_type not in RULES}
        refuse_unknown(unknown, RULES, self.origin)
        inputs = [entry.name for entry in self.graph.input if entry.name not in self.held]
        refuse_wrong_names(self.dims, {name: self._shape(name) for name in inputs}, self.origin)
        for name in inputs:
            kind = self.types[name].elem_type
            self.known[name] = self.to.input(
                name,
                self._shape(name),
                self._word(kind),
                self.dims.get(name),
                is_constant=not self._is_real(kind),
            )
        for node in nodes:
            self._node(node)
        found = (self.known.get(entry.name) for entry in self.graph.output)
        self.outputs = [value for value in found if value is not None]

    def _node(self, node: Any) -> None:
        """Make the kernels of a node."""
        helper = _onnx().helper
        rule, data_inputs = RULES[node.op_type]
        outputs = [name for name in node.output if name and (name in self.types)]
        call = OnnxCall(
            node.name or node.output[0],
            [self._value(name) if n < data_inputs else None for n, name in enumerate(node.input)],
            [self._numbers(name) for name in node.input],
            {entry.name: helper.get_attribute_value(entry) for entry in node.attribute},
            [self._shape(name) for name in outputs],
            self._word(self.types[outputs[0]].elem_type),
        )
        try:
            made = rule(self.to, call)
        except UnevenError as error:
            message = f"{node.op_type}: {error}"
            raise SpecError(Fault(call.name, message), origin=self.origin) from error
        made = made if isinstance(made, list) else [made]
        self.known |= dict(zip(outputs, made, strict=False))

    def _value(self, name: str) -> Value | None:
        """Return a tensor that was made, or a weight; None for one number or nothing."""
        if not name or name in self.known:
            return self.known.get(name)
        tensor = self.held.get(name)
        if tensor is None or list(tensor.dims) in ([], [1]):
            return None
        shape, word = list(tensor.dims), self._word(tensor.data_type)
        self.known[name] = self.to.weight(name, shape, word)
        return self.known[name]

    def _numbers(self, name: str) -> list[int] | None:
        """Return the whole numbers of a small constant."""
        numpy_helper = _onnx().numpy_helper
        tensor = self.held.get(name)
        if tensor is None or sum(tensor.dims) > _MOST_NUMBERS or len(tensor.dims) > 1:
            return None
        array = numpy_helper.to_array(tensor)
        return [int(number) for number in array.reshape(-1)] if array.dtype.kind == "i" else None

    def _needed(self) -> list[Any]:
        """Return the nodes that outputs depend on; those that only make shapes are none."""
        makers = {output: node for node in self.graph.node for output in node.output}
        waiting = [entry.name for entry in self.graph.output]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            node = makers.get(name)
            if name in seen or node is None or node.op_type == "Constant":
                continue
            seen |= set(node.output)
            data_inputs = RULES[node.op_type][1] if node.op_type in RULES else len(node.input)
            waiting += list(node.input)[:data_inputs]
        return [node for node in self.graph.node if seen & set(node.output)]

    def _shape(self, name: str) -> list[int]:
        """Return the shape of a tensor, which must be known."""
        kind = self.types.get(name)
        dims = kind.shape.dim if kind is not None else []
        if kind is None or not kind.HasField("shape") or any(dim.dim_value < 1 for dim in dims):
            shown = [dim.dim_param or dim.dim_value or "?" for dim in dims]
            fix = "export with fixed shapes, all of them above 0"
            raise SpecError(Fault(name, f"its shape is {shown}", fix), origin=self.origin)
        return [int(dim.dim_value) for dim in dims]

    def _graph_word(self) -> float:
        """Return the word of the first weight or input that is no whole number."""
        kinds = [tensor.data_type for tensor in self.graph.initializer]
        kinds += [self.types[entry.name].elem_type for entry in self.graph.input]
        words = [self._word(kind) for kind in kinds if self._is_real(kind)]
        return words[0] if words else 2.0

    @staticmethod
    def _is_real(kind: int) -> bool:
        """Tell whether an element is no whole number and no truth value."""
        return _onnx().helper.tensor_dtype_to_np_dtype(kind).kind not in "iub"

    @staticmethod
    def _word(kind: int) -> float:
        """Return the bytes of an element."""
        return float(_onnx().helper.tensor_dtype_to_np_dtype(kind).itemsize)


def _onnx() -> Any:
    """Return the package, or say how to get it."""
    try:
        import onnx
        import onnx.shape_inference
    except ImportError:
        message = "the package onnx is not installed; pip install 'meshwright[onnx]'"
        raise UnsupportedError(message) from None
    return onnx
