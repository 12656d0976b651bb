"""A file of results that cannot be made leaves nothing behind."""

import sqlite3

import pytest

from meshwright.base.errors import SpecError
from meshwright.sweep import stores


class _Full(sqlite3.Connection):
    """A disk on which the first page fits, and no other."""

    def execute(self, statement, *rest):
        if statement.startswith("CREATE"):
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(statement, *rest)


def test_nothing_is_left_of_it(tmp_path, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(stores.sqlite3, "connect", lambda path: connect(path, factory=_Full))
    with pytest.raises(SpecError, match="cannot be written: database or disk is full"):
        stores.SqliteStore(tmp_path / "results.db")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays(tmp_path):
    path = tmp_path / "notes.db"
    path.write_text("no database, and long enough to be told from an empty one " * 20)
    with pytest.raises(SpecError, match="is not a file of results"):
        stores.SqliteStore(path)
    assert path.exists()
