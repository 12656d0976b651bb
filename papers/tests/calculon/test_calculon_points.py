"""Each reference point of the peer, evaluated by the preset: every time and memory part."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from meshwright_papers.calculon.executions import executions_from_rows
from meshwright_papers.calculon.machine import application_named, system_named
from meshwright_papers.calculon.step import REFUSALS, Memory, StepTime, evaluate

DATA = json.loads(
    (Path(__file__).parents[1] / "data" / "calculon_points.json").read_text(encoding="utf-8")
)
POINTS = DATA["points"]
FEASIBLE = [point for point in POINTS if "time" in point]
REFUSED = [point for point in POINTS if "refusal" in point]


def execution(point):
    return dict(zip(DATA["execution_fields"], point["execution"], strict=True))


def evaluated(point):
    application, system = application_named(point["model"]), system_named(point["system"])
    rows = executions_from_rows([execution(point)], application, len(system.networks))
    return evaluate(application, system, rows)


def test_all_points_are_here():
    assert len(FEASIBLE) == 48
    assert len(REFUSED) == 2


@pytest.mark.parametrize("point", FEASIBLE, ids=lambda point: point["id"])
def test_point_is_reproduced(point):
    result = evaluated(point)
    assert REFUSALS[result.refusal[0]] == ""
    assert set(point["time"]) == {f.name for f in fields(StepTime)}
    assert set(point["memory"]) == {f.name for f in fields(Memory)}
    for name, expected in point["time"].items():
        assert getattr(result.time, name)[0] == pytest.approx(expected, rel=1e-12), name
    for name, expected in point["memory"].items():
        assert getattr(result.memory, name)[0] == pytest.approx(expected, rel=1e-12), name
    assert result.total_s[0] == pytest.approx(point["total_s"], rel=1e-12)
    assert result.samples_per_s[0] == pytest.approx(point["samples_per_s"], rel=1e-12)
    assert result.utilization[0] == pytest.approx(point["utilization"], rel=1e-12)


@pytest.mark.parametrize("point", REFUSED, ids=lambda point: point["id"])
def test_refused_point_is_refused_for_the_same_reason(point):
    result = evaluated(point)
    assert REFUSALS[result.refusal[0]] == point["refusal"]
    needed_gib = f"{result.memory.near_bytes[0] / 2**30:.3f} GiB"
    assert point["message"].startswith(f"Mem tier1 needs {needed_gib} but only has 80.000 GiB")


def test_points_of_a_system_evaluated_together_are_the_same_bit_for_bit():
    points = [p for p in POINTS if p["model"] == "gpt3-175B" and p["system"] == "a100_80g"]
    application, system = application_named("gpt3-175B"), system_named("a100_80g")
    rows = executions_from_rows([execution(p) for p in points], application, 2)
    together = evaluate(application, system, rows)
    alone = [evaluated(point) for point in points]
    assert len(points) > 15
    assert together.total_s.tolist() == [result.total_s[0] for result in alone]
    for name in (f.name for f in fields(Memory)):
        column = getattr(together.memory, name)
        assert column.tolist() == [getattr(result.memory, name)[0] for result in alone]
    assert together.refusal.tolist() == [result.refusal[0] for result in alone]


def test_a_plan_keeps_its_fields():
    application = application_named("gpt3-175B")
    rows = [execution(p) for p in POINTS if p["model"] == "gpt3-175B"]
    columns = executions_from_rows(rows, application, 2)
    assert [columns.row(i) for i in range(len(columns))] == rows
    assert columns.take(np.array([1])).row(0) == rows[1]
