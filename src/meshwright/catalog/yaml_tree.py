"""Reads YAML as data only, and remembers on which line each value stands.

No tags, no aliases, no code: mappings, lists, text, whole numbers, numbers, true and false. What
YAML would guess otherwise (``on`` as true, ``010`` as eight, ``1:30`` as ninety) stays text or is
refused. Duplicate keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from meshwright.base.errors import Fault, SpecError

Location = tuple[str | int, ...]

_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)?\.?[0-9]+([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*\.")
_DEPTH = 24
_LARGEST_INTEGER = 2**53
"""Whole numbers beyond this are not exact as floats, and no count of anything here."""


class _Empty:
    """The value of a key that has none."""


@dataclass(frozen=True)
class Tree:
    """What a file says: nested dicts and lists, and the line of each of them."""

    value: dict[str | int, Any]
    lines: Mapping[Location, int]


def path_text(location: Location) -> str:
    """Return a location as users write it: ``memories[0].bandwidth``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def fault_at(lines: Mapping[Location, int], at: Location, message: str, fix: str = "") -> Fault:
    """Return a fault with the line of the nearest thing that stands in the file."""
    shown = at
    while shown and shown not in lines:
        shown = shown[:-1]
    line = lines.get(shown)
    where = f" (line {line})" if line else ""
    return Fault(path_text(at), f"{message}{where}", fix)


def read_tree(text: str, origin: str) -> Tree:
    """Return the tree of a YAML text.

    Raises
    ------
    SpecError
        With all faults of the text: bad syntax, duplicate keys, tags, aliases, empty values.
    """
    builder = _Builder(yaml.parse(text, Loader=_Parser))
    try:
        value = builder.document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        builder.faults.append(Fault("", f"{where}this is not YAML: {what}"))
    if builder.faults:
        raise SpecError(builder.faults, origin=origin)
    return Tree(value, builder.lines)


@dataclass
class _Builder:
    """Builds the tree from the events of the parser."""

    events: Iterator[Any]
    faults: list[Fault] = field(default_factory=list)
    lines: dict[Location, int] = field(default_factory=dict)

    def document(self) -> Any:
        """Return the one document of the text, which must be a mapping."""
        next(self.events)
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            self.faults.append(Fault("", "the file is empty"))
            return {}
        value = self.node(next(self.events), ())
        next(self.events)
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            self.faults.append(Fault("", "the file holds more than one document"))
        if not isinstance(value, dict):
            self.faults.append(Fault("", "the file must be a mapping of fields to values"))
        return value

    def node(self, event: Any, at: Location) -> Any:
        """Return the value that starts with this event."""
        self.lines[at] = event.start_mark.line + 1
        if len(at) > _DEPTH:
            raise yaml.YAMLError(f"nested deeper than {_DEPTH} levels")
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent):
            return self.refuse(at, f"the alias *{event.anchor} is not allowed")
        if tag is not None and tag != "!":
            self.refuse(at, f"the tag {tag!r} is not allowed; files hold data only")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(at)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(at)
        return self.scalar(event, at)

    def refuse(self, at: Location, message: str) -> None:
        """Note a fault."""
        self.faults.append(fault_at(self.lines, at, message))

    def sequence(self, at: Location) -> list[Any]:
        """Return the list whose start was read."""
        values: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self.present(self.node(event, (*at, len(values))), (*at, len(values))))
        return values

    def mapping(self, at: Location) -> dict[str | int, Any]:
        """Return the mapping whose start was read."""
        values: dict[str | int, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self.node(event, (*at, "(key)"))
            del self.lines[*at, "(key)"]
            is_key = isinstance(key, str | int) and not isinstance(key, bool) and key != "<<"
            if not is_key:
                self.refuse(at, f"{key!r} cannot be a field name, line {line}")
                key = f"(key of line {line})"
            if key in values:
                self.refuse((*at, key), f"the field is given twice, again on line {line}")
            value = self.node(next(self.events), (*at, key))
            self.lines[*at, key] = line
            values[key] = self.present(value, (*at, key))
        return values

    def present(self, value: Any, at: Location) -> Any:
        """Return the value, or note that there is none."""
        if value is _Empty:
            self.refuse(at, "has no value; write `unknown` where nothing is known")
            return None
        return value

    def scalar(self, event: Any, at: Location) -> Any:
        """Return the text, number or truth value of a scalar."""
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in ("", "~", "null", "Null", "NULL"):
            return _Empty
        if text in ("true", "false"):
            return text == "true"
        if _INTEGER.fullmatch(text):
            return self.integer(text, at)
        return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text

    def integer(self, text: str, at: Location) -> int:
        """Return a whole number, refused where it is too large to be exact."""
        if len(text) > 20 or abs(int(text.replace("_", ""))) > _LARGEST_INTEGER:
            self.refuse(at, f"the whole number {text[:24]} is beyond 2^53")
            return 1
        return int(text.replace("_", ""))
