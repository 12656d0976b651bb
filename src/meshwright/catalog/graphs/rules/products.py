"""Products: of matrices, attention, convolutions, products by groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from string import ascii_letters

import numpy as np

from meshwright.catalog.graphs.dim_names import SPACE
from meshwright.catalog.graphs.rules.calls import (
    Made,
    OpCall,
    Operand,
    along,
    elementwise,
    moved,
    reshaped,
)
from meshwright.catalog.graphs.tracing import GraphBuilder, Key, UnevenError, Value, size_of


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


def linear(to: GraphBuilder, call: OpCall) -> Value:
    """Return the product with a weight of shape (out, in)."""
    return matmul(to, call.name, call["input"], call["weight"].permuted((1, 0)), call["bias"])


def addmm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a product to which a tensor is added."""
    left, right = call["mat1"] or call["batch1"], call["mat2"] or call["batch2"]
    return matmul(to, call.name, left, right, call["self"])


def einsum(to: GraphBuilder, call: OpCall) -> Value:
    """Return an einsum: of several operands a product of two after the other.

    In the order of the fewest multiplications, as the libraries that compute it take one.
    """
    parts, right = _letters(call["equation"], [len(value.axes) for value in call.values])
    equation = f"{','.join(parts)}->{right}"
    if any(len(set(letters)) < len(letters) for letters in parts):
        raise UnevenError(f"the equation {equation!r} takes a diagonal")
    operands = list(zip(call.values, parts, strict=True))
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


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, those that dots stand for too."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    most = max(rank - len(part) + 3 if "..." in part else 0
               for part, rank in zip(parts, ranks, strict=True))  # fmt: skip
    dots = "".join(free[:most])
    if not arrow:
        once = sorted(x for x in set(left) - set(".,") if left.count(x) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    found = [
        part.replace("...", dots[len(dots) - (rank - len(part) + 3) :] if "..." in part else "")
        for part, rank in zip(parts, ranks, strict=True)
    ]
    return found, right.replace("...", dots)


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


def attention_of(to: GraphBuilder, call: OpCall) -> Value:
    """Return attention of a query, keys and values, and a mask if there is one."""
    parts = call["query"], call["key"], call["value"], call["attn_mask"]
    return attention(to, call.name, *parts)


def convolution(to: GraphBuilder, call: OpCall) -> Value:
    """Return a convolution: a product over the channels of a group and the points of the kernel.

    A point of the output is at the place of a point of the input; the seam between two shards is
    not counted.
    """
    if call["transposed"]:
        return transposed_convolution(to, call)
    value, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"] or 1
    if value.shape[1] % groups or call.shape[1] % groups:
        found = f"{value.shape[1]} and {call.shape[1]}"
        raise UnevenError(f"{groups} groups do not fit {found} channels")
    inner, outer = value.shape[1] // groups, call.shape[1] // groups
    seen = value.reshaped([value.shape[0], groups, inner, *value.shape[2:]])
    held = weight.reshaped([groups, outer, inner, *weight.shape[2:]])
    seen, space, taps = windows(to, call.name, seen, call.shape[2:], weight.shape[2:])
    operands: list[Operand] = [
        (seen, ["batch", "group", "channels", *space]),
        (held, ["group", "filter", "channels", *taps]),
    ]
    if bias is not None:
        operands.append((bias.reshaped([groups, outer]), ["group", "filter"]))
    points = [key for key in space if key not in taps]
    out = to.emit(call.name, "matrix", operands, ["batch", "group", "filter", *points])
    return out.reshaped(call.shape)


def transposed_convolution(to: GraphBuilder, call: OpCall) -> Value:
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


def windows(
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


def grouped(to: GraphBuilder, call: OpCall) -> Value:
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


def matmul_of(to: GraphBuilder, call: OpCall) -> Value:
    """Return the product of two tensors."""
    return matmul(to, call.name, *call.values)


def chain(to: GraphBuilder, call: OpCall) -> Value:
    """Return the product of several matrices from the left on; of two vectors, of all pairs."""
    made, *others = call.values
    if len(made.axes) == 1 and len(others[0].axes) == 1:
        made, others = made.reshaped([*made.shape, 1]), [others[0].reshaped([1, *others[0].shape])]
    for number, value in enumerate(others):
        made = matmul(to, f"{call.name}.{number}", made, value)
    return made


def bilinear(to: GraphBuilder, call: OpCall) -> Value:
    """Return x1 W x2 for each row and each matrix of the weight: two products."""
    left, right, weight = call["input1"], call["input2"], call["weight"]
    rows: list[Key] = list(range(len(left.axes) - 1))
    operands: list[Operand] = [(left, [*rows, "in"]), (weight, ["out", "in", "other"])]
    seen = to.emit(f"{call.name}.left", "matrix", operands, [*rows, "out", "other"])
    operands = [(seen, [*rows, "out", "other"]), (right, [*rows, "other"])]
    if call["bias"] is not None:
        operands.append((call["bias"], ["out"]))
    return to.emit(call.name, "matrix", operands, [*rows, "out"])


def scaled(to: GraphBuilder, call: OpCall) -> Value:
    """Return numbers quantised or restored: one scale for all, an axis, or blocks of each axis."""
    value = call["input"] if call["input"] is not None else call.first
    scales = [v for v in call.values if v is not value and v.axes and v.shape != (1,)]
    keys: list[Key] = []
    operands: list[Operand] = []
    cuts = [1] * len(value.axes)
    shaped = []
    for scale in scales:
        shape = list(scale.shape)
        if len(shape) == 1 and len(cuts) > 1:
            axis = value.axis(next((call[k] for k in ("axis", "ch_axis", "dim")
                                    if call[k] is not None), 0))  # fmt: skip
            shape = [size if place == axis else 1 for place, size in enumerate(
                [shape[0]] * len(cuts))]  # fmt: skip
        if len(shape) != len(cuts) or any(v % s for v, s in zip(value.shape, shape, strict=True)):
            continue
        shaped.append(reshaped(to, call.name, scale, shape))
        cuts = [max(a, b) for a, b in zip(cuts, shape, strict=True)]
    sizes = [part for v, s in zip(value.shape, cuts, strict=True) for part in (s, v // s)]
    keys = [(axis, part) for axis in range(len(cuts)) for part in ("block", "inside")]
    operands = [(value.reshaped(sizes), keys)]
    operands += [
        (scale, [keys[2 * axis] if scale.shape[axis] > 1 else ("one", axis)
                 for axis in range(len(cuts))])
        for scale in shaped
    ]  # fmt: skip
    return reshaped(to, call.name, to.emit(call.name, "vector", operands, keys), value.shape)


def scaled_matmul(to: GraphBuilder, call: OpCall) -> Value:
    """Return a product of quantised tensors; scales of rows and columns are applied inside it."""
    left, right = call["self"], call["mat2"]
    operands: list[Operand] = [(left, ["row", "in"]), (right, ["in", "out"])]
    for scale, keys in ((call["scale_a"], ["row", "one"]), (call["scale_b"], ["one", "out"])):
        if isinstance(scale, Value) and scale.shape in ((left.shape[0], 1), (1, right.shape[1])):
            operands.append((scale, keys))
    if call["bias"] is not None:
        operands.append((call["bias"], ["out"]))
    return to.emit(call.name, "matrix", operands, ["row", "out"])


def packed(to: GraphBuilder, call: OpCall) -> Value:
    """Return a product with a weight whose numbers of four bits lie packed in words."""
    value, held = call["self"], call["mat2"]
    sizes = {"out": call.shape[-1], "in": value.shape[-1]}
    keys: list[Key] = [("packed", axis) for axis in range(len(held.axes))]
    weight = to.emit(
        f"{call.name}.unpacked", "none", [(held, keys)], ["out", "in"], fresh=sizes, word_bytes=0.5
    )
    return matmul(to, call.name, value, weight.permuted((1, 0)))


def distances(to: GraphBuilder, call: OpCall) -> Value:
    """Return the distance of each row of one tensor to each of another: 3 FLOPs an element."""
    left, right = call.values
    rank = len(left.axes) - 2
    batch: list[Key] = list(range(rank))
    operands = [
        (left, [*batch, "row", "in"]),
        (right, [*range(rank - len(right.axes) + 2, rank), "out", "in"]),
    ]
    return to.emit(call.name, "vector", operands, [*batch, "row", "out"], flops_per_point=3.0)


def own_distances(to: GraphBuilder, call: OpCall) -> Value:
    """Return the distance of each pair of rows of a tensor."""
    value = call.first
    operands = [(value, ["row", "in"])]
    flops = 3.0 / value.shape[0]
    return to.emit(
        call.name, "vector", operands, ["pair"], fresh={"pair": call.shape[0]},
        whole=["row"], flops_per_point=flops,
    )  # fmt: skip


def solved(to: GraphBuilder, call: OpCall, *, flops: float) -> Made:
    """Return solutions of linear systems: n^2 a column where triangular, 2/3 n^3 more where not."""
    sides = [v for v in call.values if v.shape == tuple(call.shape)]
    given = next(v for v in call.values if v is not sides[0])
    batch: list[Key] = list(range(len(given.axes) - 2))
    side = sides[0] if len(call.shape) > len(batch) + 1 else sides[0].reshaped([*call.shape, 1])
    operands = [(given, [*batch, "row", "in"]), (side, [*batch, "in", "out"])]
    size, columns = given.shape[-1], side.shape[-1]
    more = 2 / 3 * size / columns if flops > 1 else 0.0
    out = to.emit(
        call.name, "vector", operands, [*batch, "row", "out"],
        whole=["row", "in"], flops_per_point=flops + more,
    )  # fmt: skip
    out = reshaped(to, call.name, out, call.shape)
    return out if len(call.shapes) == 1 else [out, *[None] * (len(call.shapes) - 1)]
