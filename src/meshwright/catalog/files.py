"""Reads YAML files into declarations, with all faults of a file at once and the source of a value.

YAML is read as data only: mappings, lists, text, whole numbers, numbers, true and false; no tags,
no aliases, no code. Text that YAML would convert (``on`` as true, ``010`` as eight, ``1:30`` as
ninety) stays text or is refused. Duplicate keys are refused.

The declarations themselves say which fields there are; this module knows none of them by name.
A value is written plainly (``3.35 TB/s``) or with its origin::

    bandwidth: {value: 3.35 TB/s, source: S}
    latency: {value: 2 us, assumed: true, range: [1 us, 4 us], why: no measurement found}
    capacity: {value: 80 GiB, derived: true, source: S, why: five stacks of 16 GiB}

``source:`` next to other fields is the default source of the plain values below it, and the origin
of derived ones; a value written with ``value:`` states its own origin.

A file passes through two steps: sources are taken out of the tree (:func:`plain_values`), pydantic
checks the fields against the declaration.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from meshwright.base.budget import Budget
from meshwright.base.errors import Fault, SpecError, UnknownNameError, nearest
from meshwright.base.files import MOST_BYTES, text_of, unreadable
from meshwright.base.units import read_quantity
from meshwright.spec.declaration import (
    Declaration,
    Provenance,
    choices_of,
    file_key,
    message_of,
)

Location = tuple[str | int, ...]
FileFields = dict[str | int, Any]
"""The fields of a mapping of a file."""

# YAML to a tree of plain data

_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
FLOAT = re.compile(  # in one pass, however long it is
    r"[-+]?(?:(?:(?:[0-9][0-9_]*+)?\.[0-9]++|[0-9]++(?:_++[0-9]++)*+)(?:[eE][-+]?[0-9]++)?"
    r"|[0-9][0-9_]*+\.)"
)
_LARGEST_INTEGER = 2**53
"""Largest whole number that is exact as a float."""
_NOTHING = object()
"""Value of a key that has none."""


@dataclass(frozen=True)
class Tree:
    """Content of a file: nested dicts and lists, and the line of each of them."""

    value: FileFields
    lines: Mapping[Location, int]


def path_text(location: Location) -> str:
    """Return a location as users write it: ``memories[0].bandwidth``.

    Signs of names that cannot be printed are escaped.
    """
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def fault_at(lines: Mapping[Location, int], at: Location, message: str, fix: str = "") -> Fault:
    """Return a fault with the line of the nearest entry of the file."""
    near = at
    while near and near not in lines:
        near = near[:-1]
    where = f" (line {lines[near]})" if lines.get(near) else ""
    return Fault(path_text(at), f"{message}{where}", fix)


def shown(value: object) -> str:
    """Return a value as a message shows it: cut where it is long."""
    try:
        written = repr(value)
    except ValueError:
        return "a number of too many digits"
    return written if len(written) <= 60 else f"{written[:57]}..."


def read_tree(text: str, origin: str) -> Tree:
    """Return the tree of a YAML text.

    Raises
    ------
    SpecError
        With all faults of the text: bad syntax, duplicate keys, tags, aliases, empty values.
    """
    builder = _TreeBuilder(yaml.parse(text, Loader=_Parser))
    events, faults = builder.events, builder.faults
    value: Any = {}
    try:
        next(events)
        if isinstance(next(events), yaml.StreamEndEvent):
            faults.append(Fault("", "the file is empty"))
        else:
            value = builder.node(next(events), ())
            next(events)
            if not isinstance(next(events), yaml.StreamEndEvent):
                faults.append(Fault("", "the file holds more than one document"))
            if not isinstance(value, dict):
                faults.append(Fault("", "the file must be a mapping of fields to values"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        faults.append(Fault("", f"{where}this is not YAML: {what}"))
    except SpecError as error:
        faults.extend(error.faults)
    if faults:
        raise SpecError(faults, origin=origin)
    return Tree(value, builder.lines)


@dataclass
class _TreeBuilder:
    """Builds the tree from the events of the parser."""

    events: Iterator[Any]
    faults: list[Fault] = field(default_factory=list)
    lines: dict[Location, int] = field(default_factory=dict)
    budget: Budget = field(default_factory=lambda: Budget(depth=24))

    def refuse(self, at: Location, message: str) -> None:
        """Note a fault."""
        self.faults.append(fault_at(self.lines, at, message))

    def node(self, event: Any, at: Location) -> object:
        """Return the value that starts with this event."""
        self.lines[at] = event.start_mark.line + 1
        self.budget.values -= 1
        if self.budget.values < 0:
            self.budget.spend(at=path_text(at))
        kind = type(event)
        if kind is yaml.AliasEvent:
            self.refuse(at, f"the alias *{event.anchor} is not allowed")
            return None
        if event.tag not in (None, "!"):
            self.refuse(at, f"the tag {event.tag!r} is not allowed; files hold data only")
        if kind is yaml.ScalarEvent:
            return self.scalar(event.value, at) if event.implicit[0] else event.value
        with self.budget.deeper(path_text(at)):
            return self.mapping(at) if kind is yaml.MappingStartEvent else self.sequence(at)

    def sequence(self, at: Location) -> list[object]:
        """Return the list after its start was read."""
        values: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self.value(event, (*at, len(values))))
        return values

    def mapping(self, at: Location) -> FileFields:
        """Return the mapping after its start was read."""
        values: FileFields = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self.node(event, (*at, "(key)"))
            del self.lines[*at, "(key)"]
            if not isinstance(key, str | int) or isinstance(key, bool) or key == "<<":
                self.refuse(at, f"{key!r} cannot be a field name, line {line}")
                key = f"(key of line {line})"
            if key in values:
                self.refuse((*at, key), f"the field is given twice, again on line {line}")
            values[key] = self.value(next(self.events), (*at, key), line)
        return values

    def value(self, event: Any, at: Location, line: int | None = None) -> object:
        """Return the value of a key or an entry of a list, or note that there is none."""
        value = self.node(event, at)
        self.lines[at] = line or self.lines[at]
        if value is _NOTHING:
            self.refuse(at, "has no value; write `unknown` where nothing is known")
            return None
        return value

    def scalar(self, text: str, at: Location) -> object:
        """Return the number, truth value or text that is written without quotes."""
        if text in ("", "~", "null", "Null", "NULL"):
            return _NOTHING
        if text in ("true", "false"):
            return text == "true"
        if text[0].isalpha():
            return text
        if not _INTEGER.fullmatch(text):
            return float(text.replace("_", "")) if FLOAT.fullmatch(text) else text
        if len(text) > 20 or abs(int(text.replace("_", ""))) > _LARGEST_INTEGER:
            self.refuse(at, f"the whole number {text[:24]} is beyond 2^53")
            return 1
        return int(text.replace("_", ""))


# values without their sources

_SOURCED_KEYS = ("value", "source", "assumed", "derived", "range", "why")


@dataclass
class PlainValues:
    """The values of a tree without sources, the origin of each by path, and the faults found."""

    tree: Tree
    value: FileFields
    provenance: dict[str, Provenance] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    reported: set[Location] = field(default_factory=set)
    """Places with a fault noted already, so that no further one is reported."""

    def refuse(self, at: Location, message: str, fix: str = "", *, is_last: bool = False) -> None:
        """Note a fault; ``is_last`` where a further check of this place would find nothing new."""
        self.faults.append(fault_at(self.tree.lines, at, message, fix))
        self.reported |= {at} if is_last else set()


def plain_values(tree: Tree) -> PlainValues:
    """Return the tree without its sources, and with the origin of each number."""
    sources = tree.value.get("sources")
    known = tuple(map(str, sources)) if isinstance(sources, Mapping) else ()
    plain = PlainValues(tree, {})
    plain.value = _SourceReader(plain, known).fields(tree.value, (), None)
    return plain


@lru_cache(maxsize=1024)
def _cited(source: str) -> Provenance:
    return Provenance(source=source)


class _SourceReader:
    """Walks a tree once; knows the keys of the sources of the file."""

    def __init__(self, plain: PlainValues, known: tuple[str, ...]) -> None:
        self.plain, self.known, self.refuse = plain, known, plain.refuse

    def fields(self, value: FileFields, at: Location, default: str | None) -> FileFields:
        """Return a mapping without its default source; ``sources`` itself is left alone."""
        source = value.get("source")
        if source is not None and self.is_source(source, (*at, "source")):
            default = source
        return {
            key: entry if not at and key == "sources" else self.read(entry, (*at, key), default)
            for key, entry in value.items()
            if key != "source"
        }

    def read(self, value: object, at: Location, default: str | None) -> object:
        """Return a value without sources."""
        if isinstance(value, dict):
            read = self.sourced if "value" in value else self.fields
            return read(value, at, default)
        if isinstance(value, list):
            return [self.read(entry, (*at, i), default) for i, entry in enumerate(value)]
        if default is not None and number_in(value) is not None:
            self.plain.provenance[path_text(at)] = _cited(default)
        return value

    def is_source(self, source: object, at: Location) -> bool:
        """Return whether a source is one of the file, and note a fault where it is not."""
        if isinstance(source, str) and source in self.known:
            return True
        self.refuse(at, f"no entry {source!r} under `sources`", nearest(str(source), self.known))
        return False

    def sourced(self, entry: FileFields, at: Location, default: str | None) -> object:
        """Return the value of a mapping with an origin, after noting the origin."""
        for key in entry:
            if key not in _SOURCED_KEYS:
                allowed = f"allowed with `value`: {', '.join(_SOURCED_KEYS[1:])}"
                fix = nearest(str(key), _SOURCED_KEYS)
                self.refuse((*at, key), f"unknown field; {allowed}", fix)
        value = entry["value"]
        if isinstance(value, dict | list):
            self.refuse((*at, "value"), "expected one number or text")
            return value
        source = entry.get("source", default)
        if "source" in entry and not self.is_source(source, (*at, "source")):
            return value
        low, high = self.interval(entry, at)
        for key in ("assumed", "derived"):
            if entry.get(key, True) is not True:
                self.refuse((*at, key), f"can only be true, found {entry[key]!r}")
        if "assumed" in entry and "derived" in entry:
            self.refuse(at, "cannot be assumed and derived at once")
        if "assumed" in entry and "range" not in entry:
            self.refuse(at, "is assumed without a range", "add `range: [LOW, HIGH]`")
        if "derived" in entry and "why" not in entry:
            self.refuse(at, "is derived without saying how", "add `why: ...`")
        kind = next((key for key in ("assumed", "derived") if key in entry), "cited")
        why = entry.get("why", "")
        if not isinstance(why, str):
            self.refuse((*at, "why"), f"expected text, found {why!r}")
            why = ""
        has_origin = kind == "assumed" or source is not None
        if not has_origin or not entry.keys() & {"source", "assumed", "derived"}:
            self.refuse(at, "states no origin; give `source`, or `assumed: true` with its range")
        self.plain.provenance[path_text(at)] = Provenance.model_validate(
            {"kind": kind, "source": source, "note": why, "low": low, "high": high}
        )
        return value

    def interval(self, entry: FileFields, at: Location) -> tuple[float | None, float | None]:
        """Return the interval of a value in SI units, checked against the value itself."""
        if "range" not in entry:
            return None, None
        bounds = entry["range"]
        numbers = [number_in(bound) for bound in bounds] if isinstance(bounds, list) else []
        value = number_in(entry["value"])
        low, high = numbers if len(numbers) == 2 else (None, None)
        if value is None or low is None or high is None:
            self.refuse((*at, "range"), f"expected [LOW, HIGH] with units, found {bounds!r}")
        elif not low[1] == value[1] == high[1]:
            self.refuse((*at, "range"), "the bounds are of another kind than the value")
        elif not low[0] <= value[0] <= high[0]:
            self.refuse((*at, "range"), f"the value {entry['value']!r} is outside {bounds!r}")
        else:
            return low[0], high[0]
        return None, None


def number_in(value: object) -> tuple[float, str] | None:
    """Return the SI number and the dimension of a written value, or None where it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return (float(value), "number") if math.isfinite(value) else None
    return read_quantity(value)


