"""Rows of one's own adjust the published constants, and never start from nothing."""

import json

import numpy as np
import pytest

import meshwright as mw
from meshwright.calibration.fit.own import fit_own
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


def own_fit(slower):
    return fit_own(predict(rows_of(stated(slower)), "calibrated", is_placed=False), "calibrated")


@pytest.mark.parametrize("slower", [1.3, 0.85])
def test_three_rows_adjust_the_published_constants(slower):
    found = own_fit(slower)
    assert np.abs(found.expected) == pytest.approx(abs(np.log(slower)), rel=1e-3)
    assert np.abs(found.errors).max() < 0.6 * np.abs(found.expected).min()
    assert (np.abs(found.left_out) < np.abs(found.expected)).all()
    assert found.factors["hopper"].verdict.is_applied
    names = {one.name for one in found.constants if one.place == "hopper"}
    assert {"matmul_sustained_efficiency", "attention_forward_efficiency", "launch_s"} <= names
    assert {one.place for one in found.constants} == {"hopper", "megatron", "unnamed"}


def test_rows_as_predicted_change_nothing():
    found = own_fit(1.0)
    assert found.constants == ()
    assert "stay as published" in found.factors["hopper"].verdict.reason


def test_a_file_of_own_rows_prices_as_the_rows_themselves(tmp_path):
    """`calibrate FILE` for `--calibration`, and `--measured FILE`, in four digits."""
    rows, path = tmp_path / "rows.json", tmp_path / "mine.yaml"
    rows.write_text(json.dumps(stated(1.3)), encoding="utf-8")
    mw.calibrate(rows, out=path)
    asked = {"on": "64xH100", "seq": 8192, "global_batch": 512, "framework": "megatron", "tp": 8}
    told, file, plain = (
        mw.estimate("llama3-8b", **asked, **how).best.estimate.step_time_s
        for how in ({"measured": str(rows)}, {"calibration": str(path)}, {})
    )
    assert file == pytest.approx(told, rel=1e-3)
    assert told > 1.15 * plain


def test_a_file_of_own_rows_is_based_on_the_published_constants(tmp_path):
    rows, path = tmp_path / "rows.json", tmp_path / "mine.yaml"
    # 64 chips are not a multiple of tp 8 x pp 4 x dp 3, which is said of row d.
    wrong = {"d": ("llama3-70b", 256, {"tp": 8, "pp": 4, "dp": 3})}
    rows.write_text(json.dumps(stated(1.3, **wrong)), encoding="utf-8")
    found = mw.calibrate(rows, out=path)
    assert found.data["unused"] == {
        "d": "plan-not-priced: devices: the degrees multiply to 96, but 64xH100 has 64 devices"
    }
    shown = text_of(found.page()).splitlines()
    assert any("not used: d" in line for line in shown)
    assert all(len(line) <= 100 for line in shown)
    assert found.data["expected"]["median"] == pytest.approx(np.log(1.3), abs=1e-4)
    assert any("hopper adjusted" in line for line in shown[:4])
    mine, known = (load_calibration("hopper", name) for name in (str(path), "calibrated"))
    assert mine.is_calibrated
    assert mine.spread == known.spread
    assert mine.matmul_sustained_efficiency < known.matmul_sustained_efficiency
    ampere = load_calibration("ampere", str(path))
    assert ampere.is_calibrated
    errors = [abs(entry.log_error) for entry in predict(rows_of(stated(1.3)), str(path))]
    assert max(errors) < 0.6 * np.log(1.3)
