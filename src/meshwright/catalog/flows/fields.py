"""Fields of JSON objects, read one by one: all faults at once, each with its path."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.base.errors import Fault, SpecError, nearest

LARGEST = 1e24
"""No bandwidth, size or time of a file is larger."""
SMALLEST = 1e-9
"""No bandwidth is smaller; beyond these bounds times are no longer finite numbers."""
Label = int | str


@dataclass
class Complaints:
    """What is wrong with a file, and what is merely not read."""

    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, path: str, message: str, fix: str = "") -> None:
        """Note a fault."""
        self.faults.append(Fault(path, message, fix))


@dataclass(frozen=True)
class Record:
    """One JSON object, and where it stands."""

    value: Mapping[str, Any]
    path: str
    complaints: Complaints

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def expect(self, known: Sequence[str], ignored: Sequence[str]) -> None:
        """Tell of fields that are not read; one that must mean a missing field is a fault."""
        missing = [name for name in known if name not in self.value]
        for name in self.value:
            if name in known or name in ignored:
                continue
            if difflib.get_close_matches(name.lower(), [m.lower() for m in missing], 1, 0.6):
                self.complaints.refuse(self.at(name), "unknown field", nearest(name, missing))
            else:
                self.complaints.warnings.append(f"{self.at(name)}: not read: unknown field")

    def number(self, name: str, *, least: float = 0.0, default: float | None = None) -> float:
        """Return a number within bounds."""
        if name not in self.value and default is not None:
            return default
        found = self._present(name, f"a number from {least:g} to {LARGEST:g}")
        if found is None:
            return math.nan
        if isinstance(found, bool) or not isinstance(found, int | float):
            self.complaints.refuse(self.at(name), f"found {shown(found)}, expected a number")
        elif not least <= found <= LARGEST:
            self.complaints.refuse(
                self.at(name), f"found {found!r:.40}, expected {least:g} to {LARGEST:g}"
            )
        else:
            return float(found)
        return math.nan

    def label(self, name: str) -> Label:
        """Return a text or a whole number that names something."""
        found = self._present(name, "a text or a whole number")
        if found is not None and not is_label(found):
            message = f"found {shown(found)}, expected a text or a whole number"
            self.complaints.refuse(self.at(name), message)
        return found if is_label(found) else ""

    def entries(self, name: str) -> list[Any]:
        """Return a list."""
        found = self._present(name, "a list")
        if found is not None and not isinstance(found, list):
            self.complaints.refuse(self.at(name), f"found {shown(found)}, expected a list")
        return found if isinstance(found, list) else []

    def records(self, name: str) -> Iterator[Record]:
        """Yield the objects of a list."""
        for index, entry in enumerate(self.entries(name)):
            path = f"{self.at(name)}[{index}]"
            if isinstance(entry, dict):
                yield Record(entry, path, self.complaints)
            else:
                self.complaints.refuse(path, f"found {shown(entry)}, expected an object")

    def _present(self, name: str, expected: str) -> Any:
        """Return the value of a field that must be there, or None."""
        found = self.value.get(name)
        if found is None:
            what = "is null" if name in self.value else "is missing"
            self.complaints.refuse(self.at(name), what, f"expected {expected}")
        return found


def is_label(value: object) -> bool:
    """Tell whether a value can name a link or a flow."""
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    return f"{value!r:.40}"


def read_object(path: Path, complaints: Complaints) -> Record:
    """Return the object that a JSON file holds.

    Raises
    ------
    SpecError
        When the file cannot be read, or holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_Pairs(complaints))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SpecError(Fault("", f"no JSON: {error.msg} at {where}"), origin=str(path)) from error
    except OSError as error:
        raise SpecError(Fault("", f"cannot be read: {error.strerror}"), origin=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(Fault("", f"no JSON in UTF-8: {error}"), origin=str(path)) from error
    if not isinstance(value, dict):
        found = type(value).__name__
        raise SpecError(Fault("", f"expected an object, found a {found}"), origin=str(path))
    return Record(value, "", complaints)


@dataclass(frozen=True)
class _Pairs:
    """Makes objects of their fields, and complains of those that are given twice."""

    complaints: Complaints

    def __call__(self, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for name, entry in pairs:
            if name in value:
                self.complaints.refuse("", f"the field {name!r} is given twice in one object")
            value[name] = entry
        return value
