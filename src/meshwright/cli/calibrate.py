"""``meshwright calibrate [FILE]``: constants of the cost model fitted to measurements."""

from __future__ import annotations

import argparse

from meshwright.cli.reading import output_file


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
    from meshwright.cli.output import show, write_whole
    from meshwright.validation.fitting.evaluation import BASE, fit_rows
    from meshwright.validation.fitting.fit import fit
    from meshwright.validation.fitting.record import calibration_text, fit_lines, fit_record
    from meshwright.validation.memory import fit as memory_fit
    from meshwright.validation.predictions import predict
    from meshwright.validation.rows import read_rows
    from meshwright.validation.table import published_rows

    path = output_file("--out", args.out) if args.out is not None else None
    stated = published_rows() if args.file is None else read_rows(Path(args.file))
    rows, memory = (
        fit_rows(stated),
        memory_fit.fit_memory(memory_fit.memory_rows(predict(stated, BASE))),
    )
    if not rows.predictions:
        raise InfeasibleError("no row has a measured throughput that can be predicted")
    found = fit(rows)
    if path is not None:
        name = path.stem
        command = " ".join(filter(None, ("meshwright calibrate", args.file)))
        write_whole(path, calibration_text(found, name, command, memory))
    lines = [*fit_lines(found), *(["", *memory_fit.fit_lines(memory)] if memory else [])]
    data = fit_record(found) | {"memory": memory_fit.memory_record(memory) if memory else None}
    show(iter(lines), data if args.json else None, args.json)
    return 0
