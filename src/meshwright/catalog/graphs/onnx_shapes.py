"""ONNX graphs with the shape of every tensor: functions inlined, shape computations folded.

A file computes shapes with the operators that compute data. Once the sizes of its inputs are bound,
these are whole numbers: they are folded, and a branch on them is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.base.errors import Fault, SpecError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_MOST_NODES = 100_000
_MOST_FOLDED = 4096
"""Most elements of a tensor that is folded; a shape has some eight."""
_MOST_ROUNDS = 12
_FOLDED = frozenset(
    [
        "Identity",
        "Cast",
        "Gather",
        "Concat",
        "Unsqueeze",
        "Squeeze",
        "Slice",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "Neg",
        "Abs",
        "Min",
        "Max",
        "Floor",
        "Ceil",
        "Where",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Not",
        "And",
        "Or",
        "ReduceProd",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "Reshape",
        "Transpose",
        "Flatten",
        "Range",
        "ConstantOfShape",
        "Expand",
        "Split",
        "Sqrt",
    ]
)
"""Operators that are folded where all that they read is known."""


def refuse_endless(model: ModelProto, origin: str) -> None:
    """Raise where functions of a file call themselves, or stand for too many nodes."""
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[NodeProto], depth: int) -> int:
        if depth > 50:
            raise ValueError("its functions call each other without end")
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in sizes:
                sizes[key] = size(bodies[key], depth + 1)
            total += sizes.get(key, 1)
            for entry in node.attribute:
                total += size(entry.g.node, depth + 1) if entry.HasField("g") else 0
        if total > _MOST_NODES:
            message = f"stands for more than {_MOST_NODES:,} operators"
            raise SpecError(Fault("", message), origin=origin)
        return total

    size(model.graph.node, 0)


def with_shapes(onnx: Any, model: ModelProto, known: Iterable[str], origin: str) -> GraphProto:
    """Return the graph of a model with the shapes of its tensors, as far as they can be inferred.

    Parameters
    ----------
    onnx
        The package.
    known
        Operators that are read as they are; others are inlined where ONNX states them as functions.
    """
    refuse_endless(model, origin)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    named = {*known}
    wanted = {node.op_type for node in model.graph.node if not node.domain} - named
    inlined = [
        ("", name)
        for name in sorted(wanted)
        if onnx.defs.has(name, "")
        and _is_function(onnx.defs.get_schema(name, max_inclusive_version=versions.get("", 1)))
    ]
    for _ in range(_MOST_ROUNDS):
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        if inlined:
            model = onnx.inliner.inline_selected_functions(inferred, inlined, False, True)
            inlined = []
        elif not _fold(onnx, inferred.graph):
            break
        else:
            model = inferred
    return inferred.graph


def _is_function(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def shapes_of(graph: GraphProto) -> dict[str, Any]:
    """Return the types of the tensors of a graph by name."""
    return {
        info.name: info.type.tensor_type
        for info in (*graph.input, *graph.value_info, *graph.output)
    }


def inside(onnx: Any, graph: GraphProto, types: Mapping[str, Any], version: int) -> GraphProto:
    """Return a graph inside of a node with the shapes of its tensors."""
    made = {name for node in graph.node for name in node.output}
    own = {entry.name for entry in graph.input} | {t.name for t in graph.initializer}
    read = dict.fromkeys(n for node in graph.node for n in node.input if n not in made | own and n)
    model = onnx.ModelProto()
    model.ir_version = 8
    model.opset_import.append(onnx.helper.make_opsetid("", version))
    model.graph.CopyFrom(graph)
    for name in read:
        entry = model.graph.input.add(name=name)
        if name in types:
            entry.type.tensor_type.CopyFrom(types[name])
    return onnx.shape_inference.infer_shapes(model, data_prop=True).graph


def _fold(onnx: Any, graph: GraphProto) -> bool:
    """Turn nodes that compute known numbers into constants; return whether there were any."""
    types = shapes_of(graph)
    known = {t.name: t for t in graph.initializer if np.prod(t.dims) <= _MOST_FOLDED}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            if np.prod(tensor.dims) <= _MOST_FOLDED:
                known[node.output[0]] = tensor
    numbers = {name: onnx.numpy_helper.to_array(t) for name, t in known.items() if _is_whole(t)}
    kept, has_changed = [], False
    for node in graph.node:
        branch = _branch(node, numbers)
        if branch is not None:
            kept += branch
            has_changed = True
            continue
        found = _value(onnx, node, types, numbers)
        if found is None:
            kept.append(node)
            continue
        for name, value in zip(node.output, found, strict=False):
            array = np.asarray(value)
            if name and name not in numbers:
                numbers[name] = array
                graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        has_changed = True
    if has_changed:
        nodes = [type(node).FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(nodes)
    return has_changed


def _is_whole(tensor: Any) -> bool:
    """Return whether a tensor holds whole numbers or truth values, in the file itself."""
    return tensor.data_type in (2, 3, 4, 5, 6, 7, 9, 12, 13) and not tensor.data_location


def _value(
    onnx: Any, node: NodeProto, types: Mapping[str, Any], numbers: Mapping[str, Any]
) -> list[Any] | None:
    """Return the values that a node computes from known numbers; None where it cannot."""
    if node.op_type in ("Shape", "Size") and not node.domain:
        dims = types[node.input[0]].shape.dim if node.input[0] in types else []
        sizes = [dim.dim_value for dim in dims]
        is_stated = node.input[0] in types and types[node.input[0]].HasField("shape")
        if node.input[0] in numbers:
            sizes, is_stated = list(numbers[node.input[0]].shape), True
        if not is_stated or any(size < 1 for size in sizes):
            return None
        stated = {entry.name: entry.i for entry in node.attribute}
        part = sizes[stated.get("start", 0) : stated.get("end", len(sizes))]
        total = np.prod(sizes, dtype=np.int64)
        return [total if node.op_type == "Size" else np.array(part, dtype=np.int64)]
    reads = [name for name in node.input if name]
    if node.op_type not in _FOLDED or node.domain or not reads:
        return None
    if any(name not in numbers for name in reads):
        return None
    given = [numbers[name] for name in reads]
    if node.op_type in ("ConstantOfShape", "Expand"):
        if np.prod(given[-1], dtype=float) > _MOST_FOLDED:
            return None
        if node.op_type == "ConstantOfShape" and not all(
            _is_whole(entry.t) for entry in node.attribute
        ):
            return None
    if node.op_type == "Range" and abs(given[1] - given[0]) > _MOST_FOLDED * abs(given[2]):
        return None
    try:
        from onnx.reference import ReferenceEvaluator

        found = ReferenceEvaluator(node).run(None, dict(zip(reads, given, strict=True)))
    except Exception:  # of the evaluator of the package: the node stays as it is
        return None
    is_small = all(np.size(value) <= _MOST_FOLDED for value in found)
    return found if is_small and all(np.asarray(v).dtype.kind in "iub" for v in found) else None


def _branch(node: NodeProto, numbers: Mapping[str, Any]) -> list[NodeProto] | None:
    """Return the nodes of the branch that runs, its outputs under the names of the node's."""
    if node.op_type != "If" or node.input[0] not in numbers:
        return None
    side = "then_branch" if bool(np.all(numbers[node.input[0]])) else "else_branch"
    graph = next(entry.g for entry in node.attribute if entry.name == side)
    if graph.initializer:
        return None
    ends = dict(zip((entry.name for entry in graph.output), node.output, strict=True))
    nodes = []
    for inner in graph.node:
        copy = type(node)()
        copy.CopyFrom(inner)
        for names in (copy.input, copy.output):
            for place, name in enumerate(names):
                names[place] = ends.get(name, name)
        nodes.append(copy)
    made = {name for inner in graph.node for name in inner.output}
    for name, end in ends.items():
        if name not in made:
            nodes.append(type(node)(op_type="Identity", input=[name], output=[end]))
    return nodes
