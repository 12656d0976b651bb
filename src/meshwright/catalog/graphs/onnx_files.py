"""Graphs from ONNX files; no weight is read, and sizes that are open are bound first.

Needs the extra ``onnx``; the package is imported when a function of this file runs. An operator
that has no rule here is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import Fault, MeshwrightError, SpecError, UnsupportedError, nearest
from meshwright.base.files import opened
from meshwright.catalog.graphs.control_flow import COUNT
from meshwright.catalog.graphs.exported import graph_of
from meshwright.catalog.graphs.onnx_shapes import inside, shapes_of, with_shapes
from meshwright.catalog.graphs.traced import (
    Block,
    Input,
    ProgramStep,
    Ref,
    TensorMeta,
    TracedProgram,
)
from meshwright.catalog.graphs.tracing import as_foreign, first_line, refuse_unknown
from meshwright.spec.graph import GraphSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_SPELLINGS = (
    ("sub", "*tensors",
     "Sub Mul Div Neg Pow Sqrt Reciprocal Exp Log Sin Cos Tanh Sigmoid Relu LeakyRelu Elu "
     "Gelu Erf HardSwish HardSigmoid Softplus Mish Swish Abs Sign Floor Ceil Round Clip Min Max "
     "Where Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Xor Mod IsNaN IsInf "
     "Sinh Cosh Tan Asin Acos Atan Selu Celu Softsign Acosh Asinh Atanh BitShift BitwiseAnd "
     "BitwiseNot BitwiseOr BitwiseXor Shrink ThresholdedRelu Mean LRN Bernoulli"),
    ("prelu", "self weight", "PRelu"),
    ("add", "*tensors", "Add Sum"),
    ("alias", "self", "Identity Cast Dropout CastLike BitCast Optional OptionalGetElement"),
    ("tril", "self", "Trilu"),
    ("quantize_per_channel", "input scale", "QuantizeLinear DequantizeLinear"),
    ("matmul", "*tensors", "MatMul"),
    ("addmm", "mat1 mat2 self", "Gemm"),
    ("einsum", "*tensors", "Einsum"),
    ("conv2d", "input weight bias", "Conv"),
    ("conv2d", "input weight", "ConvInteger"),
    ("conv2d", "input weight - bias", "DeformConv"),
    ("conv2d", "input - - weight - - - - bias", "QLinearConv"),
    ("matmul", "self mat2", "MatMulInteger"),
    ("matmul", "self - - mat2", "QLinearMatMul"),
    ("conv_transpose2d", "input weight bias", "ConvTranspose"),
    ("resize", "self", "Resize Upsample"),
    ("lstm_sides", "input weight states bias", "LSTM"),
    ("gru_sides", "input weight states bias", "GRU"),
    ("rnn_sides", "input weight states bias", "RNN"),
    ("transform_of_pairs", "self #length #dim", "DFT"),
    ("topk", "self", "TopK"),
    ("avg_pool2d", "self",
     "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool"),
    ("avg_pool2d_backward", "grad_output", "MaxUnpool"),
    ("grid_sampler", "input grid", "GridSample"),
    ("softmax", "self",
     "Softmax LogSoftmax Hardmax LpNormalization MeanVarianceNormalization ReverseSequence"),
    ("cumsum", "self #dim", "CumSum CumProd"),
    ("group_norm", "input weight bias", "GroupNormalization"),
    ("instance_norm", "input weight bias", "InstanceNormalization"),
    ("cross_entropy_loss", "self target", "SoftmaxCrossEntropyLoss"),
    ("nll_loss", "self target", "NegativeLogLikelihoodLoss"),
    ("linalg_det", "self", "Det"),
    ("layer_norm", "input weight bias",
     "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    ("batch_norm", "input weight bias running_mean running_var", "BatchNormalization"),
    ("sum", "self #dim", "ReduceSum ReduceMean"),
    ("amax", "self #dim",
     "ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceSumSquare ReduceLogSum "
     "ReduceLogSumExp ArgMax ArgMin"),
    ("repeat", "self", "Tile"),
    ("masked_select", "self",
     "DepthToSpace SpaceToDepth Col2Im Compress NonZero Unique NonMaxSuppression Multinomial"),
    ("masked_select", "self", "MaxRoiPool RoiAlign STFT"),
    ("view", "self", "Reshape Flatten Squeeze Unsqueeze"),
    ("permute", "self", "Transpose"),
    ("expand", "self", "Expand"),
    ("slice", "self", "Split Slice Pad CenterCropPad"),
    ("cat", "*tensors", "Concat"),
    ("index_select", "self index", "Gather"),
    ("gather", "self index", "GatherElements"),
    ("gather_tuples", "self index", "GatherND"),
    ("scatter", "self index src", "ScatterElements Scatter"),
    ("scatter", "self src index", "TensorScatter"),
    ("scatter_tuples", "self index src", "ScatterND"),
    ("one_hot", "self", "OneHot"),
    ("zeros", "",
     "Constant ConstantOfShape Range EyeLike RandomNormalLike RandomUniformLike "
     "RandomNormal RandomUniform Shape Size HannWindow HammingWindow "
     "BlackmanWindow MelWeightMatrix"),
)  # fmt: skip
RULES: Mapping[str, tuple[str, Sequence[str]]] = {
    name: (operator, inputs.split())
    for operator, inputs, names in _SPELLINGS
    for name in names.split()
}
"""Equal operator of PyTorch by operator of ONNX, and the names of its inputs there.

