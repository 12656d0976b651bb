"""``meshwright sweep FILE``: one question over all combinations of what varies."""

from __future__ import annotations

import argparse

from meshwright.cli.progress import Counter
from meshwright.cli.reading import Reading, output_file


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


def run(args: argparse.Namespace) -> int:
    """Ask what has no result yet, and print; 3 where nothing was found at any point."""
    from pathlib import Path

    from meshwright.base.errors import Fault, SpecError
    from meshwright.cli.main import version
    from meshwright.cli.output import show, write_whole
    from meshwright.report.heat_map import heat_svg
    from meshwright.sweep.outcome import cells_of, counts_of, sweep_csv, sweep_data, sweep_lines
    from meshwright.sweep.points import load_sweep
    from meshwright.sweep.questions import QUESTIONS, checked
    from meshwright.sweep.run import run as run_points
    from meshwright.sweep.store import Store

    reading = Reading()
    sweep = reading.value(load_sweep, Path(args.file))
    workers = reading.value(_number_of_workers, args.workers)
    out, table, picture = (
        None if text is None else reading.value(output_file, option, text)
        for option, text in (("--out", args.out), ("--csv", args.csv), ("--picture", args.picture))
    )
    reading.done()
    shown = sweep.heat_map
    if picture is not None and shown is None:
        raise SpecError(Fault("--picture", "the file states no heat_map", "add one to it"))
    points = checked(sweep)
    progress = Counter("points", "; Ctrl-C: what is there so far")
    with Store(out) as store:
        swept = run_points(
            sweep.ask, QUESTIONS[sweep.ask].answer, points, store, version=version(),
            num_workers=workers, progress=None if args.json else progress,
        )  # fmt: skip
    if table is not None:
        write_whole(table, sweep_csv(swept))
    if picture is not None and shown is not None:
        write_whole(picture, heat_svg(cells_of(sweep, shown, swept)))
    show(sweep_lines(sweep, swept), sweep_data(sweep, swept) if args.json else None, args.json)
    return 0 if "found" in counts_of(swept) else 3


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
