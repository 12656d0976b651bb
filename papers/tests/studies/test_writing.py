"""Charts of studies: whole labels, bars on both sides of zero, and none without numbers."""

from xml.etree import ElementTree

import pytest

from meshwright_papers.studies.study import Table, table_svg


def bars_of(*rows):
    """Return (left, width) of each bar, and the left end of the longest label."""
    chart = ElementTree.fromstring(table_svg(Table("t", ("name", "x"), rows, ("name",), "x")))
    bars = [part for part in chart if part.tag.endswith("rect")]
    return [(float(bar.get("x")), float(bar.get("width"))) for bar in bars], chart


def test_lengths_are_in_proportion():
    (one, two), _ = bars_of(("a", 1.0), ("b", 3))
    assert one[0] == two[0]
    assert two[1] == pytest.approx(3 * one[1], abs=0.2)


def test_negative_bars_go_left_of_zero():
    (less, more), _ = bars_of(("a", -1.0), ("b", 2.0))
    assert less[0] + less[1] == pytest.approx(more[0], abs=0.2)
    assert less[1] == pytest.approx(more[1] / 2, abs=0.2)


def test_long_names_have_room_and_are_escaped():
    name = "<" + "m" * 60
    (bar,), chart = bars_of((name, 1.0))
    assert bar[0] >= 6 * len(name)
    assert name in {part.text for part in chart}


def test_zero_has_a_bar_of_no_length():
    ((_, width),), _ = bars_of(("a", 0.0))
    assert width == 0.0


def test_without_numbers_there_is_no_chart():
    assert table_svg(Table("t", ("name", "x"), (("a", None), ("b", "text")), ("name",), "x")) == ""