``*tensors`` takes all of them, ``#dim`` whole numbers; further inputs only state shapes.
"""
FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators that run a graph inside of them."""
_SEQUENCE = "a sequence of tensors has no shape"
_TEXT = "texts are no numbers"
REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
         "SequenceLength", "SequenceMap", "SplitToSequence", "ConcatFromSequence"), _SEQUENCE),
    **dict.fromkeys(
        ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
        _TEXT),
    "ImageDecoder": "its input is a file, and its size depends on the data",
    "OptionalHasElement": "whether a tensor is there depends on the data",
}  # fmt: skip
"""Why operators of ONNX have no rule."""
_ATTRIBUTES = {
    "axis": "dim", "axes": "dim", "keepdims": "keepdim", "group": "groups", "perm": "dims",
    "kernel_shape": "kernel_size", "num_groups": "num_groups",
    "equation": "equation", "mode": "mode",
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "softmax": {"dim": -1}, "sum": {"keepdim": 1}, "amax": {"keepdim": 1},
    "quantize_per_channel": {"dim": 1},
}  # fmt: skip
_MOST_ITERATIONS = 2**31
"""A loop of more iterations ends as the data decide."""
_MOST_BYTES = 2**31 - 1
"""Most bytes of a message of protobuf."""
_MOST_NUMBERS = 64
"""A constant of at most this many whole numbers may state axes or a shape."""


def import_onnx(
    model: str | Path | ModelProto,
    *,
    name: str = "",
    repeats: int = 1,
    dims: Mapping[str, Sequence[str]] | None = None,
    sizes: Mapping[str, int] | None = None,
    tiled: str | None = None,
) -> GraphSpec:
    """Return the graph of an ONNX file, or of a loaded ``ModelProto``.

    Parameters
    ----------
    repeats
        Number of repetitions of the whole graph.
    dims
        Names of the dims of inputs, by the names of the inputs.
    sizes
        Sizes of dynamic dims, by their name in the file or by their place (``x.0``).
    tiled
        The dim that passes through a chip in tiles; otherwise the one that most kernels write.

    Raises
    ------
    UnsupportedError
        Without the package, or where the file has operators that are not known: all of them.
    SpecError
        Where the file is none, or a shape in it is not fixed.
    """
    try:
        import onnx
        import onnx.inliner
        import onnx.shape_inference
    except ImportError:
        message = "the package onnx is not installed; pip install 'meshwright[onnx]'"
        raise UnsupportedError(message) from None
    origin = str(model) if isinstance(model, str | Path) else (name or "onnx")
    with as_foreign(origin):
        try:
            loaded = model
            if isinstance(model, str | Path):
                with opened(Path(model), most_bytes=_MOST_BYTES) as file:
                    loaded = onnx.load_model_from_string(file.read())
            nodes = loaded.graph.node  # type: ignore[union-attr]
            flows = {_name(node) for node in nodes if node.op_type in FLOW}
            counts = {key: size for key, size in (sizes or {}).items() if key in flows}
            bound = {key: size for key, size in (sizes or {}).items() if key not in flows}
            loaded = _with_sizes(loaded, bound, origin)
            version = max((e.version for e in loaded.opset_import if not e.domain), default=1)
            graph = with_shapes(onnx, loaded, {*RULES, *FLOW, *REASONS}, origin)
        except (MeshwrightError, OSError, MemoryError):
            raise
        except Exception as error:  # of protobuf and of the inference of shapes
            raise ValueError(first_line(error)) from error
        program = _FileReader(onnx, graph, origin, version).program()
        name = name or str(graph.name) or "onnx"
        return graph_of(program, name=name, repeats=repeats, dims=dims, sizes=counts, tiled=tiled,
                        origin=origin)  # fmt: skip


