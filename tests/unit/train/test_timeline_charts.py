"""Charts of a step: they hold the whole step, its memory, and stay small."""

import json

import pytest

from meshwright import estimate, timeline
from meshwright.train.view.timeline import MOST_BARS, memory_over_step, tasks_over_step
from meshwright.view.html import html_of

ASKED = {"on": "64xH100", "seq": "4k", "framework": "megatron"}


@pytest.fixture(scope="module", params=[{"pp": 1, "mbs": 4}, {"pp": 8}, {"pp": 8, "vpp": 4}])
def found(request):
    degrees = {"tp": 2, "mbs": 1} | request.param
    return estimate("llama3-8b", global_batch=512, **degrees, **ASKED)


def test_bars_hold_all_that_a_stage_does(found):
    line = timeline(found)
    drawn = list(tasks_over_step(line))
    rows = [row for chart in drawn for row in chart.spec["data"]["values"]]
    assert all(
        len(chart.spec["data"]["values"]) <= MOST_BARS + 2 * line.num_stages for chart in drawn
    )
    assert max(row["end"] for row in rows) == pytest.approx(line.step_time_s, rel=1e-5)
    if len(drawn) == 1:
        for stage in range(line.num_stages):
            busy = sum(r["end"] - r["start"] for r in rows if r["row"] == str(stage))
            assert busy == pytest.approx(line.busy_s[stage], rel=1e-3)
    else:
        assert [chart.title for chart in drawn] == [
            "The beginning of the step", "The end of the step",
        ]  # fmt: skip
        assert min(row["start"] for row in rows) == 0.0


def test_memory_reaches_what_the_price_says(found):
    line, capacity = timeline(found), found.best.estimate.memory_capacity_bytes
    over_time = list(memory_over_step(line))[-1]
    rows = over_time.spec["data"]["values"]
    peak = max(row["y"] for row in rows) * 2**30
    assert peak == pytest.approx(max(stage.peak_bytes for stage in line.memory), rel=1e-5)
    limits = [part for part in over_time.spec["layer"] if part["mark"]["type"] == "rule"]
    assert limits[0]["encoding"]["y"]["datum"] * 2**30 == pytest.approx(capacity)


@pytest.mark.slow
def test_a_long_step_of_many_stages_stays_small():
    found = estimate("gpt3-175b", on="1024xH100", seq="2k", global_batch=4096, tp=4, pp=32, mbs=1,
                     vpp=3, framework="megatron")  # fmt: skip
    text = html_of(found.page(line=timeline(found)))
    assert len(text.encode()) <= 1.5e6
    assert json.dumps("The end of the step")[1:-1] in text
