"""A tensor as an operation of a framework sees it, and its place in the tensor that was made.

A framework knows axes by number only. Here every axis is a row of factors. A reshape that splits
an axis splits its factor, one that merges axes puts their factors side by side, a transpose
changes their order: none of them is a kernel, for the reader still knows where each factor is.
An axis of size 1 has no factor. A factor that is only repeated (``expand``) is nowhere.

Operations say which axes are the same; the names of all dims of their kernels follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from math import prod
from typing import Any

from meshwright.base.errors import (
    Fault,
    MeshwrightError,
    SpecError,
    UnsupportedError,
    message_of,
)
from meshwright.catalog.graphs.dim_names import DimNames
from meshwright.catalog.graphs.files import NOT_IN_NAMES, checked
from meshwright.spec.graph import GraphSpec, KernelSpec, NamedTensor, Unit


class UnevenError(ValueError):
    """Axes that should be one have sizes or factors that do not fit each other."""


@dataclass(frozen=True, eq=False)
class ShapeFactor:
    """An axis, or a part of one after a reshape; two factors are the same only if they are one."""

    name: str
    size: int
    age: int
    """Older names win where several meet in a kernel."""


Axis = tuple[ShapeFactor, ...]
"""Factors side by side, the outer one first."""


@dataclass(frozen=True)
class Value:
    """Result of one operation as the next one sees it: a view of a kernel, an input or a weight."""

    source: str
    places: tuple[Axis, ...]
    """Factors of each dim of the tensor as it was made."""
    axes: tuple[Axis, ...]
    """Axes as the tensor is seen now."""
    word_bytes: float
    is_weight: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(size_of(axis) for axis in self.axes)

    def axis(self, number: int) -> int:
        """Return the number of an axis, counted from the end where it is negative."""
        return number % len(self.axes) if self.axes else 0

    def permuted(self, order: Sequence[int]) -> Value:
        """Return the value with its axes in another order."""
        return replace(self, axes=tuple(self.axes[self.axis(number)] for number in order))

    def split(self, parts: Mapping[ShapeFactor, Sequence[ShapeFactor]]) -> Value:
        """Return the value with some factors taken apart."""

        def taken_apart(axis: Axis) -> Axis:
            return tuple(part for factor in axis for part in parts.get(factor, (factor,)))

        return replace(
            self,
            places=tuple(map(taken_apart, self.places)),
            axes=tuple(map(taken_apart, self.axes)),
        )

    def expanded(self, shape: Sequence[int], age: int, *, inside: bool = False) -> Value:
        """Return the value repeated along axes, and along new ones before the first.

        Parameters
        ----------
        inside
            Whether each element is repeated in its place, not the axis as a whole.
        """
        before = len(shape) - len(self.axes)
        axes: list[Axis] = []
        for number, (axis, size) in enumerate(
            zip([()] * before + list(self.axes), shape, strict=True)
        ):
            times = size // size_of(axis)
            added = (ShapeFactor(f"{self.source}.repeat{number}", times, age),) if times > 1 else ()
            axes.append((*axis, *added) if inside else (*added, *axis))
        return replace(self, axes=tuple(axes))

    def reshaped(self, shape: Sequence[int]) -> Value:
        """Return the value in another shape.

        Raises
        ------
        UnevenError
            Where a factor would be cut unevenly: only a move can make this shape.
        """
        flat = [factor for axis in self.axes for factor in axis]
        parts = split_at(flat, [size for size in shape if size > 1])
        value = self.split(parts)
        left = [factor for axis in value.axes for factor in axis]
        axes = []
        for size in shape:
            taken: list[ShapeFactor] = []
            while prod(factor.size for factor in taken) < size:
                taken.append(left.pop(0))
            axes.append(tuple(taken))
        return replace(value, axes=tuple(axes))


def size_of(axis: Axis) -> int:
    """Return the size of an axis."""
    return prod(factor.size for factor in axis)


def ends_of(sizes: Sequence[int]) -> list[int]:
    """Return the product of the sizes up to and with each factor."""
    return [prod(sizes[: number + 1]) for number in range(len(sizes))]


def split_at(
    factors: Sequence[ShapeFactor], sizes: Sequence[int]
) -> dict[ShapeFactor, tuple[ShapeFactor, ...]]:
    """Return the parts into which to split factors so that cuts between other sizes fall on theirs.

    Raises
    ------
    UnevenError
        Where a cut falls unevenly inside a factor, as in 6 x 4 seen as 8 x 3.
    """
    ends = ends_of([factor.size for factor in factors])
    cuts = sorted({1, *ends, *ends_of(sizes)})
    if any(after % before for before, after in pairwise(cuts)):
        raise UnevenError(
            f"factors {[f.size for f in factors]} against {list(sizes)} along one axis"
        )
    starts = [1, *ends][: len(ends)]
    parts: dict[ShapeFactor, tuple[ShapeFactor, ...]] = {}
    for factor, start, end in zip(factors, starts, ends, strict=True):
        inside = [cut for cut in cuts if start <= cut <= end]
        if len(inside) > 2:
            parts[factor] = tuple(
                ShapeFactor(f"{factor.name}.{number}", after // before, factor.age)
                for number, (before, after) in enumerate(pairwise(inside))
            )
    return parts


Key = Hashable
Keys = Sequence[Key]
"""Meaning of the axes of a tensor in an operation, like the letters of an einsum."""


@dataclass
class GraphBuilder:
    """A graph that grows kernel by kernel; dims are named as operations tie axes together."""

    word_bytes: float
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kernels: dict[str, KernelSpec] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    num_names: int = 0
    call_word_bytes: float | None = None
    """Bytes of an element of the output of an operator, for kernels that state no other."""
    names: DimNames = field(default_factory=DimNames)
    taken: Counter[str] = field(default_factory=Counter)
    """Further kernels of one name."""

    def input(
        self,
        name: str,
        shape: Sequence[int],
        word_bytes: float,
        dims: Sequence[str] | None = None,
        *,
        is_constant: bool = False,
        is_held: bool = False,
    ) -> Value:
        """Return an input of the graph, its axes named by the user or by their number.

        Parameters
        ----------
        is_constant
            Whether it has no gradient.
        is_held
            Whether the module holds it, as weights.
        """
        value = self._made(name, shape, word_bytes, dims, is_held=is_held)
        self.names.stated |= set(dims or ())
        if len(shape) < 4 and not is_held:
            named = [axis[0].name if axis else "" for axis in value.axes]
            self.names.guess([name for name in named if name])
        self.constants += [name] if is_constant else []
        self.inputs[name] = tuple(factor.name for (factor,) in value.places)
        for (factor,) in value.places:
            self.sizes[factor.name] = factor.size
        return value

    def weight(self, name: str, shape: Sequence[int], word_bytes: float) -> Value:
        """Return a weight; its dims are named by the kernels that hold it."""
        return replace(self._made(name, shape, word_bytes, None, is_held=True), is_weight=True)

    def _made(
        self,
        name: str,
        shape: Sequence[int],
        word_bytes: float,
        dims: Sequence[str] | None,
        *,
        is_held: bool = False,
    ) -> Value:
        stem = name.removesuffix(".weight")
        names = dims or [f"{stem}.{number}" for number in range(len(shape))]
        axes = tuple(
            (self.factor(dim, size, stem, is_held=is_held),) if size > 1 else ()
            for dim, size in zip(names, shape, strict=True)
        )
        return Value(name, tuple(axis for axis in axes if axis), axes, word_bytes)

    def factor(self, hint: str, size: int, maker: str, *, is_held: bool = False) -> ShapeFactor:
        """Return a new factor, younger than all there are."""
        self.num_names += 1
        name, made_by = (
            "".join("_" if sign in NOT_IN_NAMES else sign for sign in text)
            for text in (hint, maker)
        )
        self.names.makers.setdefault(name, (made_by, is_held))
        return ShapeFactor(name, size, self.num_names)

    def emit(
        self,
        name: str,
        unit: Unit,
        operands: Sequence[tuple[Value, Keys]],
        writes: Keys,
        *,
        fresh: Mapping[Any, int] | None = None,
        whole: Keys = (),
        flops_per_point: float | None = None,
        is_sum: bool = False,
        word_bytes: float | None = None,
    ) -> Value:
        """Add a kernel and return its output.

        Parameters
        ----------
        operands
            Values, each with a key for every axis; axes of one key are one.
        writes
            Keys of the output. Axes that it lacks are summed over.
        fresh
            Sizes of axes of the output that no operand has, by key.

        Raises
        ------
        UnevenError
            Where axes of one key do not fit each other.
        """
        word_bytes = self.call_word_bytes if word_bytes is None else word_bytes
        free = name
        while free in self.kernels or free in self.inputs:
            self.taken[name] += 1
            free = f"{name}.{self.taken[name] + 1}"
        operands = _aligned(operands)
        for key, size in (fresh or {}).items():
            axis: Axis = (self.factor(f"{free}.{key}", size, free),) if size > 1 else ()
            operands.append((Value("", (), (axis,), 0.0), (key,)))
        names, ages = self._names(operands, writes)
        for value, keys in operands:
            self.note(value, keys)
            for key, axis in zip(keys, value.axes, strict=True):
                for factor in axis:
                    self.names.use(names[factor], key)
        axes: list[Axis] = []
        for key in writes:
            seen = max((_of_keys(value, keys, (key,)) for value, keys in operands), key=len)
            axes.append(tuple(ShapeFactor(names[f], f.size, ages[names[f]]) for f in seen))
        reads, weights = [], []
        for value, _ in operands:
            dims = tuple("*".join(names[factor] for factor in place) for place in value.places)
            if value.is_weight:
                word = self._other_word(value.word_bytes)
                weights.append(NamedTensor(value.source, dims, word))
            elif value.source:
                reads.append(NamedTensor(value.source, dims))
        self.kernels[free] = KernelSpec(
            unit=unit,
            reads=tuple(reads),
            weights=tuple(weights),
            writes=tuple(factor.name for axis in axes for factor in axis),
            whole=tuple(names[f] for v, keys in operands for f in _of_keys(v, keys, whole)),
            flops_per_point=flops_per_point,
            word_bytes=self._other_word(word_bytes),
            is_sum=is_sum,
        )
        places = tuple((factor,) for axis in axes for factor in axis)
        return Value(free, places, tuple(axes), word_bytes or self.word_bytes)

    def note(self, value: Value, keys: Keys) -> None:
        """Note the uses of the axes of a value, for their names."""
        for key, axis in zip(keys, value.axes, strict=True):
            for factor in axis:
                self.names.use(factor.name, key)

    def _other_word(self, word_bytes: float | None) -> float | None:
        """Return the bytes of an element of a tensor; None: the word of the graph."""
        return None if word_bytes in (None, self.word_bytes) else word_bytes

    def _names(
        self, operands: Sequence[tuple[Value, Keys]], writes: Keys
    ) -> tuple[dict[ShapeFactor, str], dict[str, int]]:
        """Return a name for each factor, one for those that are one dim here, and its age.

        The oldest name wins that is free in this kernel and has this size everywhere.
        """
        roles: dict[tuple[Key, int], list[ShapeFactor]] = {}
        order = {key: place for place, key in enumerate(writes)}
        for value, keys in operands:
            for key, axis in zip(keys, value.axes, strict=True):
                for number, factor in enumerate(axis):
                    roles.setdefault((key, number), []).append(factor)
        names: dict[ShapeFactor, str] = {}
        ages: dict[str, int] = {}
        for role in sorted(roles, key=lambda role: order.get(role[0], len(order))):
            factors = sorted(roles[role], key=lambda factor: factor.age)
            name = self._free_name(factors, ages)
            ages[name] = factors[0].age
            names |= dict.fromkeys(factors, name)
        return names, ages

    def _free_name(self, factors: Sequence[ShapeFactor], taken: Mapping[str, int]) -> str:
        size, first = factors[0].size, factors[0].name
        names = [factor.name for factor in factors]
        for name in chain(names, (f"{first}_{number}" for number in count(2))):
            if name not in taken and self.sizes.setdefault(name, size) == size:
                return name
        raise AssertionError("there is always a further number")

    def graph(
        self, name: str, outputs: Sequence[Value], *, origin: str, **other: object
    ) -> GraphSpec:
        """Return the checked graph of everything that leads to the outputs.

        Parameters
        ----------
        origin
            Source of the graph, for error messages.
        other
            Further fields; without ``tiled`` it is the dim that most kernels write.

        Raises
        ------
        SpecError
            Where no output comes from a kernel, no result has a dim, or names do not fit.
        """
        ends = tuple(dict.fromkeys(v.source for v in outputs if v.source in self.kernels))
        needed, waiting = set(), list(ends)
        while waiting:
            source = waiting.pop()
            if source in self.kernels and source not in needed:
                needed.add(source)
                waiting += [read.name for read in self.kernels[source].reads]
        kernels = {key: kernel for key, kernel in self.kernels.items() if key in needed}
        read = {read.name for kernel in kernels.values() for read in kernel.reads}
        inputs = {name: dims for name, dims in self.inputs.items() if name in read}
        written = Counter(dim for kernel in kernels.values() for dim in kernel.writes)
        if not written:
            raise SpecError(Fault("", "no output with a dim is computed"), origin=origin)
        held = [tensor.dims for k in kernels.values() for tensor in (*k.reads, *k.weights)]
        used = {
            name for dims in (*held, *inputs.values()) for dim in dims for name in dim.split("*")
        }
        given = (d for dims in inputs.values() for d in dims if not self.names.maker(d)[1])
        first = dict.fromkeys(chain(given, *map(_dims_of, kernels.values())))
        order = [*first, *(dim for dim in self.sizes if dim in used and dim not in first)]
        sizes = {dim: self.sizes[dim] for dim in order}
        named = self.names.readable(sizes, [_dims_of(kernel) for kernel in kernels.values()])
        tiled = other.pop("tiled", None) or named[max(written, key=written.__getitem__)]
        fields = {
            "name": name,
            "tiled": tiled,
            "word_bytes": self.word_bytes,
            "dims": {named[dim]: size for dim, size in sizes.items()},
            "inputs": {key: _renamed(dims, named) for key, dims in inputs.items()},
            "constants": [name for name in self.constants if name in inputs],
            "outputs": ends,
            "kernels": {key: _with_names(kernel, named) for key, kernel in kernels.items()},
        }
        return checked(GraphSpec.model_validate({**fields, **other}))


def _renamed(dims: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return dims under other names."""
    return tuple("*".join(names[part] for part in dim.split("*")) for dim in dims)


