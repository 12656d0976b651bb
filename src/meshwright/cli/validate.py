"""``meshwright validate``: predictions held against published measurements, or one's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwright.cli.reading import output_file

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.calibration.report import Validation
    from meshwright.calibration.rows import Row


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

    from meshwright.calibration.inference.prediction import predict_all
    from meshwright.calibration.reading import read_rows
    from meshwright.calibration.report import Validation, validation_data, validation_lines
    from meshwright.calibration.rows import published_inference_rows, published_rows
    from meshwright.cli.output import show

    target = args.document and output_file("--document", args.document, ".md")
    path = args.measurements
    published = (*published_rows(), *published_inference_rows())
    rows = published if path is None else read_rows(Path(path))
    calibration = args.calibration
    found = Validation(tuple(predict_all(rows, calibration)), calibration)
    if target is not None:
        _write(target, found, rows)
    show(validation_lines(found), validation_data(found) if args.json else None, args.json)
    return 0 if any(entry.refused is None for entry in found.predictions) else 3


def _write(path: Path, found: Validation, rows: Sequence[Row]) -> None:
    """Write the document, its pictures, and what serving has beside them."""
    from meshwright.calibration.document import document, inference_document
    from meshwright.calibration.inference.prediction import predict_all
    from meshwright.calibration.report import Validation
    from meshwright.catalog.calibration import fit_record, serving_record
    from meshwright.cli.output import write_whole

    before = Validation(tuple(predict_all(rows, "uncalibrated")), "uncalibrated")
    name = found.calibration
    if found.trained:
        trained = Validation(found.trained, name), Validation(before.trained, "uncalibrated")
        written = document(*trained, fit_record(name), path.stem)
        write_whole(path, written.text)
        for picture, drawn in written.pictures.items():
            write_whole(path.with_name(picture), drawn)
    if found.served:
        beside = path.with_name(f"{path.stem}_inference{path.suffix}")
        record = serving_record(name)
        write_whole(beside, inference_document(found.served, before.served, record))
