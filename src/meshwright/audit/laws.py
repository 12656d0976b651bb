"""Laws of an answer: inequalities with the smaller count on the left, both in one unit.

An answer states its facts as a record of plain numbers; a law turns facts into one inequality. The
counts on either side are made here, from the specification alone, so that a formula of ``cost``
that forgets a term is found by a count that never knew the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from meshwright.base.errors import UnlawfulError
from meshwright.base.units import format_bytes, format_seconds, format_si

ROUNDING = 1.0e-6
"""Relative error allowed between sums of many terms [1]."""


class Inequality(NamedTuple):
    """Two counts in one unit: the first is at most the second."""

    small: float
    large: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the inequality holds, up to rounding; False where a count is not a number."""
        return self.small <= self.large + ROUNDING * abs(self.large)

    def __str__(self) -> str:
        small, large = (_shown(count, self.unit) for count in self[:2])
        return f"{small} against {large}"


def _shown(count: float, unit: str) -> str:
    """Return a count with its unit as text."""
    if unit == "B":
        return format_bytes(count)
    if unit == "s":
        return format_seconds(count)
    return f"{count:g}" if unit == "1" else format_si(count, unit)


@dataclass(frozen=True)
class Violation:
    """A law that an answer breaks."""

    answer: str
    """Name of the answer, or of one of several."""
    law: str
    says: str
    inequality: Inequality

    def __str__(self) -> str:
        return f"{self.answer}: {self.says}; it says {self.inequality}"


A = TypeVar("A")
D = TypeVar("D")
F = TypeVar("F", bound="Facts")
States = Callable[[F], Inequality | None]


@dataclass(frozen=True)
class Law(Generic[F]):
    """One inequality between facts."""

    name: str
    says: str
    """The law in words."""
    states: States[F]
    """The two counts; None where the law does not apply to the facts."""


@dataclass(frozen=True)
class Laws(Generic[F]):
    """The laws of one kind of facts, by name."""

    known: dict[str, Law[F]] = field(default_factory=dict)

    def law(self, says: str) -> Callable[[States[F]], States[F]]:
        """Return a decorator that adds a law under the name of its function."""

        def add(states: States[F]) -> States[F]:
            self.known[states.__name__] = Law(states.__name__, says, states)
            return states

        return add

    def add_sum(self, name: str, what: str, parts: str, whole: str, unit: str) -> None:
        """Add the law that the parts of a fact sum to it, where it is known."""

        def states(facts: F) -> Inequality | None:
            total: float | None = getattr(facts, whole)
            if total is None:
                return None
            return equal(sum(getattr(facts, parts).values()), total, unit)

        self.known[name] = Law(name, f"the parts of the {what} sum to its total", states)


@dataclass(frozen=True)
class Facts:
    """Facts of an answer, as plain numbers and declarations."""

    laws: ClassVar[Laws]  # type: ignore[type-arg]
    answer: str
    """Name of the answer: the plan string."""


def violations(facts: Iterable[Facts]) -> list[Violation]:
    """Return each law that some facts break."""
    return [
        Violation(entry.answer, law.name, law.says, found)
        for entry in facts
        for law in entry.laws.known.values()
        if (found := law.states(entry)) is not None and not found.holds
    ]


def lawful(answer: A, facts: Iterable[Facts]) -> A:
    """Return an answer with facts that break no law.

    Raises
    ------
    UnlawfulError
        With each law that they break, and both sides of it.
    """
    if found := violations(facts):
        raise UnlawfulError([str(violation) for violation in found])
    return answer


def gathered(kind: type[D], *sources: object, **stated: Any) -> D:
    """Return a record of facts: the stated ones, and the others by name from the sources.

    The first source with the name counts.
    """
    missing = object()
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.name not in stated:
            held = (getattr(source, entry.name, missing) for source in sources)
            stated[entry.name] = next(value for value in held if value is not missing)
    return kind(**stated)


def equal(first: float, second: float, unit: str) -> Inequality:
    """Return the inequality of two equal counts: their distance is at most the rounding."""
    return Inequality(abs(first - second), ROUNDING * max(abs(first), abs(second)), unit)
