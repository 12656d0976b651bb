"""``meshwright calibrate [FILE]``: constants of the cost model fitted to measurements."""

from __future__ import annotations

import argparse

from meshwright.options.values import output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the rows and the file that is written."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="measured rows (JSON array); the published ones"
    )
    parser.add_argument("--out", metavar="FILE.yaml", help="write the calibration there")


def run(args: argparse.Namespace) -> int:
    """Fit, write and print; 3 where no row has a throughput that can be predicted."""
    from pathlib import Path

    from meshwright.base.errors import InfeasibleError
    from meshwright.calibration.fit.report import fitted
    from meshwright.calibration.reading import read_rows
    from meshwright.calibration.rows import published_rows, published_serving_rows
    from meshwright.cli.output import show
    from meshwright.options.values import write_whole

    path = output_file("--out", args.out) if args.out is not None else None
    published = (*published_rows(), *published_serving_rows())
    rows = published if args.file is None else read_rows(Path(args.file))
    name = "calibrated" if path is None else path.stem
    found = fitted(rows, name, " ".join(filter(None, ("meshwright calibrate", args.file))))
    if not found.data:
        raise InfeasibleError("no row has a measured throughput that can be predicted")
    if path is not None:
        write_whole(path, found.text)
    show(found.lines, found.data if args.json else None, args.json)
    return 0
