"""Reports of a graph on a system, and of Linpack on grids: the numbers of their plans."""

from dataclasses import replace

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page, values_of

from meshwright.api import map


@pytest.fixture(scope="module")
def layers():
    return map("gpt3-175b-layer", on="16xH100", passes=4)


@pytest.fixture(scope="module")
def linpack():
    return map("hpl-40000x512", process_grid="any", on="8xH100")


def test_charts_hold_the_numbers_of_the_plans(layers) -> None:
    page, plans = layers.page(), layers.plans
    check_page(page)
    shown = charts_of(page)
    times = values_of(shown["Time of a step"])
    assert sum(row["amount"] for row in times) == pytest.approx(plans.best.step_s)
    for one in plans.plans[:20]:
        name = f"tp{one.tp} pp{one.pp} dp{one.dp}"
        rows = values_of(shown["Time of a step, by degrees"])
        assert sum(row["amount"] for row in rows if row["row"] == name) == pytest.approx(one.step_s)
    assert "Time of each kernel, in one pass" in shown


def test_stages_of_a_graph_that_is_cut_are_shown() -> None:
    found = map("fft-4096x4096", on="4xH100", pp=2, passes=4)
    page = found.page()
    check_page(page)
    if found.plans.best.stages:
        rows = values_of(charts_of(page)["Time of each stage, in one pass"])
        busy = [row["amount"] for row in rows if row["part"] == "busy"]
        assert busy == [stage.busy for stage in found.plans.best.stages]


def test_grids_are_compared(linpack) -> None:
    page = linpack.page()
    check_page(page)
    rows = values_of(charts_of(page)["Time of the run, by grid"])
    for run in linpack.runs:
        parts = [row["amount"] for row in rows if row["row"] == str(run.grid)]
        assert sum(parts) == pytest.approx(run.run_s)


def test_names_are_text(layers, linpack) -> None:
    graph = replace(layers.graph, name=EVIL)
    check_names_are_text(layers.page(), replace(layers, graph=graph).page())
    spec = linpack.system.spec.model_copy(update={"name": EVIL})
    evil = replace(linpack, system=replace(linpack.system, spec=spec))
    check_names_are_text(linpack.page(), evil.page())
