"""Functions of each element, of windows, and of whole axes: norms, reductions, transforms."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod

from meshwright.catalog.graphs.rules.calls import (
    Made,
    OpCall,
    Operand,
    along,
    axes_of,
    each_element,
    elementwise,
    moved,
    pairs,
    reshaped,
)
from meshwright.catalog.graphs.rules.products import windows
from meshwright.catalog.graphs.tracing import GraphBuilder, Key, Value

_PLACE_BYTES = 8.0
"""Bytes of the index of an element, which PyTorch stores in 64 bits."""


def add(to: GraphBuilder, call: OpCall) -> Value:
    """Return a sum, one of two tensors where neither is scaled."""
    return elementwise(to, call.name, call.values, is_sum=call["alpha"] in (None, 1))


def prelu(to: GraphBuilder, call: OpCall) -> Value:
    """Return a function of each element with one slope, or one for each channel."""
    value, slope = call["self"], call["weight"]
    if isinstance(slope, Value) and len(slope.axes) == 1 < len(value.axes):
        ones = [slope.shape[0] if axis == 1 else 1 for axis in range(len(value.axes))]
        slope = slope.reshaped(ones)
    return elementwise(to, call.name, [v for v in (value, slope) if isinstance(v, Value)])


def dropout(to: GraphBuilder, call: OpCall) -> Value:
    """Return the elements behind a dropout: in inference, those before it."""
    return each_element(to, call) if call["train"] else call.first


def pooling(to: GraphBuilder, call: OpCall) -> Value:
    """Return the largest or mean element of each window."""
    value, size = call["self"], call["kernel_size"]
    if size is None:
        pairs = zip(value.shape[2:], call.shape[2:], strict=True)
        size = [ceil(before / after) for before, after in pairs]
    window = list(size) * (len(value.axes) - 2 if len(size) == 1 else 1)
    first: list[Key] = list(range(len(call.shape) - len(window)))
    if len(first) == 2:
        first = ["batch", "channels"]
    seen, space, taps = windows(to, call.name, value, call.shape[len(first) :], window)
    points = [key for key in space if key not in taps]
    inside = (size for key, size in zip(space, window, strict=True) if key in points)
    out = to.emit(
        call.name, "vector", [(seen, [*first, *space])], [*first, *points],
        whole=[key for key in space if key in taps], flops_per_point=float(prod(inside)),
    )  # fmt: skip
    return out.reshaped(call.shape)


def along_axes(to: GraphBuilder, call: OpCall) -> Value:
    """Return a tensor of the same shape whose elements depend on whole axes."""
    return along(to, call.name, call.first, axes_of(call))


def norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a norm over the last axes: of a shape, or from ``dim`` on."""
    held = [value for value in (call["weight"], call["bias"]) if value is not None]
    rank = len(call["normalized_shape"] or call.first.axes[call.axis(-1) :])
    return along(to, call.name, call.first, range(-rank, 0), held=held)


def group_norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a norm over the space and the channels of each group."""
    value, groups = call["input"], call["num_groups"] or call["group"]
    batch, channels, *space = value.shape
    keys = ["batch", "group", "in", *range(len(space))]
    operands = [(value.reshaped([batch, groups, channels // groups, *space]), keys)]
    held = (weight for weight in (call["weight"], call["bias"]) if weight is not None)
    operands += [(w.reshaped([groups, channels // groups]), ["group", "in"]) for w in held]
    out = to.emit(call.name, "vector", operands, keys, whole=keys[2:])
    return reshaped(to, call.name, out, list(value.shape))


def weight_norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a weight as its direction times a length for each place of one axis."""
    keys = list(range(len(call["v"].axes)))
    operands = [(call["v"], keys), (call["g"], keys)]
    whole = [key for key in keys if key != (call["dim"] or 0)]
    return to.emit(call.name, "vector", operands, keys, whole=whole)


