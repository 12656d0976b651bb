"""Graphs from ONNX files with fixed shapes; no weight is read.

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
from meshwright.catalog.graphs.exported import graph_of
from meshwright.catalog.graphs.traced import Input, ProgramStep, Ref, TensorMeta, TracedProgram
from meshwright.catalog.graphs.tracing import as_foreign, first_line, refuse_unknown
from meshwright.spec.graph import GraphSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_SPELLINGS = (
    ("sub", "*tensors",
     "Sub Mul Div Neg Pow Sqrt Reciprocal Exp Log Sin Cos Tanh Sigmoid Relu LeakyRelu PRelu Elu "
     "Gelu Erf HardSwish HardSigmoid Softplus Mish Swish Abs Sign Floor Ceil Round Clip Min Max "
     "Where Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Xor Mod IsNaN IsInf "
     "Sinh Cosh Tan Asin Acos Atan Selu Celu Softsign"),
    ("add", "*tensors", "Add Sum"),
    ("alias", "self", "Identity Cast Dropout"),
    ("matmul", "*tensors", "MatMul"),
    ("addmm", "mat1 mat2 self", "Gemm"),
    ("einsum", "*tensors", "Einsum"),
    ("conv2d", "input weight bias", "Conv"),
    ("conv_transpose2d", "input weight bias", "ConvTranspose"),
    ("resize", "self", "Resize Upsample"),
    ("lstm_sides", "input weight states bias", "LSTM"),
    ("gru_sides", "input weight states bias", "GRU"),
    ("rnn_sides", "input weight states bias", "RNN"),
    ("transform_of_pairs", "self #length #dim", "DFT"),
    ("topk", "self", "TopK"),
    ("avg_pool2d", "self", "MaxPool AveragePool GlobalAveragePool GlobalMaxPool"),
    ("softmax", "self", "Softmax LogSoftmax"),
    ("layer_norm", "input weight bias",
     "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    ("batch_norm", "input weight bias running_mean running_var", "BatchNormalization"),
    ("sum", "self #dim", "ReduceSum ReduceMean"),
    ("amax", "self #dim", "ReduceMax ReduceMin ReduceL2 ReduceProd"),
    ("view", "self", "Reshape Flatten Squeeze Unsqueeze"),
    ("permute", "self", "Transpose"),
    ("expand", "self", "Expand"),
    ("slice", "self", "Split Slice Pad"),
    ("cat", "*tensors", "Concat"),
    ("index_select", "self index", "Gather"),
    ("gather", "self index", "GatherElements"),
    ("gather_tuples", "self index", "GatherND"),
    ("scatter", "self index src", "ScatterElements"),
    ("scatter_tuples", "self index src", "ScatterND"),
    ("one_hot", "self", "OneHot"),
    ("zeros", "", "ConstantOfShape Range EyeLike RandomNormalLike RandomUniformLike"),
)  # fmt: skip
RULES: Mapping[str, tuple[str, Sequence[str]]] = {
    name: (operator, inputs.split())
    for operator, inputs, names in _SPELLINGS
    for name in names.split()
}
"""Equal operator of PyTorch by operator of ONNX, and the names of its inputs there.

``*tensors`` takes all of them, ``#dim`` whole numbers; further inputs only state shapes.
"""
_ATTRIBUTES = {
    "axis": "dim", "axes": "dim", "keepdims": "keepdim", "group": "groups", "perm": "dims",
    "kernel_shape": "kernel_size", "equation": "equation", "mode": "mode",
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "softmax": {"dim": -1}, "sum": {"keepdim": 1}, "amax": {"keepdim": 1},
}  # fmt: skip
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
            loaded = _with_sizes(loaded, sizes or {}, origin)
            graph = onnx.shape_inference.infer_shapes(loaded, data_prop=True).graph
        except (MeshwrightError, OSError, MemoryError):
            raise
        except Exception as error:  # of protobuf and of the inference of shapes
            raise ValueError(first_line(error)) from error
        program = _FileReader(onnx, graph, origin).program()
        name = name or str(graph.name) or "onnx"
        return graph_of(program, name=name, repeats=repeats, dims=dims, tiled=tiled, origin=origin)


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


class _FileReader:
    """Reads the nodes of one file that its outputs depend on as calls of PyTorch, in order."""

    def __init__(self, onnx: ModuleType, graph: GraphProto, origin: str) -> None:
        self.onnx, self.graph, self.origin = onnx, graph, origin
        self.types = {
            info.name: info.type.tensor_type
            for info in (*graph.input, *graph.value_info, *graph.output)
        }
        self.held = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.held[node.output[0]] = node.attribute[0].t

    def program(self) -> TracedProgram:
        """Return the inputs, the weights and the nodes that are needed."""
        nodes = self._needed()
        unknown = {n.op_type: n.name or n.output[0] for n in nodes if n.op_type not in RULES}
        refuse_unknown(unknown, RULES, self.origin)
        given = [entry.name for entry in self.graph.input if entry.name not in self.held]
        inputs = [Input(name, self._meta(name)) for name in given]
        read = dict.fromkeys(name for node in nodes for name in node.input if name in self.held)
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
        operator, names = RULES[node.op_type]
        name = node.name or node.output[0]
        arguments: dict[str, Any] = dict(_DEFAULTS.get(operator, {}))
        if names == ["*tensors"]:
            arguments["tensors"] = [Ref(read) for read in node.input]
        else:
            for key, read in zip(names, node.input, strict=False):
                is_data = not key.startswith("#")
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
        known = next((made for made in node.output if made in self.types), name)
        outputs = tuple(
            (made or f"{name}.{at}", self._meta(made if made in self.types else known))
            for at, made in enumerate(node.output)
        )
        yield ProgramStep(name, operator, arguments, outputs)

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
            waiting += list(node.input)[: None if "*tensors" in data else len(data)]
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
