"""Operators of PyTorch that compute nothing: views, which are no kernels, and moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.catalog.graphs.torch_call import Call, Made, Rule, named
from meshwright.catalog.graphs.tracing import operations as make
from meshwright.catalog.graphs.tracing.builder import GraphBuilder
from meshwright.catalog.graphs.tracing.values import Value


def _seen(to: GraphBuilder, call: Call) -> Value:
    """Return the same elements: a copy, a cast to another type, dropout in inference."""
    return call.values[0]


def _view(to: GraphBuilder, call: Call) -> Value:
    return make.reshaped(to, call.name, call.values[0], call.shape)


def _permute(to: GraphBuilder, call: Call) -> Value:
    return call.values[0].permuted(call["dims"])


def _transpose(to: GraphBuilder, call: Call) -> Value:
    value = call.values[0]
    order = list(range(len(value.axes)))
    ends = [call[name] for name in ("dim0", "dim1", "axis0", "axis1") if call[name] is not None]
    first, second = map(value.axis, ends)
    order[first], order[second] = order[second], order[first]
    return value.permuted(order)


def _turned(to: GraphBuilder, call: Call) -> Value:
    value = call.values[0]
    return value.permuted(range(len(value.axes) - 1, -1, -1))


def _expand(to: GraphBuilder, call: Call) -> Value:
    return call.values[0].expanded(call.shape, to.num_names)


def _slice(to: GraphBuilder, call: Call) -> Value:
    """Return a part of an axis; all of it is the value itself."""
    value = call.values[0]
    if tuple(call.shape) == value.shape:
        return value
    return make.moved(to, call.name, [value], call.shape, [value.axis(call["dim"] or 0)])


def _select(to: GraphBuilder, call: Call) -> Value:
    return make.rows(to, call.name, call["self"], call["dim"], None)


def _split(to: GraphBuilder, call: Call) -> Made:
    value = call["self"]
    axis = value.axis(call["dim"] or 0)
    return [
        make.moved(to, f"{call.name}.{number}", [value], shape, [axis])
        for number, shape in enumerate(call.shapes)
    ]


def _cat(to: GraphBuilder, call: Call) -> Value:
    values = [value for value in call["tensors"] if value.shape != (0,)]
    axis = values[0].axis(call["dim"] or 0)
    return make.moved(to, call.name, values, call.shape, [axis])


def _stack(to: GraphBuilder, call: Call) -> Value:
    axis = (call["dim"] or 0) % len(call.shape)
    ones = [size if number != axis else 1 for number, size in enumerate(call.shape)]
    values = [make.reshaped(to, call.name, value, ones) for value in call["tensors"]]
    return make.moved(to, call.name, values, call.shape, [axis])


def _overwritten(to: GraphBuilder, call: Call) -> Value:
    """Return a tensor with another one put into a part of one axis."""
    axis = call["self"].axis(call["dim"] or 0)
    return make.moved(to, call.name, [call["self"], call["src"]], call.shape, [axis])


def _copied(to: GraphBuilder, call: Call) -> Value:
    """Return what is copied over a tensor, which is not read."""
    return call["src"].expanded(call.shape, to.num_names)  # type: ignore[no-any-return]


def _embedding(to: GraphBuilder, call: Call) -> Value:
    return make.rows(to, call.name, call["weight"], 0, call["indices"])


def _index_select(to: GraphBuilder, call: Call) -> Value:
    return make.rows(to, call.name, call["self"], call["dim"], call["index"])


def _index(to: GraphBuilder, call: Call) -> Value:
    """Return the elements at places that tensors name, along one axis or several at once.

    The axes of those tensors stand where the axes were that they name, or first where these are
    not neighbours.
    """
    value, given = call["self"], call["indices"]
    ids = {axis: found for axis, found in enumerate(given) if found is not None}
    rank = max(len(found.axes) for found in ids.values())
    rows: list[Any] = [("row", number) for number in range(rank)]
    keys: list[Any] = [("at", a) if a in ids else a for a in range(len(value.axes))]
    operands = [(found, rows[rank - len(found.axes) :]) for found in ids.values()]
    are_neighbours = max(ids) - min(ids) + 1 == len(ids)
    kept = [axis for axis in range(len(value.axes)) if axis not in ids]
    before = [axis for axis in kept if axis < min(ids)] if are_neighbours else []
    writes = [*before, *rows, *kept[len(before) :]]
    return to.emit(
        call.name, "none", [*operands, (value, keys)], writes, word_bytes=value.word_bytes
    )


def _gather(to: GraphBuilder, call: Call) -> Value:
    """Return one element of an axis for each element of the indices."""
    value, ids = call["self"], call["index"]
    gone = value.axis(call["dim"])
    keys = list(range(len(ids.axes)))
    own: list[Any] = [
        key if key != gone and value.shape[key] == ids.shape[key] else ("own", key) for key in keys
    ]
    word = call.word_bytes
    return to.emit(call.name, "none", [(ids, keys), (value, own)], keys, word_bytes=word)


def _difference(to: GraphBuilder, call: Call) -> Value:
    value = call["self"]
    axis = value.axis(-1 if call["dim"] is None else call["dim"])
    return make.moved(to, call.name, [value], call.shape, [axis])


def _unbind(to: GraphBuilder, call: Call) -> Made:
    axis = call["dim"] or 0
    return [
        make.rows(to, f"{call.name}.{number}", call["self"], axis, None)
        for number in range(len(call.shapes))
    ]


def _pad(to: GraphBuilder, call: Call) -> Value:
    value = call["self"]
    pairs = enumerate(zip(value.shape, call.shape, strict=True))
    changed = [axis for axis, (before, after) in pairs if before != after]
    return make.moved(to, call.name, [value], call.shape, changed)


def _made(to: GraphBuilder, call: Call) -> Value:
    """Return what is made from nothing: a constant, a range of numbers."""
    fresh = dict(enumerate(call.shape))
    return to.emit(
        call.name, "none", [], range(len(call.shape)), fresh=fresh, word_bytes=call.word_bytes
    )


MOVES: Mapping[str, Rule] = {
    **named(
        _seen,
        "alias clone contiguous detach to type_as _to_copy lift_fresh_copy lift_fresh "
        "_assert_tensor_metadata",
    ),
    **named(
        _view, "view reshape _unsafe_view view_as reshape_as flatten unflatten squeeze unsqueeze"
    ),
    **named(_permute, "permute"),
    **named(_transpose, "transpose swapaxes swapdims"),
    **named(_turned, "t numpy_T"),
    **named(_expand, "expand expand_as broadcast_to"),
    **named(_slice, "slice narrow"),
    **named(_select, "select"),
    **named(_split, "split split_with_sizes chunk"),
    **named(_cat, "cat concat"),
    **named(_stack, "stack"),
    **named(_overwritten, "slice_scatter select_scatter"),
    **named(_copied, "copy"),
    **named(_unbind, "unbind"),
    **named(_embedding, "embedding"),
    **named(_index_select, "index_select"),
    **named(_gather, "gather"),
    **named(_difference, "diff"),
    **named(_index, "index"),
    **named(_pad, "pad constant_pad_nd"),
    **named(
        _made,
        "arange full ones zeros empty full_like ones_like zeros_like "
        "fill empty_like new_full new_ones new_zeros new_empty scalar_tensor",
    ),
}
