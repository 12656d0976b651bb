"""``meshwright calibrate [FILE]``: constants of the cost model fitted to measurements."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.cli.reading import output_file

if TYPE_CHECKING:
    from meshwright.calibration.inference.fit import ServingFit
    from meshwright.calibration.rows import Row


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
    from meshwright.calibration.reading import read_rows
    from meshwright.calibration.rows import published_inference_rows, published_rows
    from meshwright.cli.output import show, write_whole

    path = output_file("--out", args.out) if args.out is not None else None
    published = (*published_rows(), *published_inference_rows())
    rows = published if args.file is None else read_rows(Path(args.file))
    name = "calibrated" if path is None else path.stem
    fitted = _fitted(rows, name, " ".join(filter(None, ("meshwright calibrate", args.file))))
    if not fitted.data:
        raise InfeasibleError("no row has a measured throughput that can be predicted")
    if path is not None:
        write_whole(path, fitted.text)
    show(fitted.lines, fitted.data if args.json else None, args.json)
    return 0


class _Fitted(NamedTuple):
    """A calibration file, with lines for a reader and data for a program."""

    text: str
    lines: list[str]
    data: dict[str, Any]


def _fitted(rows: Sequence[Row], name: str, command: str) -> _Fitted:
    """Return the constants of training fitted to some rows, and on top of them those of serving."""
    from meshwright.calibration import memory as memory_fit
    from meshwright.calibration.fit.fit import BASE, fit, fit_rows
    from meshwright.calibration.fit.record import calibration_text, fit_lines, fit_record
    from meshwright.calibration.inference.fit import (
        serving_alone_text,
        serving_fit_lines,
        serving_fit_record,
        serving_text,
    )
    from meshwright.calibration.prediction import predict

    served = [row for row in rows if row.is_inference]
    steps = [row for row in rows if not row.is_inference]
    trained = fit_rows(steps)
    made = _Fitted(serving_alone_text(len(served), name, command), [], {})
    if trained.predictions:
        found = fit(trained)
        memory = memory_fit.fit_memory(memory_fit.memory_rows(predict(steps, BASE)))
        lines = [*fit_lines(found), *(["", *memory_fit.fit_lines(memory)] if memory else [])]
        data = fit_record(found) | {"memory": memory_fit.memory_record(memory) if memory else None}
        made = _Fitted(calibration_text(found, name, command, memory), lines, data)
    serving = _serving_fit(served, made.text)
    if serving is None:
        return made
    lines = [*made.lines, "", *serving_fit_lines(serving)]
    data = made.data | {"serving": serving_fit_record(serving)}
    return _Fitted(made.text + serving_text(serving), lines, data)


def _serving_fit(rows: Sequence[Row], text: str) -> ServingFit | None:
    """Return the fit of serving on top of a calibration; None: no row can be used."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from meshwright.calibration.inference.fit import fit_serving, serving_rows

    with TemporaryDirectory() as folder:
        base = Path(folder) / "base.yaml"
        base.write_text(text, encoding="utf-8")
        usable = serving_rows(rows, str(base))
        return fit_serving(usable) if usable.columns else None
