"""The error tree: the mistakes of a user, and how they are reported.

A :class:`Fault` is one thing wrong at one place; an error carries all faults of a file at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class MeshwrightError(Exception):
    """Anything that meshwright reports to its user."""


@dataclass(frozen=True)
class Fault:
    """One thing wrong: its place, the value found, the values allowed, and the nearest fix."""

    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        hint = f" ({self.fix})" if self.fix else ""
        return f"{self.path}: {self.message}{hint}" if self.path else f"{self.message}{hint}"

    def __repr__(self) -> str:
        return f"<Fault {self}>"


_MOST_SHOWN = 50
"""Faults that a message lists."""


class SpecError(MeshwrightError, ValueError):
    """Bad input; lists every fault with the path of its field."""

    def __init__(self, faults: Sequence[Fault] | Fault, *, origin: str = "") -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        self.origin = origin
        head = f"{origin}: " if origin else ""
        if len(self.faults) == 1:
            text = f"{head}{self.faults[0]}"
        else:
            lines = "\n".join(f"  - {fault}" for fault in self.faults[:_MOST_SHOWN])
            if more := len(self.faults[_MOST_SHOWN:]):
                lines += f"\n  - ... and {more:,} more"
            text = f"{head}{len(self.faults)} faults\n{lines}"
        super().__init__(text)


class UnknownNameError(MeshwrightError, KeyError):
    """A name that no registry or catalog holds; lists the near ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"unknown {kind} {name!r}; {nearest(name, self.known)}")

    def __str__(self) -> str:
        return str(self.args[0])


class UsageError(MeshwrightError):
    """A command or a call that cannot be read."""


class InfeasibleError(MeshwrightError):
    """No plan fits; carries the refusal counts and the closest candidate."""


class UnlawfulError(MeshwrightError):
    """An answer breaks laws of conservation: a fault of the program, not of its input."""

    def __init__(self, broken: Sequence[str]) -> None:
        self.broken = tuple(broken)
        lines = "\n".join(f"  - {law}" for law in self.broken)
        super().__init__(
            f"no answer is given, because the one that was found cannot be true\n{lines}\n"
            "This is a fault of meshwright: please report it with the command"
        )


class UnsupportedError(MeshwrightError):
    """An exporter or a model cannot express this; each fault names its fix."""

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__(message)


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """Return ``did you mean ...`` for the known names nearest to ``name``.

    Where nothing is near, the first few known names are listed instead.
    """
    names = sorted(set(known))
    lowered = {entry.lower(): entry for entry in names}
    near = [lowered[key] for key in difflib.get_close_matches(name.lower(), lowered, most, 0.5)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"known: {listed}" if names else "none is known"


def message_of(error: Exception) -> str:
    """Return the message; a file error starts with the file."""
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{error.filename}: "
        return place + error.strerror
    return str(error)
