"""Operators of frameworks as kernels, by their name in PyTorch (ATen).

Views are no kernels, and operators without arithmetic are moves. Other formats are read by mapping
their operators to those of PyTorch, with the names of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2, prod
from typing import Any

import numpy as np

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.graphs.dim_names import SPACE
from meshwright.catalog.graphs.tracing import GraphBuilder, Key, Keys, UnevenError, Value, size_of


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


def made_by(
    to: GraphBuilder, operator: str, call: OpCall, *, node: str, written: str, origin: str
) -> Made:
    """Return the outputs of an operator.

    Parameters
    ----------
    operator
        Its name here.
    node, written
        Its name in the program, and the operator as that writes it; for messages.

    Raises
    ------
    SpecError
        Where its axes do not fit each other, or its arguments are not those of the operator.
    """
    to.call_word_bytes = call.word_bytes
    try:
        return RULES[operator](to, call)
    except UnevenError as error:
        reason = str(error)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        reason = f"its arguments do not fit ({type(error).__name__})"
    raise SpecError(Fault(node, f"{written}: {reason}"), origin=origin)


# views


def reshaped(to: GraphBuilder, name: str, value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape: a view where it can be one, else a move."""
    try:
        return value.reshaped(shape)
    except UnevenError:
        operands = [(value, [("from", key) for key in range(len(value.axes))])]
        fresh, word = dict(enumerate(shape)), value.word_bytes
        return to.emit(name, "none", operands, range(len(shape)), fresh=fresh, word_bytes=word)


def _reshape(to: GraphBuilder, call: OpCall) -> Value:
    return reshaped(to, call.name, call.first, call.shape)


def _permute(to: GraphBuilder, call: OpCall) -> Value:
    """Return the axes in another order, the reverse one where none is stated."""
    return call.first.permuted(call["dims"] or range(len(call.first.axes) - 1, -1, -1))


def _repeated(to: GraphBuilder, call: OpCall, *, inside: bool = False) -> Value:
    """Return a tensor repeated as a whole, or element by element: nothing is copied."""
    is_flat = inside and call["dim"] is None
    value = reshaped(to, call.name, call.first, [prod(call.first.shape)]) if is_flat else call.first
    if any(after % before for before, after in _pairs(value, call.shape)):
        raise UnevenError("repeats elements unequally often")
    return value.expanded(call.shape, to.num_names, inside=inside)


def _complex_view(to: GraphBuilder, call: OpCall) -> Value:
    """Return complex numbers as such, or as two numbers each along a further axis."""
    value = call.first
    if len(call.shape) == len(value.axes):
        return value
    return value.reshaped([*value.shape, 1]).expanded(call.shape, to.num_names)


