"""Graphs from PyTorch: a module that ``torch.export`` can trace, on the meta device if it is large.

Nothing is computed and no weight is needed, so a block of a model with 405 billion parameters
takes seconds. An operator (ATen) that has no rule here is refused by name; views are no kernels,
and what computes nothing is a move. Needs the extra ``torch``; PyTorch is imported when a function
of this file runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
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
class Call:
    """One operator of a program: its arguments by name, values of tensors among them."""

    name: str
    """For the kernel."""
    arguments: Mapping[str, Any]
    shapes: Sequence[Sequence[int]]
    """Of the outputs."""
    word_bytes: float
    """Of the first output."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def shape(self) -> Sequence[int]:
        """Of the first output."""
        return self.shapes[0]

    @property
    def values(self) -> list[Value]:
        """All tensors among the arguments."""
        found = (v if isinstance(v, list) else [v] for v in self.arguments.values())
        return [value for values in found for value in values if isinstance(value, Value)]


Made = Value | list[Any]
Rule = Callable[[GraphBuilder, Call], Made]


def _transpose(to: GraphBuilder, call: Call) -> Value:
    value = call.values[0]
    order = list(range(len(value.axes)))
    ends = [call[name] for name in ("dim0", "dim1", "axis0", "axis1") if call[name] is not None]
    first, second = map(value.axis, ends)
    order[first], order[second] = order[second], order[first]
    return value.permuted(order)


def _slice(to: GraphBuilder, call: Call) -> Value:
    """Return a part of an axis; all of it is the value itself."""
    value = call.values[0]
    if tuple(call.shape) == value.shape:
        return value
    return make.moved(to, call.name, [value], call.shape, [value.axis(call["dim"] or 0)])


def _split(to: GraphBuilder, call: Call) -> Made:
    value = call["self"]
    axis = value.axis(call["dim"] or 0)
    return [
        make.moved(to, f"{call.name}.{number}", [value], shape, [axis])
        for number, shape in enumerate(call.shapes)
    ]


def _cat(to: GraphBuilder, call: Call) -> Value:
    values = [value for value in call["tensors"] if value.shape != (0,)]
    axis = values[0].axis(call["dim"] or 0)
    return make.moved(to, call.name, values, call.shape, [axis])


def _stack(to: GraphBuilder, call: Call) -> Value:
    axis = (call["dim"] or 0) % len(call.shape)
    ones = [size if number != axis else 1 for number, size in enumerate(call.shape)]
    values = [make.reshaped(to, call.name, value, ones) for value in call["tensors"]]
    return make.moved(to, call.name, values, call.shape, [axis])


def _overwritten(to: GraphBuilder, call: Call) -> Value:
    """Return a tensor with another one put into a part of one axis."""
    axis = call["self"].axis(call["dim"] or 0)
    return make.moved(to, call.name, [call["self"], call["src"]], call.shape, [axis])


def _index(to: GraphBuilder, call: Call) -> Value:
    """Return the elements at places that tensors name, along one axis or several at once.

    The axes of those tensors stand where the axes were that they name, or first where these are
    not neighbours.
    """
    value, given = call["self"], call["indices"]
    ids = {axis: found for axis, found in enumerate(given) if found is not None}
    rank = max(len(found.axes) for found in ids.values())
    rows: list[Any] = [("row", number) for number in range(rank)]
    keys: list[Any] = [("at", a) if a in ids else a for a in range(len(value.axes))]
    operands = [(found, rows[rank - len(found.axes) :]) for found in ids.values()]
    are_neighbours = max(ids) - min(ids) + 1 == len(ids)
    kept = [axis for axis in range(len(value.axes)) if axis not in ids]
    before = [axis for axis in kept if axis < min(ids)] if are_neighbours else []
    writes = [*before, *rows, *kept[len(before) :]]
    return to.emit(
        call.name, "none", [*operands, (value, keys)], writes, word_bytes=value.word_bytes
    )


def _gather(to: GraphBuilder, call: Call) -> Value:
    """Return one element of an axis for each element of the indices."""
    value, ids = call["self"], call["index"]
    gone = value.axis(call["dim"])
    keys = list(range(len(ids.axes)))
    own: list[Any] = [
        key if key != gone and value.shape[key] == ids.shape[key] else ("own", key) for key in keys
    ]
    word = call.word_bytes
    return to.emit(call.name, "none", [(ids, keys), (value, own)], keys, word_bytes=word)


def _difference(to: GraphBuilder, call: Call) -> Value:
    value = call["self"]
    axis = value.axis(-1 if call["dim"] is None else call["dim"])
    return make.moved(to, call.name, [value], call.shape, [axis])


def _unbind(to: GraphBuilder, call: Call) -> Made:
    axis = call["dim"] or 0
    return [
        make.rows(to, f"{call.name}.{number}", call["self"], axis, None)
        for number in range(len(call.shapes))
    ]


