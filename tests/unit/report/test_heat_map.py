"""Colours, numbers and titles of heat maps."""

from dataclasses import replace
from xml.etree import ElementTree

from meshwright.report.chart import HEAT_STEPS
from meshwright.report.heat_map import HeatCells, heat_svg


def cells(*values):
    names = tuple(f"c{number}" for number in range(len(values)))
    found = {("r", name): value for name, value in zip(names, values, strict=True)}
    return HeatCells("t", "row", "column", ("r",), (*names, "empty"), found, {})


def steps(shown):
    return [shown.step("r", column) for column in shown.columns]


def test_steps_are_equal_differences_where_values_are_near():
    assert steps(cells(2.0, 4.0, 6.0)) == [1, 1 + round((HEAT_STEPS - 1) / 2), HEAT_STEPS, 0]


def test_steps_are_equal_ratios_where_values_are_far_apart():
    assert steps(cells(1.0, 100.0, 10_000.0)) == [1, 1 + round((HEAT_STEPS - 1) / 2), HEAT_STEPS, 0]


def test_values_that_are_zero_or_alike_have_a_colour_all_the_same():
    assert steps(cells(0.0, 1e6)) == [1, HEAT_STEPS, 0]
    assert steps(cells(3.0, 3.0)) == [HEAT_STEPS, HEAT_STEPS, 0]


def test_small_values_have_prefixes_in_a_map_that_needs_them():
    shown = cells(2.5e-6, 4.2e-4, 0.0125, 1300.0)
    assert [shown.text("r", name) for name in shown.columns[:4]] == [
        "2.5 u", "420 u", "12.5 m", "1.3 k",
    ]  # fmt: skip
    assert shown.scale == "2.5 u to 1.3 k, steps of equal ratios"
    assert cells(0.002, 0.5).text("r", "c0") == "0.002"


def test_titles_fit_into_their_picture():
    """A semibold letter of 18 px takes 11 px on average, in the widest usual font."""
    named = replace(cells(1.0), title="m" * 60)
    width = float(ElementTree.fromstring(heat_svg(named)).get("width"))
    assert width >= 60 * 11