def _pixel_shuffle(to: GraphBuilder, call: OpCall) -> Value:
    """Return channels put side by side in space."""
    value, times = call["self"], call["upscale_factor"]
    *batch, channels, height, width = value.shape
    cut = value.reshaped([*batch, channels // times**2, times, times, height, width])
    first = len(batch)
    order = [*range(first + 1), *(first + place for place in (3, 1, 4, 2))]
    return reshaped(to, call.name, cut.permuted(order), call.shape)


def _pairs(value: Value, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the size of each axis of a tensor, with the size of a shape at the same place."""
    return zip((1,) * (len(shape) - len(value.axes)) + value.shape, shape, strict=True)


def _transpose(to: GraphBuilder, call: OpCall) -> Value:
    value = call.first
    order = list(range(len(value.axes)))
    ends = [call[name] for name in ("dim0", "dim1", "axis0", "axis1") if call[name] is not None]
    first, second = map(value.axis, ends)
    order[first], order[second] = order[second], order[first]
    return value.permuted(order)


# moves


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


def _part(to: GraphBuilder, call: OpCall) -> Made:
    """Return parts of a tensor, or a padded one: moves along the axes with a new size."""
    value: Value = call.first
    made: list[Value | None] = []
    for number, shape in enumerate(call.shapes):
        if 0 in shape:
            made.append(None)
            continue
        pairs = enumerate(zip(value.shape, shape, strict=True))
        changed = [axis for axis, (before, after) in pairs if before != after]
        name = call.name if len(call.shapes) == 1 else f"{call.name}.{number}"
        made.append(moved(to, name, [value], shape, changed) if changed else value)
    return made if len(made) > 1 else made[0]


def _cat(to: GraphBuilder, call: OpCall) -> Value:
    values = call.values
    if len(values) == 1 and values[0].shape == tuple(call.shape):
        return values[0]
    return moved(to, call.name, values, call.shape, [values[0].axis(call["dim"] or 0)])


def _stack(to: GraphBuilder, call: OpCall) -> Value:
    axis = (call["dim"] or 0) % len(call.shape)
    ones = [size if number != axis else 1 for number, size in enumerate(call.shape)]
    values = [reshaped(to, call.name, value, ones) for value in call["tensors"]]
    return moved(to, call.name, values, call.shape, [axis])


def _overwritten(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with another one put into a part of one axis, or at places of it."""
    values = call.values
    if len(values) == 1:
        return values[0]
    sizes = [{value.shape[axis] for value in values} for axis in range(len(call.shape))]
    changed = [axis for axis, found in enumerate(sizes) if len(found) > 1 or axis == call.axis()]
    return moved(to, call.name, values, call.shape, changed)


def _selected_over(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with another one put at one place of an axis."""
    source, axis = call["src"], call.axis()
    shape = [*source.shape[:axis], 1, *source.shape[axis:]]
    put = {**call.arguments, "src": source.reshaped(shape)}
    return _overwritten(to, replace(call, arguments=put))


def _summed_up(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor to which others are added at places of one axis."""
    value, source, ids = call["self"], call["src"] or call["source"], call["index"]
    rest = [ids] if len(ids.axes) == len(source.axes) else []
    changed = [
        axis
        for axis, size in enumerate(value.shape)
        if axis == call.axis() or source.shape[axis] != size
    ]
    at = moved(to, f"{call.name}.rows", [source, *rest], value.shape, changed)
    return elementwise(to, call.name, [value, at], is_sum=True)


def _rearranged(to: GraphBuilder, call: OpCall) -> Value:
    """Return elements at other places; only first axes of the same size are unchanged."""
    same = 0
    for before, after in zip(call.first.shape, call.shape, strict=False):
        if before != after:
            break
        same += 1
    keys = [key if key < same else ("from", key) for key in range(len(call.first.axes))]
    fresh = {key: call.shape[key] for key in range(same, len(call.shape))}
    operands: list[Operand] = [(call.first, keys)]
    return to.emit(call.name, "none", operands, range(len(call.shape)), fresh=fresh)


def _gated(to: GraphBuilder, call: OpCall) -> Value:
    """Return one half of an axis times a function of the other half."""
    axis = call.axis(-1)
    halves = [moved(to, f"{call.name}.{n}", [call.first], call.shape, [axis]) for n in range(2)]
    return elementwise(to, call.name, halves)


def rows(to: GraphBuilder, name: str, value: Value, axis: int, ids: Value | None) -> Value:
    """Return the elements at some places of one axis; a single place takes the axis out."""
    gone = value.axis(axis)
    found: list[Key] = [("row", number) for number in range(len(ids.axes))] if ids else []
    keys: list[Key] = ["row" if key == gone else key for key in range(len(value.axes))]
    operands: list[Operand] = [] if ids is None else [(ids, found)]
    writes = [*keys[:gone], *found, *keys[gone + 1 :]]
    return to.emit(name, "none", [*operands, (value, keys)], writes, word_bytes=value.word_bytes)


def _embedding(to: GraphBuilder, call: OpCall) -> Value:
    value, ids = call["weight"], call["indices"]
    places = ["batch", "tokens"][-len(ids.axes) :] if len(ids.axes) < 3 else range(len(ids.axes))
    operands: list[Operand] = [(ids, places), (value, ["vocabulary", "hidden"])]
    return to.emit(call.name, "none", operands, [*places, "hidden"], word_bytes=value.word_bytes)


def _rows(to: GraphBuilder, call: OpCall) -> Value:
    return rows(to, call.name, call["self"], call["dim"] or 0, call["index"])


def _unbind(to: GraphBuilder, call: OpCall) -> Made:
    places = range(len(call.shapes))
    return [rows(to, f"{call.name}.{n}", call["self"], call["dim"] or 0, None) for n in places]


def _index(to: GraphBuilder, call: OpCall) -> Value:
    """Return the elements at places that tensors name, along one axis or several at once.

    The axes of those tensors replace the axes that they name, or come first where these are not
    neighbours.
    """
    value, given = call["self"], call["indices"]
    ids = {axis: found for axis, found in enumerate(given) if found is not None}
    rank = max(len(found.axes) for found in ids.values())
    places: list[Key] = [("row", number) for number in range(rank)]
    keys: list[Key] = [("at", a) if a in ids else a for a in range(len(value.axes))]
    operands = [(found, places[rank - len(found.axes) :]) for found in ids.values()]
    are_neighbours = max(ids) - min(ids) + 1 == len(ids)
    kept = [axis for axis in range(len(value.axes)) if axis not in ids]
    before = [axis for axis in kept if axis < min(ids)] if are_neighbours else []
    writes, word = [*before, *places, *kept[len(before) :]], value.word_bytes
    return to.emit(call.name, "none", [*operands, (value, keys)], writes, word_bytes=word)


def _index_put(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with elements put at places that tensors name; see :func:`_index`."""
    value, given = call["self"], call["indices"]
    ids = {axis: found for axis, found in enumerate(given) if found is not None}
    rank = max(len(found.axes) for found in ids.values())
    places: list[Key] = [("row", number) for number in range(rank)]
    keys = list(range(len(value.axes)))
    put = [*keys[: min(ids)], *places, *(key for key in keys[min(ids) :] if key not in ids)]
    operands: list[Operand] = [
        (value, [("own", key) if key in ids else key for key in keys]),
        (call["values"], put[len(put) - len(call["values"].axes) :]),
        *((found, places[rank - len(found.axes) :]) for found in ids.values()),
    ]
    fresh = {axis: value.shape[axis] for axis in ids}
    return to.emit(call.name, "none", operands, keys, fresh=fresh)


def _gather_tuples(to: GraphBuilder, call: OpCall) -> Value:
    """Return the elements at places, each a row of numbers for the first axes."""
    value, ids = call["self"], call["index"]
    places: list[Key] = [("row", number) for number in range(len(ids.axes) - 1)]
    keys: list[Key] = [("at", a) if a < ids.shape[-1] else a for a in range(len(value.axes))]
    operands = [(ids, [*places, "coordinate"]), (value, keys)]
    writes, word = [*places, *keys[ids.shape[-1] :]], value.word_bytes
    return to.emit(call.name, "none", operands, writes, word_bytes=word)


def _scatter_tuples(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with others put at places, each a row of numbers for the first axes."""
    value, ids, source = call["self"], call["index"], call["src"]
    places: list[Key] = [("row", number) for number in range(len(ids.axes) - 1)]
    keys: list[Key] = list(range(len(value.axes)))
    first = ids.shape[-1]
    operands = [
        (value, [("own", key) if key < first else key for key in keys]),
        (ids, [*places, "coordinate"]),
        (source, [*places, *keys[first:]]),
    ]
    fresh = {key: value.shape[key] for key in keys[:first]}
    return to.emit(call.name, "none", operands, keys, fresh=fresh)


def _gather(to: GraphBuilder, call: OpCall) -> Value:
    """Return one element of an axis for each element of the indices."""
    value, ids = call["self"], call["index"]
    gone, keys = value.axis(call["dim"]), list(range(len(ids.axes)))
    own: list[Key] = [
        key if key != gone and value.shape[key] == ids.shape[key] else ("own", key) for key in keys
    ]
    return to.emit(call.name, "none", [(ids, keys), (value, own)], keys)


def _constant(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor made from no input: a constant, a range of numbers."""
    keys, fresh = range(len(call.shape)), dict(enumerate(call.shape))
    return to.emit(call.name, "none", [], keys, fresh=fresh)


# functions of each element


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


def _elementwise(to: GraphBuilder, call: OpCall) -> Value:
    return elementwise(to, call.name, call.values)


def _add(to: GraphBuilder, call: OpCall) -> Value:
    return elementwise(to, call.name, call.values, is_sum=call["alpha"] in (None, 1))


def _dropout(to: GraphBuilder, call: OpCall) -> Value:
    return _elementwise(to, call) if call["train"] else call.first


# products


def matmul(
    to: GraphBuilder, name: str, left: Value, right: Value, bias: Value | None = None
) -> Value:
    """Return the product of the last two axes, over all others as they are broadcast.

    A weight is added in the product, as a bias; anything else is added behind it.
    """
    if bias is not None and not bias.is_weight:
        return elementwise(to, f"{name}.add", [matmul(to, name, left, right), bias], is_sum=True)
    first, second = len(left.axes) == 1, len(right.axes) == 1
    rank = max(len(left.axes), len(right.axes), 2) - 2
    left_keys = ["in"] if first else [*range(rank - len(left.axes) + 2, rank), "row", "in"]
    right_keys = ["in"] if second else [*range(rank - len(right.axes) + 2, rank), "in", "out"]
    writes = [*range(rank), *([] if first else ["row"]), *([] if second else ["out"])]
    operands: list[Operand] = [(left, left_keys), (right, right_keys)]
    if bias is not None:
        operands.append((bias, writes[len(writes) - len(bias.axes) :]))
    return to.emit(name, "matrix", operands, writes)


def _linear(to: GraphBuilder, call: OpCall) -> Value:
    """Return the product with a weight of shape (out, in)."""
    return matmul(to, call.name, call["input"], call["weight"].permuted((1, 0)), call["bias"])


def _addmm(to: GraphBuilder, call: OpCall) -> Value:
    left, right = call["mat1"] or call["batch1"], call["mat2"] or call["batch2"]
    return matmul(to, call.name, left, right, call["self"])


def _einsum(to: GraphBuilder, call: OpCall) -> Value:
    """Return an einsum with letters only: of several operands a product of two after the other.

    In the order of the fewest multiplications, as the libraries that compute it take one.
    """
    equation = call["equation"]
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise UnevenError(f"the equation {equation!r} is not of the form ab,bc->ac")
    operands = list(zip(call.values, left.split(","), strict=True))
    empty = [np.broadcast_to(np.float32(0.0), value.shape) for value, _ in operands]
    way = "optimal" if len(operands) <= _MOST_ORDERED else "greedy"
    for number, places in enumerate(np.einsum_path(equation, *empty, optimize=way)[0][1:]):
        part = [operands[at] for at in places]
        operands = [entry for at, entry in enumerate(operands) if at not in places]
        if not operands:
            break
        needed = set(right).union(*(letters for _, letters in operands))
        found = dict.fromkeys(x for _, letters in part for x in letters if x in needed)
        written = "".join(found)
        operands.append((to.emit(f"{call.name}.{number}", "matrix", part, written), written))
    return to.emit(call.name, "matrix", part, right)


_MOST_ORDERED = 6
"""Most operands for which all orders (2,700) are searched; of more, the cheapest comes first."""


def attention(
    to: GraphBuilder, name: str, query: Value, key: Value, value: Value, mask: Value | None = None
) -> Value:
    """Return scores, softmax and the product with the values; heads may share keys.

    The last three axes of the query are heads, rows and width.
    """
    first = len(query.axes) - 3
    batch: list[Key] = ["batch"] if first == 1 else list(range(first))
    heads, shared = query.shape[-3], key.shape[-3]
    if heads % shared:
        raise UnevenError(f"{heads} heads of queries over {shared} of keys")
    to.note(query, [*batch, "heads", "query", "head_dim"])
    to.note(key, [*batch, "heads", "keys", "head_dim"])
    grouped = [*query.shape[:-3], shared, heads // shared, *query.shape[-2:]]
    row, pair = [*batch, "heads", "shared", "query"], [*batch, "heads", "keys"]
    operands = [(query.reshaped(grouped), [*row, "head_dim"]), (key, [*pair, "head_dim"])]
    scores = to.emit(f"{name}.scores", "matrix", operands, [*row, "keys"])
    if mask is not None:
        flat = scores.reshaped([*query.shape[:-1], key.shape[-2]])
        scores = elementwise(to, f"{name}.masked", [flat, mask])
        scores = scores.reshaped([*grouped[:-1], key.shape[-2]])
    weights = along(to, f"{name}.softmax", scores, [-1])
    operands = [(weights, [*row, "keys"]), (value, [*pair, "value_dim"])]
    out = to.emit(f"{name}.values", "matrix", operands, [*row, "value_dim"])
    return out.reshaped([*query.shape[:-1], value.shape[-1]])


def _attention(to: GraphBuilder, call: OpCall) -> Value:
    parts = call["query"], call["key"], call["value"], call["attn_mask"]
    return attention(to, call.name, *parts)


def _convolution(to: GraphBuilder, call: OpCall) -> Value:
    """Return a convolution: a product over the channels of a group and the points of the kernel.

    A point of the output is at the place of a point of the input; the seam between two shards is
    not counted.
    """
    if call["transposed"]:
        return _transposed_convolution(to, call)
    value, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"] or 1
    if value.shape[1] % groups or call.shape[1] % groups:
        found = f"{value.shape[1]} and {call.shape[1]}"
        raise UnevenError(f"{groups} groups do not fit {found} channels")
    inner, outer = value.shape[1] // groups, call.shape[1] // groups
    seen = value.reshaped([value.shape[0], groups, inner, *value.shape[2:]])
    held = weight.reshaped([groups, outer, inner, *weight.shape[2:]])
    seen, space, taps = _windows(to, call.name, seen, call.shape[2:], weight.shape[2:])
    operands: list[Operand] = [
        (seen, ["batch", "group", "channels", *space]),
        (held, ["group", "filter", "channels", *taps]),
    ]
    if bias is not None:
        operands.append((bias.reshaped([groups, outer]), ["group", "filter"]))
    points = [key for key in space if key not in taps]
    out = to.emit(call.name, "matrix", operands, ["batch", "group", "filter", *points])
    return out.reshaped(call.shape)


def _transposed_convolution(to: GraphBuilder, call: OpCall) -> Value:
    """Return a transposed convolution: each point of the input makes a window of the output.

    Windows that overlap or are cut at the edge are put together by a move.
    """
    value, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"] or 1
    batch, channels, *space = value.shape
    inner, outer, window = channels // groups, weight.shape[1], weight.shape[2:]
    at = SPACE[len(space)]
    taps = [f"kernel_{axis}" for axis in at]
    operands: list[Operand] = [
        (value.reshaped([batch, groups, inner, *space]), ["batch", "group", "channels", *at]),
        (weight.reshaped([groups, inner, outer, *window]), ["group", "channels", "filter", *taps]),
    ]
    if bias is not None:
        operands.append((bias.reshaped([groups, outer]), ["group", "filter"]))
    points = [key for pair in zip(at, taps, strict=True) for key in pair]
    out = to.emit(call.name, "matrix", operands, ["batch", "group", "filter", *points])
    sizes = [points * taps for points, taps in zip(space, window, strict=True)]
    whole = out.reshaped([batch, groups * outer, *sizes])
    changed = [axis for axis, size in enumerate(call.shape) if size != whole.shape[axis]]
    return moved(to, f"{call.name}.put", [whole], call.shape, changed) if changed else whole


def _windows(
    to: GraphBuilder, name: str, value: Value, shape: Sequence[int], window: Sequence[int]
) -> tuple[Value, list[str], list[str]]:
    """Return a value with its last axes read by windows, and keys of these axes and of windows.

    A window for each point of the output is at the place of its middle. Where the output has one
    point only, the axis is the window. Reads beyond the edge are padded by a move.
    """
    first = len(value.axes) - len(shape)
    wanted = [taps if points == 1 else points for points, taps in zip(shape, window, strict=True)]
    uneven = [
        axis
        for axis, size in enumerate(wanted, first)
        if size > value.shape[axis] or (size != value.shape[axis] and len(value.axes[axis]) != 1)
    ]
    if uneven:
        padded = [*value.shape[:first], *map(max, value.shape[first:], wanted)]
        value = moved(to, f"{name}.padded", [value], padded, uneven)
    names = SPACE[len(window)]
    to.note(value, [*range(first), *names])
    parts = {
        axis[0]: (to.factor(f"{name}.{key}", size, name),)
        for key, axis, size in zip(names, value.axes[first:], wanted, strict=True)
        if axis and size_of(axis) != size
    }
    taps = [f"kernel_{key}" for key in names]
    space = [
        tap if points == 1 else key for key, tap, points in zip(names, taps, shape, strict=True)
    ]
    return value.split(parts), space, taps


def _pooling(to: GraphBuilder, call: OpCall) -> Value:
    """Return the largest or mean element of each window."""
    value, size = call["self"], call["kernel_size"]
    if size is None:
        pairs = zip(value.shape[2:], call.shape[2:], strict=True)
        size = [ceil(before / after) for before, after in pairs]
    window = list(size) * (len(value.axes) - 2 if len(size) == 1 else 1)
    first: list[Key] = list(range(len(call.shape) - len(window)))
    if len(first) == 2:
        first = ["batch", "channels"]
    seen, space, taps = _windows(to, call.name, value, call.shape[len(first) :], window)
    points = [key for key in space if key not in taps]
    inside = (size for key, size in zip(space, window, strict=True) if key in points)
    out = to.emit(
        call.name, "vector", [(seen, [*first, *space])], [*first, *points],
        whole=[key for key in space if key in taps], flops_per_point=float(prod(inside)),
    )  # fmt: skip
    return out.reshaped(call.shape)


def _grouped(to: GraphBuilder, call: OpCall) -> Value:
    """Return the product of rows, sorted by expert, with the weight of the expert of each.

    All experts have equally many slots, filled up where experts do not divide the rows; only rows
    are counted as work.
    """
    value, weight = call["input"] or call["self"], call["weight"] or call["mat2"]
    if len(value.axes) != 2 or len(weight.axes) != 3:
        raise UnevenError("groups along an axis that is summed over have no kernel here")
    num_rows, experts = value.shape[0], weight.shape[0]
    slots = ceil(num_rows / experts)
    if slots * experts != num_rows:
        shape = [slots * experts, value.shape[1]]
        value = moved(to, f"{call.name}.slots", [value], shape, [0])
    seen = reshaped(to, f"{call.name}.slots", value, [experts, slots, value.shape[1]])
    operands = [(seen, ["expert", "slot", "in"]), (weight, ["expert", "in", "out"])]
    out = to.emit(
        call.name, "matrix", operands, ["expert", "slot", "out"],
        flops_per_point=2.0 * num_rows / (slots * experts),
    )  # fmt: skip
    flat = out.reshaped([slots * experts, weight.shape[2]])
    filled = slots * experts != num_rows
    return moved(to, f"{call.name}.rows", [flat], call.shape, [0]) if filled else flat


# recurrent layers


def _recurrent(to: GraphBuilder, call: OpCall, *, gates: int) -> Made:
    """Return the states of all steps, and the last one of each layer and direction.

    The states of the step before, which the recurrent product reads, stand at the place of one
    gate of the projected input: a graph has no cycle. Steps cannot be split, and every step needs
    all states.
    """
    value, params, sides = call["input"], call["params"], 2 if call["bidirectional"] else 1
    each = len(params) // (sides * call["num_layers"])
    if each != (4 if call["has_biases"] else 2):
        raise UnevenError("projected states have no kernel here")
    time, last = int(bool(call["batch_first"]) and len(value.axes) == 3), []
    for number in range(call["num_layers"]):
        ways = []
        for side in range(sides):
            place = number * sides + side
            name = f"{call.name}.{number}" + (".back" if side else "")
            held = params[place * each : (place + 1) * each]
            ways.append(_layer(to, name, value, held, gates, time))
            end = rows(to, f"{name}.last", ways[-1], time, None)
            last.append(reshaped(to, name, end, [1, *end.shape]))
        width = sum(way.shape[-1] for way in ways)
        shape, axis = [*value.shape[:-1], width], len(value.axes) - 1
        value = (
            moved(to, f"{call.name}.{number}.cat", ways, shape, [axis]) if sides > 1 else ways[0]
        )
    ends = last[0] if len(last) == 1 else moved(to, f"{call.name}.last", last, call.shapes[1], [0])
    return [value, *[ends] * (len(call.shapes) - 1)]


def _layer(
    to: GraphBuilder, name: str, value: Value, held: Sequence[Value], gates: int, time: int
) -> Value:
    """Return the states of one layer in one direction."""
    of_input, of_state, *biases = held
    hidden, space = of_state.shape[1], ["batch", "batch"][: len(value.axes) - 1]
    space[time] = "tokens"
    both: list[list[Operand]] = [
        [(bias.reshaped([gates, hidden]), ["gate", "new_state"])] for bias in biases
    ] or [[], []]
    operands = [
        (value, [*space, "in"]),
        (of_input.reshaped([gates, hidden, value.shape[-1]]), ["gate", "new_state", "in"]),
        *both[0],
    ]
    writes = [*space, "gate", "new_state"]
    seen = to.emit(f"{name}.input", "matrix", operands, writes)
    states = rows(to, f"{name}.states", seen, len(space), None) if gates > 1 else seen
    operands = [
        (states.reshaped([*value.shape[:-1], hidden]), [*space, "state"]),
        (of_state.reshaped([gates, hidden, hidden]), ["gate", "new_state", "state"]),
        *both[1],
    ]
    again = to.emit(
        f"{name}.recurrent", "matrix", operands, writes, whole=["tokens", *writes[-2:], "state"]
    )
    both_read = [(seen, writes), (again, writes)]
    return to.emit(f"{name}.gates", "vector", both_read, [*space, "new_state"], whole=["tokens"])


def _recurrent_sides(to: GraphBuilder, call: OpCall, *, gates: int) -> Made:
    """Return the states of a layer whose directions are one axis of its tensors; all, then last."""
    value, of_input, of_state, name = call["input"], call["weight"], call["states"], call.name
    sides, _, hidden = of_state.shape
    writes = ["tokens", "sides", "batch", "gate", "new_state"]
    held = ["sides", "gate", "new_state"]
    operands = [
        (value, ["tokens", "batch", "in"]),
        (of_input.reshaped([sides, gates, hidden, value.shape[-1]]), [*held, "in"]),
    ]
    seen = to.emit(f"{name}.input", "matrix", operands, writes)
    before = rows(to, f"{name}.states", seen, 3, None)
    operands = [
        (before, ["tokens", "sides", "batch", "state"]),
        (of_state.reshaped([sides, gates, hidden, hidden]), [*held, "state"]),
    ]
    whole = ["tokens", "gate", "new_state", "state"]
    again = to.emit(f"{name}.recurrent", "matrix", operands, writes, whole=whole)
    operands = [(seen, writes), (again, writes)]
    if call["bias"] is not None:
        operands.append(
            (call["bias"].reshaped([sides, 2, gates, hidden]), ["sides", "of", *held[1:]])
        )
    kept = [*writes[:3], "new_state"]
    out = to.emit(f"{name}.gates", "vector", operands, kept, whole=["tokens"])
    last = rows(to, f"{name}.last", out, 0, None)
    return [out, *[last] * (len(call.shapes) - 1)]


# what needs whole axes


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


def _axes(call: OpCall) -> Sequence[int]:
    """Return the axes that an operator names by ``dim`` or ``dims``; all where it names none."""
    named = call["dim"] if call["dim"] is not None else call["dims"]
    return [named] if isinstance(named, int) else named or range(len(call.first.axes))


def _along(to: GraphBuilder, call: OpCall) -> Value:
    return along(to, call.name, call.first, _axes(call))


def _norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a norm over the last axes: of a shape, or from ``dim`` on."""
    held = [value for value in (call["weight"], call["bias"]) if value is not None]
    rank = len(call["normalized_shape"] or call.first.axes[call.axis(-1) :])
    return along(to, call.name, call.first, range(-rank, 0), held=held)


def _group_norm(to: GraphBuilder, call: OpCall) -> Value:
    value, groups = call["input"], call["num_groups"]
    batch, channels, *space = value.shape
    keys = ["batch", "group", "in", *range(len(space))]
    operands = [(value.reshaped([batch, groups, channels // groups, *space]), keys)]
    held = (weight for weight in (call["weight"], call["bias"]) if weight is not None)
    operands += [(w.reshaped([groups, channels // groups]), ["group", "in"]) for w in held]
    out = to.emit(call.name, "vector", operands, keys, whole=keys[2:])
    return reshaped(to, call.name, out, list(value.shape))


def _weight_norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a weight as its direction times a length for each place of one axis."""
    keys = list(range(len(call["v"].axes)))
    operands = [(call["v"], keys), (call["g"], keys)]
    whole = [key for key in keys if key != (call["dim"] or 0)]
    return to.emit(call.name, "vector", operands, keys, whole=whole)


def _batch_norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a norm over all but the channels; in inference a function of each element."""
    keys: list[Key] = ["batch", "channels", *range(2, len(call["input"].axes))]
    operands = [(value, keys if len(value.axes) > 1 else ["channels"]) for value in call.values]
    whole = [key for key in keys if key != "channels"] if call["training"] else []
    return to.emit(call.name, "vector", operands, keys, whole=whole)


def _reduce(to: GraphBuilder, call: OpCall, *, needs_whole: bool) -> Made:
    """Return a reduction, for each of its outputs; the larger of two tensors is not a reduction."""
    if call["other"] is not None:
        return _elementwise(to, call)
    value, over = call.first, _axes(call)
    made: list[Value | None] = []
    for _ in call.shapes:
        out = along(to, call.name, value, over, kept=False, needs_whole=needs_whole)
        if call["keepdim"]:
            gone, left = {value.axis(axis) for axis in over}, iter(out.shape)
            out = out.reshaped([1 if a in gone else next(left) for a in range(len(value.axes))])
        made.append(out)
    return made if len(made) > 1 else made[0]


def _sort(to: GraphBuilder, call: OpCall) -> Made:
    """Return elements in order, or the largest only, and their places; none stays in place."""
    value, axis = call["self"], call.axis(-1)
    keys = list(range(len(value.axes)))
    made: list[Value | None] = [
        to.emit(
            f"{call.name}.{number}", "vector", [(value, keys)],
            ["order" if key == axis else key for key in keys], fresh={"order": shape[axis]},
            whole=[axis], flops_per_point=1 / shape[axis],
            word_bytes=_PLACE_BYTES if number else None,
        )
        for number, shape in enumerate(call.shapes)
    ]  # fmt: skip
    return made if len(made) > 1 else made[0]


def _transform(to: GraphBuilder, call: OpCall, *, rank: int = 0, is_real: bool = False) -> Value:
    """Return a discrete Fourier transform: 5 N log2 N FLOPs for N complex numbers, else half.

    ``rank`` counts the last axes that it passes where no ``dim`` is stated, 0 for all.
    """
    value, stated = call.first, call["dim"]
    last = range(-rank, 0) if rank else range(-len(value.axes), 0)
    named = last if stated is None else [stated] if isinstance(stated, int) else stated
    return _transformed(to, call, value, list(map(value.axis, named)), is_real=is_real)


def _transform_of_pairs(to: GraphBuilder, call: OpCall) -> Value:
    """Return a transform of complex numbers as two along the last axis, or of real ones as one."""
    value, stated = call["self"], call["dim"]
    axis = -2 if stated is None else stated if isinstance(stated, int) else stated[0]
    return _transformed(to, call, value, [value.axis(axis)], is_real=value.shape[-1] == 1, width=2)


def _transformed(
    to: GraphBuilder,
    call: OpCall,
    value: Value,
    over: Sequence[int],
    *,
    is_real: bool,
    width: int = 1,
) -> Value:
    keys = list(range(len(value.axes)))
    changed = {key for key in keys if call.shape[key] != value.shape[key]}
    points = prod(value.shape) * prod(call.shape[key] for key in changed)
    length = prod(max(value.shape[key], call.shape[key]) for key in over)
    num_rows = prod(value.shape) / prod(value.shape[key] for key in over)
    num_rows /= 1 if width == 1 else value.shape[-1]
    flops = (2.5 if is_real else 5.0) * num_rows * length * log2(length)
    return to.emit(
        call.name, "vector", [(value, keys)], [("to", k) if k in changed else k for k in keys],
        fresh={("to", key): call.shape[key] for key in changed},
        whole=[*over, *(("to", key) for key in changed)],
        flops_per_point=flops / points,
    )  # fmt: skip


def _upsample(to: GraphBuilder, call: OpCall, *, points: int = 0) -> Value:
    """Return a larger or smaller image, each point a mean of some points along each axis.

    A whole number of points at the place of each is not a separate kernel.
    """
    value = call.first
    if all(after % before == 0 for before, after in _pairs(value, call.shape)):
        seen = value.expanded(call.shape, to.num_names, inside=True)
    else:
        pairs = enumerate(_pairs(value, call.shape))
        changed = [axis for axis, (before, after) in pairs if before != after]
        seen = moved(to, f"{call.name}.rows", [value], call.shape, changed)
    points = points or {"nearest": 1, "linear": 2, "cubic": 4}[call["mode"] or "nearest"]
    if points == 1:
        return seen
    keys = range(len(call.shape))
    flops = 2.0 * points ** (len(call.shape) - 2) - 1
    return to.emit(call.name, "vector", [(seen, keys)], keys, flops_per_point=flops)


def _first_of(rule: Rule) -> Rule:
    """Return the rule of an operator with further outputs that are unread statistics."""

    def made(to: GraphBuilder, call: OpCall) -> Made:
        first = rule(to, call)
        return [*(first if isinstance(first, list) else [first]), *[None] * (len(call.shapes) - 1)]

    return made


_ELEMENTWISE = (
    "sub rsub mul div neg pow sqrt rsqrt exp log log1p sin cos tanh sigmoid relu relu6 gelu "
    "silu mish elu leaky_relu hardtanh hardswish hardsigmoid softplus erf abs reciprocal "
    "sign floor ceil round clamp clamp_min clamp_max maximum minimum where masked_fill "
    "eq ne lt le gt ge logical_and logical_or logical_not bitwise_not bitwise_and "
    "bitwise_or bitwise_xor __and__ __or__ __xor__ prelu addcmul lerp square remainder fmod "
    "floor_divide tril triu isnan isinf expm1 log2 log10 atan2 hypot celu selu logsigmoid "
    "softsign complex polar angle sgn logical_xor threshold nan_to_num greater less "
    "greater_equal less_equal not_equal multiply divide true_divide subtract absolute negative "
    "clip exp2 sinh cosh tan asin acos atan logit logaddexp trunc frac addcdiv float_power "
    "hardshrink softshrink log_sigmoid_forward"
)
_CONSTANTS = (
    "arange full ones zeros empty full_like ones_like zeros_like fill empty_like new_full "
    "new_ones new_zeros new_empty scalar_tensor zero rand rand_like randn randn_like bernoulli "
    "randint linspace eye"
)
_PLACE_BYTES = 8.0
"""Bytes of the index of an element, which PyTorch stores in 64 bits."""
_RULES: Mapping[str, Rule] = {
    # views, which are no kernels: a copy, a cast, dropout in inference
    "alias clone contiguous detach to type_as _to_copy": lambda to, call: call.first,
    "lift_fresh_copy lift_fresh _assert_tensor_metadata": lambda to, call: call.first,
    "view reshape _unsafe_view view_as reshape_as": _reshape,
    "flatten unflatten squeeze unsqueeze": _reshape,
    "permute t numpy_T": _permute,
    "transpose swapaxes swapdims": _transpose,
    "expand expand_as broadcast_to repeat tile": _repeated,
    "repeat_interleave": partial(_repeated, inside=True),
    "real imag view_as_real conj _conj resolve_conj resolve_neg": _complex_view,
    "pixel_shuffle": _pixel_shuffle,
    # what is copied over a tensor, which is not read
    "copy": lambda to, call: call["src"].expanded(call.shape, to.num_names),
    # moves
    "slice narrow split split_with_sizes chunk diff pad constant_pad_nd": _part,
    "cat concat": _cat,
    "stack": _stack,
    "slice_scatter scatter masked_scatter index_copy": _overwritten,
    "select_scatter": _selected_over,
    "scatter_add scatter_reduce index_add": _summed_up,
    "unfold im2col col2im grid_sampler histc bincount one_hot view_as_complex": _rearranged,
    "unbind": _unbind,
    "embedding": _embedding,
    "select": lambda to, call: rows(to, call.name, call["self"], call["dim"], None),
    "index_select": _rows,
    "gather": _gather,
    "gather_tuples": _gather_tuples,
    "scatter_tuples": _scatter_tuples,
    "index": _index,
    "index_put": _index_put,
    _CONSTANTS: _constant,
    # functions of each element
    _ELEMENTWISE: _elementwise,
    "add": _add,
    "dropout feature_dropout": _dropout,
    "native_dropout": _first_of(_dropout),
    "glu": _gated,
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d": partial(_upsample, points=1),
    "_upsample_nearest_exact1d _upsample_nearest_exact2d": partial(_upsample, points=1),
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d": partial(_upsample, points=2),
    "_upsample_bilinear2d_aa": partial(_upsample, points=2),
    "upsample_bicubic2d _upsample_bicubic2d_aa": partial(_upsample, points=4),
    "resize": _upsample,
    # products
    "linear": _linear,
    "matmul mm bmm mv dot": lambda to, call: matmul(to, call.name, *call.values),
    "addmm baddbmm": _addmm,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _first_of(_attention),
    "conv1d conv2d conv3d convolution": _convolution,
    "conv_transpose1d conv_transpose2d conv_transpose3d": _transposed_convolution,
    "grouped_mm_fallback _grouped_mm": _grouped,
    "lstm": partial(_recurrent, gates=4),
    "gru": partial(_recurrent, gates=3),
    "rnn_tanh rnn_relu": partial(_recurrent, gates=1),
    "lstm_sides": partial(_recurrent_sides, gates=4),
    "gru_sides": partial(_recurrent_sides, gates=3),
    "rnn_sides": partial(_recurrent_sides, gates=1),
    # what needs whole axes
    "softmax log_softmax _softmax _log_softmax cumsum cumprod flip roll": _along,
    "layer_norm rms_norm": _norm,
    "native_layer_norm _fused_rms_norm": _first_of(_norm),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "_weight_norm": _weight_norm,
    "_weight_norm_interface": _first_of(_weight_norm),
    "_native_batch_norm_legit_no_training": _first_of(_batch_norm),
    "_native_batch_norm_legit _native_batch_norm_legit_functional": _first_of(_batch_norm),
    "sum mean": partial(_reduce, needs_whole=False),
    "amax amin max min argmax argmin var std prod any all": partial(_reduce, needs_whole=True),
    "linalg_vector_norm logsumexp var_mean std_mean": partial(_reduce, needs_whole=True),
    "transform_of_pairs": _transform_of_pairs,
    "fft_fft fft_ifft": partial(_transform, rank=1),
    "fft_fft2 fft_ifft2": partial(_transform, rank=2),
    "fft_fftn fft_ifftn _fft_c2c": _transform,
    "fft_rfft fft_irfft fft_hfft fft_ihfft": partial(_transform, rank=1, is_real=True),
    "fft_rfft2 fft_irfft2": partial(_transform, rank=2, is_real=True),
    "fft_rfftn fft_irfftn _fft_r2c _fft_c2r": partial(_transform, is_real=True),
    "sort topk argsort": _sort,
    "max_pool2d_with_indices max_pool3d_with_indices": _first_of(_pooling),
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d": _pooling,
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d": _pooling,
}
RULES: Mapping[str, Rule] = {name: rule for names, rule in _RULES.items() for name in names.split()}
"""Rules by the name of the operator without its overload; some are only in other formats."""
