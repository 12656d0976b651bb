"""``meshwright validate``: predictions against published measurements, or your own."""

from __future__ import annotations

import argparse

from meshwright.cli.output import add_detail
from meshwright.options.values import output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the measurements and the constants."""
    parser.add_argument(
        "--measurements", metavar="FILE", help="your own rows (JSON array; the published ones)"
    )
    parser.add_argument(
        "--calibration",
        metavar="NAME",
        default="calibrated",
        help="constants of the cost model: a name or a YAML file (calibrated)",
    )
    parser.add_argument(
        "--document", metavar="FILE.md", help="write tables there, and pictures next to it"
    )
    add_detail(parser)


def run(args: argparse.Namespace) -> int:
    """Predict each row and print the errors; 3 where no row could be predicted."""
    from pathlib import Path

    from meshwright.calibration.reading import read_rows
    from meshwright.calibration.report import (
        Validation,
        documents,
        validation_data,
        validation_lines,
    )
    from meshwright.calibration.rows import published_rows, published_serving_rows
    from meshwright.calibration.serving import predict_all
    from meshwright.cli.output import show
    from meshwright.options.values import write_whole

    target = args.document and output_file("--document", args.document, ".md")
    path = args.measurements
    published = (*published_rows(), *published_serving_rows())
    rows = published if path is None else read_rows(Path(path))
    calibration = args.calibration
    found = Validation(tuple(predict_all(rows, calibration)), calibration)
    if target is not None:
        for name, text in documents(found, rows, target.stem).items():
            write_whole(target.with_name(name), text)
    show(
        validation_lines(found, detail=args.detail),
        validation_data(found) if args.json else None,
        args.json,
    )
    return 0 if any(entry.refused is None for entry in found.predictions) else 3
