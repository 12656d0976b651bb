"""The budget for reading one file of a user, and foreign trees as mappings and lists.

Every reader of a foreign file follows it under one :class:`Budget`. Sizes are charged before
anything of that size is built; a reader that has spent its budget stops with an error that says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from meshwright.base.errors import Fault, SpecError


@dataclass
class Budget:
    """The budget left to a reader; launch files and graphs of users need a tenth at most."""

    steps: int = 50_000
    """Statements and expressions that are followed."""
    letters: int = 64 * 2**20
    """Characters of all texts that are built, one after the other."""
    values: int = 500_000
    """Entries of lists and mappings that are built, those behind an alias each time."""
    depth: int = 100
    """Levels of nesting."""

    def __post_init__(self) -> None:
        self._most = {name: getattr(self, name) for name in _WORDS}

    def spend(
        self, *, steps: int = 0, letters: int = 0, values: int = 0, depth: int = 0, at: str = ""
    ) -> None:
        """Charge the next piece of work.

        Raises
        ------
        SpecError
            The charge exceeds the rest of the budget; nothing of it is built.
        """
        self.steps -= steps
        self.letters -= letters
        self.values -= values
        self.depth -= depth
        if min(self.steps, self.letters, self.values, self.depth) < 0:
            kind = next(name for name in _WORDS if getattr(self, name) < 0)
            message = f"{_WORDS[kind]}: more than {self._most[kind]:,}, so it is not read further"
            raise SpecError(Fault(at, message))

    @contextmanager
    def deeper(self, at: str = "") -> Iterator[None]:
        """Go one level down."""
        self.spend(depth=1, at=at)
        try:
            yield
        finally:
            self.depth += 1

    def walk(self, tree: Any, at: str = "") -> None:
        """Charge a tree of mappings and lists at the size it has when it is written out.

        A part that stands in it twice counts twice; a list that holds itself has no end.
        """
        left = [tree]
        while left:
            value = left.pop()
            self.spend(values=1, letters=len(value) if isinstance(value, str) else 0, at=at)
            if isinstance(value, Mapping):
                self.spend(values=len(value), at=at)
                left.extend(value.values())
            elif isinstance(value, list | tuple):
                self.spend(values=len(value), at=at)
                left.extend(value)


_WORDS = {
    "steps": "takes too many steps", "letters": "builds too much text",
    "values": "builds too many values", "depth": "nests too deeply",
}  # fmt: skip


def tries(pattern: str, text: str) -> float:
    """Return about how often a search with a regular expression tries a letter, at most.

    Repeats share out the n letters of the text, in (n + r choose r) ways for r of them; a repeat of
    repeats splits the text in every way.
    """
    repeats = len(re.findall(r"(?<![\\(])[*+?{]", pattern))
    counts = [float(digits) for digits in re.findall(r"[0-9]+(?=[,}])", pattern)]
    ways = 2.0 ** min(len(text), 99) if re.search(r"\)[*+{]", pattern) else 1.0
    ends = min(repeats, 30) + 1
    return float(math.comb(len(text) + ends, ends)) * ways * math.prod(counts)


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """Return a part of a foreign tree as named values; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return a part of a foreign tree as entries; empty for anything else."""
    return list(value) if isinstance(value, list | tuple) else []
