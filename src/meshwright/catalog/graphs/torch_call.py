"""One operator of a PyTorch program, as the rules see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.catalog.graphs.tracing.builder import GraphBuilder
from meshwright.catalog.graphs.tracing.values import Value


@dataclass(frozen=True)
class Call:
    """One operator of a program: its arguments by name, values of tensors among them."""

    name: str
    """For the kernel."""
    arguments: Mapping[str, Any]
    shapes: Sequence[Sequence[int]]
    """Of the outputs."""
    word_bytes: float
    """Of the first output."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def shape(self) -> Sequence[int]:
        """Of the first output."""
        return self.shapes[0]

    @property
    def values(self) -> list[Value]:
        """All tensors among the arguments."""
        found = (v if isinstance(v, list) else [v] for v in self.arguments.values())
        return [value for values in found for value in values if isinstance(value, Value)]


Made = Value | list[Any]
Rule = Callable[[GraphBuilder, Call], Made]


def named(rule: Rule, names: str) -> dict[str, Rule]:
    """Return one rule for several operators."""
    return dict.fromkeys(names.split(), rule)
