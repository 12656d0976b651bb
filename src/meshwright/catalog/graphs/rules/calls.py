"""One call of an operator, and the kernels that most operators are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.catalog.graphs.tracing import GraphBuilder, Key, Keys, UnevenError, Value


@dataclass(frozen=True)
class OpCall:
    """One operator of a program: its arguments by name, values of tensors among them."""

    name: str
    """Name of the kernel."""
    arguments: Mapping[str, Any]
    shapes: Sequence[Sequence[int]]
    """Shape of each output."""
    word_bytes: float
    """Bytes of an element of the first output."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def shape(self) -> Sequence[int]:
        """Shape of the first output."""
        return self.shapes[0]

    @property
    def values(self) -> list[Value]:
        """All tensors among the arguments."""
        found = (v if isinstance(v, list) else [v] for v in self.arguments.values())
        return [value for values in found for value in values if isinstance(value, Value)]

    @property
    def first(self) -> Value:
        """First tensor among the arguments."""
        if not self.values:
            raise UnevenError("reads one number only")
        return self.values[0]

    def axis(self, default: int = 0) -> int:
        """Return the axis of the first tensor that ``dim`` names."""
        return self.first.axis(default if self["dim"] is None else self["dim"])


Made = Value | list[Value | None] | None
Operand = tuple[Value, Keys]
"""A tensor that an operation reads, and the meaning of its axes."""
Rule = Callable[[GraphBuilder, OpCall], Made]


def reshaped(to: GraphBuilder, name: str, value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape: a view where it can be one, else a move."""
    try:
        return value.reshaped(shape)
    except UnevenError:
        operands = [(value, [("from", key) for key in range(len(value.axes))])]
        fresh, word = dict(enumerate(shape)), value.word_bytes
        return to.emit(name, "none", operands, range(len(shape)), fresh=fresh, word_bytes=word)


def moved(
    to: GraphBuilder,
    name: str,
    values: Sequence[Value],
    shape: Sequence[int],
    changed: Collection[int],
) -> Value:
    """Return a move: a part of an axis, several side by side, or other rows of one.

    ``changed`` are the axes along which the values are not those of the output. A move that holds
    weights reads numbers of rows, not data: next to results, weights are loaded first.
    """
    operands = []
    is_mixed = len({value.is_weight for value in values}) > 1
    for place, value in enumerate(values):
        keys = range(len(value.axes))
        if is_mixed and value.is_weight:
            word = value.word_bytes
            value = to.emit(f"{name}.{place}", "none", [(value, keys)], keys, word_bytes=word)
        operands.append((value, [(place, key) if key in changed else key for key in keys]))
    fresh = {key: shape[key] for key in changed}
    word = values[0].word_bytes
    made = to.emit(name, "none", operands, range(len(shape)), fresh=fresh, word_bytes=word)
    for key in changed:
        if len(made.axes[key]) == 1 == len(values[0].axes[key]):
            to.names.origins[made.axes[key][0].name] = values[0].axes[key][0].name
    return made


def rows(to: GraphBuilder, name: str, value: Value, axis: int, ids: Value | None) -> Value:
    """Return the elements at some places of one axis; a single place takes the axis out."""
    gone = value.axis(axis)
    found: list[Key] = [("row", number) for number in range(len(ids.axes))] if ids else []
    keys: list[Key] = ["row" if key == gone else key for key in range(len(value.axes))]
    operands: list[Operand] = [] if ids is None else [(ids, found)]
    writes = [*keys[:gone], *found, *keys[gone + 1 :]]
    return to.emit(name, "none", [*operands, (value, keys)], writes, word_bytes=value.word_bytes)


def elementwise(
    to: GraphBuilder,
    name: str,
    values: Sequence[Value],
    *,
    is_sum: bool = False,
) -> Value:
    """Return a function of each element, the last axes of all values being the same."""
    rank = max((len(value.axes) for value in values), default=0)
    operands = [(value, range(rank - len(value.axes), rank)) for value in values]
    same = len({value.shape for value in values}) == 1 and len(values) > 1
    return to.emit(name, "vector", operands, range(rank), is_sum=is_sum and same)


def along(
    to: GraphBuilder,
    name: str,
    value: Value,
    axes: Sequence[int],
    *,
    held: Sequence[Value] = (),
    kept: bool = True,
    needs_whole: bool = True,
) -> Value:
    """Return an operation over whole axes: softmax, norms, sums; ``kept`` where the axes stay.

    The axes of held tensors are the last of those in question, as of the gain of a norm.
    """
    keys: list[Key] = list(range(len(value.axes)))
    numbers = [value.axis(axis) for axis in axes]
    over: list[Key] = list(numbers)
    if held and len(over) == 1:
        keys[numbers[0]], over = "hidden", ["hidden"]
    operands: list[Operand] = [(value, keys)]
    operands += [(weight, over[len(over) - len(weight.axes) :]) for weight in held]
    writes = keys if kept else [key for key in keys if key not in over]
    whole = over if needs_whole else []
    return to.emit(name, "vector", operands, writes, whole=whole)


def axes_of(call: OpCall) -> Sequence[int]:
    """Return the axes that an operator names by ``dim`` or ``dims``; all where it names none."""
    named = call["dim"] if call["dim"] is not None else call["dims"]
    return [named] if isinstance(named, int) else named or range(len(call.first.axes))


def first_of(rule: Rule) -> Rule:
    """Return the rule of an operator with further outputs that are unread statistics."""

    def made(to: GraphBuilder, call: OpCall) -> Made:
        first = rule(to, call)
        return [*(first if isinstance(first, list) else [first]), *[None] * (len(call.shapes) - 1)]

    return made


def pairs(value: Value, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the size of each axis of a tensor, with the size of a shape at the same place."""
    return zip((1,) * (len(shape) - len(value.axes)) + value.shape, shape, strict=True)


def each_element(to: GraphBuilder, call: OpCall) -> Value:
    """Return a function of each element of all tensors among the arguments."""
    return elementwise(to, call.name, call.values)
