"""Blocks of questions over workers that end, fail, or run another version."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from meshwright.base import cluster as clusters
from meshwright.base.cluster import Failed, Here, LocalProcesses, WrongVersionError, answers
from meshwright.base.errors import MeshwrightError, SpecError


def square(number):
    return number * number


def fails_at_three(number):
    if number == 3:
        raise ValueError("three\nis not liked")
    return number


def all_of(found):
    return dict(one for block in found for one in block)


@pytest.mark.parametrize("make", [Here, lambda: LocalProcesses(2)])
def test_each_question_is_answered_once_whatever_its_group(make):
    with make() as cluster:
        blocks = list(answers(cluster, square, range(100), [n % 7 for n in range(100)]))
    places = [place for block in blocks for place, _ in block]
    assert sorted(places) == list(range(100))
    assert all(answer == place * place for block in blocks for place, answer in block)


def test_questions_of_one_group_come_in_a_row():
    asked = []
    list(answers(Here(), asked.append, "abcabc", list("abcabc")))
    assert "".join(asked) == "aabbcc"


def test_a_question_that_fails_is_given_up_after_three_tries():
    tries = []

    def counted(number):
        tries.append(number)
        return fails_at_three(number)

    found = all_of(answers(Here(), counted, range(6)))
    assert found[3] == Failed("ValueError: three")
    assert tries.count(3) == 3
    assert [found[n] for n in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]


def test_a_block_of_another_version_answers_nothing():
    with pytest.raises(WrongVersionError, match="process"):
        clusters.answered("another", square, [1])


def test_code_and_data_of_packages_that_extend_this_one_are_of_its_version(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "extending_packages", lambda: [str(tmp_path)])
    versions = []
    for name in ("rules.py", "rows.csv.gz", "rules.pyc"):
        versions.append(clusters.state_of_code.__wrapped__())
        (tmp_path / name).write_text("other")
    versions.append(clusters.state_of_code.__wrapped__())
    assert len(set(versions)) == 3
    assert versions[-1] == versions[-2]


def test_blocks_are_as_small_as_asked():
    assert [len(block) for block in answers(Here(), square, range(40), most_in_block=1)] == [1] * 40


def test_a_local_worker_of_another_version_is_named(monkeypatch):
    monkeypatch.setattr(clusters, "answered", other_version)
    with pytest.raises(MeshwrightError, match="host-7 runs another version of meshwright"):
        list(answers(Here(), square, range(3)))


def other_version(version, answer, items):
    raise WrongVersionError("host-7")


@pytest.mark.parametrize("where", ["local", "local:0", "local:2000", "mpi://a:1", "dask://", "4"])
def test_a_cluster_that_is_none_is_refused(where):
    with pytest.raises(SpecError, match=r"local:N .such as local:4."):
        clusters.open_cluster(where)


PROGRAM = """
import sys, time
from pathlib import Path
from meshwright.base.cluster import LocalProcesses
from meshwright.sweep.run import run
from meshwright.sweep.stores import SqliteStore

def evaluate(point):
    time.sleep(0.002)
    return {"status": "found", "x": point["x"] ** 2, "pid": 0}

if __name__ == "__main__":
    with SqliteStore(Path(sys.argv[1])) as store, LocalProcesses(2) as cluster:
        print("ready", flush=True)
        points = [{"x": x, "model": x % 3} for x in range(300)]
        swept = run("plan", evaluate, points, store, version="0", cluster=cluster)
    print(sum(result["x"] for result in swept.results), swept.is_complete)
"""


def workers_of(pid):
    """Return the processes below another one."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def kept(path):
    with sqlite3.connect(path) as base:
        return base.execute("SELECT * FROM results ORDER BY key").fetchall()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    path = folder / "program.py"
    path.write_text(PROGRAM)
    subprocess.run([sys.executable, path, folder / "whole.db"], check=True, capture_output=True)
    return path, kept(folder / "whole.db")


NIGHTS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 200)]


@pytest.mark.parametrize("seed", [0, 1, 2, *NIGHTS])
def test_killed_at_random_times_it_ends_with_the_same_results(tmp_path, program, seed):
    """Workers, and the process that asks, get SIGKILL; the next run goes on."""
    path, expected = program
    rng = random.Random(seed)
    base, text = tmp_path / "killed.db", ""
    for left in reversed(range(rng.randint(1, 4))):
        with subprocess.Popen(
            [sys.executable, path, base], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "ready\n"
            for _ in range(rng.randint(0, 2)):
                time.sleep(rng.uniform(0.0, 0.3))
                for worker in workers_of(process.pid)[: rng.randint(0, 2)]:
                    with suppress(ProcessLookupError):  # it ended by itself
                        os.kill(worker, signal.SIGKILL)
            if left:
                time.sleep(rng.uniform(0.0, 0.3))
                process.kill()
            text, told = process.communicate(timeout=120)
    assert text.endswith("True\n"), told
    assert kept(base) == expected


def test_two_that_ask_the_same_keep_one_result_each(tmp_path, program):
    path, expected = program
    base = tmp_path / "both.db"
    started = [
        subprocess.Popen([sys.executable, path, base], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in started:
        assert process.communicate(timeout=120)[0].endswith("True\n")
    assert kept(base) == expected


def test_clocks_that_jump_change_no_answer(monkeypatch):
    """The clock of a worker goes back and forth by hours between two readings of it."""
    rng = random.Random(0)

    def jumping():
        return time.monotonic() + rng.choice([-7200.0, 0.0, 7200.0])

    monkeypatch.setattr(clusters.time, "perf_counter", jumping)
    found = list(answers(Here(), square, range(500)))
    assert sorted(place for block in found for place, _ in block) == list(range(500))
    assert all_of(found) == {number: number * number for number in range(500)}


def test_no_answer_is_waited_for_after_its_time():
    def slow(number):
        time.sleep(0.05)
        return number

    started = time.monotonic()
    found = all_of(answers(Here(), slow, range(100), seconds=0.4))
    assert 0 < len(found) < 50
    assert time.monotonic() - started < 20
    assert all_of(answers(Here(), slow, range(100), seconds=0.0)) == {}
