"""Results of a sweep in one SQLite file: a row as soon as it is known, looked up by its key."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from meshwright.base.errors import Fault, SpecError

Result = Mapping[str, Any]


class Store:
    """A file of results; also what holds them where no file is asked for.

    Parameters
    ----------
    path
        None keeps them in memory.

    Raises
    ------
    SpecError
        Where the file holds something else, or cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        try:
            self._base = sqlite3.connect(":memory:" if path is None else path)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS results "
                "(key TEXT PRIMARY KEY, point TEXT NOT NULL, result TEXT NOT NULL)"
            )
        except sqlite3.Error as error:
            fault = Fault("--out", f"{str(path)!r} is no file of results: {error}")
            raise SpecError(fault) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._base.close()

    def known(self, keys: Iterable[str]) -> dict[str, Result]:
        """Return the results that are there, by key."""
        asked = set(keys)
        rows = self._base.execute("SELECT key, result FROM results")
        return {key: json.loads(result) for key, result in rows if key in asked}

    def add(self, key: str, point: Mapping[str, Any], result: Result) -> None:
        """Keep one result; it is on the disk when this returns."""
        with self._base:
            self._base.execute(
                "INSERT OR REPLACE INTO results VALUES (?, ?, ?)",
                (key, json.dumps(dict(point)), json.dumps(dict(result))),
            )
