"""The report of a fusion: time, memory and kernels of its partitions."""

from dataclasses import replace

import pytest
from report_pages import (
    EVIL,
    charts_of,
    check_names_are_text,
    check_page,
    values_of,
)

from meshwright import fuse
from meshwright.dataflow.fusion.view import SHOWN_GAP, proof_lines
from meshwright.view.parts import Text
from meshwright.view.terminal import text_of


@pytest.fixture(scope="module")
def found():
    return fuse("gpt3-175b-layer", on="SN10", tile=64)


def test_charts_hold_the_numbers_of_the_partitions(found) -> None:
    page = found.page()
    check_page(page)
    whole, each, sram, moved = (
        part
        for section in page.sections[:2]
        for part in section.parts
        if not isinstance(part, Text)
    )
    assert sum(whole.parts.values()) == pytest.approx(whole.whole) == pytest.approx(found.time_s)
    for row, part in zip(each.data.rows, found.partitions, strict=True):
        assert sum(row[1:]) == pytest.approx(part.time_s)
    assert [row[1] for row in sram.data.rows] == [part.sram_bytes for part in found.partitions]
    assert sram.limit == found.sram_capacity_bytes
    assert [row[1] for row in moved.data.rows] == [part.moved_bytes for part in found.partitions]
    bars = values_of(charts_of(page)["SRAM of each partition"])
    assert bars[0]["amount"] * 2**20 == pytest.approx(found.partitions[0].sram_bytes)
    drawn = charts_of(page)
    boxes, busy = (values_of(drawn[f"{name} over time"]) for name in ("Cores", "Resources"))
    first = found.partitions[0]
    assert sum(box["high"] - box["low"] for box in boxes if box["note"] == "partition 1") == sum(
        kernel.cores for kernel in first.kernels
    )
    assert max(box["right"] for box in boxes) == pytest.approx(found.time_s)
    rows = {bar["row"]: bar["end"] for bar in busy if bar["start"] == 0.0}
    assert rows["DRAM"] == pytest.approx(first.dram_s)
    assert rows["SRAM"] == pytest.approx(
        first.time_s * first.sram_bytes / found.sram_capacity_bytes
    )


def test_names_are_text(found) -> None:
    check_names_are_text(found.page(), replace(found, graph=EVIL).page())


def test_a_partition_says_its_limit_and_the_chips_their_share_of_the_peak(found) -> None:
    """One chip of SN10 runs all 96 repetitions one after the other."""
    assert found.sequences_per_s == pytest.approx(1.0 / (96 * found.time_s))
    first = text_of(found.page()).splitlines()[2]
    assert (
        first.split()
        == (
            f"speed {found.sequences_per_s:.4g} sequences/s on 1 chip, {found.compute_share:.0%} "
            "of peak"
        ).split()
    )


def test_a_proof_says_the_gap_of_splits_and_the_kernels_of_a_wide_graph(found) -> None:
    counts = replace(found.counts, num_kept=5, tiles_fused=1, tiles_pruned=0, tiles_refused=0)
    wide = replace(found, gap=0.02, sharding_gap=SHOWN_GAP, counts=counts)
    first, splits, searched = proof_lines(wide)
    assert first.startswith("at most 2.0% from the best")
    assert splits.startswith("split over tp: at most ")
    assert searched.index(f"5 of its {found.num_kernels} kernels") < searched.index("ideals")
    assert len(list(proof_lines(replace(wide, sharding_gap=0.99 * SHOWN_GAP)))) == 2
