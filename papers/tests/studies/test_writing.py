"""Charts of studies: every row is drawn, in words, with its misfits and where two are equal."""

import re
import sys
from xml.etree import ElementTree

import altair
import pytest

from meshwright.cli.main import main
from meshwright.view.charts import COLOURS
from meshwright_papers.studies.columns import COLUMNS
from meshwright_papers.studies.drawing import Drawing, drawing_spec, drawing_svg
from meshwright_papers.studies.study import Table, table_svg

COLUMN_NAMES = ("system", "case", "temp_s", "over_temp", "shown_saved_pct", "published_saved_pct")
ROWS = (
    ("ours", "a", 0.25, 1.0, 50.0, 38.0),
    ("theirs", "a", 0.5, 2.0, -900.0, 24.0),
    ("ours", "b", 0.75, 1.0, 90.0, 18.0),
    ("theirs", "b", None, None, None, None),
)


def spec_of(mark="dots", values=("over_temp",), along="system", rows=ROWS, **more):
    return drawing_spec(COLUMN_NAMES, rows, Drawing("T?", "of all", mark, values, along, **more))


def panel(spec):
    return spec.get("spec", spec)


def marks(spec, mark):
    found = [layer for layer in panel(spec)["layer"] if kind(layer) == mark]
    return found[0] if len(found) == 1 else found


def kind(layer):
    return layer["mark"] if isinstance(layer["mark"], str) else layer["mark"]["type"]


def of_kind(spec, name):
    """Return the layers whose entries are all of a kind."""
    told = {"calculate": f'"{name}"', "as": "kind"}
    return [layer for layer in panel(spec)["layer"] if told in layer.get("transform", ())]


def crosses(spec):
    return of_kind(spec, "does not fit")


def words_of(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter() if text.tag.endswith("}text")]


def test_every_row_is_drawn_whether_it_has_a_number_or_not():
    spec = spec_of(colour="case")
    entries = spec["data"]["values"]
    assert [(entry["along"], entry["series"], entry["value"]) for entry in entries] == [
        (system, case, over) for system, case, _, over, *_ in ROWS
    ]
    assert [entry.get("misfit") for entry in entries] == [None, None, None, "does not fit"]


def test_what_does_not_fit_is_a_cross_at_the_end_of_the_axis_and_in_the_legend():
    (cross,) = crosses(spec_of(colour="case"))
    assert cross["transform"][0] == {"filter": "!isValid(datum.value)"}
    assert 400 < cross["encoding"]["x"]["value"] < 430
    assert cross["encoding"]["shape"]["scale"]["domain"] == ["does not fit"]
    svg = drawing_svg(COLUMN_NAMES, ROWS, Drawing("T?", "", "dots", ("over_temp",), "system"))
    assert words_of(svg).count("does not fit") == 1
    assert crosses(spec_of(rows=ROWS[:3])) == []


def test_what_does_not_fit_although_it_has_a_number_is_crossed_there():
    rows = [(*row, fits) for row, fits in zip(ROWS[:3], ("yes", "no", False), strict=True)]
    how = Drawing("T?", "", "bars", ("temp_s",), "system", fits={"temp_s": "fits"})
    spec = drawing_spec((*COLUMN_NAMES, "fits"), rows, how)
    assert [entry.get("misfit") for entry in spec["data"]["values"]] == [
        None, "does not fit", "does not fit",
    ]  # fmt: skip
    (cross,) = crosses(spec)
    assert cross["encoding"]["x"]["field"] == "value"


def test_ratios_have_a_line_where_both_are_equal_on_a_logarithmic_axis():
    spec = spec_of()
    assert marks(spec, "rule")["encoding"]["x"]["datum"] == 1.0
    assert marks(spec, "text")["encoding"]["text"] == {"value": "equal"}
    scale = marks(spec, "rule")["encoding"]["x"]["scale"]
    assert scale["type"] == "log"
    assert scale["domain"][0] < 1.0 < 2.0 < scale["domain"][1]
    assert marks(spec_of(values=("temp_s",)), "rule") == []


def test_percent_saved_are_drawn_as_the_ratio_that_is_left_beside_the_published_one():
    """Of 50 % saved half is left; of -900 % ten times as much."""
    spec = spec_of(values=("shown_saved_pct",), published="published_saved_pct")
    values = spec["data"]["values"]
    assert [entry["value"] for entry in values] == pytest.approx([0.5, 10.0, 0.1, None])
    assert [entry["published"] for entry in values] == pytest.approx([0.62, 0.76, 0.82, None])
    (layer,) = of_kind(spec, "published")
    assert layer["encoding"]["x"]["field"] == "published"