def batch_norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a norm over all but the channels; in inference a function of each element."""
    keys: list[Key] = ["batch", "channels", *range(2, len(call["input"].axes))]
    operands = [(value, keys if len(value.axes) > 1 else ["channels"]) for value in call.values]
    whole = [key for key in keys if key != "channels"] if call["training"] else []
    return to.emit(call.name, "vector", operands, keys, whole=whole)


def reduce(to: GraphBuilder, call: OpCall, *, needs_whole: bool) -> Made:
    """Return a reduction, for each of its outputs; the larger of two tensors is not a reduction."""
    if call["other"] is not None:
        return each_element(to, call)
    value, over = call.first, axes_of(call)
    made: list[Value | None] = []
    for _ in call.shapes:
        out = along(to, call.name, value, over, kept=False, needs_whole=needs_whole)
        if call["keepdim"]:
            gone, left = {value.axis(axis) for axis in over}, iter(out.shape)
            out = out.reshaped([1 if a in gone else next(left) for a in range(len(value.axes))])
        made.append(out)
    return made if len(made) > 1 else made[0]


def sort(to: GraphBuilder, call: OpCall) -> Made:
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


def transform(to: GraphBuilder, call: OpCall, *, rank: int = 0, is_real: bool = False) -> Value:
    """Return a discrete Fourier transform: 5 N log2 N FLOPs for N complex numbers, else half.

    ``rank`` counts the last axes that it passes where no ``dim`` is stated, 0 for all.
    """
    value, stated = call.first, call["dim"]
    last = range(-rank, 0) if rank else range(-len(value.axes), 0)
    named = last if stated is None else [stated] if isinstance(stated, int) else stated
    return _transformed(to, call, value, list(map(value.axis, named)), is_real=is_real)


def transform_of_pairs(to: GraphBuilder, call: OpCall) -> Value:
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


def upsample(to: GraphBuilder, call: OpCall, *, points: int = 0) -> Value:
    """Return a larger or smaller image, each point a mean of some points along each axis.

    A whole number of points at the place of each is not a separate kernel.
    """
    value = call.first
    if all(after % before == 0 for before, after in pairs(value, call.shape)):
        seen = value.expanded(call.shape, to.num_names, inside=True)
    else:
        sizes = enumerate(pairs(value, call.shape))
        changed = [axis for axis, (before, after) in sizes if before != after]
        seen = moved(to, f"{call.name}.rows", [value], call.shape, changed)
    points = points or {"nearest": 1, "linear": 2, "cubic": 4}[call["mode"] or "nearest"]
    if points == 1:
        return seen
    keys = range(len(call.shape))
    flops = 2.0 * points ** (len(call.shape) - 2) - 1
    return to.emit(call.name, "vector", [(seen, keys)], keys, flops_per_point=flops)


def instance_norm(to: GraphBuilder, call: OpCall) -> Value:
    """Return a norm over the space of each channel of each image."""
    value = call["input"]
    keys: list[Key] = ["batch", "channels", *range(len(value.axes) - 2)]
    held = (weight for weight in (call["weight"], call["bias"]) if weight is not None)
    operands: list[Operand] = [(value, keys), *((weight, ["channels"]) for weight in held)]
    return to.emit(call.name, "vector", operands, keys, whole=keys[2:])


def loss(to: GraphBuilder, call: OpCall) -> Value:
    """Return a function of each element, summed over the axes that the result lacks."""
    values = [value for value in call.values if value.shape]
    out = elementwise(to, f"{call.name}.elements", values)
    gone = len(out.axes) - len(call.shape)
    if not gone:
        return out
    axis = call["dim"] if call["dim"] is not None else -1
    over = [axis] if gone == 1 and call.shape else range(len(out.axes))
    return along(to, call.name, out, over, kept=False, needs_whole=False)


def loss_of_classes(to: GraphBuilder, call: OpCall, *, is_normalized: bool = False) -> Value:
    """Return a loss of scores of classes against a class, or a share of each, for every row.

    Parameters
    ----------
    is_normalized
        Whether the scores first pass a softmax.
    """
    scores, target, name = call["self"], call["target"], call.name
    axis = 1 if len(scores.axes) > 1 else 0
    if is_normalized:
        scores = along(to, f"{name}.softmax", scores, [axis])
    keys: list[Key] = list(range(len(scores.axes)))
    kept = [key for key in keys if key != axis]
    if len(target.axes) == len(scores.axes) > 1:
        out = to.emit(f"{name}.rows", "vector", [(scores, keys), (target, keys)], kept)
    else:
        out = to.emit(f"{name}.rows", "none", [(scores, keys), (target, kept)], kept)
    if not call.shape and out.axes:
        out = along(to, name, out, range(len(out.axes)), kept=False, needs_whole=False)
    return out


def sampled(to: GraphBuilder, call: OpCall) -> Value:
    """Return points of an image between its pixels, at places that a grid names."""
    value, grid = call["input"], call["grid"]
    space: list[Key] = [("to", axis) for axis in range(len(value.axes) - 2)]
    source: list[Key] = [("from", axis) for axis in range(len(value.axes) - 2)]
    operands: list[Operand] = [
        (value, ["batch", "channels", *source]),
        (grid, ["batch", *space, "coordinate"]),
    ]
    out = to.emit(f"{call.name}.rows", "none", operands, ["batch", "channels", *space])
    keys = range(len(out.axes))
    flops = 2.0 * 2 ** len(space) - 1
    return to.emit(call.name, "vector", [(out, keys)], keys, flops_per_point=flops)


def factorised(to: GraphBuilder, call: OpCall, *, flops: float) -> Made:
    """Return a factorisation of matrices of n columns, ``flops`` x m n^2 operations each."""
    value = call.first
    keys: list[Key] = list(range(len(value.axes)))
    made: list[Value | None] = []
    for number, shape in enumerate(call.shapes):
        same: list[Key] = list(range(min(len(keys) - 2, len(shape))))
        fresh: dict[Key, int] = {("to", at): shape[at] for at in range(len(same), len(shape))}
        points = prod(value.shape) * prod(fresh.values())
        work = flops * prod(value.shape) * value.shape[-1] / points if number == 0 else 0.0
        made.append(to.emit(
            call.name if number == 0 else f"{call.name}.{number}", "vector", [(value, keys)],
            [*same, *fresh], fresh=fresh, whole=keys[-2:], flops_per_point=work,
        ))  # fmt: skip
    return made if len(made) > 1 else made[0]
