"""The operations that frameworks have in common, each as kernels: products, norms, moves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from meshwright.catalog.graphs.tracing import GraphBuilder, UnevenError, Value, size_of


def elementwise(
    to: GraphBuilder,
    name: str,
    values: Sequence[Value],
    *,
    is_sum: bool = False,
    word_bytes: float | None = None,
) -> Value:
    """Return a function of each element, the last axes of all values being the same."""
    rank = max((len(value.axes) for value in values), default=0)
    operands = [(value, range(rank - len(value.axes), rank)) for value in values]
    same = len({value.shape for value in values}) == 1 and len(values) > 1
    return to.emit(
        name, "vector", operands, range(rank), is_sum=is_sum and same, word_bytes=word_bytes
    )


def along(
    to: GraphBuilder,
    name: str,
    value: Value,
    axes: Sequence[int],
    *,
    held: Sequence[Value] = (),
    kept: bool = True,
    needs_whole: bool = True,
    word_bytes: float | None = None,
) -> Value:
    """Return what needs whole axes: softmax, norms, sums; ``kept`` where the axes stay.

    Held tensors lie along the axes in question, as the gain of a norm does.
    """
    keys = list(range(len(value.axes)))
    over = [value.axis(axis) for axis in axes]
    operands: list[tuple[Value, Any]] = [(value, keys)]
    operands += [(weight, over[len(over) - len(weight.axes) :]) for weight in held]
    writes = keys if kept else [key for key in keys if key not in over]
    whole = over if needs_whole else []
    return to.emit(name, "vector", operands, writes, whole=whole, word_bytes=word_bytes)


def with_ones(value: Value, axes: Sequence[int], rank: int) -> Value:
    """Return a value with axes of size 1 where a reduction took them out."""
    gone = {axis % rank for axis in axes}
    left = iter(value.shape)
    return value.reshaped([1 if axis in gone else next(left) for axis in range(rank)])


def matmul(
    to: GraphBuilder, name: str, left: Value, right: Value, bias: Value | None = None
) -> Value:
    """Return the product of the last two axes, over all others as they are broadcast.

    A weight is added in the product, as a bias; anything else is added behind it.
    """
    if bias is not None and not bias.is_weight:
        return elementwise(to, f"{name}.add", [matmul(to, name, left, right), bias], is_sum=True)
    first = len(left.axes) == 1
    second = len(right.axes) == 1
    rank = max(len(left.axes), len(right.axes), 2) - 2
    left_keys = ["in"] if first else [*range(rank - len(left.axes) + 2, rank), "row", "in"]
    right_keys = ["in"] if second else [*range(rank - len(right.axes) + 2, rank), "in", "out"]
    writes = [*range(rank), *([] if first else ["row"]), *([] if second else ["out"])]
    operands: list[tuple[Value, Any]] = [(left, left_keys), (right, right_keys)]
    if bias is not None:
        operands.append((bias, writes[len(writes) - len(bias.axes) :]))
    return to.emit(name, "matrix", operands, writes)


def linear(
    to: GraphBuilder, name: str, value: Value, weight: Value, bias: Value | None = None
) -> Value:
    """Return the product with a weight of shape (out, in)."""
    return matmul(to, name, value, weight.permuted((1, 0)), bias)


def einsum(to: GraphBuilder, name: str, equation: str, values: Sequence[Value]) -> Value:
    """Return an einsum with letters only."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise UnevenError(f"the equation {equation!r} is not of the form ab,bc->ac")
    operands = list(zip(values, left.split(","), strict=True))
    return to.emit(name, "matrix", operands, right)


