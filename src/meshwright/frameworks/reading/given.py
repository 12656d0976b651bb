"""Options of a file: each is taken, ignored by name, or refused.

A reader takes the options that it understands. Any other option either cannot change a price, by a
list of names of the reader, or is a fault: nothing is skipped silently.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from meshwright.base.errors import Fault
from meshwright.base.units import parse_count, whole_number
from meshwright.frameworks.reading.shell import as_written, is_unknown, unknown_in

Options = dict[str, Any]
"""Options of this program by name; rows and methods of :class:`Given` check the form of each."""
Tree = Mapping[str, Any]
"""Content of a file of settings."""
_TRUE = ("", "true", "1", "yes", "on", "y", "t")
_FALSE = ("false", "0", "no", "off", "n", "f", "none", "null")


_OFF: tuple[Any, ...] = (None, False, 0, "none", "null", "false", "off", "0", [], {})
"""Values with which an option asks for nothing."""
_LIKE = 0.8
"""Least similarity of a misspelled name to the right one."""
_MOST_LIKE = 50
"""Most faults with a search for similar names."""
_SUBCOMMAND = re.compile(r"(activation[-_]checkpoint):([\w-]+)")
"""Subcommand by which torchtitan states one choice."""


@dataclass(frozen=True)
class Statement:
    """An option with its value, as in the file."""

    option: str
    """Name as spelled in the file."""
    value: Any
    """Text, or a value of YAML, JSON or TOML."""
    place: str | None = None
    """File, and line where known."""

    def __str__(self) -> str:
        value = as_written(self.value) if isinstance(self.value, str) else self.value
        return f"{self.option} {value}".strip() if value is not None else self.option


@dataclass(frozen=True, repr=False)
class OpenOption(Fault):
    """Option that the files leave open."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"option": "path", "message": "message", "fix": "fix"}


@cache
def any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return the regular expression of names that match one of the shell patterns."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")


def canonical(option: str) -> str:
    """Return the name under which an option is looked up: no dashes in front, underscores."""
    return option.lstrip("-+").replace("-", "_")


