"""A Ray cluster: started here, and one of separate processes that ends its workers."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.base.cluster import Failed, answers, open_cluster
from meshwright.base.errors import MeshwrightError

pytest.importorskip("ray", reason="Ray is not installed")

FUNCTIONS = """
import os, signal, time

def slow(number):
    time.sleep(0.05)
    return number

def killer(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number
"""
OTHER = "import meshwright.base.cluster as c\nc.state_of_code = lambda: 'another'\n"


def all_of(found):
    return dict(one for block in found for one in block)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture
def head(tmp_path, monkeypatch):
    """Return a function that starts a head of two workers, and returns its address."""
    (tmp_path / "asked_of_ray.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    script = str(Path(sys.executable).parent / "ray")
    started = []

    def start(first_lines=""):
        (tmp_path / "sitecustomize.py").write_text(first_lines)
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        port = free_port()
        words = ["start", "--head", "--port", free_port(), "--ray-client-server-port", port,
                 "--num-cpus", "2", "--include-dashboard", "false", "--block"]  # fmt: skip
        process = subprocess.Popen(
            [script, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        started.append(process)
        for line in process.stdout:
            if "Ray runtime started" in line:
                break
        return f"ray://127.0.0.1:{port}"

    start.started = started
    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def test_it_answers_the_same_as_one_process():
    with open_cluster("ray://local") as cluster:
        assert all_of(answers(cluster, abs, range(-50, 0))) == dict(enumerate(range(50, 0, -1)))


def test_a_question_that_ends_its_worker_is_given_up(head):
    import asked_of_ray

    with open_cluster(head()) as cluster:
        found = all_of(answers(cluster, asked_of_ray.killer, range(40)))
    assert isinstance(found.pop(3), Failed)
    assert found == {number: number * number for number in range(40) if number != 3}


def test_a_worker_of_another_version_answers_nothing(head):
    wrong = pytest.raises(MeshwrightError, match=r"process .* runs another version of meshwright")
    with open_cluster(head(OTHER)) as cluster, wrong:
        list(answers(cluster, abs, range(5)))


def test_a_head_that_ends_is_told_by_its_address(head):
    import asked_of_ray

    address = head()
    gone = pytest.raises(MeshwrightError, match=f"head at {address} is gone; run again to go on")
    with open_cluster(address) as cluster, gone:
        for number, _ in enumerate(answers(cluster, asked_of_ray.slow, range(10_000))):
            if number == 3:
                process = head.started[-1]
                subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=True)
                process.kill()
