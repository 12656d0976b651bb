"""Stages that are alike are told once; names are shortened; screens stay narrow."""

from dataclasses import replace

import pytest

from meshwright.catalog.footprint_files import FootprintFile, LayerFootprint
from meshwright.sram.partition import Cut, partition_measured
from meshwright.sram.view import runs_of_alike
from meshwright.view.svg import chart_svg
from meshwright.view.terminal import text_of


def cut(name, count, system=None, **more):
    layer = LayerFootprint(name=name, repeat=count, size_bytes=1e6, **more)
    file = FootprintFile(name="file", layers=(layer,))
    return partition_measured(file, Cut(objective="count", capacity_bytes=2e6), system)


def test_alike_stages_share_a_line():
    plan = cut("block", 7)
    runs = runs_of_alike(plan.stages)
    assert [(run.numbers, run.layers(40)) for run in runs] == [
        ("0-2", "block 0 - 5 (2 each)"), ("3", "block 6"),
    ]  # fmt: skip
    slower = replace(plan.stages[1], work_s=1.0)
    assert len(runs_of_alike([plan.stages[0], slower, plan.stages[2]])) == 3


@pytest.mark.parametrize("name", ["b", "a block whose name is much longer than its column is wide"])
@pytest.mark.parametrize("system", [None, "131072xH100"])
def test_lines_are_narrow_whatever_the_names(name, system):
    plan = cut(name, 2001, system, time_s=123.4e-6, output_bytes=987654)
    screen = text_of(plan.page()).splitlines()
    assert len(screen) <= 24
    lines = text_of(plan.page(), detail=True).splitlines()
    assert max(len(line) for line in [*screen, *lines]) <= 100
    assert len(drawn(plan)) < 100_000


def drawn(plan):
    """The picture of ``--picture``."""
    return chart_svg(plan.page(), "Memory of a device of each stage")


def test_a_picture_is_equal_for_equal_input():
    assert drawn(cut("block", 7)) == drawn(cut("block", 7))
    assert "a &amp; b &lt;c&gt;" in drawn(cut("a & b <c>", 2))
