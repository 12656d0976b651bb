"""Simulated workers in thousands: each question once, however many end, and few of them idle."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from meshwright.base import cluster as clusters

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "cluster_at_scale.py"


@pytest.fixture
def scale(monkeypatch):
    """Return the benchmark; the simulation goes on when nothing has come."""
    monkeypatch.setattr(clusters, "HEARTBEAT_S", 0.0)
    spec = spec_from_file_location("cluster_at_scale", SCRIPT)
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("number", "losses"),
    [(3, 0.2), (50, 0.05), pytest.param(2000, 0.01, marks=pytest.mark.slow)],
)
def test_each_question_has_its_answer_however_many_workers_end(scale, number, losses, monkeypatch):
    """A question alone is given up at its third loss: 0.2^3 of 30 questions is none here."""
    monkeypatch.setattr(clusters, "MOST_TRIES", 20)
    done = scale.swept(number, 0.5, losses, 10)
    assert done.num_lost > 0


def test_workers_are_busy_where_none_ends(scale, monkeypatch):
    """20 workers of one speed have 40 questions of 0.5 s each: 20 s, and a message for each."""
    monkeypatch.setattr(scale, "SLOW", 0.0)
    done = scale.swept(20, 0.5, 0.0, 40)
    assert done.busy_s == pytest.approx(20 * 40 * 0.5)
    assert done.now_s >= 20.0
    assert done.busy_s / done.now_s / 20 > 0.8


def test_a_lost_worker_does_not_stop_the_others(scale, monkeypatch):
    """One call in a hundred is lost: the others go on beside the questions asked again."""
    monkeypatch.setattr(scale, "SLOW", 0.0)
    done = scale.swept(100, 0.5, 0.01, 40)
    assert done.num_lost > 0
    assert done.busy_s / done.now_s / 100 > 0.15
