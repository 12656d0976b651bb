"""Colours, numbers and titles of heat maps."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from meshwright.view.heat_map import HeatCells, heat_spec, heat_svg

INK = "{http://www.w3.org/2000/svg}"


def cells(*values):
    names = tuple(f"c{number}" for number in range(len(values)))
    found = {("r", name): value for name, value in zip(names, values, strict=True)}
    return HeatCells("t", "row", "column", ("r",), (*names, "empty"), found, {})


def scale(shown):
    return heat_spec(shown)["layer"][0]["encoding"]["color"]["scale"]["type"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [((2.0, 4.0, 6.0), "linear"), ((1.0, 100.0, 10_000.0), "log"), ((0.0, 1e6), "linear"),
     ((3.0, 3.0), "linear"), ((), "linear")],
)  # fmt: skip
def test_colours_stand_for_ratios_where_values_are_far_apart(values, expected):
    assert scale(cells(*values)) == expected
    assert ("by ratio" in cells(*values).scale) == (expected == "log")


def test_small_values_have_prefixes_in_a_map_that_needs_them():
    shown = cells(2.5e-6, 4.2e-4, 0.0125, 1300.0)
    assert [shown.text("r", name) for name in shown.columns[:4]] == [
        "2.5 u", "420 u", "12.5 m", "1.3 k",
    ]  # fmt: skip
    assert shown.scale == "2.5 u to 1.3 k, colours by ratio"
    assert cells(0.002, 0.5).text("r", "c0") == "0.002"


def test_a_picture_has_each_cell_in_words_and_a_cross_where_nothing_fits():
    shown = replace(cells(1.0, 2.0), misfits=frozenset({("r", "empty")}), quantity="time", unit="s")
    drawn = ElementTree.fromstring(heat_svg(shown))
    words = ["".join(text.itertext()) for text in drawn.iter(f"{INK}text")]
    assert {"t", "row", "column", "1", "2", "nothing fits", "time [s]"} <= set(words)
    assert len(heat_spec(shown)["layer"]) == 3
    assert len(heat_spec(cells(1.0))["layer"]) == 2
