"""What operators of ONNX are as kernels. One that is not here is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.catalog.graphs.tracing import operations as make
from meshwright.catalog.graphs.tracing.builder import GraphBuilder, UnevenError
from meshwright.catalog.graphs.tracing.values import Value


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


Rule = Callable[[GraphBuilder, OnnxCall], list[Value]]


def _elementwise(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [make.elementwise(to, call.name, call.values, word_bytes=call.word_bytes)]


def _add(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [make.elementwise(to, call.name, call.values, is_sum=True, word_bytes=call.word_bytes)]


def _seen(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [call.first]


def _matmul(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [make.matmul(to, call.name, *call.values)]


def _gemm(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    left, right, *_ = call.values
    if call.attributes.get("transA"):
        left = left.permuted((1, 0))
    if call.attributes.get("transB"):
        right = right.permuted((1, 0))
    return [make.matmul(to, call.name, left, right, call.optional(2))]


def _einsum(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    equation = call.attributes["equation"].decode()
    return [make.einsum(to, call.name, equation, call.values)]


def _convolution(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    value, weight, *_ = call.values
    groups = call.attributes.get("group", 1)
    bias = call.optional(2)
    return [make.convolution(to, call.name, value, weight, bias, call.shapes[0], groups)]


def _pooling(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    window = call.attributes.get("kernel_shape") or call.first.shape[2:]
    return [make.pooling(to, call.name, call.first, call.shapes[0], window)]


def _softmax(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [make.along(to, call.name, call.first, [call.attributes.get("axis", -1)])]


def _norm(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    value, *held = call.values
    first = value.axis(call.attributes.get("axis", -1))
    return [make.along(to, call.name, value, range(first, len(value.axes)), held=held)]


def _batch_norm(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    keys = list(range(len(call.first.axes)))
    operands = [(v, keys if len(v.axes) > 1 else [1]) for v in call.values]
    return [to.emit(call.name, "vector", operands, keys)]


def _reduce(needs_whole: bool) -> Rule:
    def rule(to: GraphBuilder, call: OnnxCall) -> list[Value]:
        over, value = call.axes(), call.first
        made = make.along(to, call.name, value, over, kept=False, needs_whole=needs_whole)
        kept = call.attributes.get("keepdims", 1)
        return [make.with_ones(made, over, len(value.axes)) if kept else made]

    return rule


def _view(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [make.reshaped(to, call.name, call.first, call.shapes[0])]


def _transpose(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    order = call.attributes.get("perm") or range(len(call.first.axes) - 1, -1, -1)
    return [call.first.permuted(order)]


def _expand(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    return [call.first.expanded(call.shapes[0], to.num_names)]


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


def _concat(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    axis = call.first.axis(call.attributes["axis"])
    return [make.moved(to, call.name, call.values, call.shapes[0], [axis])]


def _gather(to: GraphBuilder, call: OnnxCall) -> list[Value]:
    axis = call.attributes.get("axis", 0)
    return [make.rows(to, call.name, call.first, axis, call.optional(1))]


def _rules(rule: Rule, names: str, data_inputs: int = 99) -> dict[str, tuple[Rule, int]]:
    return dict.fromkeys(names.split(), (rule, data_inputs))


RULES: Mapping[str, tuple[Rule, int]] = {
    **_rules(
        _elementwise,
        "Sub Mul Div Neg Pow Sqrt Reciprocal Exp Log Sin Cos Tanh Sigmoid Relu LeakyRelu PRelu Elu "
        "Gelu Erf HardSwish HardSigmoid Softplus Mish Swish Abs Sign Floor Ceil Round Clip Min Max "
        "Where Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Mod",
    ),
    **_rules(_add, "Add Sum"),
    **_rules(_seen, "Identity Cast Dropout", 1),
    **_rules(_matmul, "MatMul"),
    **_rules(_gemm, "Gemm"),
    **_rules(_einsum, "Einsum"),
    **_rules(_convolution, "Conv"),
    **_rules(_pooling, "MaxPool AveragePool GlobalAveragePool GlobalMaxPool"),
    **_rules(_softmax, "Softmax LogSoftmax"),
    **_rules(_norm, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    **_rules(_batch_norm, "BatchNormalization"),
    **_rules(_reduce(needs_whole=False), "ReduceSum ReduceMean", 1),
    **_rules(_reduce(needs_whole=True), "ReduceMax ReduceMin ReduceL2 ReduceProd", 1),
    **_rules(_view, "Reshape Flatten Squeeze Unsqueeze", 1),
    **_rules(_transpose, "Transpose"),
    **_rules(_expand, "Expand", 1),
    **_rules(_part, "Split Slice Pad", 1),
    **_rules(_concat, "Concat"),
    **_rules(_gather, "Gather"),
}
"""By operator: the rule, and how many of the first inputs are data rather than shapes."""
