"""Views and moves: other shapes, parts, elements at other places. No arithmetic."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.catalog.graphs.rules.calls import (
    Made,
    OpCall,
    Operand,
    elementwise,
    moved,
    pairs,
    reshaped,
    rows,
)
from meshwright.catalog.graphs.tracing import GraphBuilder, Key, UnevenError, Value


def reshape(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor in the shape of the output."""
    return reshaped(to, call.name, call.first, call.shape)


def permute(to: GraphBuilder, call: OpCall) -> Value:
    """Return the axes in another order, the reverse one where none is stated."""
    return call.first.permuted(call["dims"] or range(len(call.first.axes) - 1, -1, -1))


def repeated(to: GraphBuilder, call: OpCall, *, inside: bool = False) -> Value:
    """Return a tensor repeated as a whole, or element by element: nothing is copied."""
    is_flat = inside and call["dim"] is None
    value = reshaped(to, call.name, call.first, [prod(call.first.shape)]) if is_flat else call.first
    if any(after % before for before, after in pairs(value, call.shape)):
        raise UnevenError("repeats elements unequally often")
    return value.expanded(call.shape, to.num_names, inside=inside)


def complex_view(to: GraphBuilder, call: OpCall) -> Value:
    """Return complex numbers as such, or as two numbers each along a further axis."""
    value = call.first
    if len(call.shape) == len(value.axes):
        return value
    return value.reshaped([*value.shape, 1]).expanded(call.shape, to.num_names)


