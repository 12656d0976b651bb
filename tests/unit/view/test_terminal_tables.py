"""Tables on a screen: rows and columns that do not fit are counted or follow below."""

from meshwright.view.parts import Page, Table, Tile
from meshwright.view.terminal import text_of


def page(rows, head=("name", "time [s]")):
    table = Table(head, rows)
    return Page("t", "t", [Tile("q", "an answer", label="FITS"),
                           Tile("q", "a table", label="table", part=table)])  # fmt: skip


def test_rows_that_do_not_fit_are_counted():
    shown = text_of(page([(f"row{n}", float(n)) for n in range(40)])).splitlines()
    assert len(shown) == 24
    kept = sum("row" in line for line in shown)
    assert shown[-1].split() == ["...", f"{40 - kept}", "more"]


def test_a_count_of_a_view_is_kept_where_it_stands():
    rows = [(f"row{n}", None, "x") for n in range(30)] + [("...", None, "7 more")]
    shown = text_of(page(rows, ("name", "time [s]", "kernels"))).splitlines()
    kept = sum("row" in line for line in shown)
    assert shown[-1].split() == ["...", f"{30 - kept + 7}", "more"]


def test_columns_beyond_the_width_follow_below_the_first_one():
    head = ("name", *(f"time {n} [s]" for n in range(30)))
    shown = text_of(page([("row", *map(float, range(1, 31)))], head)).splitlines()
    assert max(map(len, shown)) <= 100
    assert sum("row " in line for line in shown) > 1
    assert "30 s" in shown[-1]
