"""The report of a validation: each row where it belongs, misses among them."""

import math
from dataclasses import replace

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page, parts_of, values_of

from meshwright.calibration.errors import errors_of
from meshwright.calibration.picture import per_chip
from meshwright.calibration.rows import published
from meshwright.calibration.serving import predict_all
from meshwright.calibration.validation import Validation
from meshwright.calibration.view import NUM_MISSES, worst
from meshwright.view.parts import Table


@pytest.fixture(scope="module")
def found():
    train = [
        row for name in ("megatron-sc21", "torchtitan", "interleave")
        for row in [row for row in published("training") if row.group == name][:30]
    ]  # fmt: skip
    rows = [*train, *published("serving")[:8], *published("sram")[:3]]
    return Validation(tuple(predict_all(rows, "calibrated")), "calibrated")


@pytest.mark.slow
def test_points_lie_where_they_were_measured_and_predicted(found) -> None:
    page = found.page()
    check_page(page)
    points = values_of(charts_of(page)["Throughput of training"])
    known = [entry for entry in found.trained if entry.log_error is not None]
    assert {(row["label"], row["x"], row["y"]) for row in points} == {
        (entry.row.id, *per_chip(entry)[::-1]) for entry in known
    }
    missed = {row["label"] for row in points if row["kind"] == "largest misses"}
    assert missed == {entry.row.id for entry in worst(found.trained, math.ceil(len(known) / 10))}
    listed = next(
        part for part in parts_of(page)
        if isinstance(part, Table) and part.caption == "The largest misses of training"
    )  # fmt: skip
    assert [row[0] for row in listed.rows] == [
        entry.row.id for entry in worst(found.trained, NUM_MISSES)
    ]


def test_medians_are_the_errors_of_the_sources(found) -> None:
    drawn = values_of(charts_of(found.page())["Errors of each source (rows)"])
    for name in ("megatron-sc21", "torchtitan"):
        entries = [entry for entry in found.trained if entry.row.group == name]
        errors = errors_of(entries)
        (row,) = [row for row in drawn if row["row"] == f"{name} ({errors.rows_used})"
                  and row["of"] == "predicted"]  # fmt: skip
        assert row["first"] == pytest.approx(100.0 * errors.median_abs_log_error)
        assert row["last"] == pytest.approx(100.0 * errors.p90_abs_log_error)


@pytest.mark.slow
def test_constants_that_were_not_fitted_have_a_page(found) -> None:
    for name in ("uncalibrated", "calibrated"):
        for entries in (found.trained, found.served, found.sram, found.predictions[:0]):
            check_page(Validation(entries, name).page())


def test_names_are_text(found) -> None:
    plain = replace(found, command="plain")
    first = found.trained[0]
    evil = replace(first, row=first.row.model_copy(update={"id": EVIL}))
    changed = replace(plain, command=EVIL, predictions=(evil, *found.predictions[1:]))
    check_names_are_text(plain.page(), changed.page())
