"""The report of a partition: what fills each stage, and what is proved."""

from dataclasses import replace

import pytest
from report_pages import (
    EVIL,
    charts_of,
    check_names_are_text,
    check_page,
    values_of,
)

from meshwright import partition
from meshwright.catalog.footprint_files import FootprintFile, LayerFootprint
from meshwright.sram.partition import Cut, partition_measured


def cut(name: str, *sizes: float, capacity: float = 2e6):
    layers = [
        LayerFootprint(name=f"{name}{number}", size_bytes=size, time_s=1e-6 * (number + 1))
        for number, size in enumerate(sizes)
    ]
    file = FootprintFile(name="file", layers=tuple(layers))
    return partition_measured(file, Cut(objective="count", capacity_bytes=capacity), None)


def test_bars_fill_the_room_of_a_device() -> None:
    plan = cut("block", 1.0e6, 1.5e6, 0.4e6, 1.9e6)
    page = plan.page()
    check_page(page)
    memory = charts_of(page)["Memory of a device of each stage"]
    rows = values_of(memory)
    held = [
        sum(row["amount"] for row in rows if row["row"] == name) * 2**20
        for name in dict.fromkeys(row["row"] for row in rows)
    ]
    assert held == pytest.approx([stage.held_bytes for stage in plan.stages])
    assert held == pytest.approx([1.0e6, 1.9e6, 1.9e6])
    lines = [layer["encoding"]["x"]["datum"] for layer in memory.spec["layer"] if "data" in layer]
    assert lines == [2e6 / 2**20]
    times = values_of(charts_of(page)["Time of one group on each stage"])
    assert [row["amount"] for row in times] == pytest.approx([1.0, 5.0, 4.0])  # [us]


def test_layers_that_fit_nowhere_are_named() -> None:
    page = cut("block", 3e6).page()
    check_page(page)
    assert page.tiles[0].mood == "bad"
    assert "block0" in page.tiles[0].answer


def test_a_model_shows_its_time_and_its_batches() -> None:
    plan = partition("llama3-8b", on="4xWSE-3", seq="4k")
    page = plan.page()
    check_page(page)
    times = values_of(charts_of(page)["Time per output token"])
    scale = {"us": 1e-6, "ms": 1e-3}
    unit = charts_of(page)["Time per output token"].spec["layer"][0]["encoding"]["x"]["title"]
    seconds = sum(row["amount"] for row in times) * scale[unit[6:-1]]
    assert seconds == pytest.approx(plan.rates.latency_s)
    drawn = charts_of(page)["Latency against throughput"]
    unit = drawn.spec["layer"][0]["encoding"]["x"]["title"]
    points = {(row["x"], row["y"]) for row in values_of(drawn)}
    assert points == {
        (batch.latency_s / scale[unit[-3:-1]], batch.tokens_per_s) for batch in plan.batches
    }


def test_what_would_help_is_weighed() -> None:
    plan = partition("llama3-70b", on="1xWSE-3", seq="4k")
    page = plan.page()
    check_page(page)
    priced = [offer for offer in plan.proposals if offer.latency_s is not None]
    assert len(priced) > 1
    points = values_of(charts_of(page)["Devices against time, by change"])
    assert {(row["label"], row["x"], row["y"]) for row in points} == {
        (offer.what, offer.num_devices, offer.latency_s / 1e-3) for offer in priced
    }  # [ms]


def test_names_are_text() -> None:
    plan = cut("block", 1.0e6, 1.5e6)
    check_names_are_text(plan.page(), replace(plan, source=EVIL).page())
