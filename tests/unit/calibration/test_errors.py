"""Errors by hand: medians, ranks, and what choosing by prediction costs."""

import math
from dataclasses import replace

import pytest
from measured_rows import rows_of

from meshwright.calibration.errors import errors_of, families_of, intervals_of, median_of_medians
from meshwright.calibration.jobs import job_of
from meshwright.calibration.prediction import Prediction, RowMemory, predict
from meshwright.calibration.rows import Counting, Reason
from meshwright.calibration.validation import Validation
from meshwright.catalog.answer_file import plain_data
from meshwright.cost.parts import MemoryPart, MemoryUse
from meshwright.view.terminal import text_of

ROW = {
    "id": "a", "group": "lab", "precision": "bf16", "global_batch": 64,
    "model": {"name": "Llama 3 8B", "seq": 4096},
    "hardware": {"chip_id": "H100 SXM 80GB", "chips": 8},
}  # fmt: skip
PLANS = ({"tp": 1}, {"tp": 2}, {"tp": 4}, {"tp": 8})


def compared(plan, name, predicted, measured):
    (row,) = rows_of([ROW | {"id": name, "parallelism": plan, "micro_batch": 1}])
    use = MemoryUse(dict.fromkeys(MemoryPart, 0.0))
    memory = RowMemory(use.plus({MemoryPart.WEIGHTS: 1.0}), Counting.DEVICE, 1.0, 2.0, fits=True)
    return Prediction(row, job_of(row, "uncalibrated"), predicted, measured, memory)


def lab(pairs):
    return [
        compared(plan, str(index), *pair)
        for index, (plan, pair) in enumerate(zip(PLANS, pairs, strict=False))
    ]


def test_medians_of_log_errors():
    errors = errors_of(lab([(2.0, 1.0), (4.0, 1.0), (1.0, 8.0)]))
    assert errors.median_abs_log_error == pytest.approx(math.log(4.0))
    assert errors.bias_log == pytest.approx(math.log(2.0))
    assert errors.memory_median_abs_error == pytest.approx(math.log(2.0))
    assert (errors.rows, errors.rows_used, errors.false_ooms) == (3, 3, 0)


def test_regret_is_what_the_first_choice_loses():
    (family,) = families_of(lab([(3.0, 1.0), (2.0, 2.0), (1.0, 1.5)]))
    assert family.regret == pytest.approx(1.0)
    assert family.rule_of_thumb_regret == pytest.approx(1.0)
    assert (family.ordered_pairs, family.right_pairs) == (3, 1)


def test_plans_within_a_tie_cost_nothing():
    (family,) = families_of(lab([(3.0, 1.0), (2.0, 1.04)]))
    assert (family.regret, family.ordered_pairs) == (0.0, 0)


def test_ranks_inside_a_sweep():
    assert errors_of(lab([(1, 4), (2, 3), (3, 2), (4, 1)])).spearman == pytest.approx(-1.0)
    assert errors_of(lab([(1, 4), (2, 3)])).spearman is None


def test_refused_rows_are_counted():
    rows = [*lab([(1.0, 1.0)]), Prediction(rows_of([ROW])[0], refused=Reason.BATCH)]
    errors = errors_of(rows)
    assert (errors.rows, errors.rows_used, errors.rows_refused) == (2, 1, 1)


def test_a_family_names_what_was_chosen():
    """Predicted best is the second, measured best the third, the rule takes the first."""
    (family,) = families_of(lab([(1.0, 1.0), (3.0, 2.0), (2.0, 4.0)]))
    chosen = family.best.row.id, family.chosen.row.id, family.by_rule.row.id
    assert chosen == ("2", "1", "0")
    assert (family.regret, family.rule_of_thumb_regret) == (1.0, 3.0)


def test_intervals_hold_what_lies_inside():
    inside, outside = lab([(1.0, 1.1), (1.0, 2.0)])
    rows = [replace(entry, interval=(1 / 1.2, 1.2)) for entry in (inside, outside)]
    held = intervals_of([*rows, *lab([(1.0, 1.0)])])
    assert (held.rows, held.covered) == (2, 0.5)
    width = 2 * math.log(1.2)
    assert held.score == pytest.approx(width + 10 * (math.log(2.0) - width / 2) / 2)
    assert intervals_of([]).covered is None


def test_the_headline_is_a_median_over_sources():
    groups = {name: errors_of(lab([(value, 1.0)])) for name, value in (("a", 2.0), ("b", 8.0))}
    groups["c"] = errors_of([])
    assert median_of_medians(groups) == pytest.approx(math.log(4.0))


def test_the_data_has_the_agreed_shape():
    rows = rows_of(
        [
            ROW | {"micro_batch": 1, "measured": {"tokens_per_s": 5e4}},
            ROW | {"id": "b", "micro_batch": 1},
            ROW | {"id": "c", "task": "oom", "micro_batch": 64, "global_batch": 512},
        ]
    )
    found = Validation(tuple(predict(rows, "uncalibrated")), "uncalibrated")
    data = plain_data(found)
    measures = {
        "rows", "rows_used", "rows_refused", "median_abs_log_error", "p90_abs_log_error",
        "bias_log", "memory_median_abs_error", "false_fits", "false_ooms", "spearman",
        "regret_mean",
    }  # fmt: skip
    assert set(data) == {"groups", "overall", "rows", "bad_rows", "without_effect", "memory",
                         "inference", "sram", "traffic"}  # fmt: skip
    assert data["inference"] is data["sram"] is data["traffic"] is None
    assert set(data["groups"]["lab"]) == measures
    assert set(data["overall"]) == {*measures, "median_of_medians"}
    first, second, third = data["rows"]
    assert set(first) == {
        "id", "predicted_tokens_per_s", "measured_tokens_per_s", "interval", "refused"
    }  # fmt: skip
    assert first["predicted_tokens_per_s"] > 0
    assert (first["refused"], second["refused"]) == (None, "nothing-to-compare")
    assert (third["measured_tokens_per_s"], third["refused"]) == (None, None)
    assert all(len(line) <= 100 for line in text_of(found.page(), detail=True).splitlines())
