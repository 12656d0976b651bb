"""``meshwright validate``: predictions held against published measurements, or one's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwright.cli.reading import output_file

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.validation.outcome import Validation
    from meshwright.validation.rows import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the measurements and the constants."""
    parser.add_argument(
        "--measurements", metavar="FILE", help="rows of one's own (JSON array; the published ones)"
    )
    parser.add_argument(
        "--calibration",
        metavar="NAME",
        default="calibrated",
        help="constants of the cost model: a name or a YAML file (calibrated)",
    )
    parser.add_argument(
        "--document", metavar="FILE.md", help="write tables there, and pictures beside it"
    )


def run(args: argparse.Namespace) -> int:
    """Predict each row and print the errors; 3 where no row could be predicted."""
    from pathlib import Path

    from meshwright.cli.output import show
    from meshwright.validation.outcome import Validation, validation_data, validation_lines
    from meshwright.validation.predictions import predict
    from meshwright.validation.rows import read_rows
    from meshwright.validation.table import published_rows

    path = args.measurements
    rows = published_rows() if path is None else read_rows(Path(path))
    calibration = args.calibration
    found = Validation(tuple(predict(rows, calibration)), calibration)
    if args.document is not None:
        _write(output_file("--document", args.document), found, rows)
    show(validation_lines(found), validation_data(found) if args.json else None, args.json)
    return 0 if found.overall.rows_used else 3


def _write(path: Path, found: Validation, rows: Sequence[Row]) -> None:
    """Write the document, and its pictures beside it."""
    from meshwright.catalog.calibration import fit_record
    from meshwright.cli.output import write_whole
    from meshwright.validation.document import document
    from meshwright.validation.outcome import Validation
    from meshwright.validation.predictions import predict

    before = Validation(tuple(predict(rows, "uncalibrated")), "uncalibrated")
    written = document(found, before, fit_record(found.calibration), path.stem)
    write_whole(path, written.text)
    for name, picture in written.pictures.items():
        write_whole(path.with_name(name), picture)
