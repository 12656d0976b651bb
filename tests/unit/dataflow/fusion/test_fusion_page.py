"""The report of a fusion: time, memory and kernels of its partitions."""

from dataclasses import replace

import pytest
from report_pages import (
    EVIL,
    charts_of,
    check_names_are_text,
    check_page,
    parts_of,
    values_of,
)

from meshwright import fuse
from meshwright.view.parts import Picture


@pytest.fixture(scope="module")
def found():
    return fuse("gpt3-175b-layer", on="SN10", tile=64)


def test_charts_hold_the_numbers_of_the_partitions(found) -> None:
    page, fusion = found.page(), found.choice.fusion
    check_page(page)
    shown = charts_of(page)
    whole = values_of(shown["Time of a sequence"])
    assert sum(row["amount"] for row in whole) == pytest.approx(fusion.time_s)
    rows = values_of(shown["Time of each partition, for one sequence"])
    for number, part in enumerate(fusion.partitions, start=1):
        times = [row["amount"] for row in rows if row["row"] == f"partition {number}"]
        assert sum(times) == pytest.approx(part.time_s)
    sram = [row["amount"] * 2**20 for row in values_of(shown["SRAM of each partition"])]
    assert sram == pytest.approx([part.sram_bytes for part in fusion.partitions])
    assert any(isinstance(part, Picture) for part in parts_of(page))


def test_names_are_text(found) -> None:
    asked = replace(found.question, graph=replace(found.question.graph, name=EVIL))
    check_names_are_text(found.page(), replace(found, question=asked).page())
