"""Pages as Markdown documents, with their charts as SVG files beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwright.view.drawn import drawn_page
from meshwright.view.parts import (
    Chart,
    Code,
    Folded,
    Page,
    Part,
    Player,
    Plot,
    Table,
    Text,
    Whole,
)
from meshwright.view.svg import svg_of


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a table as lines of Markdown; bars inside a cell are escaped."""
    yield from _rows(head, ["---"] * len(head), rows)


def _rows(
    head: Sequence[str], marks: Sequence[str], rows: Iterable[Sequence[object]]
) -> Iterator[str]:
    """Yield a table under the alignment marks of its columns."""
    for row in (head, None, *rows):
        cells = [str(cell).replace("|", "\\|") for cell in row or ()]
        yield f"| {' | '.join(cells)} |" if row is not None else f"|{'|'.join(marks)}|"


MOST_LETTERS = 150_000
"""Size of the largest picture beside a document; a report draws larger ones."""


@dataclass
class _Document:
    """Lines of a document, and the pictures that it shows."""

    stem: str
    files: dict[str, str] = field(default_factory=dict)

    def lines(self, page: Page) -> Iterator[str]:
        """Yield the document."""
        yield f"# {page.title}"
        yield f"\n{page.subtitle}.\n"
        if page.command:
            yield f"Written by `{page.command}`.\n"
        yield from markdown_table(
            ("question", "answer", ""), [(t.question, t.answer, t.note) for t in page.tiles]
        )
        for section in page.sections:
            yield f"\n## {section.title}\n"
            for part in section.parts:
                yield from self.part(part, section.key)

    def part(self, part: Part, key: str) -> Iterator[str]:
        """Yield a part, its picture in a file of its own."""
        assert not isinstance(part, Whole | Plot), "drawn as a chart"
        if isinstance(part, Text):
            yield f"{part.text}\n"
        elif isinstance(part, Code):
            yield f"```text\n{part.text}\n```\n"
        elif isinstance(part, Table):
            yield from _table(part)
        elif isinstance(part, Chart):
            yield from self.picture(key, part, svg_of(dict(part.spec), part.title, part.says))
            if part.table is not None:
                yield from _table(part.table)
        elif isinstance(part, Folded):
            yield f"**{part.summary}**\n"
            for inner in part.parts:
                yield from self.part(inner, key)
        elif isinstance(part, Player):
            for number, step in enumerate(part.steps, 1):
                yield f"{number}. **{step.title}** {step.text} {step.sent}".rstrip()
            yield ""

    def picture(self, key: str, part: Chart, svg: str) -> Iterator[str]:
        """Yield the place of a picture, which goes into a file of its own."""
        if len(svg) > MOST_LETTERS:
            yield f"{part.title}: {part.says} (drawn in the report).\n"
            return
        number = sum(name.startswith(f"{self.stem}_{key}") for name in self.files) + 1
        name = f"{self.stem}_{key}{number if number > 1 else ''}.svg"
        self.files[name] = svg
        yield f"![{part.title}]({name})\n"


def _table(table: Table) -> Iterator[str]:
    """Yield a table of words, columns of numbers aligned to the right."""
    if table.caption:
        yield f"{table.caption}:\n"
    names = [name.removesuffix(">") for name in table.head]
    marks = ["---:" if name.endswith(">") else "---" for name in table.head]
    yield from _rows(names, marks, table.rows)
    yield ""


def markdown_of(page: Page, stem: str, without: Sequence[str] = ()) -> dict[str, str]:
    """Return a page as ``STEM.md`` and its charts as ``STEM_SECTION.svg``, by file name.

    Parameters
    ----------
    without
        Keys of sections that are left out.

    Raises
    ------
    UnsupportedError
        Without the package that draws charts as SVG.
    """
    document = _Document(stem)
    kept = [section for section in page.sections if section.key not in without]
    lines = list(document.lines(drawn_page(replace(page, sections=kept))))
    text = "\n".join(lines).rstrip("\n") + "\n"
    return {f"{stem}.md": text, **document.files}
