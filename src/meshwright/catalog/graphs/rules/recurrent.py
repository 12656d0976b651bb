"""Recurrent layers: a product over the input, one over the states, and the gates."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.catalog.graphs.rules.calls import Made, OpCall, Operand, moved, reshaped, rows
from meshwright.catalog.graphs.tracing import GraphBuilder, UnevenError, Value


def recurrent(to: GraphBuilder, call: OpCall, *, gates: int) -> Made:
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


def recurrent_sides(to: GraphBuilder, call: OpCall, *, gates: int) -> Made:
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


def cell(to: GraphBuilder, call: OpCall, *, gates: int) -> Made:
    """Return the state of one step: products over the input and the state before, and the gates."""
    value, before, name = call["input"], call["hx"], call.name
    states = before if isinstance(before, list) else [before]
    hidden, made = states[0].shape[-1], list[Operand]()
    for part, read, weight, bias in (
        ("input", value, call["w_ih"], call["b_ih"]),
        ("recurrent", states[0], call["w_hh"], call["b_hh"]),
    ):
        held = weight.reshaped([gates, hidden, read.shape[-1]])
        operands: list[Operand] = [(read, ["batch", "in"]), (held, ["gate", "new_state", "in"])]
        if bias is not None:
            operands.append((bias.reshaped([gates, hidden]), ["gate", "new_state"]))
        keys = ["batch", "gate", "new_state"]
        made.append((to.emit(f"{name}.{part}", "matrix", operands, keys), keys))
    made += [(state, ["batch", "new_state"]) for state in states[1:]]
    out = to.emit(f"{name}.gates", "vector", made, ["batch", "new_state"])
    return [out] * len(call.shapes)
