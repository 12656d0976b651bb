"""Sweeps over options of a training plan, and what a wrong value is told."""

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.questions import answer_plan, checked

FIXED = {"model": "llama3-8b", "on": "8xH100", "seq": 4096, "global_batch": 64}


def sweep(**vary):
    return SweepSpec(name="options", ask="plan", fixed=FIXED,
                     vary={name: tuple(values) for name, values in vary.items()})  # fmt: skip


def test_a_point_is_the_plan_of_its_options():
    point = FIXED | {"framework": "megatron", "precision": "bf16", "rent": 2.5, "tokens": "1B",
                     "tp": 2, "mbs": 1}  # fmt: skip
    found = answer_plan(point)
    plan = mw.plan("llama3-8b", on="8xH100", seq=4096, global_batch=64, framework="megatron",
                   precision="bf16", rent=2.5, tokens="1B", tp=2, mbs=1, top=1)  # fmt: skip
    assert found["plan"] == plan.best.text
    assert found["step_time_s"] == plan.best.estimate.step_time_s
    assert found["cost_usd"] == plan.best.estimate.cost_usd
    # 2.5 USD an hour for each of 8 devices, over the whole run
    assert found["run_usd"] == pytest.approx(8 * 2.5 * found["run_s"] / 3600)


def test_every_option_may_vary():
    points = checked(sweep(framework=["fsdp", "megatron"], tp=[1, 2], rent=[2, "3 USD/h"]))
    assert len(points) == 8


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("framework", "megatorn", "megatron"),
        ("precision", "bf61", "bf16"),
        ("rent", -1, "more than 0"),
        ("rent", "cheap", "2.5 USD/h"),
        ("tokens", "lots", "15T"),
        ("tp", 0, "above 0"),
        ("zero", "x", "known: 0, 1, 2, 3"),
        ("optimizer", "adamm", "adam"),
    ],
)
def test_a_wrong_value_is_one_fault_before_anything_is_asked(name, value, word):
    with pytest.raises(SpecError, match=word) as caught:
        checked(sweep(**{name: [value]}))
    assert len(caught.value.faults) == 1


def test_an_option_that_a_sweep_does_not_know_is_refused():
    with pytest.raises(SpecError, match="is not a field of a sweep"):
        checked(sweep(frame=["megatron"]))


def test_tight_is_what_lacks_the_margin_alone():
    """Steps of 3.7 GiB: 77.8 fit 80, 81.6 lack less than the margin of 4.8, 85.3 lack more."""
    found = [mw.estimate("llama3-8b", on="8xH100", seq=length, global_batch=64, dp=8, zero=3, mbs=1,
                         framework="fsdp").best.estimate
             for length in (7168, 7680, 8192)]  # fmt: skip
    assert [(one.fits, one.is_tight) for one in found] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip
    assert found[0].margin_bytes == pytest.approx(0.06 * 80 * 2**30)


def test_the_screen_says_tight_and_what_is_margin(capsys):
    from meshwright.cli.main import main

    asked = ["llama3-8b", "--on", "8xH100", "--seq", "7680", "--global-batch", "64", "--dp", "8",
             "--zero", "3", "--mbs", "1", "--framework", "fsdp"]  # fmt: skip
    main(["estimate", *asked])
    shown = capsys.readouterr().out
    assert "TIGHT" in shown
    assert "less than the margin of 4.8 GiB" in shown
    assert "4.8 of it margin" in shown
