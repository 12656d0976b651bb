"""Tables of Markdown documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int | None = None
) -> Iterator[str]:
    """Yield a table as lines of Markdown; bars inside a cell are escaped.

    Parameters
    ----------
    words
        Columns of words, which come first; the others hold numbers and are aligned to the right.
        None: all columns are aligned as the reader's program does.
    """
    left = len(head) if words is None else words
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * left + "---:|" * (len(head) - left)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
