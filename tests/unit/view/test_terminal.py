"""Parts of a page on a terminal."""

from meshwright.view.parts import Page, Plot, Section, Table, Tile
from meshwright.view.terminal import MOST_POINTS, text_of


def test_a_long_plot_shows_some_rows_with_both_ends():
    rows = [(f"plan {k}", "", 0.001 * (k + 1), 10.0 * k) for k in range(40)]
    plot = Plot("Front", "forty", "points", Table(("plan", "", "time [s]", "rate [#]"), rows))
    page = Page("title", "question", [Tile("How fast?", "fast")], [Section("a", "A", [plot])])
    lines = text_of(page, detail=True).splitlines()
    names = [line.split()[1] for line in lines if line.startswith("  plan ") and "ms" in line]
    assert len(names) == MOST_POINTS
    assert (names[0], names[-1]) == ("0", "39")
    assert names == sorted(names, key=int)
