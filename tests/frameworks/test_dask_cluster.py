"""A Dask cluster of separate processes: killed workers, a killed scheduler, another version."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from meshwright.base.errors import MeshwrightError, SpecError, UnsupportedError

pytest.importorskip("distributed", reason="Dask is not installed")

from meshwright.base import cluster as clusters
from meshwright.base.cluster import Failed, answers, open_cluster

FUNCTIONS = """
import os, signal, time

def slow_square(number):
    time.sleep(0.005)
    return number * number

def killer(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
"""


@contextmanager
def started(*words, env):
    """Run a part of Dask; its output is told where it fails."""
    command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def worker(address, env, **changed):
    words = ["worker", address, "--nthreads", "1", "--nworkers", "1", "--no-dashboard"]
    return started(*words, "--death-timeout", "30", env={**env, **changed})


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Return functions of a module that workers import, too."""
    (tmp_path / "asked_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("asked_functions", None)
    import asked_functions

    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return asked_functions, os.environ | {"PYTHONPATH": path}


@contextmanager
def cluster_of(number, env):
    """Run a scheduler and workers; return the scheduler and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    with started(*words, env=env) as scheduler:
        address = f"tcp://127.0.0.1:{port}"
        with worker(address, env), worker(address, env):
            deadline = time.monotonic() + 120
            while (cluster := opened(f"dask://127.0.0.1:{port}")) is None:
                assert time.monotonic() < deadline
            try:
                while cluster.num_workers < number or not cluster._workers:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                    cluster.renew()
                yield scheduler, address, cluster
            finally:
                cluster.end()


def opened(where):
    """Return a cluster; None while its scheduler starts."""
    with suppress(SpecError):
        return open_cluster(where)


def all_of(found):
    return dict(one for block in found for one in block)


def test_killed_workers_lose_nothing(functions):
    asked, env = functions
    rng = random.Random(0)
    with cluster_of(2, env) as (_, _, cluster):
        found = {}
        for number, block in enumerate(answers(cluster, asked.slow_square, range(400))):
            found |= dict(block)
            if number in (2, 5):
                pids = cluster._client.run(os.getpid)
                os.kill(rng.choice(list(pids.values())), signal.SIGKILL)
    assert found == {number: number * number for number in range(400)}


@pytest.mark.slow
def test_a_question_that_ends_its_worker_is_given_up(functions):
    asked, env = functions
    with cluster_of(2, env) as (_, _, cluster):
        found = all_of(answers(cluster, asked.killer, range(6)))
    assert isinstance(found.pop(3), Failed)
    assert found == {number: number for number in (0, 1, 2, 4, 5)}


def test_a_killed_scheduler_ends_the_run_with_the_way_to_go_on(functions, monkeypatch):
    asked, env = functions
    monkeypatch.setattr(clusters, "HEARTBEAT_S", 0.2)

    def kill_after_some(scheduler, cluster):
        for number, _ in enumerate(answers(cluster, asked.slow_square, range(10_000))):
            if number == 1:
                scheduler.kill()

    ends = pytest.raises(MeshwrightError, match="run again to go on")
    with cluster_of(2, env) as (scheduler, _, cluster), ends:
        kill_after_some(scheduler, cluster)


def test_a_worker_of_another_version_is_left_out_by_name(functions, tmp_path):
    asked, env = functions
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import meshwright.base.cluster as r\nr.state_of_code = lambda: 'another'\n"
    )
    path = os.pathsep.join([str(other), env["PYTHONPATH"]])
    with cluster_of(2, env) as (_, address, cluster), worker(address, env, PYTHONPATH=path):
        deadline = time.monotonic() + 60
        while not cluster.warnings:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            cluster.renew()
        found = all_of(answers(cluster, asked.slow_square, range(50)))
        assert len(cluster._workers) == 2
        (warning,) = cluster.warnings
    assert "runs another version of meshwright" in warning
    assert found == {number: number * number for number in range(50)}


@pytest.mark.parametrize(
    ("ttl", "pause_s"),
    [("2s", 8.0), pytest.param("5 minutes", 60.0, marks=pytest.mark.slow)],
)
def test_a_worker_that_is_not_heard_for_a_while_loses_nothing(functions, ttl, pause_s):
    """A worker stands still as one without its network: given up after ``ttl``, or waited for."""
    asked, env = functions
    env = {**env, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": ttl}
    with cluster_of(2, env) as (_, _, cluster):
        found, paused = [], None
        for block in answers(cluster, asked.slow_square, range(1500)):
            found += block
            if paused is None:
                paused = min(cluster._client.run(os.getpid).values())
                os.kill(paused, signal.SIGSTOP)
                threading.Timer(pause_s, os.kill, (paused, signal.SIGCONT)).start()
    assert len(found) == 1500
    assert dict(found) == {number: number * number for number in range(1500)}


@pytest.mark.slow
def test_no_scheduler_is_told():
    with pytest.raises(SpecError, match=r"no answer from 'dask://127.0.0.1:9'"):
        open_cluster("dask://127.0.0.1:9")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'meshwright\[cluster\]'"):
        open_cluster("dask://127.0.0.1:9")
