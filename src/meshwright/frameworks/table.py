"""Table of a framework: each row names an option of its files and the option of this program.

Rows are read and written by the same functions, so that a file that is written comes back. Tables
are YAML files beside the irregular rules of their framework, ``programs/NAME.yaml``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import starmap

import yaml

from meshwright.frameworks.reading.given import Given

Value = None | bool | int | float | str | tuple[str, ...] | list[int] | dict[str, int]
"""A value of an option."""
Words = tuple[str, ...]
"""One option of a command line with its values."""
PLAIN: tuple[Value, ...] = (None, False, 0, 1, "", "none", "off", (), [])
"""Values with which an option of this program asks for nothing."""


@dataclass(frozen=True)
class Flag:
    """One option of a framework."""

    name: str
    """Name in the files of the framework, under which it is written."""
    option: str = ""
    """Option of this program; empty: the constant is written."""
    kind: str = "whole"
    """Form of the value where none are listed: ``whole``, ``real``, ``switch`` or ``text``."""
    values: Mapping[Value, Value] = field(default_factory=dict)
    """Values of this program by those of the framework; the first of several is written."""
    default: Value = None
    """Value of this program where the file states none."""
    also: tuple[str, ...] = ()
    """Other names under which the option is read."""
    when: str = ""
    """Option of this program without which the row is not written."""
    constant: Value = None
    is_read: bool = True
    """Whether the row is read; otherwise a rule beside the table reads it."""
    least: int = 1
    most: int = 10**15
    """Largest number, where something of that length is built."""

    def read(self, given: Given) -> Value:
        """Return the value of this program that a file states, or the default."""
        names = (self.name, *self.also)
        if self.kind == "switch" or any(isinstance(theirs, bool) for theirs in self.values):
            if not any(name in given for name in names):
                return self.default
            is_on = given.flag(*names)
            return self.values.get(is_on, self.default) if self.values else is_on
        if self.values:
            known = {str(theirs): ours for theirs, ours in self.values.items()}
            found = given.word(*names, among=known)
            return self.default if found is None else known[found]
        if self.kind == "whole":
            number = given.whole(*names, least=self.least, most=self.most)
            return self.default if number is None else number
        stated = given.real(*names) if self.kind == "real" else given.text(*names)
        return self.default if stated is None else stated

    def written(self, words: Mapping[str, Value]) -> Value:
        """Return the value of the framework for a plan in words; None: it is not written."""
        if self.when and (needed := words.get(self.when)) in PLAIN and needed is not True:
            return None
        if not self.option:
            return self.constant
        value = words.get(self.option)
        if not self.values:
            return value
        return next((theirs for theirs, ours in self.values.items() if ours == value), None)


@dataclass(frozen=True)
class Unpriced:
    """Options that change a price and are not read."""

    names: tuple[str, ...]
    """Names, or patterns of names."""
    why: str
    fix: str = ""
    unless: tuple[str, ...] = ()
    """Values that are not refused, beside those with which an option asks for nothing."""


@dataclass(frozen=True)
class FlagTable:
    """Options of one framework."""

    title: str
    """Name of the program whose files are read."""
    written: str = ""
    """Name and version of the program whose files are written."""
    starts: tuple[str, ...] = ()
    """Signs of a command that is this program; :func:`shows` reads them."""
    holds: tuple[str, ...] = ()
    """Signs of a tree that is a file of this program."""
    rows: tuple[Flag, ...] = ()
    model_rows: tuple[Flag, ...] = ()
    """Options of the model, behind the others."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names as the table has them, by those of other versions."""
    refused: tuple[Unpriced, ...] = ()
    noted: Mapping[str, str] = field(default_factory=dict)
    """Effects that the price does not include, by the name of the switch."""
    taken: tuple[str, ...] = ()
    """Names of options that other options decide."""
    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Names of the framework and of this program, for the rules beside the table."""
    recipes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Options that a configuration of the framework states, by its name."""
    ignored: tuple[str, ...] = ()
    """Names, or patterns of names, of options that change no price."""

    def read(self, given: Given, passed_over: Container[str] = ()) -> dict[str, Value]:
        """Return the options of this program that the rows state, and judge the others.

        Parameters
        ----------
        passed_over
            Options of this program that are taken from the file and left at their default.
        """
        found = {}
        for row in (*self.rows, *self.model_rows):
            if row.option in passed_over:
                given.value(row.name, *row.also)
                found[row.option] = row.default
            elif row.is_read:
                found[row.option] = row.read(given)
        self.judge(given)
        return found

    def judge(self, given: Given) -> None:
        """Refuse, note and take the options that are not rows."""
        for one in self.refused:
            given.refuse_each(one.names, one.why, one.fix, one.unless)
        for name, text in self.noted.items():
            given.note_if(name, text)
        for name in self.taken:
            given.value(name)

    def write(self, words: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
        """Yield name and value of every row that a plan in words states."""
        for row in (*self.rows, *self.model_rows):
            if (value := row.written(words)) is not None:
                yield row.name, value


@cache
def load_table(name: str) -> FlagTable:
    """Return the table of a framework."""
    text = files("meshwright.frameworks.programs").joinpath(f"{name}.yaml").read_text("utf-8")
    tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    below = load_table(tree["extends"]) if "extends" in tree else FlagTable("")
    return FlagTable(
        title=tree["title"],
        written=tree.get("written", ""),
        starts=tuple(tree.get("starts", ())),
        holds=tuple(tree.get("holds", ())),
        rows=(*starmap(_row, tree.get("rows", {}).items()), *below.rows),
        model_rows=tuple(starmap(_row, tree.get("model_rows", {}).items())),
        renamed=tree.get("renamed", {}),
        refused=tuple(
            Unpriced(names_of(one["names"]), one["why"], str(one.get("fix", "")),
                    names_of(one.get("unless", ())))
            for one in tree.get("refused", ())
        ),
        noted=tree.get("noted", {}),
        taken=names_of(tree.get("taken", "")),
        maps={**below.maps, **tree.get("maps", {})},
        recipes=tree.get("recipes", {}),
        ignored=(*below.ignored, *names_of(tree.get("ignored", ""))),
    )  # fmt: skip


def shows(signs: Iterable[str], stated: Mapping[str, object]) -> bool:
    """Return whether names with their values have one of the signs of a program.

    A sign is words that all apply. ``name`` and ``name=value`` are patterns, of ``a|b`` one
    applies, of ``!a`` none.
    """
    return any(all(_applies(word, stated) for word in sign.split()) for sign in signs)


def _applies(word: str, stated: Mapping[str, object]) -> bool:
    if word.startswith("!"):
        return not _applies(word[1:], stated)
    return any(
        not value or fnmatch.fnmatchcase(str(stated[found]), value)
        for name, _, value in (one.partition("=") for one in word.split("|"))
        for found in fnmatch.filter(stated, name)
    )


def names_of(stated: str | Iterable[object]) -> tuple[str, ...]:
    """Return names of a list, or of a text that lists them."""
    return tuple(stated.split()) if isinstance(stated, str) else tuple(map(str, stated))


def _row(name: str, stated: object) -> Flag:
    """Return a row: ``name: option``, or a mapping of the fields of :class:`Flag`."""
    if not isinstance(stated, dict):
        return Flag(name, str(stated))
    values = stated.get("values", {})
    return Flag(
        name,
        option=stated.get("is", ""),
        kind=stated.get("kind", "whole"),
        values=values,
        default=stated.get("default"),
        also=names_of(stated.get("also", ())),
        when=stated.get("when", ""),
        constant=stated.get("always"),
        is_read=stated.get("read", True) and "is" in stated,
        least=stated.get("least", 1),
        most=stated.get("most", 10**15),
    )


def text_of(value: Value) -> str:
    """Return a value as command lines have it."""
    return f"{value}".lower() if isinstance(value, bool) else f"{value}"


def dashed(written: Iterable[tuple[str, Value]]) -> Iterator[Words]:
    """Yield ``--name value``; switches that are on have no value, others are left out."""
    for name, value in written:
        if isinstance(value, tuple):
            yield (f"--{name}", *value)
        elif value is not False:
            yield (f"--{name}",) if value is True else (f"--{name}", text_of(value))


def assigned(written: Iterable[tuple[str, Value]]) -> Iterator[Words]:
    """Yield ``name=value``."""
    for name, value in written:
        yield (f"{name}={text_of(value)}",)


def nested(written: Iterable[tuple[str, Value]]) -> dict[str, object]:
    """Return a tree: names with dots are fields of sections."""
    tree: dict[str, object] = {}
    for name, value in written:
        *sections, field = name.split(".")
        inside = tree
        for section in sections:
            below = inside.setdefault(section, {})
            assert isinstance(below, dict)
            inside = below
        inside[field] = list(value) if isinstance(value, tuple) else value
    return tree
