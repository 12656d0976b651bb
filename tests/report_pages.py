"""What tests of reports share: the tags and words of a page, its charts, and what holds of all."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

from meshwright.view import charts
from meshwright.view.drawn import drawn_page
from meshwright.view.html import html_of
from meshwright.view.parts import Chart, Folded, Page, Part, Table

EVIL = '<img src=x onerror="alert(1)">&\'</script><script>alert(2)</script> is a name'


class Seen(HTMLParser):
    """Tags, attributes and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parts_of(page: Page) -> Iterator[Part]:
    """Every part, folded ones too."""

    def inside(parts):
        for part in parts:
            yield part
            if isinstance(part, Folded):
                yield from inside(part.parts)

    for section in drawn_page(page).sections:
        yield from inside(section.parts)


def charts_of(page: Page) -> dict[str, Chart]:
    """The charts of a page by their titles."""
    return {part.title: part for part in parts_of(page) if isinstance(part, Chart)}


def values_of(chart: Chart) -> list[dict]:
    """The data of a chart."""
    return chart.spec["data"]["values"]


def check_page(page: Page) -> None:
    """Tiles lead to sections that are there; charts say what they show; tables are whole."""
    keys = [section.key for section in page.sections]
    assert len(keys) == len(set(keys))
    assert page.tiles
    assert {tile.section for tile in page.tiles} - {""} <= set(keys)
    assert all(tile.answer for tile in page.tiles)
    for part in parts_of(page):
        tables = [part] if isinstance(part, Table) else []
        if isinstance(part, Chart):
            assert part.says
            assert part.spec["$schema"] == charts.SCHEMA
            tables += [part.table] if part.table else []
        for table in tables:
            assert {len(row) for row in table.rows} <= {len(table.head)}
    titles = [part.title for part in parts_of(page) if isinstance(part, Chart)]
    assert len(titles) == len(set(titles))


def check_names_are_text(plain: Page, evil: Page) -> None:
    """A page with a name like markup has the tags of the same page with a plain name."""
    seen = Seen(html_of(evil))
    assert seen.tags == Seen(html_of(plain)).tags
    assert EVIL in "".join(seen.words)
