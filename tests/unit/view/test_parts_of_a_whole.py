"""Shares by hand: of the sum of the parts, of a stated whole, or of a capacity."""

import re

import pytest

from meshwright.view.drawn import drawn, largest, told
from meshwright.view.parts import Page, Section, Tile, Whole
from meshwright.view.terminal import text_of

PARTS = {"compute": 30.0, "stream": 10.0}


def lines_of(part):
    """Return the lines of a part on a terminal, as its first answer and as a section."""
    page = Page("title", "question", [Tile("time", "", part=part)], [Section("a", "A", [part])])
    return text_of(page, detail=True).splitlines()


@pytest.mark.parametrize(
    ("whole", "shares"), [(None, ("75.0%", "25.0%")), (80.0, ("37.5%", "12.5%"))]
)
def test_bars_are_shares_of_the_stated_whole_or_of_the_sum(whole, shares):
    lines = lines_of(Whole("time", PARTS, "s", whole=whole))
    for name, share in zip(PARTS, shares, strict=True):
        drawn_bars = [line for line in lines if re.search(rf"\b{name}\b.*%.*[█#]", line)]
        assert drawn_bars
        assert all(share in line for line in drawn_bars)


def test_bars_are_as_long_as_their_shares():
    lines = lines_of(Whole("time", {"compute": 30.0, "stream": 15.0}, "s"))
    long, short = (
        max(line.count("█") for line in lines if name in line) for name in ("compute", "stream")
    )
    assert long == pytest.approx(2 * short, abs=1)


def test_memory_is_a_share_of_the_capacity():
    """30 + 10 of 80: 50 % are used, 37.5 % and 12.5 % by the parts."""
    part = Whole("memory", PARTS, "bytes", capacity=80.0)
    assert "(50%)" in told(part)
    rows = drawn(part).table.rows
    assert [row[0] for row in rows] == list(PARTS)
    assert [re.search(r"[\d.]+$", str(row[2]).rstrip(" %"))[0] for row in rows] == ["37.5", "12.5"]


def test_the_largest_parts_are_told_with_their_shares():
    many = {"a": 50.0, "b": 30.0, "c": 19.7, "d": 0.3}
    assert largest(many, 100.0) == "a 50%, b 30%, c 20%"
    assert largest(many, 200.0, most=4) == "a 25%, b 15%, c 10%"
