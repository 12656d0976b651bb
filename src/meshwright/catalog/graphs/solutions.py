"""Files of AutoParallel's solutions: ``ShardingOptimizer.get_json()``, and the names of weights.

A file holds ``mesh`` (``shape``, ``dim_names``), ``nodes`` in the order in which they run
(``name``, ``op``, ``phase``, ``placement``, ``shape``, ``dtype``, ``inputs`` with ``name``,
``src_placement`` and ``dst_placement``) and ``parameters``, the names of placeholders that are
weights. Shapes are those of whole tensors. Costs and sources of nodes are not read.

Source: meta-pytorch/autoparallel, ``autoparallel/export_json.py`` (read 2026-11-27); texts of
placements: PyTorch 2.13, ``torch/distributed/tensor/placement_types.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import PlainValues, Tree, read_json
from meshwright.catalog.flow_files import Record
from meshwright.spec.solution import (
    SUM,
    WHOLE,
    OperatorKind,
    PlacedInput,
    PlacedOperator,
    PlacedProgram,
    Placement,
)

_ONE = re.compile(r"S\((?P<dim>\d{1,3})\)|_S\((?P<strided>\d{1,3}),\s*\d+\)|R|P(?:\(\w+\))?")
_WORDS = {"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "bfloat16": 2,
          "float16": 2, "int16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1,
          "bool": 1}  # fmt: skip
"""Bytes of an element by its type [bytes]."""
_VIEWS = ("view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze",
          "squeeze", "alias", "detach", "getitem", "lift_fresh_copy", "slice", "select", "split",
          "split_with_sizes")  # fmt: skip
_KINDS: Mapping[str, OperatorKind] = {
    "placeholder": "end", "get_attr": "end", "output": "end", **dict.fromkeys(_VIEWS, "view"),
    "mm": "product", "bmm": "product", "addmm": "product", "baddbmm": "product",
    "embedding": "lookup", "embedding_dense_backward": "lookup",
    **{f"_scaled_dot_product_{form}_attention": "attention"
       for form in ("flash", "efficient", "cudnn")},
    **{f"_scaled_dot_product_{form}_attention_backward": "attention_gradient"
       for form in ("flash", "efficient", "cudnn")},
}  # fmt: skip
_UNPRICED = ("convolution", "convolution_backward", "_grouped_mm", "einsum", "local_map_hop",
             "flex_attention", "flex_attention_backward", "topk", "sort")  # fmt: skip
"""Operators whose work does not follow from their shapes."""
_LEAST_READS = {"product": 2, "attention": 3, "attention_gradient": 4}


def read_solution(path: str | Path) -> PlacedProgram:
    """Return the solution of a file.

    Raises
    ------
    SpecError
        With all faults of the file, each with its place.
    """
    content = read_json(Path(path))
    if not isinstance(content, dict):
        raise SpecError(Fault("", "expected an object with mesh and nodes"), origin=str(path))
    plain = PlainValues(Tree(content, {}), content)
    found = _Reader(Record(content, (), plain)).program()
    if plain.faults:
        raise SpecError(plain.faults, origin=str(path))
    return found


class _Reader:
    """The parts of one file; faults are noted in its record."""

    def __init__(self, top: Record) -> None:
        self.top, self.written = top, dict[str, tuple[tuple[int, ...], Placement]]()
        self.mesh = self._mesh()

    def _mesh(self) -> dict[str, int]:
        mesh = self.top.take("mesh", lambda value: isinstance(value, dict), "an object")
        if mesh is None:
            return {}
        record = Record(mesh, ("mesh",), self.top.plain)
        shape = record.take("shape", _is_shape, "a list of whole numbers from 1, one a mesh dim")
        names = mesh.get("dim_names") or [f"mesh{n}" for n in range(len(shape or ()))]
        if not isinstance(names, list) or len({*map(str, names)}) != len(shape or names):
            record.refuse("dim_names", f"found {names!r}, expected one name for each dim of shape")
            return {}
        return dict(zip(map(str, names), shape or (), strict=False))

    def program(self) -> PlacedProgram:
        """Return the program; parts that are wrong are left out."""
        operators = [one for node in self.top.records("nodes") if (one := self._operator(node))]
        ends = {one.name for one in operators if one.op == "placeholder"}
        parameters = self.top.entries("parameters")
        for place, name in enumerate(parameters):
            if name not in ends:
                fix = nearest(str(name), ends)
                self.top.plain.refuse(("parameters", place), f"no placeholder {name!r}", fix)
        return PlacedProgram(self.mesh, tuple(operators), frozenset(map(str, parameters)))

    def _operator(self, node: Record) -> PlacedOperator | None:
        name, stated = str(node.label("name")), str(node.label("op"))
        if name in self.written:
            node.refuse("name", f"{name!r} is the name of an earlier node")
        op = _short(stated)
        kind = _KINDS.get(op, "rest")
        if op in _UNPRICED:
            node.refuse("op", f"{stated} is not priced: its work does not follow from its shapes")
        inputs = [found for one in node.records("inputs") if (found := self._input(one))] \
            if "inputs" in node.value or kind not in ("end",) else []  # fmt: skip
        if op == "output":
            return PlacedOperator(name, op, kind, False, (), (), 0.0, tuple(inputs))
        shape = node.take("shape", _is_sizes, "a list of whole numbers") or ()
        dtype = node.take("dtype", lambda value: value in _WORDS, f"one of {', '.join(_WORDS)}")
        placement = self._placement(node, "placement", len(shape))
        self.written[name] = tuple(shape), placement
        if len(inputs) < _LEAST_READS.get(kind, 0):
            node.refuse("inputs", f"{stated} reads {_LEAST_READS[kind]} tensors at least")
        is_backward = node.value.get("phase") == "backward"
        return PlacedOperator(name, op, kind, is_backward, placement, tuple(shape),
                              float(_WORDS.get(dtype or "", 1)), tuple(inputs))  # fmt: skip

    def _input(self, one: Record) -> PlacedInput | None:
        name = str(one.label("name"))
        if name not in self.written:
            one.refuse("name", f"no earlier node {name!r}", nearest(name, self.written))
            return None
        shape, have = self.written[name]
        want = have
        if one.value.get("dst_placement") is not None:
            want = self._placement(one, "dst_placement", len(shape))
        if one.value.get("src_placement") is not None:
            have = self._placement(one, "src_placement", len(shape))
        opened = [axis for axis, a, b in zip(self.mesh, have, want, strict=False)
                  if b == SUM and a != SUM]  # fmt: skip
        if opened:
            one.refuse("dst_placement", f"no collective makes a partial sum over {opened[0]}",
                       "the placement of the writer")  # fmt: skip
        return PlacedInput(name, have, want)

    def _placement(self, node: Record, field: str, num_dims: int) -> Placement:
        """Return a placement, that of the first tensor where an operator writes several."""
        text = str(node.take(field, lambda value: isinstance(value, str), "a text such as S(0)R"))
        first = text[1:].split(", ")[0].removesuffix(")") if text.startswith("(") else text
        if text.startswith("(") and first.count("(") > first.count(")"):
            first += ")"
        words = [found[0] for found in _ONE.finditer(first)]
        wrong = "".join(words) != first.replace(" ", "") and "".join(words) != first
        dims = [found["dim"] or found["strided"] for found in _ONE.finditer(first)]
        if wrong or len(words) != len(self.mesh):
            each = "one of S(DIM), R, P for each dim of the mesh"
            node.refuse(field, f"found {text!r}, expected {each}", "R" * len(self.mesh))
            return (WHOLE,) * len(self.mesh)
        beyond = [dim for dim in dims if dim is not None and int(dim) >= num_dims]
        if beyond:
            node.refuse(field, f"{text} splits dim {beyond[0]} of a tensor with {num_dims} dims")
            return (WHOLE,) * len(self.mesh)
        return tuple(
            int(dim) if dim is not None else SUM if word.startswith("P") else WHOLE
            for dim, word in zip(dims, words, strict=True)
        )


def _short(op: str) -> str:
    """Return the name of an operator without namespace and overload.

    ``aten.mm.default`` is ``mm``, ``<built-in function getitem>`` is ``getitem``.
    """
    if op.startswith("<built-in function "):
        return op[19:].rstrip(">")
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 < one <= 10**12 for one in value
    )


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and bool(value) and _is_sizes(value) and prod(value) <= 10**6
