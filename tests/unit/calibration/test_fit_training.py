"""Constants come back out of rows that were made with them; a file of them is read again."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.calibration.fit.constants import keys_of
from meshwright.calibration.fit.record import calibration_text
from meshwright.calibration.fit.training import STEP, FitRows, fit, fit_rows, left_out_of
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import published
from meshwright.catalog.calibration import fit_record, load_calibration

KEYS = keys_of(["ampere"], ["llm-foundry", "megatron==2021"])
TRUE = {"matmul_sustained_efficiency": 0.85, "eager_traffic_factor": 2.4}


@pytest.fixture(scope="module")
def rows():
    """Rows of two sources on A100 whose measurements follow known constants exactly."""
    chosen = [row for row in published("training") if row.group == "llm-foundry"][80:216:12]
    chosen += [row for row in published("training") if row.group == "megatron-sc21"][::3]
    found = fit_rows(chosen)
    values = np.log([TRUE.get(key.free.name, key.free.prior) for key in KEYS])
    errors = found.errors(KEYS, values[None, :])[0][0]
    made = [
        replace(entry, measured_tokens_per_s=entry.measured_tokens_per_s * np.exp(error))
        for entry, error in zip(found.predictions, errors, strict=True)
    ]
    return FitRows(tuple(made))


@pytest.fixture(scope="module")
def fitted(rows):
    return fit(rows)


def test_made_rows_are_met(fitted):
    assert np.median(np.abs(fitted.errors)) < 0.02
    value = dict(zip([k.free.name for k in fitted.keys], np.exp(fitted.values), strict=True))
    assert value["matmul_sustained_efficiency"] == pytest.approx(0.85, rel=0.04)


def test_each_source_is_left_out_once(fitted):
    assert not np.isnan(fitted.left_out_errors).any()
    assert np.abs(fitted.left_out_errors).max() > np.abs(fitted.errors).max()


def test_a_source_left_out_is_a_source_not_there(rows, fitted):
    """Its rows have the errors of constants that were fitted to the other rows alone."""
    others = [entry for entry in rows.predictions if entry.row.group == "llm-foundry"]
    alone = fit(FitRows(tuple(others)))
    expected = rows.errors(alone.keys, alone.values[None, :])[0][0]
    out = np.array(rows.groups) == "megatron-sc21"
    # A source weighs the same whichever others there are; what is left out is fitted in one step.
    assert fitted.left_out_errors[out] == pytest.approx(expected[out], abs=1e-2)


def test_one_source_alone_is_left_out_in_parts(rows):
    others = [entry for entry in rows.predictions if entry.row.group == "llm-foundry"]
    stacks = FitRows(tuple(others)).stacks
    assert len(set(stacks)) == 5
    assert len(left_out_of(stacks)) == 1 + 5 + 10


def test_never_all_is_left_out():
    assert left_out_of(["a", "a"]) == [frozenset()]
    assert left_out_of(["a", "b"]) == [frozenset(), frozenset("a"), frozenset("b")]
    assert len(left_out_of(["a", "b", "c"])) == 1 + 3 + 3


def test_slopes_are_differences(rows):
    first = np.log([key.free.prior for key in KEYS])
    second = first + STEP * np.eye(len(KEYS))[0]
    errors, _ = rows.errors(KEYS, np.array([first, second]))
    alone, slopes = rows.errors_and_slopes(KEYS, first)
    assert np.allclose(errors[0], alone)
    assert np.allclose(slopes[:, 0], (errors[1] - errors[0]) / STEP)
    assert np.allclose(errors[1], rows.errors_and_slopes(KEYS, second)[0])
    number = [key.free.name for key in KEYS].index("matmul_sustained_efficiency")
    assert (slopes[:, number] > 0).all()


def test_a_written_calibration_is_read(fitted, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(calibration_text(fitted, "mine", "a test"), encoding="utf-8")
    ampere, other = (load_calibration(family, str(path)) for family in ("ampere", "gaudi"))
    assert ampere.is_calibrated
    assert not other.is_calibrated
    assert "gaudi" in other.source
    assert ampere.matmul_sustained_efficiency == pytest.approx(0.85, rel=0.04)
    assert other.matmul_efficiency == load_calibration("gaudi").matmul_efficiency
    assert fit_record(str(path)).num_rows == len(fitted.errors)


def test_fitted_predictions_have_an_interval():
    row = next(row for row in published("training") if row.group == "megatron-sc21")
    (entry,) = predict([row], "calibrated")
    low, high = entry.interval
    assert low < entry.predicted_tokens_per_s < high
    assert predict([row], "uncalibrated")[0].interval is None


def test_every_constant_lies_in_its_interval():
    """`plan` draws from them: those of a fit, and for the rest those of the file it is based on."""
    for family in ("ampere", "hopper", "blackwell", "tpu", "gaudi", "temp-die"):
        constants = load_calibration(family, "calibrated")
        for name, (low, high) in constants.intervals.items():
            assert low <= getattr(constants, name) <= high, (family, name)


def test_a_family_not_fitted_may_have_the_constants_of_any_other(fitted, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(calibration_text(fitted, "mine", "a test"), encoding="utf-8")
    ampere, other = (load_calibration(family, str(path)) for family in ("ampere", "gaudi"))
    name = "matmul_sustained_efficiency"
    assert other.matmul_sustained_efficiency == ampere.matmul_sustained_efficiency
    assert other.intervals[name] == ampere.intervals[name]


def test_one_row_alone_is_fitted_and_written_without_what_it_cannot_tell(rows, tmp_path):
    alone = fit(FitRows(rows.predictions[:1]))
    path = tmp_path / "mine.yaml"
    path.write_text(calibration_text(alone, "mine", "a test"), encoding="utf-8")
    record = fit_record(str(path))
    assert record.num_rows == 1
    assert record.fitted.median is not None
    assert record.left_out.median is None
    assert record.spread is None
    assert load_calibration("ampere", str(path)).spread is None
