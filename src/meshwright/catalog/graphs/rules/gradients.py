"""Gradients that a program of a backward pass calls by name."""

from __future__ import annotations

from meshwright.catalog.graphs.dim_names import SPACE
from meshwright.catalog.graphs.rules.calls import Made, OpCall, Operand, along, elementwise, moved
from meshwright.catalog.graphs.rules.products import windows
from meshwright.catalog.graphs.tracing import GraphBuilder, Key, Value


def of_softmax(to: GraphBuilder, call: OpCall) -> Value:
    """Return the gradient of a softmax, which reads the gradient and the result behind it."""
    both = elementwise(to, f"{call.name}.product", [call["grad_output"], call["output"]])
    return along(to, call.name, both, [call["dim"]])


def of_norm(to: GraphBuilder, call: OpCall, *, is_grouped: bool = False) -> Made:
    """Return the gradients of a norm: of its input, its gain and its shift.

    Parameters
    ----------
    is_grouped
        Whether the norm is over all but the batch; its gain is then one of channels.
    """
    grad, value = call["grad_out"], call["input"]
    rank = len(value.axes)
    keys = list(range(rank))
    whole = keys[1:] if is_grouped else keys[rank - len(call["normalized_shape"]) :]
    held = [1] if is_grouped else whole
    operands: list[Operand] = [(grad, keys), (value, keys)]
    wanted = call["output_mask"] or [True] * len(call.shapes)
    made: list[Value | None] = []
    for place, is_wanted in enumerate(wanted):
        name = f"{call.name}.{place}"
        if not is_wanted:
            made.append(None)
        elif place:
            made.append(to.emit(name, "vector", operands[: 3 - place], held))
        else:
            made.append(to.emit(name, "vector", operands, keys, whole=whole))
    return made


def of_pooling(to: GraphBuilder, call: OpCall) -> Value:
    """Return the gradient of each element of the windows."""
    grad = call["grad_output"]
    sizes = enumerate(zip(grad.shape, call.shape, strict=True))
    changed = [axis for axis, (before, after) in sizes if before != after]
    seen = moved(to, f"{call.name}.rows", [grad], call.shape, changed) if changed else grad
    return elementwise(to, call.name, [seen])


def of_embedding(to: GraphBuilder, call: OpCall) -> Value:
    """Return the gradient of a table: the sum of the gradients of each of its rows."""
    grad, ids = call["grad_output"], call["indices"]
    places: list[Key] = [("row", number) for number in range(len(ids.axes))]
    operands = [(grad, [*places, "hidden"]), (ids, places)]
    fresh = {"vocabulary": call["num_weights"]}
    flops = 1.0 / call["num_weights"]
    return to.emit(
        call.name, "vector", operands, ["vocabulary", "hidden"], fresh=fresh, flops_per_point=flops
    )


def of_convolution(to: GraphBuilder, call: OpCall) -> Made:
    """Return the gradients of a convolution: of its input, its weight and its bias."""
    grad, value, weight = call["grad_output"], call["input"], call["weight"]
    groups, mask, name = call["groups"] or 1, call["output_mask"], call.name
    if call["transposed"]:  # the gradient takes the place of the input
        grad, value = value, grad
    names = SPACE[len(value.axes) - 2]
    taps = [f"kernel_{axis}" for axis in names]
    outer, inner = grad.shape[1] // groups, value.shape[1] // groups
    seen = grad.reshaped([grad.shape[0], groups, outer, *grad.shape[2:]])
    held = weight.reshaped([groups, outer, inner, *weight.shape[2:]])
    points = [f"out_{axis}" for axis in names]
    of_grad = (seen, ["batch", "group", "filter", *points])
    of_weight = (held, ["group", "filter", "channels", *taps])
    made: list[Value | None] = [None, None, None]
    if mask[0] and call["transposed"]:
        made[0] = _windowed(to, f"{name}.input", call, of_weight, "filter")
    elif mask[0]:
        summed = to.emit(
            f"{name}.input", "matrix", [of_grad, of_weight],
            ["batch", "group", "channels", *points],
        )  # fmt: skip
        flat = summed.reshaped([*value.shape[:2], *grad.shape[2:]])
        changed = [a for a, size in enumerate(value.shape) if size != flat.shape[a]]
        made[0] = moved(to, f"{name}.put", [flat], value.shape, changed) if changed else flat
    if mask[1]:
        shape = [value.shape[0], groups, inner, *grad.shape[2:]]
        given = value.reshaped([*shape[:3], *value.shape[2:]])
        changed = [a for a, size in enumerate(shape) if size != given.shape[a]]
        given = moved(to, f"{name}.windows", [given], shape, changed) if changed else given
        keys = ["batch", "group", "channels", *points]
        fresh = dict(zip(taps, weight.shape[2:], strict=True))
        out = to.emit(
            f"{name}.weight", "matrix", [of_grad, (given, keys)],
            ["group", "filter", "channels", *taps], fresh=fresh,
        )  # fmt: skip
        made[1] = out.reshaped(weight.shape)
    if mask[2]:
        bias = call["grad_output"]
        made[2] = along(to, f"{name}.bias", bias, [0, *range(2, len(bias.axes))], kept=False,
                        needs_whole=False)  # fmt: skip
    return made


def _windowed(to: GraphBuilder, name: str, call: OpCall, of_weight: Operand, summed: str) -> Value:
    """Return the gradient of the input of a transposed convolution: a convolution of its own."""
    grad, value, groups = call["grad_output"], call["input"], call["groups"] or 1
    window = call["weight"].shape[2:]
    seen = grad.reshaped([grad.shape[0], groups, grad.shape[1] // groups, *grad.shape[2:]])
    seen, space, taps = windows(to, name, seen, value.shape[2:], window)
    keys = ["group", summed, "channels", *taps]
    points = [key for key in space if key not in taps]
    operands = [(seen, ["batch", "group", "channels", *space]), (of_weight[0], keys)]
    out = to.emit(name, "matrix", operands, ["batch", "group", summed, *points])
    return out.reshaped(value.shape)
