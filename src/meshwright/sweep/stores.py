"""Places of the results of a sweep: an SQLite file, a PostgreSQL database, Parquet files anywhere.

All hold the same rows: a key, the point and its result as JSON. A key is a hash of its question, so
writing a row again changes nothing, and two processes may write to one place.
"""

from __future__ import annotations

import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from meshwright.base.errors import Fault, SpecError, UnsupportedError

Result = Mapping[str, Any]
Row = tuple[str, Mapping[str, Any], Result]
"""A key, its point, and the result."""
SCHEMA = 1
"""Version of the rows. A place of an older version is brought up to it, a newer one refused."""
FAILED = "failed"
"""Status of a point that was given up: it is asked again."""


def open_store(place: str | Path | None) -> Store:
    """Return the place of a path or a URL; None keeps results in memory.

    Raises
    ------
    SpecError
        The place holds something else, or cannot be opened.
    UnsupportedError
        Its package is not installed.
    """
    if not isinstance(place, str) or "://" not in place:
        return SqliteStore(None if place is None else Path(place))
    kind = PostgresStore if place.startswith(("postgresql://", "postgres://")) else ParquetStore
    return kind(place)


class Store(ABC):
    """Rows of results, by key."""

    place: object = None
    """Its name in messages."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def known(self, keys: Iterable[str]) -> dict[str, Result]:
        """Return the stored results, by key, without those of points that failed."""
        asked = set(keys)
        with self._told("cannot be read"):
            found = {key: json.loads(text) for key, text in self._read() if key in asked}
        return {key: result for key, result in found.items() if result.get("status") != FAILED}

    def add(self, rows: Iterable[Row]) -> None:
        """Store rows; they are on the disk when this returns."""
        written = [(key, json.dumps(dict(p)), json.dumps(dict(found))) for key, p, found in rows]
        with self._told("takes no more, and keeps its results"):
            self._write(written)

    @abstractmethod
    def close(self) -> None:
        """Close the place."""

    @abstractmethod
    def _read(self) -> Iterable[tuple[str, str]]:
        """Return all keys and results."""

    @abstractmethod
    def _write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Write rows; one of the same key replaces another."""

    errors: tuple[type[Exception], ...] = (OSError, ValueError)
    """Errors of an access, which are faults of the place."""

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Name the place in the fault of a failed access."""
        try:
            yield
        except self.errors as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            fault = Fault("--out", f"{str(self.place)!r} {what}: {first}")
            raise SpecError(fault) from None

    def _check(self, version: int) -> None:
        """Refuse rows of a newer version."""
        if version > SCHEMA:
            raise ValueError(
                f"its rows have version {version}, and this meshwright knows up to {SCHEMA}"
            )


MOST_TRIES, WAIT_S = 300, 0.1
"""Times that a file of another process is tried, and the seconds between them."""


def remove_base(path: Path) -> None:
    """Remove a file of SQLite, and those beside it."""
    for kind in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + kind).unlink(missing_ok=True)


class SqliteStore(Store):
    """A file of SQLite, or a place in memory."""

    errors = (sqlite3.Error, ValueError)

    def __init__(self, path: Path | None) -> None:
        self.place = path
        is_new = path is not None and not path.exists()
        with self._told("cannot be written" if is_new else "is not a file of results"):
            for _ in range(MOST_TRIES):
                try:
                    self._open()
                    return
                except sqlite3.OperationalError as error:
                    if path is None or "locked" not in str(error):
                        if path is not None and is_new:
                            remove_base(path)
                        raise
                    time.sleep(WAIT_S)  # another process makes the same file
            raise sqlite3.OperationalError(f"it is locked since {MOST_TRIES * WAIT_S:.0f} s")

    def _open(self) -> None:
        """Open the file, or create it."""
        self._base = sqlite3.connect(":memory:" if self.place is None else str(self.place))
        try:
            tables = self._base.execute("SELECT name FROM sqlite_master").fetchall()
            if tables and ("results",) not in tables:
                raise sqlite3.DatabaseError("it holds other tables")
            self._check(self._base.execute("PRAGMA user_version").fetchone()[0])
            self._base.execute("PRAGMA busy_timeout = 60000")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS results "
                "(key TEXT PRIMARY KEY, point TEXT NOT NULL, result TEXT NOT NULL)"
            )
            self._base.execute("SELECT key, point, result FROM results LIMIT 1")
            self._base.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            self._base.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def _read(self) -> Iterable[tuple[str, str]]:
        return self._base.execute("SELECT key, result FROM results")

    def _write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        with self._base:
            self._base.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)


class PostgresStore(Store):
    """A table of a PostgreSQL database: ``postgresql://USER@HOST:PORT/NAME``."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise _lacking("postgres", "psycopg") from None
        self.errors = (psycopg.Error, ValueError)
        self.place = url.rpartition("@")[2]  # without a password
        with self._told("cannot be opened"):
            self._base = psycopg.connect(url, connect_timeout=10, autocommit=True)
            try:
                self._prepare()
            except BaseException:
                self._base.close()
                raise

    def _prepare(self) -> None:
        """Make the tables where they are missing, and check the version of their rows."""
        with self._base.transaction():
            # Two that start at once make the tables one after the other.
            self._base.execute("SELECT pg_advisory_xact_lock(71)")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS meshwright_schema (version integer NOT NULL)"
            )
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS meshwright_results "
                "(key text PRIMARY KEY, point text NOT NULL, result text NOT NULL)"
            )
            version = self._base.execute("SELECT max(version) FROM meshwright_schema")
            found = (version.fetchone() or (None,))[0]
            self._check(found or 0)
            if found != SCHEMA:
                self._base.execute("INSERT INTO meshwright_schema VALUES (%s)", (SCHEMA,))

    def close(self) -> None:
        """Close the connection."""
        self._base.close()

    def _read(self) -> Iterable[tuple[str, str]]:
        with self._base.transaction(), self._base.cursor("results") as cursor:
            yield from cursor.execute("SELECT key, result FROM meshwright_results")

    def _write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        with self._base.transaction(), self._base.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO meshwright_results VALUES (%s, %s, %s) ON CONFLICT (key) "
                "DO UPDATE SET point = EXCLUDED.point, result = EXCLUDED.result",
                rows,
            )


