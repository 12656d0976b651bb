"""The validation of serving as a document: tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.calibration.document import table
from meshwright.calibration.errors import Errors, by_group, errors_of
from meshwright.calibration.inference.outcome import requests_text, views_of
from meshwright.calibration.outcome import worst
from meshwright.calibration.predictions import Prediction
from meshwright.catalog.calibration import GroupRecord, ServingRecord
from meshwright.catalog.workloads import load_server, server_names
from meshwright.report.lines import percent

NUM_WORST_SERVED = 20
SERVING_INTRODUCTION = """# Validation of serving

Written by `meshwright validate --document docs/validation.md`, beside that file. Each published
row is predicted from its stated configuration alone: throughput of a batch of equal requests that
start together, or of a queue that keeps the server busy. Errors are |ln(predicted / measured)|; a
bias above 0 is predicted too fast. Left out: constants of serving fitted without that source,
server or family of chips. How a row becomes a question, and what is priced: [serving](serving.md).
"""


def inference_document(
    found: Sequence[Prediction], before: Sequence[Prediction], record: ServingRecord | None
) -> str:
    """Return the document.

    Parameters
    ----------
    before
        The same rows under the uncalibrated constants.
    record
        What the fit reached with rows left out; None: the constants were not fitted.
    """
    return "\n".join(_serving_lines(found, before, record)).rstrip("\n") + "\n"


def _serving_lines(
    found: Sequence[Prediction], before: Sequence[Prediction], record: ServingRecord | None
) -> Iterator[str]:
    yield SERVING_INTRODUCTION
    views, plain = views_of(found), views_of(before)
    sources = {name: errors_of(rows) for name, rows in by_group(found).items()}
    plain_sources = {name: errors_of(rows) for name, rows in by_group(before).items()}
    all_rows, all_plain = {"all rows": errors_of(found)}, {"all rows": errors_of(before)}
    yield from _table("source", sources | all_rows, plain_sources | all_plain,
                      record.groups if record else {})  # fmt: skip
    yield from _table("server", views["server"], plain["server"], record.servers if record else {})
    yield from _table("chip", views["chip"], plain["chip"], {})
    if record:
        yield from _families(record.families)
    yield from _table("batch", views["batch"], plain["batch"], {})
    yield from _table("model", views["model"], plain["model"], {})
    yield from _capacity(found)
    yield "## Worst rows\n"
    rows = [
        (e.row.id, e.row.model.name, requests_text(e.row), percent(e.log_error, sign=True))
        for e in worst(found, NUM_WORST_SERVED)
    ]
    yield from table(("row", "model", "requests", "error"), rows, words=3)
    yield "## What sources leave unstated\n"
    servers = [(name, load_server(name).why) for name in server_names()]
    yield from table(("server", "default"), servers, words=2)


def _table(
    view: str, parts: Mapping[str, Errors], before: Mapping[str, Errors],
    left_out: Mapping[str, GroupRecord],
) -> Iterator[str]:  # fmt: skip
    """Yield one line for each part of the rows."""
    rows = []
    for name, errors in parts.items():
        out = left_out[name].left_out if name in left_out else None
        rows.append((
            name, errors.rows, errors.rows_used, percent(before[name].median_abs_log_error),
            percent(errors.median_abs_log_error), percent(errors.p90_abs_log_error),
            percent(errors.bias_log, sign=True), percent(out.median if out else None),
            percent(out.p90 if out else None),
        ))  # fmt: skip
    yield f"## By {view}\n"
    head = (view, "rows", "used", "uncalibrated", "median", "p90", "bias", "left out", "its p90")
    yield from table(head, rows)


def _families(families: Mapping[str, GroupRecord]) -> Iterator[str]:
    """Yield the errors of each family of chips, in the fit and left out of it."""
    rows = []
    for name, part in families.items():
        shares = (part.fitted.median, part.fitted.p90, part.left_out.median, part.left_out.p90)
        rows.append((name, part.rows, *map(percent, shares)))
    yield from table(("family of chips", "rows", "median", "p90", "left out", "its p90"), rows)


def _capacity(found: Sequence[Prediction]) -> Iterator[str]:
    """Yield how many rows that ran are predicted not to fit."""
    judged = [entry for entry in found if entry.fits is not None]
    wrong = [entry for entry in judged if not entry.fits]
    yield "## Capacity\n"
    yield f"All {len(judged)} rows ran. {len(wrong)} are predicted to have no room for the cache of"
    yield "a single request of full length beside weights, buffers and the largest pass.\n"
