"""Draw a report: one HTML file that needs nothing from outside.

The page forbids itself every request (its content security policy), and every text from an input is
escaped by the template. Vega, Vega-Lite and Vega-Embed lie inside, where there is a chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path

from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import write_whole
from meshwright.view.drawn import drawn_page
from meshwright.view.parts import Chart, Folded, Page, Part, Player

FOLDER = Path(__file__).parent
SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")


def _drawn(template: str, page: Page, **more: object) -> str:
    """Return a page through a template, all its texts escaped."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    templates.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    return templates.get_template(template).render(page=page, **more)


def card_of(page: Page) -> str:
    """Return the first screen of a report as a piece of HTML: for notebooks."""
    return _drawn("card.html", drawn_page(replace(page, sections=())))


def html_of(page: Page) -> str:
    """Return a report as HTML."""
    page = drawn_page(page)
    kinds = {type(part) for part in _all_parts(page)}
    drawn = [name for kind, name in ((Chart, "page"), (Player, "player")) if kind in kinds]
    return _drawn(
        "page.html",
        page,
        scripts=[_file(f"vega/{name}") for name in SCRIPTS] if Chart in kinds else [],
        style="".join(_file(f"{name}.css") for name in dict.fromkeys(("page", *drawn))),
        script="".join(_file(f"{name}.js") for name in drawn),
    )


def write_page(page: Page, path: str | PathLike[str], *, force: bool = False) -> None:
    """Write a report, whole or not at all; over a file that is there only with ``force``.

    Raises
    ------
    SpecError
        The name does not end in ``.html``, or its folder is not there.
    """
    file = Path(path)
    if file.suffix.lower() != ".html":
        message = f"{str(path)!r} does not end in .html"
        raise SpecError(Fault("report", message, f"{file.stem}.html"))
    if not file.parent.is_dir():
        raise SpecError(Fault("report", f"there is no folder {str(file.parent)!r}"))
    write_whole(file, html_of(page), force=force)


def _file(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def _all_parts(page: Page) -> Iterator[Part]:
    """Yield every part, folded ones too."""

    def inside(parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            yield part
            if isinstance(part, Folded):
                yield from inside(part.parts)

    for section in page.sections:
        yield from inside(section.parts)