# fields and their types

_WRITTEN_BY_LOADER = {"provenance"}


def file_keys(model: type[Declaration]) -> dict[str, FieldInfo]:
    """Return the fields of a declaration by their key in a file."""
    return {
        info.alias or file_key(name): info
        for name, info in model.model_fields.items()
        if name not in _WRITTEN_BY_LOADER
    }


def _declaration_at(model: type[Declaration], at: Location) -> type[Declaration] | None:
    """Return the declaration that holds the fields at a location; None: none does."""
    kind: object = model
    for step in at:
        if isinstance(kind, type) and issubclass(kind, Declaration):
            info = file_keys(kind).get(str(step))
            kind = info.annotation if info else None
        else:
            kind = next((part for part in reversed(get_args(kind)) if part is not ...), None)
        while get_origin(kind) in (Annotated, Union, types.UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
    return kind if isinstance(kind, type) and issubclass(kind, Declaration) else None


def _with_tuples(value: Any, at: Location, plain: PlainValues) -> Any:
    """Return a value in which lists are tuples, as declarations hold them; no file states origins.

    Fields that the loader writes are refused.
    """
    if isinstance(value, dict):
        for key in value.keys() & _WRITTEN_BY_LOADER:
            plain.refuse((*at, key), "unknown field")
        return {
            key: _with_tuples(entry, (*at, key), plain)
            for key, entry in value.items()
            if key not in _WRITTEN_BY_LOADER
        }
    if isinstance(value, list):
        return tuple(_with_tuples(entry, (*at, i), plain) for i, entry in enumerate(value))
    return value


# files to declarations

D = TypeVar("D", bound=Declaration)
Prepare = Callable[[PlainValues], None]

_DATA = Path(__file__).parent / "data"
_SUFFIXES = (".yaml", ".yml")
_NAMED_FIELD = re.compile(r"([a-z_]+): (.*)", re.DOTALL)


@cache
def data_names(folder: str) -> dict[str, Path]:
    """Return the files of one folder of the catalog by name."""
    return {path.stem: path for path in sorted((_DATA / folder).glob("*.yaml"))}


def looks_like_path(text: str) -> bool:
    """Return whether a text names a file rather than an entry of the catalog."""
    return text.endswith(_SUFFIXES) or "/" in text or "\\" in text


def find_name(text: str, names: Iterable[str]) -> str | None:
    """Return the name that equals a text, letter case aside."""
    return next((name for name in names if name.lower() == text.lower()), None)


def spellings(names: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return every way to write some names, as :func:`bare` leaves it, with the name.

    Parameters
    ----------
    names
        Other names, by name.
    """
    return {bare(text): name for name, others in names.items() for text in (name, *others)}


def bare(text: str) -> str:
    """Return a name without letter case, spaces and dashes."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def data_path(folder: str, kind: str, text: str) -> Path:
    """Return the file of a catalog name, or the path itself where the text is one.

    Raises
    ------
    UnknownNameError
        When the catalog has no such name; lists the near ones.
    """
    if looks_like_path(text):
        return Path(text)
    name = find_name(text, data_names(folder))
    if name is None:
        raise UnknownNameError(kind, text, data_names(folder))
    return data_names(folder)[name]


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file, or say why it cannot be read."""
    try:
        return text_of(path, most_bytes=most_bytes)
    except FileNotFoundError:
        near = nearest(path.name, (entry.name for entry in path.parent.glob("*.y*ml")))
        raise SpecError(Fault("", "there is no such file", near), origin=str(path)) from None
    except (OSError, ValueError) as error:
        raise SpecError(unreadable(error), origin=str(path)) from None


def read_json(path: Path, *, most_bytes: int = MOST_BYTES) -> Any:
    """Return the content of a JSON file; a field that one object states twice is a fault."""
    try:
        text = text_of(path, most_bytes=most_bytes)
    except (OSError, ValueError) as error:
        raise SpecError(unreadable(error), origin=str(path)) from error
    return json_content(text, str(path))


MOST_JSON_VALUES = 5_000_000
"""Most values in one JSON file: about a gigabyte of memory."""


def json_content(text: str, origin: str) -> Any:
    """Return the content of a JSON text; a field that one object states twice is a fault."""
    repeated: list[Fault] = []
    if sum(map(text.count, ",[{")) > MOST_JSON_VALUES:  # each value but the first has one before it
        raise SpecError(Fault("", f"has more than {MOST_JSON_VALUES:,} values"), origin=origin)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = (
                name for name, count in Counter(name for name, _ in pairs).items() if count > 1
            )
            repeated.extend(Fault(name, "is given twice in one object") for name in twice)
        return found

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        fault = Fault(f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}")
        raise SpecError(fault, origin=origin) from error
    except ValueError as error:  # whole numbers of thousands of digits
        raise SpecError(unreadable(error), origin=origin) from error
    except RecursionError as error:
        raise SpecError(Fault("", "cannot be read: nests too deeply"), origin=origin) from error
    if repeated:
        raise SpecError(repeated, origin=origin)
    return content


def load_file(model: type[D], path: Path, prepare: Prepare | None = None) -> D:
    """Return the declaration that a YAML file holds.

    Parameters
    ----------
    model
        The declaration: :class:`ChipSpec`, :class:`SystemSpec`, ...
    prepare
        Called with the plain values before they are checked; may replace values, such as the
        name of a chip by the chip.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    return load_text(model, read_text(path), origin=str(path), prepare=prepare)


def load_text(model: type[D], text: str, *, origin: str = "", prepare: Prepare | None = None) -> D:
    """Return the declaration that a YAML text holds; see :func:`load_file`."""
    plain = plain_values(read_tree(text, origin))
    if prepare is not None:
        prepare(plain)
    return load_plain(model, plain, origin=origin)


def load_plain(model: type[D], plain: PlainValues, *, origin: str = "") -> D:
    """Return the declaration of plain values, or all faults, with those noted before."""
    value = _with_tuples(plain.value, (), plain)
    if "provenance" in model.model_fields:
        value["provenance"] = plain.provenance
    try:
        result = model.model_validate(
            value, strict=True, by_alias=True, by_name=False, context={"from_file": True}
        )
    except ValidationError as error:
        above = {at[:length] for at in plain.reported for length in range(len(at) + 1)}
        for entry in error.errors(include_url=False):
            at: Location = tuple(step for step in entry["loc"] if step != "[key]")
            below = any(at[:length] in plain.reported for length in range(len(at)))
            if not (below or at in above):
                is_named = len(plain.faults) < MOST_NEAR
                plain.faults.append(_pydantic_fault(model, plain.tree, entry, at, is_named))
    if plain.faults:
        raise SpecError(plain.faults, origin=origin)
    return result


MOST_NEAR: Final = 100
"""Faults of a file for which near names are looked for."""


def _pydantic_fault(
    model: type[Declaration], tree: Tree, error: Any, at: Location, is_named: bool
) -> Fault:
    """Return one pydantic error in the words of this package.

    Parameters
    ----------
    is_named
        Whether near names of an unknown field are looked for.
    """
    found, kind, message = error.get("input"), error["type"], message_of(error)
    if kind in ("missing", "extra_forbidden"):
        holder = _declaration_at(model, at[:-1])
        keys = file_keys(holder) if holder else {}
        if kind == "extra_forbidden":
            near = nearest(file_key(str(at[-1])), keys) if is_named else ""
            return fault_at(tree.lines, at, message, near)
        required = ", ".join(key for key, info in keys.items() if info.is_required())
        return fault_at(tree.lines, at, message, f"required here: {required}")
    if found is None:
        return fault_at(tree.lines, at, "must be stated; it cannot be `unknown`")
    if isinstance(found, tuple):
        found, message = list(found), message.partition(", found ")[0]
    elif kind == "value_error":
        if (named := _NAMED_FIELD.fullmatch(message)) and isinstance(found, dict):
            return fault_at(tree.lines, (*at, file_key(named[1])), named[2])
        return fault_at(tree.lines, at, message)
    known = choices_of(error) if kind == "literal_error" else []
    fix = nearest(str(found), known) if known else ""
    return fault_at(tree.lines, at, f"{message}, found {shown(found)}", fix)
