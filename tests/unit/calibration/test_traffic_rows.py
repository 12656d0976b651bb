"""Rows of requests at a rate: the answer of the command, and times as rates."""

import pytest

import meshwright as mw
from meshwright.calibration.rows import Reason, Row, published
from meshwright.calibration.serving import predict_all
from meshwright.calibration.traffic import END_TO_END, LATE_END, TPOT_AT_RATE, TTFT_AT_RATE
from meshwright.calibration.validation import Validation
from meshwright.view.terminal import text_of


def found(*rows):
    """Return the validation of some rows."""
    return Validation(tuple(predict_all(rows, "calibrated")), "calibrated")


def test_a_row_is_the_answer_of_the_command():
    row = published("traffic")[0]
    made = found(row)
    asked = row.traffic
    best = mw.serve(
        "llama2-7b", on="1xH100", framework="vllm", cuda_graphs=True, rate=asked.rate_per_s,
        prompt=row.prompt_tokens, answer=row.answer_tokens, arrivals="constant", dp=1, tp=1,
        shared_prefix=row.prompt_tokens, num_prefixes=100, most_sequences=128,
        most_pass_tokens=2048, memory_share=0.9, percentile=50,
    ).best  # fmt: skip
    (e2e,), (late,), (first,), (step,) = (
        made.times[name] for name in (END_TO_END, LATE_END, TTFT_AT_RATE, TPOT_AT_RATE)
    )
    # Answers of 247 tokens in 1.81 s are 136.4 tokens/s.
    assert e2e.measured_tokens_per_s == pytest.approx(247 / 1.8103224)
    assert e2e.predicted_tokens_per_s == pytest.approx(247 / best.e2e.mean_s)
    assert late.predicted_tokens_per_s == pytest.approx(247 / best.e2e.p99_s)
    assert first.predicted_tokens_per_s == pytest.approx(592 / best.ttft.mean_s)
    assert step.predicted_tokens_per_s == pytest.approx(1 / best.tpot.mean_s)
    low, high = e2e.interval
    assert low < e2e.predicted_tokens_per_s < high
    assert made.predictions[0].log_error == e2e.log_error
    assert made.traffic_errors[END_TO_END].rows == 1
    assert "requests at a rate" in text_of(made.page(), detail=True)


def test_a_rate_beyond_saturation_and_no_lengths_are_refused():
    row = published("traffic")[0]
    fast = row.model_copy(update={"traffic": row.traffic.model_copy(update={"rate_per_s": 900.0})})
    bare = row.model_copy(update={"answer_tokens": None})
    made = found(fast, bare)
    assert [entry.refused for entry in made.predictions] == [Reason.PLAN, Reason.LENGTHS]
    assert not made.served
    assert made.traffic_errors == {}


def test_rows_at_a_rate_are_serving_and_never_fitted():
    for row in published("traffic"):
        assert isinstance(row, Row)
        assert row.is_serving
        assert row.has_rate
        assert row.source.path
