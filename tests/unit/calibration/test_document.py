"""The document: whole tables, its pictures beside it, each point where it belongs."""

import math
import re
from xml.etree import ElementTree

import pytest
from report_pages import charts_of

from meshwright.calibration.errors import by_group, errors_of
from meshwright.calibration.picture import (
    UNSEEN,
    coverage_spec,
    error_spec,
    ratio_spec,
)
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import SystemFields, published
from meshwright.calibration.validation import Validation
from meshwright.calibration.view import Others, documents, validation_page
from meshwright.catalog.calibration import ErrorRecord, GroupRecord
from meshwright.view.markdown import markdown_of
from meshwright.view.svg import svg_of

SVG = "{http://www.w3.org/2000/svg}"


def of_group(name, number):
    return [row for row in published("training") if row.group == name][:number]


@pytest.fixture(scope="module")
def rows():
    return of_group("megatron-sc21", 3) + of_group("torchtitan", 4) + of_group("megatron-2020", 1)


@pytest.fixture(scope="module")
def written(rows):
    before, found = (
        Validation(tuple(predict(rows, name)), name) for name in ("uncalibrated", "calibrated")
    )
    unnamed = Validation(tuple(predict(rows, "calibrated", is_named=False)), "calibrated")
    return markdown_of(validation_page(found, Others(before, unnamed)), "found")


def test_all_pictures_are_shown(written):
    shown = re.findall(r"!\[.*?\]\((.*?)\)", written["found.md"])
    pictures = {
        "found_agree.svg", "found_sources.svg", "found_sources2.svg", "found_intervals.svg",
        "found_memory.svg",
    }  # fmt: skip
    assert set(written) == {"found.md", *shown} == {"found.md", *pictures}


def test_each_table_is_whole(written):
    lines = written["found.md"].splitlines()
    for at, line in enumerate(lines):
        if line.startswith("|---"):
            columns = line.count("|")
            assert lines[at - 1].count("|") == columns
            rest = range(at, len(lines))
            end = next((n for n in rest if not lines[n].startswith("|")), len(lines))
            assert all(row.count("|") == columns for row in lines[at:end])


def test_constants_that_were_not_fitted_tell_no_source_left_out(rows):
    found = Validation(tuple(predict(rows, "uncalibrated")), "uncalibrated")
    told = markdown_of(validation_page(found, Others(found, found)), "found")["found.md"]
    assert "left out" not in told.split("## How large")[0]
    assert "intervals" not in told


def test_rows_that_cannot_be_predicted_have_a_document_without_their_pictures(rows):
    unknown = [row.model_copy(update={"system": SystemFields(like="8xnone")}) for row in rows]
    found = Validation(tuple(predict(unknown, "calibrated")), "calibrated")
    told = markdown_of(validation_page(found, Others(found, found)), "found")
    assert set(told) == {"found.md", "found_intervals.svg"}
    assert "](found_intervals.svg)" in told["found.md"]


@pytest.fixture(scope="module")
def entries(rows):
    return [entry for entry in predict(rows, "calibrated") if entry.log_error is not None]


def test_each_row_is_a_stroke_beside_its_source_the_best_source_first(entries):
    spec = ratio_spec(entries)
    values = spec["data"]["values"]
    labels = {"megatron-sc21 (3)", "torchtitan (4)", "megatron-2020 (1)"}
    assert {value["row"] for value in values} == labels
    ratios = [math.exp(entry.log_error) for entry in entries]
    assert [value["ratio"] for value in values] == pytest.approx(ratios, rel=1e-3)
    line, strokes, *_ = spec["layer"]
    assert line["encoding"]["x"]["datum"] == 1.0
    errors = {
        name: errors_of(part).median_abs_log_error for name, part in by_group(entries).items()
    }
    order = sorted(errors, key=errors.get)
    assert [name.split()[0] for name in strokes["encoding"]["y"]["sort"]] == order


def test_rows_that_no_fit_saw_have_a_colour_of_their_own(rows):
    frozen = predict(of_group("tpu-recipes", 2), "calibrated")
    kinds = [value["kind"] for value in ratio_spec(frozen)["data"]["values"]]
    assert set(kinds) == {UNSEEN}


def test_a_picture_says_how_many_rows_it_shows(entries):
    page = Validation(tuple(entries), "calibrated").page()
    chart = charts_of(page)["Predicted over measured throughput by source (rows)"]
    drawn = ElementTree.fromstring(svg_of(dict(chart.spec), chart.title, chart.says))
    strokes = [path.get("d").count("M") for path in drawn.iter(f"{SVG}path")]
    assert len(entries) in strokes


def test_errors_of_each_source_are_drawn_twice(entries):
    known = ErrorRecord(median=0.1, p90=0.2, bias=0.0)
    groups = {
        "torchtitan": GroupRecord(rows=4, fitted=known, left_out=known, alone=True),
        "megatron-2020": GroupRecord(rows=1, fitted=known, left_out=ErrorRecord(), alone=False),
    }
    errors = {name: errors_of(part) for name, part in by_group(entries).items()}
    values = error_spec(errors, groups)["data"]["values"]
    left_out = [value for value in values if value["of"] != "predicted"]
    assert len(values) == 3 + 1
    (twice,) = left_out
    assert twice["row"] == "torchtitan (4, alone)"
    assert (twice["first"], twice["last"]) == pytest.approx((10.0, 20.0))


def test_held_intervals_of_each_source_beside_what_is_meant():
    none = ErrorRecord()
    groups = {
        name: GroupRecord(rows=2, fitted=none, left_out=none, alone=False, covered=covered)
        for name, covered in (("a", 0.5), ("b", 1.0), ("c", None))
    }
    spec = coverage_spec(groups)
    assert [value["label"] for value in spec["data"]["values"]] == ["b (2)", "a (2)"]
    assert spec["layer"][-1]["encoding"]["x"]["datum"] == pytest.approx(80.0)


def test_a_document_prices_its_rows_without_their_framework_too(rows):
    found = Validation(tuple(predict(rows, "calibrated")), "calibrated")
    told = documents(found, "found")["found.md"].splitlines()
    named, unnamed = (
        next(line for line in told if line.startswith(f"| {name} |"))
        for name in ("calibrated", "calibrated, framework not named")
    )
    assert named.split("|")[2:] != unnamed.split("|")[2:]
