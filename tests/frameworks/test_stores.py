"""Every place of results keeps the same rows: SQLite, a real PostgreSQL, Parquet files."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from meshwright.base.errors import SpecError
from meshwright.sweep import stores
from meshwright.sweep.run import run
from meshwright.sweep.stores import open_store

ROWS = [("a", {"x": 1}, {"status": "found", "y": 0.5}), ("b", {"x": 2}, {"status": "refused"})]


def program(name):
    """Return a program of PostgreSQL, or None."""
    found = [*Path("/usr/lib/postgresql").glob(f"*/bin/{name}")]
    return str(found[-1]) if found else shutil.which(name)


def wait_for(address):
    """Return when a server answers, after a minute at most."""
    import psycopg

    for _ in range(60):
        with suppress(psycopg.OperationalError):
            psycopg.connect(address, connect_timeout=5).close()
            return
        time.sleep(1)


@contextmanager
def postgres(folder):
    """Run a server of its own on a free port; it refuses to run as root."""
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        pytest.skip("no PostgreSQL server is installed")
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    if user:
        shutil.chown(folder, "postgres")
        for above in folder.parents:
            if above.stat().st_uid == 0 and above != Path("/") and above != Path("/tmp"):
                above.chmod(above.stat().st_mode | 0o011)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    subprocess.run(
        [*user, initdb, "-D", data, "-A", "trust", "-U", "mw"], check=True, capture_output=True,
        cwd=folder,
    )  # fmt: skip
    words = [*user, server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            for line in process.stderr:
                if "ready to accept connections" in line:
                    break
            address = f"postgresql://mw@127.0.0.1:{port}/postgres"
            wait_for(address)
            yield address
        finally:
            process.terminate()
            process.stderr.read()


@pytest.fixture(params=["sqlite", "parquet", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        yield str(tmp_path / "results.db")
    elif request.param == "parquet":
        pytest.importorskip("pyarrow")
        yield f"file://{tmp_path}/results"
    else:
        pytest.importorskip("psycopg")
        with postgres(tmp_path) as address:
            yield address


def test_rows_stay_and_equal_keys_are_one(place):
    with open_store(place) as store:
        store.add(ROWS)
        store.add(ROWS[:1])
        store.add([("f", {"x": 3}, {"status": "failed", "reason": "it ended"})])
    with open_store(place) as store:
        assert store.known(["a", "b", "c", "f"]) == {"a": ROWS[0][2], "b": ROWS[1][2]}


def test_rows_of_a_newer_version_are_refused(place, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(stores, "SCHEMA", 7)
        with open_store(place) as store:
            store.add(ROWS)
    with pytest.raises(SpecError, match="its rows have version 7"), open_store(place) as store:
        store.known(["a"])


def test_a_sweep_goes_on_where_it_stopped(place):
    points = [{"x": x} for x in range(20)]
    asked = []

    def evaluate(point):
        asked.append(point["x"])
        if len(asked) == 8:
            raise KeyboardInterrupt
        return {"status": "found", "y": point["x"] ** 2}

    for _ in range(2):
        with open_store(place) as store:
            swept = run("plan", evaluate, points, store, version="1")
    assert [result["y"] for result in swept.results] == [x * x for x in range(20)]
    assert set(asked) == set(range(20))
    assert len(asked) < 20 + 8  # a block of the first run was not written


def test_a_wrong_address_is_told():
    pytest.importorskip("psycopg")
    with pytest.raises(SpecError, match=r"127.0.0.1:9/none' cannot be opened"):
        open_store("postgresql://user:secret@127.0.0.1:9/none")
