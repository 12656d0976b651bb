"""Published figures of machines that serve from SRAM: priced, fitted, left out."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.errors import SpecError
from meshwright.calibration.fit.record import constants_of_sram, sram_record
from meshwright.calibration.fit.report import fitted
from meshwright.calibration.fit.sram import fit_sram
from meshwright.calibration.rows import Reason, StrategyFields, is_frozen, published, read_rows
from meshwright.calibration.serving import predict_all
from meshwright.calibration.sram import predict_sram, sram_job, token_s
from meshwright.calibration.validation import Validation
from meshwright.calibration.view import documents
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.calibration import load_sram, sram_part
from meshwright.catalog.systems import load_chip
from meshwright.spec.calibration import FREE_SUMS
from meshwright.view.terminal import text_of

FACTOR = math.log(1.5)


@pytest.fixture(scope="module")
def found():
    return Validation(tuple(predict_all(published("sram"), "calibrated")), "calibrated")


SEEN = tuple(row for row in published("sram") if not is_frozen(row))
"""Rows that the constants are fitted to."""


def test_every_figure_of_the_fit_is_within_a_factor_of_one_and_a_half(found):
    assert {entry.row.system.chip for entry in found.sram} == {"WSE-3", "Groq-LPU", "WSE-2"}
    assert all(entry.row.source.title for entry in found.sram)
    errors = {entry.row.id: entry.log_error for entry in found.sram}
    assert {"cerebras/8b", "cerebras/70b", "cerebras/405b"} < set(errors)
    assert all(abs(errors[row.id]) < FACTOR for row in SEEN)


def test_half_of_all_figures_are_within_a_factor_of_1_4(found):
    """The unseen one counts too, and is low: no kernel of ours is fitted to its software."""
    errors = [entry.log_error for entry in found.sram]
    assert len(errors) == len(SEEN) + 1
    assert np.median(np.abs(errors)) < math.log(1.4)
    (unseen,) = (entry for entry in found.sram if is_frozen(entry.row))
    assert unseen.row.id == "waferllm/8b"
    assert unseen.measured_tokens_per_s == 2700.0
    assert unseen.log_error is not None


def test_so_is_every_figure_that_the_constants_have_not_seen():
    left_out = sram_part("calibrated").fit.left_out
    assert set(left_out) == {row.id for row in SEEN}
    assert all(abs(error) < FACTOR for error in left_out.values())


def test_the_committed_constants_are_those_of_the_fit(found):
    again, part = fit_sram(SEEN, "calibrated"), sram_part("calibrated")
    assert sram_record(again).left_out == pytest.approx(part.fit.left_out, abs=2e-3)
    for entry in found.sram:
        if is_frozen(entry.row):
            continue
        assert entry.log_error == pytest.approx(part.fit.fitted[entry.row.id], abs=2e-3)
    for one in constants_of_sram(again):
        known = (part.families | part.servers)[one.place]
        assert getattr(known, one.name) == pytest.approx(one.value, rel=2e-3)
        assert one.low < one.value < one.high


@pytest.mark.slow
def test_without_drafts_the_largest_model_is_out_of_reach(found):
    """What is assumed of the row of 405B is told beside it: plain, it would be 3 times slower."""
    row = next(row for row in published("sram") if row.id == "cerebras/405b")
    assert "not stated" in row.reasons["drafts_tokens"]
    plain = row.model_copy(update={"drafts_tokens": False})
    (entry,) = predict_sram([plain], "calibrated")
    assert entry.log_error < -2 * FACTOR
    assert any("405b plain" in line for line in text_of(found.page(), detail=True).splitlines())


@pytest.mark.slow
def test_constants_come_back_out_of_rows_made_with_them():
    true, tokens = {"wafer-engine": 4e-6, "language-unit": 7e-7}, 2.2
    rows = []
    for row in published("sram"):
        job = sram_job(row, "calibrated")
        speed = job.tokens_per_s(true[job.family], tokens if job.server else 1.0)
        measured = row.measured.model_copy(update={"tokens_per_s_per_user": speed})
        rows.append(row.model_copy(update={"measured": measured}))
    again = fit_sram(rows, "calibrated")
    values = dict(zip([key.family for key in again.keys], np.exp(again.values), strict=True))
    assert values == pytest.approx(true | {"cerebras-inference": tokens}, rel=0.02)
    assert np.abs(again.errors).max() < 0.01
    assert np.abs(again.left_out).max() < 0.02


@pytest.mark.parametrize("name", ["cerebras/70b", "groq/mixtral"])
def test_a_token_is_affine_in_the_time_of_a_sum(name):
    job = sram_job(next(row for row in published("sram") if row.id == name), "calibrated")
    for seconds in (3e-7, 5e-6):
        times = [token_s(problem, seconds) for problem in job.problems]
        assert times == pytest.approx(job.terms[:, 0] + job.terms[:, 1] * seconds, rel=1e-9)
        assert job.tokens_per_s(seconds, 2.0) == pytest.approx(2.0 / min(times), rel=1e-9)


def test_chips_without_rows_get_what_the_others_share_and_say_so():
    part = sram_part("calibrated")
    sn40l, gpu = load_sram(load_chip("SN40L"), "calibrated"), load_chip("H100")
    # Of both families only one holds the links between cores, as chips without a mesh need it.
    assert sn40l.reduction_s == part.families["language-unit"].reduction_s
    assert not sn40l.is_calibrated
    assert load_sram(load_chip("WSE-3"), "calibrated").is_calibrated
    assert load_sram(gpu, "calibrated") == FREE_SUMS
    assert load_sram(load_chip("WSE-3"), "uncalibrated") == FREE_SUMS


MINE = {
    "id": "mine", "group": "mine", "framework": "mine", "model": "llama3-8b",
    "system": {"like": "1xWSE-3", "at_least": True}, "measured": {"tokens_per_s_per_user": 1000},
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.json"


def written(path, **changes):
    path.write_text(json.dumps([MINE | changes]), encoding="utf-8")
    return read_rows(path)


def test_a_figure_of_ones_own_is_read_fitted_and_read_again(path, tmp_path):
    rows = written(path)
    made = fitted(rows, "mine", "a test")
    assert made.data["sram"]["fitted"]["mine"] == pytest.approx(0.0, abs=0.02)
    assert any(one.name == "reduction_s" for one in made.constants)
    mine = tmp_path / "mine.yaml"
    mine.write_text(made.text, encoding="utf-8")
    (entry,) = predict_all(rows, str(mine))
    assert entry.predicted_tokens_per_s == pytest.approx(1000, rel=0.02)
    again = Validation((entry,), str(mine))
    assert plain_data(again)["sram"]["rows_used"] == 1
    assert "| mine |" in documents(again, "found")["found_inference.md"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": "8xnothing"}, Reason.SYSTEM),
        ({"system": "8xH100"}, Reason.SYSTEM),
        ({"system": "4xGroq-LPU"}, Reason.SYSTEM),
        ({"model": "unheard of"}, Reason.DIMS),
    ],
)
def test_what_cannot_be_priced_is_refused_for_a_reason(path, changes, reason):
    (entry,) = predict_all(written(path, **changes), "calibrated")
    assert entry.refused is reason


def test_a_file_of_nothing_that_fits_has_no_constants(path):
    rows = written(path, system="8xH100")
    assert fit_sram(rows, "calibrated") is None


def test_a_speed_is_a_number_above_zero(path):
    with pytest.raises(SpecError, match="tokens_per_s_per_user"):
        written(path, measured={"tokens_per_s_per_user": -1})


def test_stated_splits_and_lengths_are_taken():
    row = next(row for row in published("sram") if row.id == "groq/70b")
    stated = row.model_copy(update={"strategy": StrategyFields(tp=16)})
    (problem,) = sram_job(stated, "calibrated").problems
    assert problem.tensor_degree == 16
    assert problem.workload.context_length == 4096
    assert problem.system.num_devices == 576
    own = replace(problem, tensor_degree=8)
    assert token_s(own, 0.0) < token_s(problem, 0.0)
