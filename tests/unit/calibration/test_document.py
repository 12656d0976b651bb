"""The document: whole tables, its pictures beside it, each point where it belongs."""

import math
import re
from xml.etree import ElementTree

import pytest

from meshwright.calibration.fit.report import text_table
from meshwright.calibration.picture import scatter_svg, sources_svg
from meshwright.calibration.prediction import predict
from meshwright.calibration.report import Others, Validation, document
from meshwright.calibration.rows import published_rows
from meshwright.catalog.calibration import ErrorRecord, GroupRecord, fit_record
from meshwright.report.chart import Axis

SVG = "{http://www.w3.org/2000/svg}"


def of_group(name, number):
    return [row for row in published_rows() if row.group == name][:number]


@pytest.fixture(scope="module")
def rows():
    return of_group("megatron-sc21", 3) + of_group("torchtitan", 4) + of_group("megatron-2020", 1)


@pytest.fixture(scope="module")
def written(rows):
    before, found = (
        Validation(tuple(predict(rows, name)), name) for name in ("uncalibrated", "calibrated")
    )
    unnamed = Validation(tuple(predict(rows, "calibrated", is_named=False)), "calibrated")
    return document(found, Others(before, unnamed), fit_record("calibrated"), "found")


def test_all_pictures_are_shown(written):
    shown = re.findall(r"!\[.*?\]\((.*?)\)", written["found.md"])
    assert set(written) == {"found.md", *shown} == {"found.md", "found.svg", "found_sources.svg"}


def test_each_table_is_whole(written):
    lines = written["found.md"].splitlines()
    for at, line in enumerate(lines):
        if line.startswith("|---"):
            columns = line.count("|")
            assert lines[at - 1].count("|") == columns
            end = next(n for n in range(at, len(lines)) if not lines[n].startswith("|"))
            assert all(row.count("|") == columns for row in lines[at:end])


def test_constants_that_were_not_fitted_tell_no_source_left_out(rows):
    found = Validation(tuple(predict(rows, "uncalibrated")), "uncalibrated")
    told = document(found, Others(found, found), None, "found")
    assert set(told) == {"found.md", "found.svg"}
    assert "## Intervals" not in told["found.md"]


def test_a_table_in_plain_text_fits_the_screen(monkeypatch):
    rows = [("x" * 90, "y", 1, "-"), ("z", "y" * 30, 22, "-")]
    monkeypatch.setenv("COLUMNS", "80")
    head, *lines, end = text_table(("a", "b", "c", "not known"), rows, words=2)
    assert "not known" not in head
    assert end == ""
    assert {len(line) for line in (head, *lines)} == {80}
    assert lines[0].endswith("   1")
    assert "y" * 30 in lines[1]


def test_an_axis_is_logarithmic_and_ends_at_its_ends():
    axis = Axis(1.0, 100.0, 0.0, 200.0)
    assert [axis.place(value) for value in (1.0, 10.0, 100.0, 1e9)] == [0.0, 100.0, 200.0, 200.0]
    assert [(round(value), name) for value, name in axis.ticks()] == [
        (1, "1"), (2, ""), (5, ""), (10, "10"), (20, ""), (50, ""), (100, "100"),
    ]  # fmt: skip
    assert all(name for _, name in Axis(3.0, 30.0, 0.0, 1.0).ticks())


def test_each_source_has_a_panel_with_rows_above_its_middle_where_predictions_are_high(rows):
    entries = [entry for entry in predict(rows, "calibrated") if entry.log_error is not None]
    drawn = ElementTree.fromstring(scatter_svg(entries))
    words = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"megatron-sc21 (3)", "torchtitan (4)", "megatron-2020 (1)"} <= words
    points = list(drawn.iter(f"{SVG}circle"))
    assert [point.find(f"{SVG}title").text for point in points] == [e.row.id for e in entries]
    boxes = [box for box in drawn.iter(f"{SVG}rect") if box.get("stroke")]
    of_panels = [list(group) for group in drawn.iter(f"{SVG}g")]
    assert len(boxes) == len(of_panels) == 3
    middles = [float(box.get("y")) + float(box.get("height")) / 2 for box in boxes]
    placed = zip(middles, of_panels, strict=True)
    above = [middle - float(point.get("cy")) for middle, panel in placed for point in panel]
    for height, entry in zip(above, entries, strict=True):
        assert math.copysign(1.0, height) == math.copysign(1.0, entry.log_error)


def test_the_axis_of_errors_ends_beyond_the_largest():
    """Between 2 and 110 %: ticks at 2, 5, 10, 20, 50, 100 and 200 %."""
    low, high = (ErrorRecord(median=m, p90=p, bias=0.0) for m, p in ((0.02, 0.1), (0.5, 1.1)))
    groups = {"one": GroupRecord(rows=1, fitted=low, left_out=high, alone=False)}
    words = [text.text for text in ElementTree.fromstring(sources_svg(groups)).iter(f"{SVG}text")]
    assert words[1:8] == ["2%", "5%", "10%", "20%", "50%", "100%", "200%"]


def test_errors_of_each_source_are_drawn_twice():
    known = ErrorRecord(median=0.1, p90=0.2, bias=0.0)
    unknown = ErrorRecord(median=None, p90=None, bias=None)
    groups = {
        "one": GroupRecord(rows=1, fitted=known, left_out=known, alone=True),
        "two": GroupRecord(rows=1, fitted=known, left_out=unknown, alone=False),
    }
    drawn = ElementTree.fromstring(sources_svg(groups))
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert "one (1)" in words
    assert "two" in words
    legend = 4
    assert len(list(drawn.iter(f"{SVG}circle"))) == legend + 2 * 3
