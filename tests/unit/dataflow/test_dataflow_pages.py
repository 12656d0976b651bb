"""Reports of a graph on a system, and of Linpack on grids: the numbers of their plans."""

from dataclasses import replace

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page

import meshwright as mw
from meshwright.dataflow.answer import summary
from meshwright.dataflow.question import load_graph
from meshwright.view.parts import Table
from meshwright.view.terminal import text_of


def part_of(page, title):
    """Return the part of a title, or the first table without one."""
    parts = [part for section in page.sections for part in section.parts]
    return next(
        part for part in parts
        if getattr(part, "title", None) == title or (not title and isinstance(part, Table))
    )  # fmt: skip


@pytest.fixture(scope="module")
def layers():
    return mw.map("gpt3-175b-layer", on="16xH100", passes=4)


@pytest.fixture(scope="module")
def linpack():
    return mw.map("hpl-40000x512", process_grid="any", on="8xH100")


def test_charts_hold_the_numbers_of_the_plans(layers) -> None:
    page, best = layers.page(), layers.best
    check_page(page)
    step, kernels, ranking = (
        part_of(page, title)
        for title in ("Time of a step", "Time of each kernel, in one pass",
                      "Time of a step, by degrees")
    )  # fmt: skip
    assert sum(step.parts.values()) == pytest.approx(step.whole) == pytest.approx(best.step_s)
    shown = [sum(row[1:]) for row in ranking.data.rows]
    assert shown == pytest.approx([plan.step_s for plan in (best, *layers.others)][:20])
    assert ranking.data.rows[0][0] == best.text
    times = sorted((kernel.time_s for kernel in best.kernels), reverse=True)
    assert [row[1] for row in kernels.data.rows] == times[:24]
    assert "Time of each kernel, in one pass" in charts_of(page)


def test_memory_is_that_of_the_fullest_device_and_what_is_kept_free(layers) -> None:
    memory, capacity = part_of(layers.page(), "Memory of the fullest device (hbm)"), 80 * 2**30
    assert memory.capacity == capacity
    assert memory.parts["weights and tensors"] == layers.best.held_bytes
    free = sum(memory.parts.values()) - layers.best.held_bytes
    assert capacity - free == pytest.approx(layers.machine.usable_bytes)


def test_the_first_screen_fits_and_the_detail_has_every_kernel(layers) -> None:
    screen = text_of(layers.page()).splitlines()
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 100
    assert screen[2].startswith(f"plan      {layers.best.text}: ")
    whole = text_of(layers.page(), detail=True)
    assert all(f"  {kernel.name} " in whole for kernel in layers.best.kernels)


def test_the_leading_plans_alone_are_still_of_the_whole_search(layers) -> None:
    few = layers.leading(2)
    assert (few.best, few.others) == (layers.best, layers.others[:1])
    assert few.num_priced == len(layers.others) + 1


def test_stages_of_a_graph_that_is_cut_are_shown() -> None:
    found = mw.map("fft-4096x4096", on="4xH100", pp=2, passes=4)
    page = found.page()
    check_page(page)
    assert found.best.stages
    rows = part_of(page, "Time of each stage, in one pass").data.rows
    assert [row[1] for row in rows] == [stage.busy_s for stage in found.best.stages]


def test_grids_are_compared(linpack) -> None:
    page = linpack.page()
    check_page(page)
    plot = part_of(page, "Time of the run, by grid")
    assert plot.limit == linpack.lower_bound_s
    for run, row in zip(linpack.runs, plot.data.rows, strict=True):
        assert row[0] == str(run.grid)
        assert sum(row[1:]) == pytest.approx(run.run_s)


def test_names_are_text(layers, linpack) -> None:
    check_names_are_text(layers.page(), replace(layers, graph=EVIL).page())
    spec = linpack.machine.spec.model_copy(update={"name": EVIL})
    evil = replace(linpack, machine=replace(linpack.machine, spec=spec))
    check_names_are_text(linpack.page(), evil.page())


def test_a_graph_says_its_work_and_what_may_be_split() -> None:
    """FFT of 64 x 64: two passes of 64 transforms of 5 n log2 n = 1,920 FLOP each."""
    graph = summary(load_graph("fft-64x64"))
    rows = {row[0]: row for row in part_of(graph.page(), "").rows}
    assert rows["transform-rows"] == ("transform-rows", "vector", 64 * 1920, 64**2 * 16, None,
                                      "rows")  # fmt: skip
    screen = text_of(graph.page())
    assert f"{graph.flops / 1e3:.0f} kFLOP, 0 FLOP of it in products" in screen
    assert "points[rows 64, columns 64]" in screen