def _pad(to: GraphBuilder, call: Call) -> Value:
    value = call["self"]
    pairs = enumerate(zip(value.shape, call.shape, strict=True))
    changed = [axis for axis, (before, after) in pairs if before != after]
    return make.moved(to, call.name, [value], call.shape, changed)


def _made(to: GraphBuilder, call: Call) -> Value:
    """Return what is made from nothing: a constant, a range of numbers."""
    fresh = dict(enumerate(call.shape))
    return to.emit(
        call.name, "none", [], range(len(call.shape)), fresh=fresh, word_bytes=call.word_bytes
    )


def _elementwise(to: GraphBuilder, call: Call) -> Value:
    return make.elementwise(to, call.name, call.values, word_bytes=call.word_bytes)


def _add(to: GraphBuilder, call: Call) -> Value:
    is_sum = call["alpha"] in (None, 1)
    return make.elementwise(to, call.name, call.values, is_sum=is_sum, word_bytes=call.word_bytes)


def _addmm(to: GraphBuilder, call: Call) -> Value:
    left, right = (call["mat1"], call["mat2"]) if call["mat1"] else (call["batch1"], call["batch2"])
    return make.matmul(to, call.name, left, right, call["self"])


def _norm(to: GraphBuilder, call: Call) -> Value:
    rank = len(call["normalized_shape"])
    held = [value for value in (call["weight"], call["bias"]) if value is not None]
    return make.along(to, call.name, call["input"], range(-rank, 0), held=held)


