"""Graphs of the catalog and of users: YAML or JSON to checked declarations, and back to files.

The check works on plain values, so that a file whose fields are partly wrong is still checked as a
whole. Values that are not lists of names, mappings or tensors are left to the types of the
declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

import yaml

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import (
    FLOAT,
    Location,
    PlainValues,
    data_names,
    data_path,
    load_plain,
    path_text,
    read_text,
    read_tree,
)
from meshwright.spec.graph import GraphSpec, NamedTensor, read_tensor

Found = tuple[Location, str, str]
"""Location of a fault, the message, and the nearest fix."""
FileTree = Mapping[Any, object]
NOT_IN_NAMES = "[]*, \t\n"


def graph_faults(value: FileTree) -> list[Found]:
    """Return all faults of a graph, in the order of the parts of a file."""
    return list(_GraphCheck(value).faults())


class _Kernel:
    """One kernel, as far as it can be read; places of tensors in their lists are kept."""

    def __init__(self, record: Mapping[str, object]) -> None:
        self.writes = _names(record.get("writes"))
        self.whole = _names(record.get("whole")) or ()
        self.reads = list(_tensors(record.get("reads")))
        self.weights = list(_tensors(record.get("weights")))
        self.is_move = record.get("unit") == "none"


class _GraphCheck:
    """The parts of one graph, as far as they can be read."""

    def __init__(self, value: FileTree) -> None:
        self.value = value
        self.sizes = _mapping(value, "dims")
        self.inputs = {name: _names(dims) for name, dims in _mapping(value, "inputs").items()}
        self.kernels = {
            name: _Kernel(kernel)
            for name, kernel in _mapping(value, "kernels").items()
            if isinstance(kernel, Mapping)
        }
        self.outputs = _names(value.get("outputs")) or ()
        self.elements: dict[str, tuple[float, str]] = {}
        """Elements of each weight, and the kernel that holds it first."""

    def faults(self) -> Iterator[Found]:
        """Yield all faults."""
        for key in ("name", "tiled"):
            if isinstance(text := self.value.get(key), str) and not text.isprintable():
                yield (key,), f"{text!r} has a sign that cannot be printed", "take it out"
        for dim in self.sizes:
            yield from _name_faults(dim, ("dims", dim))
        for name, dims in self.inputs.items():
            yield from _name_faults(name, ("inputs", name))
            yield from self._tensor(dims, ("inputs", name))
            if name in self.kernels:
                fix = "give the input another name"
                yield ("inputs", name), "is the name of a kernel too", fix
        yield from self._ends()
        for name, kernel in self.kernels.items():
            yield from self._kernel(kernel, name)
        yield from self._unused()
        reads = {
            name: [read.name for _, read in kernel.reads if read.name in self.kernels]
            for name, kernel in self.kernels.items()
        }
        try:
            TopologicalSorter(reads).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]
            message = f"is in a cycle: {' reads '.join(cycle)}"
            yield ("kernels", cycle[0]), message, "a kernel cannot wait for itself"

    def _ends(self) -> Iterator[Found]:
        """Yield outputs that no kernel writes, constants that are no inputs, no tiled dim."""
        for place, name in enumerate(self.outputs):
            if name not in self.kernels:
                yield ("outputs", place), f"no kernel {name!r}", nearest(name, self.kernels)
            elif name in self.outputs[:place]:
                yield ("outputs", place), f"{name!r} is listed twice", ""
        for name, layout in _mapping(self.value, "output_layouts").items():
            if name not in self.outputs:
                fix = nearest(name, self.outputs)
                yield ("output_layouts", name), f"no output {name!r}", fix
            elif name in self.kernels and isinstance(layout, str):
                dims = self.kernels[name].writes or ()
                allowed = [*(dim.split("*")[0] for dim in dims), "whole"]
                if layout not in allowed:
                    message = f"{name!r} cannot lie split over {layout!r}"
                    yield ("output_layouts", name), message, f"one of: {', '.join(allowed)}"
        for place, name in enumerate(_names(self.value.get("constants")) or ()):
            if name not in self.inputs:
                yield ("constants", place), f"no input {name!r}", nearest(name, self.inputs)
        if self.value.get("outputs") == []:
            yield ("outputs",), "is empty: nothing would be computed", "name the last kernel"
        tiled = self.value.get("tiled")
        if isinstance(tiled, str) and tiled not in self.sizes:
            yield ("tiled",), f"no dim {tiled!r}", nearest(tiled, self.sizes)

    def _kernel(self, kernel: _Kernel, name: str) -> Iterator[Found]:
        """Yield the faults of one kernel."""
        at: Location = ("kernels", name)
        yield from _name_faults(name, at)
        yield from self._tensor(kernel.writes, (*at, "writes"))
        for place, read in kernel.reads:
            yield from self._tensor(read.dims, (*at, "reads", place))
            yield from self._read(read, kernel.is_move, (*at, "reads", place))
        for place, weight in kernel.weights:
            yield from self._tensor(weight.dims, (*at, "weights", place))
            elements = prod(self._size(dim) or 1.0 for dim in weight.dims)
            first, where = self.elements.setdefault(weight.name, (elements, name))
            if first != elements:
                message = f"{elements:g} elements here and {first:g} in {where!r}"
                fix = "one weight has one size; give one of them another name"
                yield (*at, "weights", place), f"{weight.name!r} has {message}", fix
        held = (tensor.dims for _, tensor in (*kernel.reads, *kernel.weights))
        seen = {dim for dims in (kernel.writes, *held) for dim in _singles(dims)}
        for place, dim in enumerate(kernel.whole):
            if dim not in seen:
                fix = nearest(dim, seen)
                yield (*at, "whole", place), f"no dim {dim!r} of this kernel", fix

    def _tensor(self, dims: tuple[str, ...] | None, at: Location) -> Iterator[Found]:
        """Yield dims without a size, and dims that a tensor has twice."""
        singles = _singles(dims)
        for dim in dict.fromkeys(singles):
            if dim not in self.sizes:
                yield at, f"the dim {dim!r} has no size under `dims`", nearest(dim, self.sizes)
            elif singles.count(dim) > 1:
                yield at, f"the dim {dim!r} is there twice", "give one of them another name"

    def _read(self, read: NamedTensor, is_move: bool, at: Location) -> Iterator[Found]:
        """Yield the fault of a read whose source does not exist, or lacks the dims."""
        made = self.inputs.get(read.name)
        if read.name in self.kernels:
            made = self.kernels[read.name].writes
        elif read.name not in self.inputs:
            fix = nearest(read.name, {*self.kernels, *self.inputs})
            yield at, f"no kernel or input {read.name!r}", fix
        if made is None:
            return
        if len(made) != len(read.dims):
            message = f"reads {len(read.dims)} dims of {read.name!r}, which has {len(made)}"
            yield at, message, f"it is {NamedTensor(read.name, made)}"
            return
        for taken, there in zip(read.dims, made, strict=True):
            wanted, size = self._size(taken), self._size(there)
            if not is_move and wanted and size and wanted > size:
                message = f"reads {wanted:g} of {taken!r} where {read.name!r} has {size:g}"
                yield at, message, f"its dim is {there!r}; only a move (unit: none) reads again"

    def _size(self, dim: str) -> float | None:
        """Return the size of a dim, or None where it has none that is right."""
        sizes = [self.sizes.get(name) for name in dim.split("*")]
        if all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes):
            return prod(float(size) for size in sizes if size is not None)
        return None

    def _unused(self) -> Iterator[Found]:
        """Yield unused inputs, dims and results: they are likely typing errors."""
        kernels = self.kernels.values()
        read = {tensor.name for kernel in kernels for _, tensor in kernel.reads}
        for name in self.inputs:
            if name not in read:
                yield ("inputs", name), "no kernel reads it", nearest(name, read)
        for name in self.kernels:
            if name not in read and name not in self.outputs:
                message = "nothing reads its result, and it is not an output"
                yield ("kernels", name), message, "add it to `outputs`, or take it out"
        tensors = [*self.inputs.values(), *(kernel.writes for kernel in kernels)]
        tensors += [held.dims for k in kernels for _, held in (*k.reads, *k.weights)]
        used = {dim for dims in tensors for dim in _singles(dims)}
        for dim in self.sizes:
            if dim not in used:
                yield ("dims", dim), "no tensor has this dim", nearest(str(dim), used)


def _mapping(value: FileTree, key: str) -> dict[str, Any]:
    found = value.get(key)
    return {str(k): v for k, v in found.items()} if isinstance(found, Mapping) else {}


def _names(value: object) -> tuple[str, ...] | None:
    """Return a list of names, or None where it is none."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return None