def _with_sizes(model: ModelProto, sizes: Mapping[str, int], origin: str) -> ModelProto:
    """Return a model with these sizes of dynamic dims of inputs; others follow from them."""
    bound, free, faults = type(model)(), set(), []
    bound.CopyFrom(model)
    for entry in bound.graph.input:
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            at = f"{entry.name}.{axis}"
            size = sizes.get(dim.dim_param or at, sizes.get(at))
            free |= {dim.dim_param or at, at} if not dim.dim_value else set()
            if size and dim.dim_value not in (0, size):
                message, fix = f"is {dim.dim_value} in this file", "export it with dynamic dims"
                faults.append(Fault(f"--dim {at}", message, fix))
                free.add(at)
            elif size:
                dim.dim_value = size
    faults += [
        Fault(f"--dim {name}", "is not a dynamic dim of an input", nearest(name, free))
        for name in sizes.keys() - free
    ]
    if faults:
        raise SpecError(faults, origin=origin)
    if sizes:
        for entry in (*bound.graph.output, *bound.graph.value_info):
            shape = entry.type.tensor_type.shape
            if any(not dim.dim_value for dim in shape.dim):
                entry.type.tensor_type.ClearField("shape")
    return bound


def _name(node: NodeProto) -> str:
    """Return the name of a node, that of its first output where it has none."""
    return str(node.name or next(filter(None, node.output), node.op_type))


def _reads(node: NodeProto) -> list[str]:
    """Return the names that a node reads, with those that graphs inside of it read."""
    inner = [n for entry in node.attribute if entry.HasField("g")
             for part in entry.g.node for n in _reads(part)]  # fmt: skip
    ends = [out.name for e in node.attribute if e.HasField("g") for out in e.g.output]
    return [*node.input, *inner, *ends]


