"""Programs that ``torch.export.save`` wrote, read as data: no PyTorch, and nothing in them is run.

PyTorch's own loader executes the content of such a file: pickles of samples and constants, sizes as
Python, compiled libraries (``torch/export/pt2_archive/_package.py`` and ``serialize.py`` of
``torch/_export/serde``, PyTorch 2.13). Here only ``models/model.json`` is read, in the layout of
``torch/_export/serde/schema.py``: schema 8, which PyTorch 2.6 and later write, 8.20 by 2.13. No
weight is read: their shapes and types stand in that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.base.files import Members, members_of
from meshwright.catalog.files import json_content
from meshwright.catalog.graphs.expressions import Expression, Size, read_expression
from meshwright.catalog.graphs.traced import (
    Block,
    Input,
    Meta,
    ProgramStep,
    Ref,
    TensorMeta,
    TracedProgram,
)

Entry = Mapping[str, Any]
"""An object of the file."""
_SCHEMA = 8
MOST_BYTES = 64 * 2**20
"""Most bytes of one program: some 20,000 calls of operators."""
_OLD_MODEL = "serialized_exported_program.json"
"""Name in archives of PyTorch before 2.8."""
_TYPES: Mapping[int, tuple[str, float]] = {
    1: ("uint8", 1.0), 2: ("int8", 1.0), 3: ("int16", 2.0), 4: ("int32", 4.0), 5: ("int64", 8.0),
    6: ("float16", 2.0), 7: ("float32", 4.0), 8: ("float64", 8.0), 9: ("complex32", 4.0),
    10: ("complex64", 8.0), 11: ("complex128", 16.0), 12: ("bool", 1.0), 13: ("bfloat16", 2.0),
    28: ("uint16", 2.0), 29: ("float8_e4m3fn", 1.0), 30: ("float8_e5m2", 1.0),
    31: ("float8_e4m3fnuz", 1.0), 32: ("float8_e5m2fnuz", 1.0), 33: ("float8_e8m0fnu", 1.0),
    34: ("uint32", 4.0), 35: ("uint64", 8.0),
}  # fmt: skip
"""Types of elements by their number (``ScalarType`` of the schema), and their bytes."""


def read_exported(path: Path) -> TracedProgram:
    """Return the program of a file; for use inside of :func:`as_foreign`.

    Raises
    ------
    OSError, ValueError
        Where it is no archive, holds no program or another schema, or is too large.
    """
    with members_of(path, most_bytes=MOST_BYTES) as archive:
        return program_in(archive, str(path))


def program_in(archive: Members, origin: str) -> TracedProgram:
    """Return the program of an archive; see :func:`read_exported`."""
    name = _model_of(archive.names)
    return _program(json_content(archive.content(name).decode(), f"{origin}: {name}"))


def _model_of(names: Sequence[str]) -> str:
    """Return the name of the program in an archive: that of ``model``, or the only one."""
    found = [
        name
        for name in names
        if name == _OLD_MODEL or (name.endswith(".json") and name.split("/")[-2:-1] == ["models"])
    ]
    named = [name for name in found if name.endswith("/model.json")]
    if len(named or found) != 1:
        listed = ", ".join(found[:8]) or "none"
        raise ValueError(f"it should hold one program, models/model.json; found: {listed}")
    return (named or found)[0]


def _program(tree: Entry) -> TracedProgram:
    """Return the program in a JSON tree."""
    version = tree["schema_version"]
    if version["major"] != _SCHEMA:
        found = f"{version['major']}.{version['minor']}"
        raise ValueError(
            f"it has version {found} of the schema; version {_SCHEMA} is read, "
            "which PyTorch 2.6 and later write"
        )
    graph, signature = tree["graph_module"]["graph"], tree["graph_module"]["signature"]
    metas = _Metas(graph)
    return TracedProgram(
        inputs=tuple(filter(None, (_input(spec, metas) for spec in signature["input_specs"]))),
        steps=tuple(_steps(graph["nodes"], metas)),
        outputs=tuple(_outputs(signature["output_specs"])),
        version=f"torch.export, PyTorch {str(tree.get('torch_version', '2.6 or later'))[:40]}",
        ranges={
            str(name): (_whole(found.get("min_val")), _whole(found.get("max_val")))
            for name, found in tree["range_constraints"].items()
        },
        examples=dict(metas.examples()),
    )


def _whole(number: object) -> int | None:
    return number if isinstance(number, int) else None


class _Metas:
    """Facts on the tensors and numbers of a graph, by name."""

    def __init__(self, graph: Entry) -> None:
        self.tensors: Entry = graph["tensor_values"]
        self.numbers: Entry = graph["sym_int_values"]

    def tensor(self, name: str) -> TensorMeta:
        """Return the shape and the type of a tensor."""
        stated = self.tensors[name]
        if stated["dtype"] not in _TYPES:
            raise ValueError(f"the tensor {name} is of the unknown type {stated['dtype']!r}")
        dtype, word_bytes = _TYPES[stated["dtype"]]
        shape = tuple(_size(size) for size in stated["sizes"])
        return TensorMeta(shape, dtype, word_bytes, stated["requires_grad"] is True)

    def examples(self) -> Iterator[tuple[str, int]]:
        """Yield the values of the symbols of tensors when the program was made."""
        for stated in self.tensors.values():
            for size in stated["sizes"]:
                hint = (size.get("as_expr") or {}).get("hint") or {}
                if isinstance(number := hint.get("as_int"), int):
                    read = _size(size)
                    if isinstance(read, Expression) and read.symbols == {str(read)}:
                        yield str(read), number

    def of(self, argument: Entry) -> list[tuple[str, Meta]]:
        """Return the names and the facts of the outputs that one entry states."""
        ((kind, value),) = argument.items()
        if kind == "as_tensor":
            return [(value["name"], self.tensor(value["name"]))]
        if kind == "as_tensors":
            return [(entry["name"], self.tensor(entry["name"])) for entry in value]
        if kind == "as_sym_int":
            name = value.get("as_name", "")
            number = _size(self.numbers[name]) if name else _whole(value.get("as_int"))
            return [(name, number)]
        if kind == "as_optional_tensors":
            return [found for entry in value for found in self.of(entry)]
        return [("", None)]


def _size(stated: Entry) -> Size:
    """Return one size of a shape."""
    ((kind, value),) = stated.items()
    if kind == "as_int" and isinstance(value, int):
        return value
    if kind == "as_expr":
        read = read_expression(value["expr_str"])
        return read.head if isinstance(read.head, int) else read
    raise ValueError(f"{kind} is not a size")


_HELD = ("parameter", "buffer", "tensor_constant")


def _input(spec: Entry, metas: _Metas) -> Input | None:
    """Return one input; None for anything but a tensor or a number."""
    ((kind, stated),) = spec.items()
    if kind in _HELD:
        name = stated["arg"]["name"]
        return Input(name, metas.tensor(name), str(stated[f"{kind}_name"]), kind == "parameter")
    if kind != "user_input":
        return None
    ((name, meta),) = metas.of(stated["arg"])
    return Input(name, meta) if name else None


def _outputs(specs: Sequence[Entry]) -> Iterator[str]:
    """Yield the tensors that the program returns."""
    for spec in specs:
        ((kind, stated),) = spec.items()
        if kind in ("user_output", "loss_output"):
            argument = stated["arg"]
            named = argument if kind == "loss_output" else argument.get("as_tensor")
            yield from [named["name"]] if named else []


def _steps(nodes: Sequence[Entry], metas: _Metas) -> Iterator[ProgramStep]:
    """Yield the calls of a graph."""
    for place, node in enumerate(nodes):
        target = str(node["target"])
        if target.startswith("torch.ops.") and not target.startswith("torch.ops.higher_order."):
            operator = target.split(".")[3]  # torch.ops.aten.linear.default
        else:
            operator = target.rpartition(".")[2]
        outputs = [found for entry in node["outputs"] for found in metas.of(entry)]
        first = outputs[0][0] if len(outputs) == 1 else ""
        name = node.get("name") or first or f"{operator}.{place}"
        arguments = {
            str(entry["name"] or at): _argument(entry["arg"])
            for at, entry in enumerate(node["inputs"])
        }
        yield ProgramStep(str(name), operator, arguments, tuple(outputs))


def _argument(stated: Entry) -> object:
    """Return an argument: names of earlier results, numbers, texts, lists of them, a block."""
    ((kind, value),) = stated.items()
    if kind == "as_graph":
        graph = value["graph"]
        return Block(
            inputs=tuple(_argument_name(entry) for entry in graph["inputs"]),
            steps=tuple(_steps(graph["nodes"], _Metas(graph))),
            outputs=tuple(_argument(entry) for entry in graph["outputs"]),
        )
    if kind in ("as_tensor", "as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        return _named(value)
    if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_floats"):
        return [_named(entry) for entry in value]
    if kind == "as_nested_tensors":
        return [[_named(entry) for entry in listed] for listed in value]
    return None if kind == "as_none" else value


def _named(stated: Entry) -> object:
    """Return a reference, the number that stands in its place, or nothing."""
    if "as_tensor" in stated:
        stated = stated["as_tensor"]
    name = stated.get("name", stated.get("as_name"))
    if name is not None:
        return Ref(str(name))
    return next((stated[key] for key in ("as_int", "as_float", "as_bool") if key in stated), None)


def _argument_name(stated: Entry) -> str:
    """Return the name of an input of a block; a number that is no input has none."""
    found = _argument(stated)
    return found.name if isinstance(found, Ref) else ""
