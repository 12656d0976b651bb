"""Rows of one's own adjust the published constants, and never start from nothing."""

import json

import numpy as np
import pytest

import meshwright as mw
from meshwright.calibration.fit.constants import FREE, keys_of
from meshwright.calibration.fit.training import fit, fit_rows
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import judged
from meshwright.catalog.calibration import load_calibration
from meshwright.view.terminal import text_of

JOB = {"group": "mine", "framework": "megatron", "precision": "bf16", "system": "64xH100",
       "sequence_length": 8192}  # fmt: skip
PLANS = {
    "a": ("llama3-8b", 512, {"tp": 2}), "b": ("llama3-8b", 512, {"tp": 4}),
    "c": ("llama3-70b", 256, {"tp": 8, "pp": 4}),
}  # fmt: skip


def stated(slower=1.0, **more):
    """Return rows of three jobs that take ``slower`` times their calibrated prediction."""
    found = []
    for name, (model, batch, plan) in {**PLANS, **more}.items():
        row = {**JOB, "id": name, "global_batch_size": batch, "strategy": plan, "model": model,
               "measured": {"iteration_time_s": 1.0}}  # fmt: skip
        (entry,) = predict(rows_of([row]), "calibrated")
        if entry.job is not None:
            tokens = entry.job.problem.workload.tokens_per_step
            seconds = slower * tokens / entry.predicted_tokens_per_s
            row["measured"] = {"iteration_time_s": seconds}
        found.append(row)
    return found


def rows_of(entries):
    rows, faults = judged(entries, "a test")
    assert not faults
    return rows


@pytest.mark.parametrize("slower", [1.2, 0.9])
def test_three_rows_adjust_the_published_constants(slower):
    found = fit(fit_rows(rows_of(stated(slower))), base="calibrated")
    assert np.abs(found.expected_errors) == pytest.approx(abs(np.log(slower)), rel=1e-3)
    assert np.abs(found.errors).max() < 0.6 * np.abs(found.expected_errors).min()
    assert (np.abs(found.left_out_errors) < np.abs(found.expected_errors)).all()


def test_rows_as_predicted_change_nothing():
    found = fit(fit_rows(rows_of(stated())), base="calibrated")
    assert found.values == pytest.approx(np.log([key.free.prior for key in found.keys]), abs=1e-3)


def test_the_published_values_are_expected():
    """A scale is the ratio of the calibrated constant to the uncalibrated one."""
    keys = {key.free.name: key.free for key in keys_of(["hopper"], ["megatron"], "calibrated")}
    known, plain = (load_calibration("hopper", name) for name in ("calibrated", "uncalibrated"))
    scale = known.attention_forward_efficiency / plain.attention_forward_efficiency
    assert keys["attention_scale"].prior == pytest.approx(scale, rel=1e-3)
    assert keys["elementwise_efficiency"].prior == known.elementwise_efficiency
    named = load_calibration("hopper", "calibrated", "megatron")
    assert keys["operator_s"].prior == named.operator_s
    assert all(free.lowest <= keys[free.name].prior <= free.highest for free in FREE)


def test_a_file_of_own_rows_is_based_on_the_published_constants(tmp_path):
    rows, path = tmp_path / "rows.json", tmp_path / "mine.yaml"
    # 64 chips are not a multiple of tp 8 x pp 4 x dp 3, which is said of row d.
    wrong = {"d": ("llama3-70b", 256, {"tp": 8, "pp": 4, "dp": 3})}
    rows.write_text(json.dumps(stated(1.2, **wrong)), encoding="utf-8")
    found = mw.calibrate(rows, out=path)
    assert found.data["unused"] == {
        "d": "plan-not-priced: devices: the degrees multiply to 96, but 64xH100 has 64 devices"
    }
    shown = text_of(found.page()).splitlines()
    assert any("not used: d" in line for line in shown)
    assert all(len(line) <= 100 for line in shown)
    assert found.data["expected"]["median"] == pytest.approx(np.log(1.2), abs=1e-4)
    mine, known = (load_calibration("hopper", name) for name in (str(path), "calibrated"))
    assert mine.is_calibrated
    assert mine.spread == known.spread
    assert mine.operator_s == known.operator_s  # no row feels it
    assert mine.matmul_sustained_efficiency < known.matmul_sustained_efficiency
    ampere = load_calibration("ampere", str(path))
    assert ampere.is_calibrated
    errors = [abs(entry.log_error) for entry in predict(rows_of(stated(1.2)), str(path))]
    assert max(errors) < 0.6 * np.log(1.2)