def _group_norm(to: GraphBuilder, call: Call) -> Value:
    value, groups = call["input"], call["num_groups"]
    batch, channels, *space = value.shape
    seen = value.reshaped([batch, groups, channels // groups, *space])
    keys = ["batch", "group", "in", *range(len(space))]
    operands = [(seen, keys)]
    held = (weight for weight in (call["weight"], call["bias"]) if weight is not None)
    operands += [(w.reshaped([groups, channels // groups]), ["group", "in"]) for w in held]
    out = to.emit(call.name, "vector", operands, keys, whole=keys[2:])
    return make.reshaped(to, call.name, out, list(value.shape))


def _batch_norm(to: GraphBuilder, call: Call) -> Value:
    """Return a norm over all but the channels; in inference a function of each element."""
    keys = list(range(len(call["input"].axes)))
    operands = [(value, keys if len(value.axes) > 1 else [1]) for value in call.values]
    whole = [key for key in keys if key != 1] if call["training"] else []
    return to.emit(call.name, "vector", operands, keys, whole=whole)


def _reduce(needs_whole: bool) -> Rule:
    """Return the rule of a reduction; the larger of two tensors is none."""

    def rule(to: GraphBuilder, call: Call) -> Made:
        if call["other"] is not None:
            return _elementwise(to, call)
        value = call["self"]
        dims = call["dim"]
        over = list(range(len(value.axes))) if dims in (None, []) else dims
        over = [over] if isinstance(over, int) else over
        made = [
            make.along(
                to, call.name, value, over, kept=False, needs_whole=needs_whole,
                word_bytes=call.word_bytes,
            )
            for _ in call.shapes
        ]  # fmt: skip
        if call["keepdim"]:
            made = [make.with_ones(out, over, len(value.axes)) for out in made]
        return made if len(made) > 1 else made[0]

    return rule


def _cumulative(to: GraphBuilder, call: Call) -> Value:
    dims = call["dim"] if call["dim"] is not None else call["dims"]
    over = [dims] if isinstance(dims, int) else dims or range(len(call["self"].axes))
    return make.along(to, call.name, call["self"], over, word_bytes=call.word_bytes)


def _sort(to: GraphBuilder, call: Call) -> Made:
    """Return sorted values and their places; of the largest only the first ones are kept."""
    value = call["self"]
    axis = value.axis(-1 if call["dim"] is None else call["dim"])
    made = [make.along(to, f"{call.name}.{n}", value, [axis]) for n in range(len(call.shapes))]
    return [
        out
        if out.shape == tuple(shape)
        else make.moved(to, f"{out.source}.top", [out], shape, [axis])
        for out, shape in zip(made, call.shapes, strict=True)
    ]


def _convolution(to: GraphBuilder, call: Call) -> Value:
    if call["transposed"]:
        raise UnevenError("transposed convolutions have no kernel here")
    value, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"]
    return make.convolution(to, call.name, value, weight, bias, call.shape, groups or 1)


def _pooling(to: GraphBuilder, call: Call) -> Value:
    value, size = call["self"], call["kernel_size"]
    axes = len(value.axes) - 2
    if size is None:
        pairs = zip(value.shape[2:], call.shape[2:], strict=True)
        size = [ceil(before / after) for before, after in pairs]
    window = list(size) * (axes if len(size) == 1 else 1)
    return make.pooling(to, call.name, value, call.shape, window)


def _first_of(rule: Rule) -> Rule:
    """Return the rule of an operator whose further outputs are statistics that nobody reads."""
    return lambda to, call: [rule(to, call), *[None] * (len(call.shapes) - 1)]


_RULES: tuple[tuple[Rule, str], ...] = (
    # views, which are no kernels: a copy, a cast, dropout in inference
    (
        lambda to, call: call.values[0],
        "alias clone contiguous detach to type_as _to_copy lift_fresh_copy lift_fresh "
        "_assert_tensor_metadata",
    ),
    (
        lambda to, call: make.reshaped(to, call.name, call.values[0], call.shape),
        "view reshape _unsafe_view view_as reshape_as flatten unflatten squeeze unsqueeze",
    ),
    (lambda to, call: call.values[0].permuted(call["dims"]), "permute"),
    (_transpose, "transpose swapaxes swapdims"),
    (
        lambda to, call: call.values[0].permuted(range(len(call.values[0].axes) - 1, -1, -1)),
        "t numpy_T",
    ),
    (
        lambda to, call: call.values[0].expanded(call.shape, to.num_names),
        "expand expand_as broadcast_to",
    ),
    # what is copied over a tensor, which is not read
    (lambda to, call: call["src"].expanded(call.shape, to.num_names), "copy"),
    # moves
    (_slice, "slice narrow"),
    (lambda to, call: make.rows(to, call.name, call["self"], call["dim"], None), "select"),
    (_split, "split split_with_sizes chunk"),
    (_cat, "cat concat"),
    (_stack, "stack"),
    (_overwritten, "slice_scatter select_scatter"),
    (_unbind, "unbind"),
    (lambda to, call: make.rows(to, call.name, call["weight"], 0, call["indices"]), "embedding"),
    (
        lambda to, call: make.rows(to, call.name, call["self"], call["dim"], call["index"]),
        "index_select",
    ),
    (_gather, "gather"),
    (_difference, "diff"),
    (_index, "index"),
    (_pad, "pad constant_pad_nd"),
    (
        _made,
        "arange full ones zeros empty full_like ones_like zeros_like "
        "fill empty_like new_full new_ones new_zeros new_empty scalar_tensor",
    ),
    # functions of each element
    (
        _elementwise,
        "sub rsub mul div neg pow sqrt rsqrt exp log log1p sin cos tanh sigmoid relu relu6 gelu "
        "silu mish elu leaky_relu hardtanh hardswish hardsigmoid softplus erf abs reciprocal "
        "sign floor ceil round clamp clamp_min clamp_max maximum minimum where masked_fill "
        "eq ne lt le gt ge logical_and logical_or logical_not bitwise_not bitwise_and "
        "bitwise_or bitwise_xor __and__ __or__ __xor__ prelu addcmul lerp square remainder fmod "
        "floor_divide tril triu isnan isinf expm1 log2 log10 atan2 hypot celu selu logsigmoid "
        "softsign",
    ),
    (_add, "add"),
    (
        lambda to, call: _elementwise(to, call) if call["train"] else call.values[0],
        "dropout feature_dropout",
    ),
    # products
    (
        lambda to, call: make.linear(to, call.name, call["input"], call["weight"], call["bias"]),
        "linear",
    ),
    (lambda to, call: make.matmul(to, call.name, *call.values), "matmul mm bmm mv dot"),
    (_addmm, "addmm baddbmm"),
    (lambda to, call: make.einsum(to, call.name, call["equation"], call["tensors"]), "einsum"),
    (
        lambda to, call: make.attention(
            to, call.name, call["query"], call["key"], call["value"], call["attn_mask"]
        ),
        "scaled_dot_product_attention",
    ),
    (_convolution, "conv1d conv2d conv3d convolution"),
    # what needs whole axes
    (
        lambda to, call: make.along(
            to, call.name, call["self"], [call["dim"]], word_bytes=call.word_bytes
        ),
        "softmax log_softmax _softmax _log_softmax",
    ),
    (_norm, "layer_norm rms_norm"),
    (_first_of(_norm), "native_layer_norm _fused_rms_norm"),
    (_group_norm, "group_norm"),
    (_batch_norm, "batch_norm"),
    (_first_of(_batch_norm), "_native_batch_norm_legit_no_training"),
    (_reduce(needs_whole=False), "sum mean"),
    (_reduce(needs_whole=True), "amax amin max min argmax argmin var std prod any all"),
    (_cumulative, "cumsum cumprod flip roll"),
    (_sort, "sort topk"),
    (_first_of(_pooling), "max_pool2d_with_indices max_pool3d_with_indices"),
    (
        _pooling,
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    ),
)
RULES: Mapping[str, Rule] = {name: rule for rule, names in _RULES for name in names.split()}
"""By the name of the operator without its overload."""


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