def _singles(dims: tuple[str, ...] | None) -> list[str]:
    """Return the dims of a tensor, products of dims taken apart."""
    return [name for dim in dims or () for name in dim.split("*")]


def _tensors(value: object) -> Iterator[tuple[int, NamedTensor]]:
    """Yield the tensors of a list that are written as they should, with their places."""
    for place, text in enumerate(value if isinstance(value, list | tuple) else ()):
        with suppress(ValueError):
            yield place, read_tensor(text)


def _name_faults(name: str, at: Location) -> Iterator[Found]:
    if not name or any(sign in name for sign in NOT_IN_NAMES):
        yield at, f"{name!r} cannot be a name", "names have no space, comma, star or bracket"
    elif not name.isprintable():  # it would write to the terminal of who reads it
        yield at, f"{name!r} cannot be a name", "names have no sign that cannot be printed"


class _Writer(yaml.SafeDumper):
    """Writes lists of names on one line, and everything else below its key."""

    def represent_sequence(
        self, tag: str, sequence: Iterable[object], flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        names = list(sequence)
        is_short = all(isinstance(name, str) and "[" not in name for name in names)
        return super().represent_sequence(tag, names, is_short)


_Writer.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def graph_record(spec: GraphSpec) -> dict[str, object]:
    """Return a graph as plain values; defaults are left out, except the bytes of a word."""
    record = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    first = {key: record.pop(key) for key in ["name", "about", "sources", "tiled"] if key in record}
    return {**first, "word": f"{spec.word_bytes:.17g} B", **record}


def graph_yaml(spec: GraphSpec) -> str:
    """Return a graph as a file for people; reading it gives the same graph."""
    return yaml.dump(
        graph_record(spec), Dumper=_Writer, sort_keys=False, default_flow_style=False, width=10_000
    )


def graph_names() -> tuple[str, ...]:
    """Return the graphs of the catalog."""
    return tuple(data_names("graphs"))


def catalog_graph(name: str) -> GraphSpec:
    """Return a graph of the catalog.

    Raises
    ------
    UnknownNameError
        When there is no such graph; lists the near ones.
    """
    return read_graph(data_path("graphs", "graph", name))


def read_graph(path: str | Path) -> GraphSpec:
    """Return the graph of a file.

    Raises
    ------
    SpecError
        With all faults of the file, each with its place.
    """
    return graph_of_text(read_text(Path(path)), origin=str(path))


def is_graph_file(path: str | Path) -> bool:
    """Return whether a file may hold a graph: YAML does, JSON where it has kernels."""
    if Path(path).suffix.lower() != ".json":
        return True
    return "kernels" in read_tree(read_text(Path(path)), str(path)).value


def graph_of_text(text: str, *, origin: str = "") -> GraphSpec:
    """Return the graph of a YAML or JSON text; see :func:`read_graph`."""
    tree = read_tree(text, origin)
    plain = PlainValues(tree, tree.value)
    for at, message, fix in graph_faults(tree.value):
        plain.refuse(at, message, fix)
    return load_plain(GraphSpec, plain, origin=origin)


def checked(spec: GraphSpec) -> GraphSpec:
    """Return a graph that was not read from a file, once it is found right.

    Raises
    ------
    SpecError
        With all faults, each with its place.
    """
    found = graph_faults(graph_record(spec))
    if found:
        faults = [Fault(path_text(at), message, fix) for at, message, fix in found]
        raise SpecError(faults, origin=spec.name)
    return spec
