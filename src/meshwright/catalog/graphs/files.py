"""Graphs of the catalog and of users: YAML or JSON to checked declarations, and back to files.

The check works on plain values, so that a file whose fields are partly wrong is still checked as a
whole. What is no list of names, no mapping, no tensor is passed over there: the types tell of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnknownNameError, nearest
from meshwright.catalog.files import (
    Location,
    PlainValues,
    data_names,
    fault_at,
    find_name,
    load_plain,
    path_text,
    read_text,
    read_tree,
)
from meshwright.spec.graph import GraphSpec, NamedTensor, read_tensor

Found = tuple[Location, str, str]
"""Where, what, and the nearest fix."""
NOT_IN_NAMES = "[]*, \t\n"


def graph_faults(value: Mapping[Any, Any]) -> list[Found]:
    """Return all faults of a graph in the order in which they stand in a file."""
    check = _GraphCheck(_mapping(value, "dims"), _mapping(value, "inputs"), _kernels(value))
    return [
        *check.of_dims(),
        *check.of_inputs(),
        *check.of_ends(value),
        *(fault for name in check.kernels for fault in check.of_kernel(name)),
        *check.of_unused(value),
        *check.of_cycle(),
    ]


@dataclass
class _GraphCheck:
    """The parts of one graph, as far as they can be read."""

    sizes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    kernels: Mapping[str, Mapping[str, Any]]
    weights: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Elements of each weight, and where it was seen first."""

    def of_dims(self) -> Iterator[Found]:
        """Yield names that no tensor could state."""
        for dim in self.sizes:
            yield from _name_faults(dim, ("dims", dim))

    def of_inputs(self) -> Iterator[Found]:
        """Yield what is wrong with names and dims of inputs."""
        for name, dims in self.inputs.items():
            at = ("inputs", name)
            yield from _name_faults(name, at)
            yield from self.of_tensor(_names(dims), at)
            if name in self.kernels:
                yield at, "is the name of a kernel too", "give the input another name"

    def of_ends(self, value: Mapping[Any, Any]) -> Iterator[Found]:
        """Yield outputs that no kernel writes, constants that are no inputs, no tiled dim."""
        outputs = _names(value.get("outputs")) or ()
        for place, name in enumerate(outputs):
            if name not in self.kernels:
                message = f"no kernel {name!r}"
                yield ("outputs", place), message, nearest(name, self.kernels)
            elif name in outputs[:place]:
                yield ("outputs", place), f"{name!r} stands twice", ""
        for place, name in enumerate(_names(value.get("constants")) or ()):
            if name not in self.inputs:
                yield ("constants", place), f"no input {name!r}", nearest(name, self.inputs)
        if "outputs" in value and value["outputs"] == []:
            yield ("outputs",), "is empty: nothing would be computed", "name the last kernel"
        tiled = value.get("tiled")
        if isinstance(tiled, str) and tiled not in self.sizes:
            yield ("tiled",), f"no dim {tiled!r}", nearest(tiled, self.sizes)

    def of_kernel(self, name: str) -> Iterator[Found]:
        """Yield what is wrong with one kernel."""
        kernel, at = self.kernels[name], ("kernels", name)
        yield from _name_faults(name, at)
        yield from self.of_tensor(_names(kernel.get("writes")), (*at, "writes"))
        seen = set(_singles(_names(kernel.get("writes"))))
        for place, read in _tensors(kernel.get("reads")):
            seen |= set(_singles(read.dims))
            yield from self.of_tensor(read.dims, (*at, "reads", place))
            yield from self.of_read(read, kernel.get("unit") == "none", (*at, "reads", place))
        for place, weight in _tensors(kernel.get("weights")):
            seen |= set(_singles(weight.dims))
            yield from self.of_tensor(weight.dims, (*at, "weights", place))
            yield from self.of_weight(weight, (*at, "weights", place))
        for place, dim in enumerate(_names(kernel.get("whole")) or ()):
            if dim not in seen:
                fix = nearest(dim, seen)
                yield (*at, "whole", place), f"no dim {dim!r} of this kernel", fix

    def of_tensor(self, dims: tuple[str, ...] | None, at: Location) -> Iterator[Found]:
        """Yield dims without a size, and dims that stand twice in a tensor."""
        singles = _singles(dims)
        for dim in dict.fromkeys(singles):
            if dim not in self.sizes:
                yield at, f"the dim {dim!r} has no size under `dims`", nearest(dim, self.sizes)
            elif singles.count(dim) > 1:
                yield at, f"the dim {dim!r} stands twice", "give one of them another name"

    def of_read(self, read: NamedTensor, is_move: bool, at: Location) -> Iterator[Found]:
        """Yield a read of what nobody makes, or of dims that it does not have."""
        if read.name in self.kernels:
            made = _names(self.kernels[read.name].get("writes"))
        elif read.name in self.inputs:
            made = _names(self.inputs[read.name])
        else:
            known = {*self.kernels, *self.inputs}
            yield at, f"no kernel or input {read.name!r}", nearest(read.name, known)
            return
        if made is None:
            return
        if len(made) != len(read.dims):
            message = f"reads {len(read.dims)} dims of {read.name!r}, which has {len(made)}"
            yield at, message, f"it is {NamedTensor(read.name, made)}"
            return
        for taken, there in zip(read.dims, made, strict=True):
            wanted, size = self.size(taken), self.size(there)
            if not is_move and wanted and size and wanted > size:
                message = f"reads {wanted:g} of {taken!r} where {read.name!r} has {size:g}"
                yield at, message, f"{there!r} stands there; only a move (unit: none) reads again"

    def of_weight(self, weight: NamedTensor, at: Location) -> Iterator[Found]:
        """Yield a weight that stands elsewhere with another size."""
        elements = prod(self.size(dim) or 1.0 for dim in weight.dims)
        first, where = self.weights.setdefault(weight.name, (elements, str(at[1])))
        if first != elements:
            message = f"{weight.name!r} has {elements:g} elements here and {first:g} in {where!r}"
            yield at, message, "one weight has one size; give one of them another name"

    def size(self, dim: str) -> float | None:
        """Return the size of a dim, or None where it has none that is right."""
        sizes = [self.sizes.get(name) for name in _singles((dim,))]
        if all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes):
            return prod(float(size) for size in sizes if size is not None)
        return None

    def of_unused(self, value: Mapping[Any, Any]) -> Iterator[Found]:
        """Yield inputs, dims and results that nobody uses: they are slips of the pen."""
        read = {r.name for k in self.kernels.values() for _, r in _tensors(k.get("reads"))}
        outputs = _names(value.get("outputs")) or ()
        for name in self.inputs:
            if name not in read:
                yield ("inputs", name), "no kernel reads it", nearest(name, read)
        for name in self.kernels:
            if name not in read and name not in outputs:
                message = "nobody reads what it writes, and it is no output"
                yield ("kernels", name), message, "add it to `outputs`, or take it out"
        used = {dim for dims in self.all_dims() for dim in _singles(dims)}
        for dim in self.sizes:
            if dim not in used:
                yield ("dims", dim), "no tensor has this dim", nearest(str(dim), used)

    def all_dims(self) -> Iterator[tuple[str, ...] | None]:
        """Yield the dims of every tensor."""
        yield from (_names(dims) for dims in self.inputs.values())
        for kernel in self.kernels.values():
            yield _names(kernel.get("writes"))
            for part in ("reads", "weights"):
                yield from (tensor.dims for _, tensor in _tensors(kernel.get(part)))

    def of_cycle(self) -> Iterator[Found]:
        """Yield one cycle, by the names of its kernels."""
        cycle = find_cycle(
            {
                name: [r.name for _, r in _tensors(k.get("reads")) if r.name in self.kernels]
                for name, k in self.kernels.items()
            }
        )
        if cycle:
            path = " reads ".join([*cycle, cycle[0]])
            yield ("kernels", cycle[0]), f"is in a cycle: {path}", "a kernel cannot wait for itself"