class Given:
    """The options of one program, each taken once; faults are kept."""

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self._statements = {canonical(one.option): one for one in statements}
        self._taken: dict[str, Statement] = {}
        self.faults: list[Fault] = []
        self.missing: list[OpenOption] = []
        self.notes: list[str] = []
        self._implied: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._statements

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def add(self, other: Given) -> None:
        """Take over the statements of another file; those that are here already stay."""
        self._statements = other._statements | self._statements
        self.notes += other.notes

    def renamed(self, names: Mapping[str, str]) -> None:
        """Give options their full name."""
        for short, full in names.items():
            if short in self._statements:
                self._statements.setdefault(full, self._statements.pop(short))

    def __len__(self) -> int:
        return len(self._statements)

    def flatten(self, sections: Iterable[str]) -> None:
        """Leave the names of sections out of those of their fields."""
        for name in list(self._statements):
            section, dot, field = name.rpartition(".")
            parts = section.split(".") if dot else []
            if parts and all(part in sections for part in parts):
                one = self._statements.pop(name)
                self._statements[canonical(field)] = one

    def without(self, name: str) -> None:
        """Forget an option that another one decides."""
        self._statements.pop(name, None)

    def state(self, name: str, value: Any) -> None:
        """State the program's default for an option that its files leave out or without a value."""
        if self.peek(name) is None:
            self.restate(name, value)

    def restate(self, name: str, value: Any) -> None:
        """State a value that another option decides, or the value's name in another program."""
        if name in self._statements:
            self._taken[name] = self._statements[name]
        else:
            self._implied.add(name)
        self._statements[name] = Statement(name, value)

    def put_under(self, section: str, names: set[str] | None = None) -> None:
        """Put a section before all names, or before those of each file that has one of some."""
        places = {
            one.place for name, one in self._statements.items()
            if names is None or (one.place and name.partition(".")[0] in names)
        }  # fmt: skip
        self._statements = {
            f"{section}.{name}" if one.place in places else name: one
            for name, one in self._statements.items()
        }

    def statement(self, name: str, option: str = "") -> Statement:
        """Return the statement of an option, under another name if one is given."""
        one = self._statements[name]
        return Statement(option or one.option, one.value, one.place)

    def peek(self, name: str) -> Any:
        """Return a value without taking it; None where it is not stated."""
        return self._statements[name].value if name in self._statements else None

    def is_on(self, name: str) -> bool:
        """Return whether a switch is on; one left to others ('auto') is not."""
        if str(self.peek(name)).lower() == "auto":
            self.value(name)
            return False
        return self.flag(name)

    def negated(self) -> None:
        """Read ``--section.no-name`` as the switch ``section.name`` turned off."""
        for name in list(self._statements):
            section, dot, field = name.rpartition(".")
            if dot and field.startswith("no_"):
                one = self._statements.pop(name)
                self._statements[f"{section}.{field[3:]}"] = Statement(one.option, False, one.place)

    # ----------------------------------------------------------------------------- taking

    def value(self, *names: str) -> Any:
        """Return the value of the first stated name; None: no name is stated."""
        found = None
        for name in names:
            if name in self._statements:
                self._taken.setdefault(name, self._statements[name])
                found = self._statements[name].value if found is None else found
        if isinstance(found, str) and (what := unknown_in(found)):
            name = next(name for name in names if name in self._statements)
            self.refuse(name, f"depends on ${what}, which the files do not set", _fix(what))
            return None
        return None if found in ("None", "null") else found

    def path(self, *names: str) -> str | None:
        """Return the name of a file; a script that writes one knows its name without its value."""
        for name in names:
            if isinstance(found := self.peek(name), str) and unknown_in(found):
                self._taken[name] = self._statements[name]
                return found
        return self.text(*names)

    def text(self, *names: str) -> str | None:
        """Return a text."""
        found = self.value(*names)
        if isinstance(found, list):
            return ",".join(map(str, found))
        return None if found is None else str(found)

    def whole(self, *names: str, least: int = 1, most: int = 10**15) -> int | None:
        """Return a whole number; ``most`` where something of that length is built."""
        found = self.value(*names)
        if found is None or found == "auto":
            return None
        text = str(found)
        number = whole_number(text)
        if number is None:
            number = parse_count(text, kilo=1000)
        if isinstance(found, float) and found.is_integer() and abs(found) < 1e18:
            number = int(found)
        if isinstance(found, bool) or number is None or number < least:
            self._wrong(names, found, f"a whole number of at least {least}")
            return None
        if number > most:
            self._wrong(names, found, f"at most {most:,}")
            return None
        return number

    def real(self, *names: str) -> float | None:
        """Return a number."""
        found = self.value(*names)
        if found is None or found == "auto":
            return None
        try:
            number = float(found)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self._wrong(names, found, "a number")
            return None
        return number

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        if not any(name in self._statements for name in names):
            return default
        stated = next(self._statements[name] for name in names if name in self._statements)
        if isinstance(stated.value, str) and is_unknown(stated.value):
            self._taken[canonical(stated.option)] = stated
            self.notes.append(f"{as_written(stated.value)} is not set: taken as empty")
            return True
        found = self.value(*names)
        if found is None or isinstance(found, bool):
            return bool(found)
        word = str(found).lower()
        if word not in (*_TRUE, *_FALSE):
            self._wrong(names, found, "true or false")
        return word in _TRUE

    def word(self, *names: str, among: Iterable[str]) -> str | None:
        """Return a text that is one of those that are understood."""
        found, known = self.text(*names), list(among)
        if found is None:
            return None
        lowered = {one.lower(): one for one in known}
        if found.lower() not in lowered:
            self._wrong(names, found, ", ".join(known), "is not read")
            return None
        return lowered[found.lower()]

    # ------------------------------------------------------------------------------ faults

    def refuse(self, name: str, why: str, fix: str = "") -> None:
        """Refuse an option, where it is stated."""
        if name in self._statements:
            self._taken[name] = self._statements[name]
            one = self._statements[name]
            self.faults.append(Fault(_where(one), why, fix))

    def refuse_each(
        self, patterns: Iterable[str], why: str, fix: str = "", unless: Iterable[str] = ()
    ) -> None:
        """Refuse options that ask for something that is not priced, one fault for each pattern.

        Parameters
        ----------
        patterns
            Names or patterns. An option that asks for nothing is taken.
        unless
            Further values that leave the price unchanged.
        """
        for pattern in patterns:
            named = fnmatch.filter(self._statements, pattern)
            self._taken |= {name: self._statements[name] for name in named}
            asked = [name for name in named if not self.asks_nothing(name, unless)]
            if asked:
                self.refuse(asked[0], why, fix)

    def refuse_unless(self, name: str, *values: str, why: str, fix: str = "") -> None:
        """Refuse an option unless it asks for nothing, or has one of these values."""
        self.refuse_each((name,), why, fix, values)

    def asks_nothing(self, name: str, others: Iterable[str] = ()) -> bool:
        """Return whether an option has no value, is off, or has one of other values."""
        value = self._statements[name].value
        is_off = (value.lower() if isinstance(value, str) else value) in _OFF
        return is_off or str(value).lower() in {other.lower() for other in others}

    def note_if(self, name: str, text: str) -> None:
        """Note the effect of an option that is on and that the price does not include."""
        if name in self._statements and self.flag(name):
            self.notes.append(f"{self._statements[name].option}: {text}")

    def needs(self, option: str, why: str, fix: str = "") -> None:
        """Note that an option of this program has to be stated beside the files."""
        self.missing.append(OpenOption(option, f"is needed: {why}", fix))

    def _wrong(self, names: tuple[str, ...], found: object, wanted: str, why: str = "") -> None:
        name = next(name for name in names if name in self._statements)
        message = f"{why}; found {found!r}" if why else f"found {found!r}"
        self.faults.append(Fault(_where(self._statements[name]), message, f"{wanted}"))

    # ----------------------------------------------------------------------------- the rest

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return all statements."""
        return tuple(self._statements.values())

    @property
    def read(self) -> tuple[Statement, ...]:
        """Return the statements of the files that were taken."""
        return tuple(one for name, one in self._taken.items() if name not in self._implied)

    def rest(self, patterns: Iterable[str]) -> tuple[Statement, ...]:
        """Return the statements ignored by the list of a reader; all others become faults.

        A field without a value leaves a program at its default, which a price starts from. A
        section without any option that is read is one fault.

        Parameters
        ----------
        patterns
            Names, or patterns of names, of options that change no price.
        """
        known, ignored = tuple(patterns), []
        unread: dict[tuple[str | None, str], list[Statement]] = {}
        sections = {name.partition(".")[0] for name in (*self._taken, *known) if "." in name}
        for name, one in self._statements.items():
            if name in self._taken:
                continue
            if one.value is None or any_of(known).match(name):
                ignored.append(one)
            else:
                section = name.partition(".")[0]
                whole = name if section in sections else section
                unread.setdefault((one.place, whole), []).append(one)
        others = sorted({*self._taken, *(p for p in known if "*" not in p)})
        for (place, name), found in unread.items():
            message, one = "is not read, and may change the price", found[0]
            if len(found) > 1:
                one = Statement(name, None, place)
                message = f"with {len(found)} fields {message}"
            asked = others if len(self.faults) < _MOST_LIKE else ()
            near = difflib.get_close_matches(name, asked, 1, _LIKE)
            fix = f"did you mean {near[0]}?" if near else ""
            self.faults.append(Fault(_where(one), message, fix))
        return tuple(ignored)


def _where(one: Statement) -> str:
    return f"{one.place}: {one.option}" if one.place else one.option


def _fix(what: str) -> str:
    name = what.strip("${}")
    return f"--set {name}=VALUE" if name.isidentifier() or name.isdigit() else "write the number"


def of_words(words: Iterable[str]) -> tuple[Given, tuple[str, ...]]:
    """Return the options of a command line, and its words that belong to none.

    ``--name value``, ``--name=value`` and ``name=value`` are options; the last of a name counts.
    A variable that is not set, where an option could stand, is taken as empty.
    """
    found: list[tuple[str, list[str]]] = []
    values: list[str] | None = None
    loose: list[str] = []
    notes: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if choice := _SUBCOMMAND.fullmatch(word):
            values = None
            found.append((choice[1], [choice[2]]))
        elif word.startswith("--") or (word[:1] == "-" and word[1:2].isalpha()):
            values = [value] if equals else []
            found.append((name, values))
        elif equals and canonical(name).replace(".", "_").isidentifier():
            values = None
            found.append((name, [value]))
        elif is_unknown(word) and (values is None or values):
            notes.append(f"{as_written(word)} is not set: taken as empty")
        elif values is not None:
            values.append(word)
        else:
            loose.append(word)
    given = Given(Statement(name, " ".join(values)) for name, values in found)
    given.notes += notes
    return given, tuple(loose)


def of_tree(tree: Tree, place: str = "") -> Given:
    """Return the options of a tree, nested names joined by dots."""
    return Given(Statement(name, value, place or None) for name, value in _leaves(tree))


def names_in(tree: Tree, before: str = "") -> Options:
    """Return the value of each name of a tree, as it is looked up; sections have names too."""
    found: Options = {}
    for key, value in tree.items():
        name = f"{before}{canonical(str(key))}"
        found[name] = value
        if isinstance(value, Mapping):
            found |= names_in(value, f"{name}.")
    return found


def _leaves(tree: Tree, before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value