def test_numbers_over_another_column():
    spec = spec_of(values=("temp_s",), over="over_temp")
    assert [entry["value"] for entry in spec["data"]["values"]] == [0.25, 0.25, 0.75, None]
    assert marks(spec, "rule")["encoding"]["x"]["datum"] == 1.0


def test_seconds_below_one_are_milliseconds():
    spec = spec_of(mark="bars", values=("temp_s",), measure="step")
    assert marks(spec, "bar")["encoding"]["x"]["title"] == "step [ms]"
    assert [entry["value"] for entry in spec["data"]["values"]] == [250.0, 500.0, 750.0, None]
    longer = tuple((*row[:2], None if row[2] is None else 10 * row[2], *row[3:]) for row in ROWS)
    spec = spec_of(mark="bars", values=("temp_s",), measure="step", rows=longer)
    assert marks(spec, "bar")["encoding"]["x"]["title"] == "step [s]"


def test_bars_begin_at_zero_and_say_their_numbers():
    spec = spec_of(mark="bars", values=("temp_s",), measure="step")
    assert marks(spec, "bar")["encoding"]["x"]["scale"]["zero"] is True
    svg = drawing_svg(COLUMN_NAMES, ROWS, Drawing("T?", "", "bars", ("temp_s",), "system"))
    assert {"250", "500", "750", "ours", "theirs"} <= set(words_of(svg))


def test_panels_and_colours_are_in_the_order_of_the_table():
    spec = spec_of(colour="system", panels="case", along="system", rows=ROWS[::-1])
    assert spec["facet"]["sort"] == ["b", "a"]
    colour = marks(spec, "point")[0]["encoding"]["color"]
    assert colour["scale"] == {"domain": ["theirs", "ours"], "range": list(COLOURS[:2])}


def test_lines_run_over_their_numbers_in_powers_of_two_where_these_are_far_apart():
    columns, rows = ("degree", "tokens_per_s"), ((1, 2e6), (2, 3e6), (32, 1e6))
    how = Drawing("T?", "", "lines", ("tokens_per_s",), "degree")
    spec = drawing_spec(columns, rows, how)
    x = marks(spec, "line")["encoding"]["x"]
    assert (x["scale"]["type"], x["scale"]["base"]) == ("log", 2)
    assert x["axis"]["values"] == [1, 2, 32]
    assert {"1", "2", "32"} <= set(words_of(drawing_svg(columns, rows, how)))
    assert "0.5M" in words_of(drawing_svg(columns, rows, how))


def test_pairs_set_one_column_over_another():
    columns = ("configuration", "closed_form_step_pct", "network_step_pct")
    how = Drawing("T?", "", "pairs", columns[1:], "configuration")
    line, points = drawing_spec(columns, (("a", 1.0, 2.0), ("b", 3.0, 1.0)), how)["layer"]
    assert kind(line) == "line"
    assert points["encoding"]["x"]["title"] == "error of the closed form [%]"


def test_a_picture_is_named_and_escaped_and_the_same_each_time():
    rows = (("<b> & co", 1.0), ("b", 2.0))
    how = Drawing("Is <it> so?", "of a & b", "dots", ("over_temp",), "system")
    svg = drawing_svg(("system", "over_temp"), rows, how)
    assert svg == drawing_svg(("system", "over_temp"), rows, how)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert [root[0].text, root[1].text] == ["Is <it> so?", "of a & b"]
    assert "<b> & co" in words_of(svg)
    assert "prefers-color-scheme:dark" in root[2].text
    assert not re.search(r"(href|src)=", svg)


def test_without_numbers_or_a_drawing_there_is_no_chart():
    how = Drawing("T?", "", "bars", ("x",), "name")
    assert table_svg(Table("t", ("name", "x"), (("a", None), ("b", "text")), how)) == ""
    assert table_svg(Table("t", ("name", "x"), (("a", 1.0),))) == ""


def test_words_of_columns_are_no_names_of_columns():
    assert not [one for one in COLUMNS.values() if "_" in one.words]


def test_without_the_extra_nothing_begins(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["study", "temp-throughput", "--out", str(tmp_path / "x")]) != 0
    assert "pip install 'meshwright[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("more", [
    {"colour": "case"}, {"panels": "case"}, {"mark": "bars", "values": ("temp_s",)},
    {"values": ("shown_saved_pct",), "published": "published_saved_pct"},
    {"mark": "stack", "values": ("temp_s", "over_temp")},
    {"mark": "lines", "along": "over_temp", "rows": ROWS[:3], "values": ("temp_s", "over_temp")},
])  # fmt: skip
def test_charts_are_right_by_the_schema_of_vega_lite(more):
    spec = spec_of(**more)
    (altair.FacetChart if "facet" in spec else altair.LayerChart).from_dict(spec)