def _with_names(kernel: KernelSpec, names: Mapping[str, str]) -> KernelSpec:
    """Return a kernel with other names of its dims."""
    tensors = {
        key: tuple(replace(tensor, dims=_renamed(tensor.dims, names)) for tensor in found)
        for key, found in (("reads", kernel.reads), ("weights", kernel.weights))
    }
    dims = {"writes": _renamed(kernel.writes, names), "whole": _renamed(kernel.whole, names)}
    return kernel.model_copy(update={**tensors, **dims})


def _dims_of(kernel: KernelSpec) -> tuple[str, ...]:
    """Return all dims of a kernel in order, those side by side in one taken apart."""
    held = (*kernel.reads, *kernel.weights)
    found = (*(dim for tensor in held for dim in tensor.dims), *kernel.writes)
    return tuple(dict.fromkeys(part for dim in found for part in dim.split("*")))


def _aligned(operands: Sequence[tuple[Value, Keys]]) -> list[tuple[Value, Keys]]:
    """Return operands with factors of equal sizes under one key.

    Each has factors of its own: one that is read twice may mean two things.
    """
    cuts: dict[Key, set[int]] = {}
    wide: dict[Key, int] = {}
    for value, keys in operands:
        for key, axis in zip(keys, value.axes, strict=True):
            if axis and wide.setdefault(key, size_of(axis)) != size_of(axis):
                raise UnevenError(f"{size_of(axis)} and {wide[key]} elements along one axis")
            cuts.setdefault(key, set()).update(ends_of([factor.size for factor in axis]))
    aligned: list[tuple[Value, Keys]] = []
    for given, keys in operands:
        factors = {factor for axis in (*given.places, *given.axes) for factor in axis}
        value = given.split({factor: (replace(factor),) for factor in factors})
        parts: dict[ShapeFactor, tuple[ShapeFactor, ...]] = {}
        for key, axis in zip(keys, value.axes, strict=True):
            ends = sorted(cuts[key])
            sizes = [end // before for before, end in zip([1, *ends], ends, strict=False)]
            parts |= split_at(axis, sizes) if axis else {}
        aligned.append((value.split(parts), keys))
    return aligned


def _of_keys(value: Value, keys: Keys, wanted: Keys) -> Axis:
    return tuple(f for key, a in zip(keys, value.axes, strict=True) if key in wanted for f in a)


@contextmanager
def as_foreign(origin: str, fix: str = "") -> Iterator[None]:
    """Turn an error on a foreign file into one error with the name of the file."""
    try:
        yield
        return
    except (MeshwrightError, MemoryError):
        raise
    except RecursionError:
        reason = "it is nested too deep"
    except (OSError, ValueError) as error:
        reason = first_line(error)
    except (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        reason = f"it is damaged: {type(error).__name__} {first_line(error)}"
    raise SpecError(Fault("", f"cannot be read: {reason}", fix), origin=origin) from None


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error; its kind where it has none."""
    said = message_of(error) if isinstance(error, Exception) else str(error)
    return next(iter(said.strip().splitlines()), type(error).__name__)


def refuse_wrong_names(
    dims: Mapping[str, Sequence[str]], shapes: Mapping[str, Sequence[object]], origin: str
) -> None:
    """Raise all faults in the names that a user gave to the dims of inputs."""
    faults = [
        Fault(f"dims.{name}", "there is no such input", f"inputs: {', '.join(shapes)}")
        if name not in shapes
        else Fault(f"dims.{name}", f"{len(given)} names for {len(shapes[name])} dims")
        for name, given in dims.items()
        if name not in shapes or len(given) != len(shapes[name])
    ]
    if faults:
        raise SpecError(faults, origin=origin)


def refuse_unknown(unknown: Mapping[str, str], known: Iterable[str], origin: str) -> None:
    """Raise all operators that no rule knows, each with the first place where it occurs."""
    if unknown:
        faults = [Fault(place, f"operator {operator!r}") for operator, place in unknown.items()]
        listed, missing = ", ".join(sorted(known)), ", ".join(map(repr, unknown))
        message = f"{origin}: no kernel is known for {missing}; known operators: {listed}"
        raise UnsupportedError(message, faults)
