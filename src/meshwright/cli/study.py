"""``meshwright study NAME``: rebuild a published figure or question."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.studies.registry import StudyResult

ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which study, and where its files go."""
    parser.add_argument(
        "name", nargs="?", help="which study, or 'all'; without one they are listed"
    )
    parser.add_argument("--out", metavar="FOLDER", help="write tables, charts and verdicts there")


def run(args: argparse.Namespace) -> int:
    """Print a study, or the list of them; write its files where asked."""
    from meshwright.cli.output import show
    from meshwright.cli.reading import Reading
    from meshwright.studies.registry import studies

    reading = Reading()
    folder = reading.value(_folder, args.out) if args.out is not None else None
    reading.done()
    if args.name is None:
        titles = {name: studies[name].title for name in studies}
        show(tuple(f"{name:<24} {title}" for name, title in titles.items()), titles, args.json)
        return 0
    names = list(studies) if args.name == ALL else [args.name]
    found = {name: (studies[name].title, studies[name].source, studies[name].run())
             for name in names}  # fmt: skip
    if folder is not None:
        _write(folder, found, is_all=args.name == ALL)
    lines = [line for name, (title, _, result) in found.items()
             for line in ([f"{name}: {title}", "", *result.lines, ""] if args.name == ALL
                          else result.lines)]  # fmt: skip
    data = {name: dict(result.data) for name, (_, _, result) in found.items()}
    show(lines, data if args.name == ALL else data[args.name], args.json)
    return 0


def _folder(text: str) -> Path:
    """Return a folder that exists.

    Raises
    ------
    SpecError
        Where it does not.
    """
    from pathlib import Path

    from meshwright.base.errors import Fault, SpecError

    folder = Path(text)
    if not folder.is_dir():
        raise SpecError(Fault("--out", f"{text!r} is no folder", "make it first"))
    return folder


def _write(folder: Path, found: dict[str, tuple[str, str, StudyResult]], *, is_all: bool) -> None:
    """Write tables and charts of studies, and a document; all of them share one."""
    from meshwright.cli.output import write_whole
    from meshwright.studies.writing import document, study_markdown, table_csv, table_svg

    tables = folder / "studies" if is_all else folder
    tables.mkdir(exist_ok=True)
    for name, entry in found.items():
        for table in entry[2].tables:
            write_whole(tables / f"{table.name}.csv", table_csv(table))
            if chart := table_svg(table):
                write_whole(tables / f"{table.name}.svg", chart)
        if not is_all:
            write_whole(folder / f"{name}.md", study_markdown(name, *entry))
    if is_all:
        write_whole(folder / "studies.md", document(found))
