"""Records at a prompt and in a notebook: a short ``repr``, and rows for libraries of tables.

A record leads with its answer. All of its fields are there by name, and in ``--json``.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import Enum
from html import escape
from importlib import import_module
from os import PathLike
from textwrap import shorten
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

from meshwright.base.errors import UnknownNameError, UnsupportedError

if TYPE_CHECKING:
    import pandas
    import polars

Scalar = str | int | float | bool | None
Rows = list[dict[str, Scalar]]
MOST_LETTERS, NEXT = 300, "\n  "
"""Most characters of a line of a ``repr``, and the separator of lines."""
MOST_ENTRIES = 3
"""Most entries shown of a mapping or a sequence inside a record."""
LIBRARIES = ("pandas", "polars")
PAIR_NAME = re.compile(r"(.*interval|.+(?=_))(.*)")
"""Stem and unit of the name of a pair of numbers."""


class Brief:
    """A record with a representation of a few lines instead of all its fields."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the short ``repr``, which ``dataclass`` would replace by a long one."""
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Brief.__repr__  # type: ignore[method-assign]

    def brief(self) -> str:
        """Return the record in one to three lines, the answer first."""
        shown = [
            f"{name}={_short(value)}" for name, value in self.shown_fields() if value is not None
        ]
        return ", ".join(shown)

    def shown_fields(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that differ from their default, by name."""
        assert dataclasses.is_dataclass(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_empty = isinstance(value, Mapping | tuple | list) and not value
            if is_empty or (isinstance(field.default, _PLAIN) and value == field.default):
                continue
            yield field.name, value

    def __repr__(self) -> str:
        lines = [shorten(line, MOST_LETTERS) for line in self.brief().splitlines()]
        return f"<{type(self).__name__} {NEXT.join(lines)}>"


_PLAIN = (str, int, float, bool, Enum, type(None))


def _short(value: object) -> str:
    """Return a value of a field in a few letters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Brief):
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        entries = [f"{key}: {_short(part)}" for key, part in list(value.items())[:MOST_ENTRIES]]
        return "{" + ", ".join([*entries, *["..."] * (len(value) > MOST_ENTRIES)]) + "}"
    if isinstance(value, list | tuple):
        if any(not isinstance(part, _PLAIN) for part in value):
            return f"({len(value)} of {type(value[0]).__name__})"
        entries = [_short(part) for part in value[:MOST_ENTRIES]]
        return "(" + ", ".join([*entries, *["..."] * (len(value) > MOST_ENTRIES)]) + ")"
    return shorten(repr(value), 80)


class Listed(Brief, ABC):
    """An answer that holds rows: at a prompt a few lines, in a notebook a table."""

    @abstractmethod
    def rows(self) -> Rows:
        """Return the rows: SI values by names with their unit, those of ``--json``."""

    @overload
    def to_dataframe(self, library: Literal["pandas"] = "pandas") -> pandas.DataFrame: ...
    @overload
    def to_dataframe(self, library: Literal["polars"]) -> polars.DataFrame: ...

    def to_dataframe(self, library: str = "pandas") -> Any:
        """Return the rows as a table of pandas or polars.

        Values are SI; columns have the names of ``--json``, with their unit: ``step_time_s``,
        ``memory_bytes``. Unknown values are missing.

        Parameters
        ----------
        library
            ``pandas`` or ``polars``, which has to be installed.

        Raises
        ------
        UnknownNameError, UnsupportedError
            No such library is known, or it is not installed.
        """
        if library not in LIBRARIES:
            raise UnknownNameError("library of tables", str(library), LIBRARIES)
        try:
            tables = import_module(library)
        except ImportError:
            message = f"{library} is not installed; pip install {library}"
            raise UnsupportedError(message) from None
        return tables.DataFrame(columns_of(self.rows()))

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return f"<pre>{escape(self.brief())}</pre>"


def columns_of(rows: Rows) -> dict[str, list[Scalar]]:
    """Return rows as columns of one type each; None where a row lacks the value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _alike([row.get(name) for row in rows]) for name in names}


def _alike(values: list[Scalar]) -> list[Scalar]:
    """Return numbers as text where others are text, whole ones as floats where others are."""
    if any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    if any(isinstance(value, float) for value in values):
        return [float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]
    return values


def scalars(record: Any) -> dict[str, Scalar]:
    """Return the numbers, texts and truth values of a record, by the names of ``--json``.

    A pair of numbers becomes two: ``interval_s`` becomes ``interval_low_s`` and
    ``interval_high_s``, ``tokens_per_s_interval`` the same with ``_low`` and ``_high`` at its end.
    """
    own = {field.name: field.name for field in dataclasses.fields(record)}
    named = {**getattr(type(record), "DERIVED", {}), **own}
    found: dict[str, Scalar] = {}
    for name, source in named.items():
        value = getattr(record, source)
        if isinstance(value, Enum):
            found[name] = str(value)
        elif value is None or isinstance(value, str | int | float):
            found[name] = value
        elif _is_pair(value):
            stem, unit = PAIR_NAME.findall(name)[0]
            found |= {f"{stem}_low{unit}": value[0], f"{stem}_high{unit}": value[1]}
    return found


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and [type(part) for part in value] == [float, float]


class Shown(Listed):
    """An answer with a view: its room registers the page, and the media draw it."""

    def page(self, **beside: Any) -> Any:
        """Return the view as data (``meshwright.view.parts.Page``).

        Parameters
        ----------
        beside
            Parts that other rooms add, such as launch files.
        """
        return _media().page_of(self, **beside)

    def report(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the report as one HTML file; over a file that is there only with ``force``.

        It has the parts of other rooms too, such as launch files.
        """
        page = self.page(**import_module("meshwright.api").beside(self))
        _media().write_page(page, path, force=force)

    def plot(self, name: str) -> Any:
        """Return a chart of the report as a chart of Altair.

        Parameters
        ----------
        name
            Title of the chart, or name of its section, such as ``memory`` or ``time``.
        """
        return _media().plot_of(self.page(), name)

    def brief(self) -> str:
        """Return the question and the first answer."""
        lead: str = _media().lead_of(self.page())
        return lead

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the first screen of the report."""
        card: str = _media().card_of(self.page())
        return card


def _media() -> ModuleType:
    """Return the media by name: an answer knows no view."""
    return import_module("meshwright.view.media")