def attention(
    to: GraphBuilder, name: str, query: Value, key: Value, value: Value, mask: Value | None = None
) -> Value:
    """Return scores, softmax and the product with the values; heads may share keys.

    The last three axes of the query are heads, rows and width.
    """
    rank = len(query.axes)
    batch = list(range(rank - 3))
    heads, shared = query.shape[-3], key.shape[-3]
    if heads % shared:
        raise UnevenError(f"{heads} heads of queries over {shared} of keys")
    grouped = [*query.shape[:-3], shared, heads // shared, *query.shape[-2:]]
    seen = query.reshaped(grouped)
    scores = to.emit(
        f"{name}.scores",
        "matrix",
        [(seen, [*batch, "heads", "group", "row", "in"]), (key, [*batch, "heads", "key", "in"])],
        [*batch, "heads", "group", "row", "key"],
    )
    if mask is not None:
        flat = scores.reshaped([*query.shape[:-1], key.shape[-2]])
        scores = elementwise(to, f"{name}.masked", [flat, mask])
        scores = scores.reshaped([*grouped[:-1], key.shape[-2]])
    weights = along(to, f"{name}.softmax", scores, [-1])
    out = to.emit(
        f"{name}.values",
        "matrix",
        [
            (weights, [*batch, "heads", "group", "row", "key"]),
            (value, [*batch, "heads", "key", "out"]),
        ],
        [*batch, "heads", "group", "row", "out"],
    )
    return out.reshaped([*query.shape[:-1], value.shape[-1]])


def convolution(
    to: GraphBuilder,
    name: str,
    value: Value,
    weight: Value,
    bias: Value | None,
    shape: Sequence[int],
    groups: int,
) -> Value:
    """Return a convolution: a product over the channels of a group and the points of the kernel.

    A point of the output stands at the place of a point of the input; the seam between two shards
    is not counted.
    """
    if value.shape[1] % groups or shape[1] % groups:
        raise UnevenError(f"{groups} groups do not fit {value.shape[1]} and {shape[1]} channels")
    inner, outer = value.shape[1] // groups, shape[1] // groups
    seen = value.reshaped([value.shape[0], groups, inner, *value.shape[2:]])
    held = weight.reshaped([groups, outer, inner, *weight.shape[2:]])
    seen, space, taps = _windows(to, name, seen, shape[2:], weight.shape[2:])
    operands: list[tuple[Value, Any]] = [
        (seen, ["batch", "group", "in", *space]),
        (held, ["group", "out", "in", *taps]),
    ]
    if bias is not None:
        operands.append((bias.reshaped([groups, outer]), ["group", "out"]))
    points = [key for key in space if key not in taps]
    out = to.emit(name, "matrix", operands, ["batch", "group", "out", *points])
    return out.reshaped(shape)


def pooling(
    to: GraphBuilder, name: str, value: Value, shape: Sequence[int], window: Sequence[int]
) -> Value:
    """Return the largest or mean element of each window."""
    first = list(range(len(shape) - len(window)))
    seen, space, taps = _windows(to, name, value, shape[len(first) :], window)
    points = [key for key in space if key not in taps]
    inside = (size for key, size in zip(space, window, strict=True) if key in points)
    flops = float(prod(inside))
    whole = [key for key in space if key in taps]
    keys = [*first, *space]
    out = to.emit(
        name, "vector", [(seen, keys)], [*first, *points], whole=whole, flops_per_point=flops
    )
    return out.reshaped(shape)


def _windows(
    to: GraphBuilder, name: str, value: Value, shape: Sequence[int], window: Sequence[int]
) -> tuple[Value, list[str], list[str]]:
    """Return a value whose last axes are read by windows, and keys of these axes and of windows.

    A window for each point of the output stands at the place of its middle. Where the output has
    one point only, the axis is the window. What is read beyond the edge is padded by a move.
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
    parts = {
        axis[0]: (to.factor(f"{axis[0].name}.window", size),)
        for axis, size in zip(value.axes[first:], wanted, strict=True)
        if axis and size_of(axis) != size
    }
    taps = [f"tap{number}" for number in range(len(window))]
    space = [taps[number] if points == 1 else f"at{number}" for number, points in enumerate(shape)]
    return value.split(parts), space, taps


def rows(to: GraphBuilder, name: str, value: Value, axis: int, ids: Value | None) -> Value:
    """Return what stands at some places of one axis; a single place takes the axis out."""
    gone = value.axis(axis)
    found: list[Any] = [("row", number) for number in range(len(ids.axes))] if ids else []
    keys: list[Any] = ["row" if key == gone else key for key in range(len(value.axes))]
    operands: list[tuple[Value, Any]] = [] if ids is None else [(ids, found)]
    writes = [*keys[:gone], *found, *keys[gone + 1 :]]
    return to.emit(name, "none", [*operands, (value, keys)], writes, word_bytes=value.word_bytes)


def moved(
    to: GraphBuilder, name: str, values: Sequence[Value], shape: Sequence[int], changed: Any
) -> Value:
    """Return a move: a part of an axis, several side by side, or other rows of one.

    ``changed`` are the axes along which the values are not those of the output.
    """
    operands = []
    is_mixed = len({value.is_weight for value in values}) > 1
    for place, given in enumerate(values):
        value = _loaded(to, f"{name}.{place}", given) if is_mixed else given
        own = [(place, key) if key in changed else key for key in range(len(value.axes))]
        operands.append((value, own))
    fresh = {key: shape[key] for key in changed}
    word = values[0].word_bytes
    return to.emit(name, "none", operands, range(len(shape)), fresh=fresh, word_bytes=word)


def _loaded(to: GraphBuilder, name: str, value: Value) -> Value:
    """Return a weight as a result: a move that holds weights reads numbers of rows, not data."""
    if not value.is_weight:
        return value
    keys = range(len(value.axes))
    return to.emit(name, "none", [(value, keys)], keys, word_bytes=value.word_bytes)


def reshaped(to: GraphBuilder, name: str, value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape: a view where it can be one, else a move."""
    try:
        return value.reshaped(shape)
    except UnevenError:
        operands = [(value, [("from", key) for key in range(len(value.axes))])]
        fresh, word = dict(enumerate(shape)), value.word_bytes
        return to.emit(name, "none", operands, range(len(shape)), fresh=fresh, word_bytes=word)