def pixel_shuffle(to: GraphBuilder, call: OpCall) -> Value:
    """Return channels put side by side in space."""
    value, times = call["self"], call["upscale_factor"]
    *batch, channels, height, width = value.shape
    cut = value.reshaped([*batch, channels // times**2, times, times, height, width])
    first = len(batch)
    order = [*range(first + 1), *(first + place for place in (3, 1, 4, 2))]
    return reshaped(to, call.name, cut.permuted(order), call.shape)


def transpose(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with two axes exchanged, the last two where none is stated."""
    value = call.first
    order = list(range(len(value.axes)))
    ends = [call[name] for name in ("dim0", "dim1", "axis0", "axis1") if call[name] is not None]
    ends = ends or [-2, -1]
    first, second = map(value.axis, ends)
    order[first], order[second] = order[second], order[first]
    return value.permuted(order)


def part(to: GraphBuilder, call: OpCall) -> Made:
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


def cat(to: GraphBuilder, call: OpCall) -> Value:
    """Return tensors side by side along one axis."""
    values = call.values
    if len(values) == 1 and values[0].shape == tuple(call.shape):
        return values[0]
    return moved(to, call.name, values, call.shape, [values[0].axis(call["dim"] or 0)])


def stack(to: GraphBuilder, call: OpCall) -> Value:
    """Return tensors side by side along a new axis."""
    axis = (call["dim"] or 0) % len(call.shape)
    ones = [size if number != axis else 1 for number, size in enumerate(call.shape)]
    values = [reshaped(to, call.name, value, ones) for value in call["tensors"]]
    return moved(to, call.name, values, call.shape, [axis])


def overwritten(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with another one put into a part of one axis, or at places of it."""
    values = call.values
    if len(values) == 1:
        return values[0]
    sizes = [{value.shape[axis] for value in values} for axis in range(len(call.shape))]
    changed = [axis for axis, found in enumerate(sizes) if len(found) > 1 or axis == call.axis()]
    return moved(to, call.name, values, call.shape, changed)


def selected_over(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with another one put at one place of an axis."""
    source, axis = call["src"], call.axis()
    shape = [*source.shape[:axis], 1, *source.shape[axis:]]
    put = {**call.arguments, "src": source.reshaped(shape)}
    return overwritten(to, replace(call, arguments=put))


def summed_up(to: GraphBuilder, call: OpCall) -> Value:
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


def rearranged(to: GraphBuilder, call: OpCall) -> Value:
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


def gated(to: GraphBuilder, call: OpCall) -> Value:
    """Return one half of an axis times a function of the other half."""
    axis = call.axis(-1)
    halves = [moved(to, f"{call.name}.{n}", [call.first], call.shape, [axis]) for n in range(2)]
    return elementwise(to, call.name, halves)


def embedding(to: GraphBuilder, call: OpCall) -> Value:
    """Return rows of a table at the places that numbers name."""
    value, ids = call["weight"], call["indices"]
    places = ["batch", "tokens"][-len(ids.axes) :] if len(ids.axes) < 3 else range(len(ids.axes))
    operands: list[Operand] = [(ids, places), (value, ["vocabulary", "hidden"])]
    return to.emit(call.name, "none", operands, [*places, "hidden"], word_bytes=value.word_bytes)


def rows_at(to: GraphBuilder, call: OpCall) -> Value:
    """Return elements at some places of one axis."""
    return rows(to, call.name, call["self"], call["dim"] or 0, call["index"])


def unbind(to: GraphBuilder, call: OpCall) -> Made:
    """Return the parts of an axis one by one."""
    places = range(len(call.shapes))
    return [rows(to, f"{call.name}.{n}", call["self"], call["dim"] or 0, None) for n in places]


def index(to: GraphBuilder, call: OpCall) -> Value:
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


def index_put(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor with elements put at places that tensors name; see :func:`index`."""
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


def gather_tuples(to: GraphBuilder, call: OpCall) -> Value:
    """Return the elements at places, each a row of numbers for the first axes."""
    value, ids = call["self"], call["index"]
    places: list[Key] = [("row", number) for number in range(len(ids.axes) - 1)]
    keys: list[Key] = [("at", a) if a < ids.shape[-1] else a for a in range(len(value.axes))]
    operands = [(ids, [*places, "coordinate"]), (value, keys)]
    writes, word = [*places, *keys[ids.shape[-1] :]], value.word_bytes
    return to.emit(call.name, "none", operands, writes, word_bytes=word)


def scatter_tuples(to: GraphBuilder, call: OpCall) -> Value:
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


def gather(to: GraphBuilder, call: OpCall) -> Value:
    """Return one element of an axis for each element of the indices."""
    value, ids = call["self"], call["index"]
    gone, keys = value.axis(call["dim"]), list(range(len(ids.axes)))
    own: list[Key] = [
        key if key != gone and value.shape[key] == ids.shape[key] else ("own", key) for key in keys
    ]
    return to.emit(call.name, "none", [(ids, keys), (value, own)], keys)


def constant(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor made from no input: a constant, a range of numbers."""
    keys, fresh = range(len(call.shape)), dict(enumerate(call.shape))
    return to.emit(call.name, "none", [], keys, fresh=fresh)


def moved_axes(to: GraphBuilder, call: OpCall) -> Value:
    """Return the axes with some of them at other places."""
    value = call.first
    ends = [call[key] for key in ("source", "destination")]
    source, target = ([e] if isinstance(e, int) else list(e) for e in ends)
    put = {value.axis(to): value.axis(at) for at, to in zip(source, target, strict=True)}
    others = iter(axis for axis in range(len(value.axes)) if axis not in put.values())
    order = [put[place] if place in put else next(others) for place in range(len(value.axes))]
    return value.permuted(order)


def joined(to: GraphBuilder, call: OpCall) -> Value:
    """Return tensors side by side along the axis in which the output is larger than each."""
    rank = len(call.shape)
    shapes = [[1] * (rank - len(value.axes)) + list(value.shape) for value in call.values]
    if call.values[0].axes and len(call.values[0].axes) < rank and shapes[0][-1] == call.shape[0]:
        shapes = [shape[::-1] for shape in shapes]  # rows become columns
    values = [
        reshaped(to, call.name, value, shape)
        for value, shape in zip(call.values, shapes, strict=True)
    ]
    changed = [axis for axis, size in enumerate(call.shape) if size != shapes[0][axis]]
    return moved(to, call.name, values, call.shape, changed) if changed else values[0]


def broadcast(to: GraphBuilder, call: OpCall) -> Made:
    """Return each tensor repeated to the shape of all of them; a grid has an axis for each."""
    values, made = call.values, list[Value | None]()
    order = list(range(len(values)))
    if call["indexing"] == "xy" and len(values) > 1:
        order[:2] = [1, 0]
    for place, (value, shape) in enumerate(zip(values, call.shapes, strict=True)):
        if len(value.axes) < 2 and len(shape) == len(values):
            size = prod(value.shape)
            value = value.reshaped([size if order[a] == place else 1 for a in range(len(shape))])
        made.append(value.expanded(shape, to.num_names))
    return made


def embedding_bag(to: GraphBuilder, call: OpCall) -> Value:
    """Return the sum or mean of the rows of each bag.

    Bags are taken as equally large, filled up where they do not divide the rows; only rows are
    counted as work.
    """
    value, ids, per_row = call["weight"], call["indices"], call["per_sample_weights"]
    bags, number = call.shape[0], prod(ids.shape)
    slots = -(-number // bags)
    flat = reshaped(to, call.name, ids, [number])
    found = to.emit(
        f"{call.name}.rows", "none", [(flat, ["row"]), (value, ["vocabulary", "hidden"])],
        ["row", "hidden"], word_bytes=value.word_bytes,
    )  # fmt: skip
    if slots * bags != number:
        found = moved(to, f"{call.name}.slots", [found], [slots * bags, value.shape[1]], [0])
    seen = reshaped(to, call.name, found, [bags, slots, value.shape[1]])
    operands: list[Operand] = [(seen, ["batch", "slot", "hidden"])]
    if per_row is not None and slots * bags == number:
        held = reshaped(to, call.name, per_row, [bags, slots])
        operands.append((held, ["batch", "slot"]))
    flops = number / (slots * bags) * len(operands)
    return to.emit(call.name, "vector", operands, ["batch", "hidden"], flops_per_point=flops)


def placed(to: GraphBuilder, call: OpCall) -> Value:
    """Return a move whose axes are named: those of each tensor, and those of the output."""
    operands = list(zip(call["tensors"], call["keys"], strict=True))
    known = {key for _, keys in operands for key in keys}
    sizes = zip(call["writes"], call.shape, strict=True)
    fresh = {key: size for key, size in sizes if key not in known}
    word = call["tensors"][0].word_bytes
    return to.emit(call.name, "none", operands, call["writes"], fresh=fresh, word_bytes=word)
