"""A program as plain data: inputs, calls of operators in order, outputs; blocks of calls inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.catalog.graphs.expressions import Size


@dataclass(frozen=True)
class TensorMeta:
    """Facts on a tensor before anything is computed: shape and type."""

    shape: tuple[Size, ...]
    dtype: str
    word_bytes: float
    requires_grad: bool = False

    @property
    def is_real(self) -> bool:
        """Whether its elements are neither whole numbers nor truth values."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


Meta = TensorMeta | Size | None
"""Facts on a tensor; a number; or None for anything else."""


@dataclass(frozen=True)
class Ref:
    """An argument that an earlier step makes."""

    name: str


@dataclass(frozen=True)
class Input:
    """An input, a weight or a buffer of a program."""

    name: str
    meta: Meta
    held_as: str = ""
    """Name of a weight or a buffer in the module; empty for an input of the user."""
    is_weight: bool = False


@dataclass(frozen=True)
class Block:
    """A program inside another one, such as the body of a loop: called by what stands around it."""

    inputs: tuple[str, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[object, ...]
    """References, or what else it returns."""

    def called(self, name: str, given: Sequence[object]) -> tuple[list[ProgramStep], list[object]]:
        """Return its steps under names of their own, and its outputs, for these arguments.

        Raises
        ------
        ValueError
            Where it takes another number of arguments.
        """
        known = dict(zip(self.inputs, given, strict=True))
        steps = []
        for step in self.steps:
            outputs = tuple((f"{name}.{made}" if made else "", meta) for made, meta in step.outputs)
            arguments = {key: _renamed(value, known) for key, value in step.arguments.items()}
            steps.append(replace(step, name=f"{name}.{step.name}", arguments=arguments,
                                 outputs=outputs))  # fmt: skip
            known |= {
                before: Ref(after)
                for (before, _), (after, _) in zip(step.outputs, outputs, strict=True)
            }
        return steps, [_renamed(value, known) for value in self.outputs]


def _renamed(value: object, known: Mapping[str, object]) -> object:
    """Return an argument with other names of earlier results, also of those in a block."""
    if isinstance(value, list | tuple):
        return [_renamed(entry, known) for entry in value]
    if isinstance(value, Block):
        inner = {key: found for key, found in known.items() if key not in value.inputs}
        steps = tuple(
            replace(step, arguments={k: _renamed(v, inner) for k, v in step.arguments.items()})
            for step in value.steps
        )
        return replace(value, steps=steps, outputs=tuple(_renamed(v, inner) for v in value.outputs))
    return known.get(value.name, value) if isinstance(value, Ref) else value


@dataclass(frozen=True)
class ProgramStep:
    """One call of an operator."""

    name: str
    operator: str
    """Name of the operator without namespace and overload."""
    arguments: Mapping[str, Any]
    outputs: tuple[tuple[str, Meta], ...]

    @property
    def rule(self) -> str:
        """The operator with the same result that overwrites nothing."""
        if self.operator.startswith("__i") and self.operator.endswith("__"):
            return "__" + self.operator.removeprefix("__i")
        return self.operator if self.operator.endswith("__") else self.operator.removesuffix("_")

    @property
    def blocks(self) -> list[Block]:
        """Programs among its arguments."""
        return [value for value in self.arguments.values() if isinstance(value, Block)]

    @property
    def written(self) -> str:
        """The argument that the operator overwrites; empty where it overwrites none."""
        found = self.arguments.get("self" if self.rule != self.operator else "out")
        return found.name if isinstance(found, Ref) else ""


@dataclass(frozen=True)
class TracedProgram:
    """Inputs, calls in the order in which they run, and outputs."""

    inputs: tuple[Input, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[str, ...]
    version: str
    """The program that wrote it, with its version."""
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Least and largest value of each symbol."""
    examples: Mapping[str, int] = field(default_factory=dict)
    """Value of each symbol when the program was made."""

    @property
    def given(self) -> tuple[Input, ...]:
        """Inputs that a user gives."""
        return tuple(entry for entry in self.inputs if not entry.held_as)


def all_steps(steps: Sequence[ProgramStep]) -> Iterator[ProgramStep]:
    """Yield steps, and those of the blocks among their arguments."""
    for step in steps:
        yield step
        for block in step.blocks:
            yield from all_steps(block.steps)
