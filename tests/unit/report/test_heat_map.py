"""Colours of heat maps."""

from meshwright.report.chart import HEAT_STEPS
from meshwright.report.heat_map import HeatCells


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
