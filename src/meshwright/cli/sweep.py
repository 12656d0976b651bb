"""``meshwright sweep FILE``: one question over all combinations of what varies."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from meshwright.cli.progress import Counter
from meshwright.cli.reading import Reading, output_file

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.spec.sweep import SweepSpec
    from meshwright.sweep.run import Swept


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file, where results are kept, and what is written."""
    parser.add_argument("file", metavar="FILE", help="what is asked, fixed and varied (YAML)")
    parser.add_argument(
        "--out", metavar="FILE.db",
        help="keep results there (SQLite); run again to go on where it ended",
    )  # fmt: skip
    parser.add_argument("--workers", metavar="N", default="1", help="processes (1)")
    parser.add_argument("--csv", metavar="FILE", help="write all points and results")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the heat map of the file")
    parser.add_argument(
        "--report", metavar="FILE.md", help="write the report of the file, pictures beside it"
    )


def run(args: argparse.Namespace) -> int:
    """Ask what has no result yet, and print; 3 where nothing was found at any point.

    130 where Ctrl-C came before the last point: what is there is kept, shown and written.
    """
    from pathlib import Path

    from meshwright.cli.main import INTERRUPTED, version
    from meshwright.cli.output import show, write_whole
    from meshwright.report.heat_map import heat_svg
    from meshwright.sweep.questions import QUESTIONS, checked
    from meshwright.sweep.report import cells_of, counts_of, sweep_csv, sweep_data, sweep_lines
    from meshwright.sweep.run import Store, load_sweep
    from meshwright.sweep.run import run as run_points

    reading = Reading()
    sweep = reading.value(load_sweep, Path(args.file))
    workers = reading.value(_number_of_workers, args.workers)
    out, table, picture, report = (
        None if text is None else reading.value(output_file, option, text, suffix)
        for option, text, suffix in (
            ("--out", args.out, ""), ("--csv", args.csv, ""),
            ("--picture", args.picture, ".svg"), ("--report", args.report, ".md"),
        )
    )  # fmt: skip
    reading.done()
    _check_shown(sweep, picture, report)
    points = checked(sweep)
    progress = Counter("points", "; Ctrl-C: what is there so far")
    with Store(out) as store:
        swept = run_points(
            sweep.ask, QUESTIONS[sweep.ask].answer, points, store, version=version(),
            num_workers=workers, progress=None if args.json else progress,
        )  # fmt: skip
    if table is not None:
        write_whole(table, sweep_csv(swept))
    if picture is not None and sweep.heat_map is not None:
        write_whole(picture, heat_svg(cells_of(sweep, sweep.heat_map, swept)))
    if report is not None:
        _write_report(sweep, swept, report, args.file)
    show(sweep_lines(sweep, swept), sweep_data(sweep, swept) if args.json else None, args.json)
    if not swept.is_complete:
        return INTERRUPTED
    return 0 if "found" in counts_of(swept) else 3


def _check_shown(sweep: SweepSpec, picture: Path | None, report: Path | None) -> None:
    """Raise what is to be written but not stated in the file."""
    from meshwright.base.errors import Fault, SpecError

    faults = [
        Fault(option, f"the file states no {name}", "add one to it")
        for option, path, name in (
            ("--picture", picture, "heat_map"),
            ("--report", report, "report"),
        )
        if path is not None and getattr(sweep, name) is None
    ]
    if faults:
        raise SpecError(faults)


def _write_report(sweep: SweepSpec, swept: Swept, path: Path, file: str) -> None:
    """Write the document, and its pictures into a folder of its name."""
    from meshwright.cli.output import write_whole
    from meshwright.sweep.report import document

    if sweep.report is None:
        return
    command = f"meshwright sweep {file} --report {path}"
    folder = path.with_suffix("")
    text, pictures = document(sweep, sweep.report, swept, folder.name, command)
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        write_whole(folder / name, picture)
    write_whole(path, text)


def _number_of_workers(text: str) -> int:
    """Return a number of processes.

    Raises
    ------
    SpecError
        What is no whole number above 0.
    """
    from meshwright.base.errors import Fault, SpecError

    if not text.isdigit() or not 0 < int(text) <= 1024:
        raise SpecError(Fault("--workers", f"{text!r} is no number of processes", "1 to 1024"))
    return int(text)
