"""A plan that some framework starts comes first, as long as it is hardly slower."""

import pytest

import meshwright as mw
from meshwright.sharding.strategy import ScheduleKind
from meshwright.train.measured.factors import PLAN_ERROR
from meshwright.train.plan import plan
from meshwright.train.question import training
from meshwright.view.media import text_of

ASKED = ("llama3-8b", "8xH100", 4096, 64)
FIXED = {"pp": [4], "tp": [2], "num_virtual_stages": [1]}


@pytest.fixture(scope="module")
def found():
    model, system, length, batch = ASKED
    work = training(system, sequence_length=length, global_batch_size=batch)
    return plan(model, system, work, allowed=FIXED)


def only(kind):
    model, system, length, batch = ASKED
    work = training(system, sequence_length=length, global_batch_size=batch)
    return plan(model, system, work, allowed=FIXED | {"schedule": [kind]}).best


def test_what_starts_leads_and_what_is_faster_is_named(found):
    """Zero bubble is faster here and starts in no framework; 1F1B is within the error of plans."""
    slower, faster = only(ScheduleKind.ONE_F_ONE_B), only(ScheduleKind.ZERO_BUBBLE)
    times = slower.estimate.step_time_s / faster.estimate.step_time_s
    assert 1.0 < times <= 1.0 + PLAN_ERROR
    assert found.best.text == slower.text
    assert found.best.launches_with
    assert faster.text in found.warnings[0]
    assert found.fastest_s <= found.best.estimate.step_time_s * (1.0 + 1e-9)


def test_a_schedule_that_is_fixed_leads_all_the_same():
    """Fixed to a schedule that nothing starts, a plan is still an answer."""
    best = only(ScheduleKind.ZERO_BUBBLE)
    assert best.plan_options.schedule is ScheduleKind.ZERO_BUBBLE
    assert not best.launches_with


def test_each_plan_is_shown_once(found):
    texts = [found.best.text, *(entry.text for entry in found.runners_up)]
    assert len(texts) == len(set(texts))


@pytest.mark.slow
def test_on_a_torus_of_tpus_what_starts_leads():
    """No framework has tensor streams there; the plan says what starts it, and what is faster."""
    asked = {"on": "16xTPU-v5p", "seq": 4096, "global_batch": 32, "simulated": 0}
    few = {"tp": 1, "cp": 1, "pp": 1, "recompute": "none"}
    found = mw.plan("llama3.2-1b", **asked, **few)
    streamed = mw.plan("llama3.2-1b", **asked, **few, tatp=[2, 4])
    assert streamed.best.strategy.tatp > 1
    assert not streamed.best.launches_with
    assert found.best.launches_with
    assert found.best.placement is not None
    assert "with maxtext" in text_of(found.page())
    reach = [
        entry.estimate.interval_s[1] / entry.estimate.step_time_s
        for entry in (found.best, streamed.best)
    ]
    assert reach[0] == pytest.approx(reach[1], rel=1e-6)  # of a framework that is not known


def test_what_starts_leads_however_far_behind():
    """Ten micro-batches over eight stages: 1F1B waits, but no framework has zero bubble."""
    fixed = {"pp": [8], "dp": [1], "tp": [1], "cp": [1], "num_virtual_stages": [1]}
    work = training("8xH100", sequence_length=4096, global_batch_size=10)
    found = plan("llama3-8b", "8xH100", work, allowed=fixed | {"micro_batch_size": [1]})
    assert found.best.plan_options.schedule is ScheduleKind.ONE_F_ONE_B
    assert "megatron" in found.best.launches_with
    assert found.warnings[0].startswith("ideal tp1 pp8")
    assert "zero_bubble" in found.warnings[0]
    assert "faster, no framework starts it" in found.warnings[0]