class _FileReader:
    """Reads the nodes of one file that its outputs depend on as calls of PyTorch, in order."""

    def __init__(self, onnx: ModuleType, graph: GraphProto, origin: str, version: int) -> None:
        self.onnx, self.graph, self.origin, self.version = onnx, graph, origin, version
        self.types = shapes_of(graph)
        self.held = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.held[node.output[0]] = node.attribute[0].t

    def program(self) -> TracedProgram:
        """Return the inputs, the weights and the nodes that are needed."""
        nodes = self._needed()
        unknown = {n.op_type: _name(n) for n in nodes if n.op_type not in {*RULES, *FLOW}}
        if reasons := {kind: REASONS[kind] for kind in unknown if kind in REASONS}:
            faults = [Fault(unknown[kind], f"operator {kind!r}: {why}") for kind, why in
                      reasons.items()]  # fmt: skip
            raise UnsupportedError(f"{self.origin}: {'; '.join(map(str, faults))}", faults)
        refuse_unknown(unknown, {*RULES, *FLOW}, self.origin)
        given = [entry.name for entry in self.graph.input if entry.name not in self.held]
        inputs = [Input(name, self._meta(name)) for name in given]
        read = dict.fromkeys(name for node in nodes for name in _reads(node) if name in self.held)
        # a single number, or none, is no weight
        held = [name for name in read if list(self.held[name].dims) not in ([], [0], [1])]
        inputs += [Input(name, self._meta(name), name, is_weight=True) for name in held]
        return TracedProgram(
            inputs=tuple(inputs),
            steps=tuple(step for node in nodes for step in self._steps(node)),
            outputs=tuple(entry.name for entry in self.graph.output),
            version=f"ONNX, package {self.onnx.__version__}",
        )

    def _steps(self, node: NodeProto) -> Iterator[ProgramStep]:
        """Yield the calls for a node: transposes of its operands, then its own."""
        name = _name(node)
        if node.op_type in FLOW:
            yield self._flow(node, name)
            return
        operator, names = RULES[node.op_type]
        arguments: dict[str, Any] = dict(_DEFAULTS.get(operator, {}))
        if names == ["*tensors"]:
            arguments["tensors"] = [Ref(read) for read in node.input]
        else:
            for key, read in zip(names, node.input, strict=False):
                is_data = not key.startswith("#")
                if key != "-" and read:
                    arguments[key.removeprefix("#")] = Ref(read) if is_data else self._numbers(read)
        stated = {
            entry.name: self.onnx.helper.get_attribute_value(entry) for entry in node.attribute
        }
        for key, value in stated.items():
            if key in _ATTRIBUTES:
                is_text = isinstance(value, bytes)
                arguments[_ATTRIBUTES[key]] = value.decode() if is_text else value
        for key, flag in (("mat1", "transA"), ("mat2", "transB")):
            if stated.get(flag) and key in arguments:
                turned, meta = f"{name}.{key}", self._meta(arguments[key].name)
                meta = replace(meta, shape=meta.shape[::-1])
                yield ProgramStep(turned, "t", {"self": arguments[key]}, ((turned, meta),))
                arguments[key] = Ref(turned)
        yield ProgramStep(name, operator, arguments, self._outputs(node, name))

    def _outputs(self, node: NodeProto, name: str) -> tuple[tuple[str, TensorMeta], ...]:
        """Return names and facts of the outputs of a node."""
        known = next((made for made in node.output if made in self.types), name)
        return tuple(
            (made or f"{name}.{at}", self._meta(made if made in self.types else known))
            for at, made in enumerate(node.output)
        )

    def _block(self, graph: GraphProto, entries: Sequence[str]) -> Block:
        """Return a graph inside of a node, which sees what stands around it."""
        graph = inside(self.onnx, graph, self.types, self.version)
        inner = _FileReader(self.onnx, graph, self.origin, self.version)
        inner.types = {**self.types, **inner.types}
        inner.held = {**self.held, **inner.held}
        unknown = {n.op_type: _name(n) for n in graph.node if n.op_type not in {*RULES, *FLOW}}
        refuse_unknown(unknown, {*RULES, *FLOW}, self.origin)
        steps = tuple(step for node in graph.node if node.op_type != "Constant"
                      for step in inner._steps(node))  # fmt: skip
        return Block(tuple(entries), steps, tuple(Ref(entry.name) for entry in graph.output))

    def _flow(self, node: NodeProto, name: str) -> ProgramStep:
        """Return a branch or a loop as the call that stands for it."""
        graphs = {entry.name: entry.g for entry in node.attribute if entry.HasField("g")}
        stated = {e.name: self.onnx.helper.get_attribute_value(e) for e in node.attribute
                  if not e.HasField("g")}  # fmt: skip
        outputs, reads = self._outputs(node, name), [Ref(r) if r else None for r in node.input]
        arguments: dict[str, Any]
        if node.op_type == "If":
            blocks = [self._block(graphs[side], ()) for side in ("then_branch", "else_branch")]
            arguments = {"0": reads[0], "1": blocks[0], "2": blocks[1], "3": []}
            return ProgramStep(name, "cond", arguments, outputs)
        graph = graphs["body"]
        entries = [entry.name for entry in graph.input]
        if node.op_type == "Scan":
            number = stated["num_scan_inputs"]
            axes = (stated.get("scan_input_axes", []), stated.get("scan_output_axes", []))
            given = reads[: len(reads) - number], reads[len(reads) - number :]
            for entry, read in zip(graph.input, node.input, strict=True):
                self._type_of_entry(entry, read, axes, is_scanned=read in node.input[-number:])
            arguments = {"0": self._block(graph, entries), "1": given[0], "2": given[1], "3": [],
                         "4": axes[0], "5": axes[1]}  # fmt: skip
            along = self._meta(node.input[-number]).shape[axes[0][0] if axes[0] else 0]
            return ProgramStep(name, "scan", {**arguments, COUNT: along}, outputs)
        for entry, read in zip(graph.input[2:], node.input[2:], strict=True):
            self._type_of_entry(entry, read, ((), ()), is_scanned=False)
        block = self._block(graph, [*entries[1:], entries[0]])
        most = self._numbers(node.input[0]) if node.input[0] else None
        arguments = {"0": block, "1": [None, *reads[2:]], "2": [], "3": [None]}
        if most and most[0] < _MOST_ITERATIONS and self._goes_on(node.input[1], graph):
            arguments[COUNT] = most[0]
        return ProgramStep(name, "loop", arguments, (("", None), *outputs))

    def _type_of_entry(
        self, entry: Any, read: str, axes: tuple[Sequence[int], Sequence[int]], *, is_scanned: bool
    ) -> None:
        """State the shape of an input of an inner graph: the shape of its argument."""
        kind = entry.type.tensor_type
        kind.CopyFrom(self.types[read])
        if is_scanned:
            del kind.shape.dim[axes[0][0] if axes[0] else 0]

    def _goes_on(self, first: str, body: GraphProto) -> bool:
        """Return whether the condition of a loop holds from the first iteration to the last."""
        end, given = body.output[0].name, body.input[1].name
        kept = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
        return (not first or first in self.held) and given in (end, kept.get(end))

    def _numbers(self, name: str) -> list[int] | None:
        """Return the whole numbers of a small constant."""
        tensor = self.held.get(name)
        if tensor is None or sum(tensor.dims) > _MOST_NUMBERS or len(tensor.dims) > 1:
            return None
        array = self.onnx.numpy_helper.to_array(tensor)
        return [int(number) for number in array.reshape(-1)] if array.dtype.kind == "i" else None

    def _needed(self) -> list[NodeProto]:
        """Return the nodes that outputs depend on, without those that only make shapes."""
        makers = {output: node for node in self.graph.node for output in node.output}
        waiting = [entry.name for entry in self.graph.output]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            node = makers.get(name)
            if name in seen or node is None or node.op_type == "Constant":
                continue
            seen |= set(node.output)
            names = RULES[node.op_type][1] if node.op_type in RULES else ["*tensors"]
            data = [key for key in names if not key.startswith("#")]
            waiting += (
                _reads(node)
                if node.op_type in FLOW
                else list(node.input)[: None if "*tensors" in data else len(data)]
            )
        return [node for node in self.graph.node if seen & set(node.output)]

    def _meta(self, name: str) -> TensorMeta:
        """Return the shape and the type of a tensor, which must be known."""
        if name in self.held:
            tensor = self.held[name]
            return self._of_type(tuple(tensor.dims), tensor.data_type)
        kind = self.types.get(name)
        dims = kind.shape.dim if kind is not None else []
        if kind is None or not kind.HasField("shape") or any(dim.dim_value < 1 for dim in dims):
            shown = [dim.dim_param or dim.dim_value or "?" for dim in dims]
            free = next((dim.dim_param for dim in dims if dim.dim_param), "")
            fix = "export with fixed shapes, all of them above 0"
            fix = f"such as --dim {free}=8" if free and not free.startswith("unk__") else fix
            raise SpecError(Fault(name, f"its shape is {shown}", fix), origin=self.origin)
        return self._of_type(tuple(int(dim.dim_value) for dim in dims), kind.elem_type)

    def _of_type(self, shape: tuple[int, ...], kind: int) -> TensorMeta:
        """Return the facts on a tensor whose type of elements stands under a number in the file."""
        try:
            dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind)
        except KeyError:
            raise ValueError(f"a tensor is of no type of elements that is known ({kind})") from None
        return TensorMeta(shape, dtype.name, float(dtype.itemsize))
