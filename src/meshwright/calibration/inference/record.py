"""A fit of serving as the part of the calibration file that the catalog reads, and as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import yaml

from meshwright.base.arrays import FloatArray
from meshwright.calibration.errors import SHARE
from meshwright.calibration.fitting.constants import Free
from meshwright.calibration.fitting.record import (
    errors_of_rows,
    measures,
    sourced,
    spread_record,
    told,
)
from meshwright.calibration.inference.fitting import OF_CHIPS, OF_SERVERS, SHARED, ServingFit
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.intervals import EXPERTS
from meshwright.report.lines import percent
from meshwright.spec.calibration import Spread
from meshwright.spec.declaration import file_key


def serving_text(found: ServingFit) -> str:
    """Return the part of a calibration file that holds the constants of serving, in YAML."""
    labels = found.rows.labels
    families, servers = sorted(set(labels["family"])), sorted(set(labels["server"]))
    values = dict(_constants(found))
    content = {
        "fit": told(serving_fit_record(found)),
        "defaults": _of(values, SHARED, "") | _expected((*OF_CHIPS, *OF_SERVERS)),
        "families": {name: _of(values, OF_CHIPS, name) for name in families},
        "servers": {name: _of(values, OF_SERVERS, name) for name in servers},
    }
    text: str = yaml.safe_dump({"serving": content}, sort_keys=False, width=100)
    return text


def serving_alone_text(num_rows: int, name: str, command: str) -> str:
    """Return the head of a calibration file whose rows are all of serving."""
    content = {
        "name": name,
        "is_calibrated": True,
        "based_on": DEFAULT,
        "sources": {"rows": {"title": f"{num_rows} measured rows; written by {command}"}},
        "defaults": {},
    }
    return f"# Written by {command}; not by hand.\n{yaml.safe_dump(content, sort_keys=False)}"


def serving_fit_record(found: ServingFit) -> dict[str, Any]:
    """Return the errors of a fit: of its own rows; of each source, server and family left out."""
    groups = np.array(found.rows.labels["source"])
    out = found.left_out["source"]
    spread = spread_of(found)
    known = {} if spread is None else {"spread": spread_record(spread)}
    return known | {
        "num_rows": len(found.errors),
        "fitted": measures(found.errors, groups),
        "left_out": measures(out, groups),
        "groups": _parts(found, "source"),
        "servers": _parts(found, "server"),
        "families": _parts(found, "family"),
    }


def serving_fit_lines(found: ServingFit) -> Iterator[str]:
    """Yield the errors and constants of a fit for a reader."""
    record = serving_fit_record(found)
    yield f"{record['num_rows']} rows of serving"
    yield f"{'':<28}{'rows':>5}{'median':>9}{'p90':>8}{'left out':>10}{'p90':>8}"
    for title, name in (("source", "groups"), ("server", "servers"), ("chips", "families")):
        for label, part in record[name].items():
            inside, out = part["fitted"], part["left_out"]
            shown = [percent(out["median"]), percent(out["p90"])]
            yield (
                f"{title:<8}{label[:19]:<20}{part['rows']:>5}{inside['median']:>9.1%}"
                f"{inside['p90']:>8.1%}{shown[0]:>10}{shown[1]:>8}"
            )
    yield ""
    for (place, name), (value, low, high) in _constants(found):
        yield f"  {place or 'all':<22}{name:<26}{value:>8.4g}   {low:.4g} to {high:.4g}"


def spread_of(found: ServingFit) -> Spread | None:
    """Return how far rows lie from predictions that know nothing of their source.

    Rows of dense models give the width, those with experts how many times it they need.
    """
    errors = np.abs(found.left_out["source"])
    sparse = np.array(found.rows.with_experts)
    known = ~np.isnan(errors)
    if not (known & ~sparse).any():
        return None
    plain = float(np.quantile(errors[known & ~sparse], SHARE))
    wide = np.quantile(errors[known & sparse], SHARE) if (known & sparse).any() else plain
    return Spread(plain, {EXPERTS: max(float(wide) / plain, 1.0)})


def _parts(found: ServingFit, kind: str) -> dict[str, Any]:
    """Return the errors of the rows of each label of a kind, in the fit and left out of it."""
    labels, families = np.array(found.rows.labels[kind]), np.array(found.rows.labels["family"])
    parts = {}
    for label in dict.fromkeys(found.rows.labels[kind]):
        mine = labels == label
        parts[label] = {
            "rows": int(mine.sum()),
            "fitted": errors_of_rows(found.errors[mine]),
            "left_out": errors_of_rows(found.left_out[kind][mine]),
            "alone": not set(families[mine]) & set(families[~mine]),
        }
    return parts


def _constants(found: ServingFit) -> Iterator[tuple[tuple[str, str], FloatArray]]:
    """Yield each constant: its place, then its value and the ends of its interval."""
    for key, value, spread in zip(found.rows.keys, found.values, found.spreads, strict=True):
        yield key.place, np.exp([value, value - 2.0 * spread, value + 2.0 * spread])


def _of(values: dict[tuple[str, str], FloatArray], free: Any, place: str) -> dict[str, Any]:
    """Return the entries of one family, or of one server."""
    entries = []
    for one in free:
        value, low, high = values[place, one.name].tolist()
        entries.append(_entry(one.name, value, low, high, "fitted"))
    return dict(entries)


def _entry(
    name: str, value: float, low: float, high: float, why: str
) -> tuple[str, dict[str, Any]]:
    """Return one value with its origin under its name in a file; seconds with their unit."""
    written = sourced(value, low, high, why)
    if name.endswith("_s"):
        written["value"] = f"{written['value']:.4g} s"
        written["range"] = [f"{bound:.4g} s" for bound in written["range"]]
    return file_key(name), written


def _expected(free: Sequence[Free]) -> dict[str, Any]:
    """Return what families or servers without rows get: what was expected before any row told."""
    entries = []
    for one in free:
        spans = np.exp([-2.0 * one.spread, 2.0 * one.spread])
        low, high = (one.prior * spans).tolist()
        entries.append(_entry(one.name, one.prior, low, high, "expected where no row tells"))
    return dict(entries)