class ParquetStore(Store):
    """A folder of Parquet files, wherever fsspec reaches: ``s3://...``, ``gs://...``, ``file://...``.

    Each block is one file with a name of its own, which is there whole or not at all.
    """

    def __init__(self, url: str) -> None:
        try:
            import pyarrow.parquet
            from fsspec.core import url_to_fs
        except ImportError:
            raise _lacking("parquet", "pyarrow and fsspec") from None
        self.place, self._parquet, self._arrow = url, pyarrow.parquet, pyarrow
        self.errors = (OSError, ValueError, pyarrow.ArrowException, ImportError)
        with self._told("cannot be opened"):
            self._files, self._folder = url_to_fs(url.rstrip("/"))
            self._files.makedirs(self._folder, exist_ok=True)

    def close(self) -> None:
        """Nothing is open between two blocks."""

    def _names(self) -> list[str]:
        return sorted(self._files.glob(f"{self._folder}/results-*.parquet"))

    def _read(self) -> Iterable[tuple[str, str]]:
        for name in self._names():
            with self._files.open(name, "rb") as file:
                table = self._parquet.read_table(file, columns=["key", "result"])
            self._check(int((table.schema.metadata or {}).get(b"meshwright", b"0")))
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)

    def _write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        named = dict(zip(("key", "point", "result"), zip(*rows, strict=True), strict=True))
        table = self._arrow.table({name: list(column) for name, column in named.items()})
        table = table.replace_schema_metadata({"meshwright": str(SCHEMA)})
        token = uuid4().hex
        partial = f"{self._folder}/.partial-{token}"
        with self._files.open(partial, "wb") as file:
            self._parquet.write_table(table, file)
        self._files.mv(partial, f"{self._folder}/results-{token}.parquet")


def _lacking(extra: str, packages: str) -> UnsupportedError:
    return UnsupportedError(
        f"--out with this address needs {packages}: pip install 'meshwright[{extra}]'"
    )