def find_cycle(reads: Mapping[str, list[str]]) -> list[str]:
    """Return kernels of which each reads the next and the last the first; none: no cycle."""
    waiting = {name: set(sources) for name, sources in reads.items()}
    readers: dict[str, list[str]] = {name: [] for name in reads}
    for name, sources in waiting.items():
        for source in sources:
            readers[source].append(name)
    ready = [name for name, sources in waiting.items() if not sources]
    while ready:
        done = ready.pop()
        del waiting[done]
        for name in readers[done]:
            waiting[name].discard(done)
            if not waiting[name]:
                ready.append(name)
    if not waiting:
        return []
    path = [next(iter(waiting))]
    while (following := min(waiting[path[-1]])) not in path:
        path.append(following)
    return path[path.index(following) :]


def _kernels(value: Mapping[Any, Any]) -> dict[str, Mapping[str, Any]]:
    kernels = _mapping(value, "kernels").items()
    return {name: kernel for name, kernel in kernels if isinstance(kernel, Mapping)}


def _mapping(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return {str(k): v for k, v in found.items()} if isinstance(found, Mapping) else {}


def _names(value: Any) -> tuple[str, ...] | None:
    """Return a list of names, or None where it is none."""
    is_list = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return tuple(value) if is_list else None


def _singles(dims: tuple[str, ...] | None) -> list[str]:
    return [name for dim in dims or () for name in dim.split("*")]


def _tensors(value: Any) -> Iterator[tuple[int, NamedTensor]]:
    """Yield the tensors of a list that are written as they should, with their places."""
    for place, text in enumerate(value if isinstance(value, list | tuple) else ()):
        try:
            yield place, read_tensor(text)
        except ValueError:
            continue


def _name_faults(name: str, at: Location) -> Iterator[Found]:
    bad = [sign for sign in NOT_IN_NAMES if sign in name]
    if bad or not name:
        yield at, f"{name!r} cannot be a name", "names have no space, comma, star or bracket"


_PLAIN = re.compile(r"[A-Za-z_][\w.*/-]*")
_WORDS_OF_YAML = frozenset({"true", "false", "null", "Null", "NULL"})


def graph_record(spec: GraphSpec) -> dict[str, Any]:
    """Return a graph as plain values, what is as by default left out, but for its word."""
    record = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    first: dict[str, Any] = {}
    for key in ("name", "about", "sources", "tiled"):
        if key in record:
            first[key] = record.pop(key)
    return {**first, "word": f"{spec.word_bytes:.17g} B", **record}


def graph_yaml(spec: GraphSpec) -> str:
    """Return a graph as a file for people; reading it gives the same graph."""
    return "\n".join(_lines(graph_record(spec), 0)) + "\n"


def _lines(record: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield a mapping as lines: short lists of names in one line, all else below its key."""
    indent = "  " * depth
    for key, value in record.items():
        head = f"{indent}{_scalar(key)}:"
        if isinstance(value, Mapping):
            yield f"{head} {{}}" if not value else head
            yield from _lines(value, depth + 1)
        elif isinstance(value, list) and value and not _are_plain(value):
            yield head
            yield from (f"{indent}  - {_entry(entry)}" for entry in value)
        else:
            yield f"{head} {_entry(value)}"


def _entry(value: Any) -> str:
    """Return what stands on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_scalar(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """Return a scalar, in quotes where YAML would take it for something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    is_tensor = re.fullmatch(r"[A-Za-z_][\w./-]*\[[\w., *]*\]( of [0-9.]+ bytes)?", value)
    is_quantity = re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)? B", value)
    is_plain = _PLAIN.fullmatch(value) and value not in _WORDS_OF_YAML
    return value if is_plain or is_tensor or is_quantity else json.dumps(value)


def _are_plain(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) and "[" not in value for value in values)


_FOLDER = "graphs"


def graph_names() -> tuple[str, ...]:
    """Return the graphs of the catalog."""
    return tuple(data_names(_FOLDER))


def catalog_graph(name: str) -> GraphSpec:
    """Return a graph of the catalog.

    Raises
    ------
    UnknownNameError
        When there is no such graph; lists the near ones.
    """
    found = find_name(name, graph_names())
    if found is None:
        raise UnknownNameError("graph", name, graph_names())
    return read_graph(data_names(_FOLDER)[found])


def read_graph(path: str | Path) -> GraphSpec:
    """Return the graph of a file.

    Raises
    ------
    SpecError
        With all faults of the file, each with its place.
    """
    return graph_of_text(read_text(Path(path)), origin=str(path))


def is_graph_file(path: str | Path) -> bool:
    """Tell whether a file may hold a graph: YAML does, JSON where it has kernels."""
    if Path(path).suffix.lower() != ".json":
        return True
    return "kernels" in read_tree(read_text(Path(path)), str(path)).value


def graph_of_text(text: str, *, origin: str = "") -> GraphSpec:
    """Return the graph of a YAML or JSON text; see :func:`read_graph`."""
    tree = read_tree(text, origin)
    plain = PlainValues(value=tree.value)
    for at, message, fix in graph_faults(tree.value):
        plain.faults.append(fault_at(tree.lines, at, message, fix))
    return load_plain(GraphSpec, tree, plain, origin=origin)


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
