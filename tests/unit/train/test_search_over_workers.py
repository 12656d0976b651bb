"""A search that workers share: the plan, the proof and the counts of one process."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from small_problems import experts, level, model, problem, system

from meshwright.base.arrays import take_rows
from meshwright.base.cluster import HERE, Here, LocalProcesses
from meshwright.search.exhaustive import Counts
from meshwright.sharding.space import Choices
from meshwright.train import families as shared
from meshwright.train.question import training
from meshwright.train.search import priced_families, search
from meshwright.train.space import SearchSpace
from meshwright.wafer.training import plan

SLOW = pytest.mark.slow
GRID = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=4e9)
HOSTS = system(level(4), level(4), capacity_bytes=8e9)
FEW = {"pp": [1], "cp": [1], "micro_batch_size": [1], "recompute": ["none"], "zero_stage": [1]}
QUESTIONS = [
    pytest.param(model(), HOSTS, {"allowed": {"cp": [1]}}, id="dense"),
    pytest.param(model(), GRID, {"allowed": FEW, "per_operator": True}, id="few", marks=SLOW),
    pytest.param(model(experts()), HOSTS, {}, id="experts", marks=SLOW),
    pytest.param(model(), GRID, {"per_operator": True}, id="all operators", marks=SLOW),
]


class TwoHere(Here):
    """Two workers, in this process one after the other."""

    num_workers = 2


class Many(Here):
    """Nine workers, in this process one after the other."""

    num_workers = 9


@pytest.fixture(autouse=True)
def small_runs(monkeypatch):
    monkeypatch.setattr(shared, "LEAST_ROWS", 1)


def answer(spec, on, options, cluster):
    work = training(on, sequence_length=4096, global_batch_size=16)
    found = plan(spec, on, work, cluster=cluster, **options)
    operators = found.operators and replace(found.operators, search_s=0.0)
    coverage = replace(found.coverage, elapsed_s=0.0)
    return replace(found, coverage=coverage, operators=operators)


@pytest.mark.parametrize(("spec", "on", "options"), QUESTIONS)
def test_the_answer_and_its_proof_are_those_of_one_process(spec, on, options):
    expected = answer(spec, on, options, HERE)
    assert expected.coverage.is_complete
    assert answer(spec, on, options, TwoHere()) == expected
    with LocalProcesses(2) as cluster:
        assert answer(spec, on, options, cluster) == expected


def run_that_ends_its_worker(asked):
    """Price a run of rows; the first process that is asked is killed."""
    try:
        os.close(os.open(os.environ["KILLED_ONCE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return _of_run(asked)
    os.kill(os.getpid(), signal.SIGKILL)


_of_run = shared._of_run


def test_a_worker_that_is_killed_in_the_middle_changes_nothing(tmp_path, monkeypatch):
    expected = answer(model(), HOSTS, {}, HERE)
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    monkeypatch.setattr(shared, "_of_run", run_that_ends_its_worker)
    with LocalProcesses(2) as cluster:
        assert answer(model(), HOSTS, {}, cluster) == expected
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize(("cluster", "most_sent"), [(Many(), 7), (TwoHere(), 0)])
def test_families_come_in_one_order_with_or_without_their_prices(monkeypatch, cluster, most_sent):
    monkeypatch.setattr(shared, "MOST_SENT", most_sent)
    alone, counts, others = SearchSpace(problem(), Choices()), Counts(), Counts()
    expected = priced_families(alone, counts)
    found = priced_families(replace(alone, cluster=cluster), others)
    assert counts == others
    assert len(found.parts) == len(expected.parts) > 10
    for one, other in zip(found.parts, expected.parts, strict=True):
        assert one.option_sets == other.option_sets
        for name in ("option_set_of", "num_members", "bound_s", "least_memory_bytes"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        for axis, degrees in vars(one.strategy).items():
            assert np.array_equal(degrees, getattr(other.strategy, axis))
        whole = take_rows(other.price, one.priced)
        assert np.array_equal(one.price.time.total_s, whole.time.total_s)
    assert search(alone, among=found).found == search(alone, among=expected).found
