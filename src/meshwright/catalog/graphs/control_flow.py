"""Branches and loops of a program as the calls that run: a branch that is stated, each iteration.

A program does not say which branch runs, nor how often a loop whose end depends on data: whoever
asks states it, by the name of the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.base.errors import Fault
from meshwright.catalog.graphs.traced import (
    Block,
    Meta,
    ProgramStep,
    Ref,
    TensorMeta,
    all_steps,
)

COUNT = "count"
"""Argument of a branch, its number from 1 on, and of a loop, its iterations."""
_OPEN = {
    "cond": "runs one of its branches, as the data decide",
    "while_loop": "runs as often as the data decide",
    "loop": "runs as often as the data decide",
}
_KNOWN = frozenset({*_OPEN, "scan", "map_impl", "associative_scan"})


def is_flow(step: ProgramStep) -> bool:
    """Return whether a step runs blocks: branches, loops, or one block under other settings."""
    return step.operator in _KNOWN or len(step.blocks) == 1


def with_counts(
    steps: Sequence[ProgramStep], sizes: Mapping[str, int]
) -> tuple[tuple[ProgramStep, ...], list[Fault], set[str]]:
    """Return steps with the counts that are stated, faults where one is missing, and names used."""
    open_steps = [s for s in all_steps(steps) if s.operator in _OPEN and COUNT not in s.arguments]
    used = {step.name for step in open_steps}
    faults = [
        Fault(f"--dim {step.name}", _OPEN[step.operator], f"such as --dim {step.name}=2")
        for step in open_steps
        if step.name not in sizes
    ]
    faults += [
        Fault(f"--dim {step.name}", f"{sizes[step.name]} is no branch", f"1 to {len(step.blocks)}")
        for step in open_steps
        if step.operator == "cond" and sizes.get(step.name, 1) > len(step.blocks)
    ]
    return tuple(_stated(step, sizes) for step in steps), faults, used


def _stated(step: ProgramStep, sizes: Mapping[str, int]) -> ProgramStep:
    arguments = dict(step.arguments)
    if step.operator in _OPEN:
        arguments.setdefault(COUNT, sizes.get(step.name, 1))
    for key, value in arguments.items():
        if isinstance(value, Block):
            inner = tuple(_stated(part, sizes) for part in value.steps)
            arguments[key] = replace(value, steps=inner)
    return replace(step, arguments=arguments)


@dataclass(frozen=True)
class Loop:
    """A block that runs again and again."""

    block: Block
    carried: Sequence[object]
    """Values that each iteration takes from the one before."""
    slices: Sequence[object] = ()
    """Tensors that give each iteration one place of an axis."""
    fixed: Sequence[object] = ()
    """Values that all iterations take."""
    in_axes: Sequence[int] = ()
    out_axes: Sequence[int] = ()


def steps_of(step: ProgramStep, metas: Mapping[str, Meta], *, length: int) -> Iterator[ProgramStep]:
    """Yield the calls that a step with blocks stands for, its own outputs at the end.

    Parameters
    ----------
    metas
        Facts on all results so far.
    length
        Places of the first tensor that a scan runs along.
    """
    values = [value for key, value in step.arguments.items() if key != COUNT]
    stated: int | None = step.arguments.get(COUNT)
    if step.operator == "cond":
        _, *branches, given = values
        yield from _once(step, branches[(stated or 1) - 1], given)
    elif step.operator == "while_loop":
        yield from _loop(step, Loop(values[1], values[2], fixed=values[3]), metas, stated or 0)
    elif step.operator in ("scan", "loop"):
        axes = (values[4], values[5]) if len(values) > 5 else ((), ())
        loop = Loop(values[0], values[1], values[2], values[3], *axes)
        yield from _loop(step, loop, metas, length if stated is None else stated)
    elif step.operator == "map_impl":
        yield from _loop(step, Loop(values[0], (), values[1], values[2]), metas, length)
    elif step.operator == "associative_scan":
        fixed = values[2] if len(values) > 2 else []
        yield from _running(step, values[0], values[1], fixed, metas, length)
    else:
        (block,) = step.blocks
        flat = [part for v in values for part in (v if isinstance(v, list) else [v])]
        yield from _once(step, block, flat[len(flat) - len(block.inputs) :])


def scanned(step: ProgramStep) -> str:
    """Return the tensor whose first axis says how often a step runs its block; empty if none."""
    places = {"scan": 2, "map_impl": 1, "associative_scan": 1}
    values = list(step.arguments.values())
    found = values[places[step.operator]] if step.operator in places else []
    return found[0].name if found and isinstance(found[0], Ref) else ""


def _once(step: ProgramStep, block: Block, given: Sequence[object]) -> Iterator[ProgramStep]:
    steps, outputs = block.called(step.name, given)
    yield from steps
    yield from _ends(step, outputs)


def _ends(step: ProgramStep, values: Sequence[object]) -> Iterator[ProgramStep]:
    """Yield calls that give the outputs of a step their names."""
    for value, (name, meta) in zip(values, step.outputs, strict=True):
        if isinstance(value, Ref) and name:
            yield ProgramStep(name, "alias", {"self": value}, ((name, meta),))


def _taken(
    name: str, value: object, axis: int, place: int, metas: Mapping[str, Meta]
) -> ProgramStep:
    """Return the call that takes one place of an axis of a tensor."""
    meta = metas[value.name] if isinstance(value, Ref) else None
    if isinstance(meta, TensorMeta):
        axis %= len(meta.shape)
        meta = replace(meta, shape=(*meta.shape[:axis], *meta.shape[axis + 1 :]))
    arguments = {"self": value, "dim": axis, "index": place}
    return ProgramStep(name, "select", arguments, ((name, meta),))


def _loop(
    step: ProgramStep, loop: Loop, metas: Mapping[str, Meta], count: int
) -> Iterator[ProgramStep]:
    """Yield the calls of all iterations, and the outputs of each put side by side."""
    carried, made = list(loop.carried), list[list[object]]()
    in_axes = loop.in_axes or [0] * len(loop.slices)
    for number in range(count):
        name, given = f"{step.name}.{number}", list[object]()
        for at, (value, axis) in enumerate(zip(loop.slices, in_axes, strict=True)):
            taken = _taken(f"{name}.x{at}", value, axis, number, metas)
            yield taken
            given.append(Ref(taken.name))
        steps, outputs = loop.block.called(name, [*carried, *given, *loop.fixed])
        yield from steps
        carried = outputs[: len(carried)]
        made.append(outputs[len(carried) :])
    kept = replace(step, outputs=step.outputs[: len(carried)])
    yield from _ends(kept, carried)
    yield from _stacked(step, step.outputs[len(carried) :], made, loop.out_axes)


def _stacked(
    step: ProgramStep,
    outputs: Sequence[tuple[str, Meta]],
    made: Sequence[Sequence[object]],
    axes: Sequence[int] = (),
) -> Iterator[ProgramStep]:
    """Yield calls that put the outputs of all iterations side by side along an axis."""
    for place, (name, meta) in enumerate(outputs):
        parts = [found[place] for found in made]
        if parts and name:
            axis = axes[place] if axes else 0
            yield ProgramStep(name, "stack", {"tensors": parts, "dim": axis}, ((name, meta),))


def _running(
    step: ProgramStep, block: Block, tensors: Sequence[object], fixed: Sequence[object],
    metas: Mapping[str, Meta], length: int,
) -> Iterator[ProgramStep]:  # fmt: skip
    """Yield the calls of a running combination: each place with all places before it."""
    before, made = list[object](), list[list[object]]()
    for number in range(length):
        name, now = f"{step.name}.{number}", list[object]()
        for at, value in enumerate(tensors):
            taken = _taken(f"{name}.x{at}", value, 0, number, metas)
            yield taken
            now.append(Ref(taken.name))
        if before:
            steps, now = block.called(name, [*before, *now, *fixed])
            yield from steps
        before = now
        made.append(now)
    yield from _stacked(step, step.outputs, made)
