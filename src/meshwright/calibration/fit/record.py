"""A fit as the calibration file that the catalog reads: constants, intervals, and its errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import yaml

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.errors import interval_score
from meshwright.calibration.fit.constants import FREE, Key
from meshwright.calibration.fit.fit import BASE, Fit, draws_of
from meshwright.calibration.fit.spread import HeldOut, held_out, spread_of
from meshwright.calibration.memory import MemoryFit, memory_record
from meshwright.calibration.memory import constants_of as constants_of_memory
from meshwright.catalog.calibration import load_calibration
from meshwright.report.screen import percent
from meshwright.spec.calibration import Spread


def calibration_text(found: Fit, name: str, command: str, memory: MemoryFit | None = None) -> str:
    """Return a calibration file in YAML; ``memory`` are constants that other rows made."""
    content: dict[str, Any] = {
        "name": name,
        "is_calibrated": True,
        "based_on": BASE,
        "sources": {"rows": {"title": f"{len(found.errors)} measured rows; written by {command}"}},
        "fit": told(fit_record(found)),
        "defaults": _entries(found, ""),
        "families": {name: _entries(found, name) for name in sorted(set(found.rows.families))},
    }
    if memory is not None:
        content["fit"]["memory"] = told(memory_record(memory))
        content["defaults"] |= _memory_entries(memory)
    text: str = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    return f"# Written by {command}; not by hand.\n{text}"


def _memory_entries(memory: MemoryFit) -> dict[str, Any]:
    """Return the constants of memory as they are written."""
    entries = {
        name: sourced(value, low, high, "fitted")
        for name, value, low, high in constants_of_memory(memory)
    }
    for size in (entries["communication_buffer"], entries["communicator"]):
        size["value"] = f"{size['value']} B"
        size["range"] = [f"{bound} B" for bound in size["range"]]
    return entries


def fit_record(found: Fit) -> dict[str, Any]:
    """Return the errors of a fit: of its own rows, and of each source left out."""
    groups = np.array(found.rows.groups)
    names = list(dict.fromkeys(found.rows.groups))
    alone = np.isin(groups, [group for group in names if _is_alone(found, group)])
    spread, tested = spread_of(found), held_out(found)
    inside = None if tested is None else np.abs(tested.errors) <= tested.half_widths
    return {
        "num_rows": len(found.errors),
        "fitted": measures(found.errors, groups),
        "left_out": measures(np.where(alone, np.nan, found.left_out_errors), groups),
        "left_out_alone": measures(np.where(alone, found.left_out_errors, np.nan), groups),
        "spread": None if spread is None else spread_record(spread),
        "intervals": {} if tested is None else _coverages(tested),
        "groups": {
            group: {
                "rows": int(sum(groups == group)),
                "fitted": errors_of_rows(found.errors[groups == group]),
                "left_out": errors_of_rows(found.left_out_errors[groups == group]),
                "alone": bool(alone[groups == group].all()),
                "covered": None if inside is None else _share(inside[groups == group]),
            }
            for group in names
        },
    }


def spread_record(spread: Spread) -> dict[str, Any]:
    """Return the spread as files write it."""
    factors = {name: round(factor, 3) for name, factor in spread.factors.items()}
    return {"half_width": round(spread.half_width, 4), "factors": factors}


def _coverages(tested: HeldOut) -> dict[str, dict[str, float]]:
    """Return how intervals held rows left out, and how they would if all had one width."""
    found = {
        name: _coverage(tested.errors[kind], tested.half_widths[kind])
        for name, kind in tested.kinds().items()
        if kind.any()
    }
    return found | {"if all had one width": _coverage(tested.errors, tested.even_half_widths)}


def _coverage(errors: FloatArray, half_widths: FloatArray) -> dict[str, float]:
    """Return the share of rows inside their intervals, and the score of these."""
    return {
        "rows": len(errors),
        "covered": _share(np.abs(errors) <= half_widths),
        "score": round(float(np.mean(interval_score(errors, half_widths))), 4),
        "half_width": round(float(np.median(half_widths)), 4),
    }


def told(value: Any) -> Any:
    """Return a record as files write it: what is not known is left out."""
    if isinstance(value, dict):
        return {name: told(entry) for name, entry in value.items() if entry is not None}
    return value


def fit_lines(found: Fit) -> Iterator[str]:
    """Yield the constants and errors of a fit for a reader."""
    record = fit_record(found)
    yield f"{record['num_rows']} rows"
    for name in ("fitted", "left_out", "left_out_alone"):
        errors = record[name]
        yield (
            f"  {name.replace('_', ' '):<15} median of medians "
            f"{percent(errors['median_of_medians'])}, p90 of all rows {percent(errors['p90'])}"
        )
    for name, held in record["intervals"].items():
        yield (
            f"  {name.replace('_', ' '):<21} {held['rows']:>5} rows: {held['covered']:.1%} inside "
            f"80 % intervals, score {held['score']:.3f}"
        )
    yield ""
    yield f"{'source':<20}{'rows':>5}{'median':>9}{'p90':>8}{'left out':>10}{'p90':>8}{'inside':>8}"
    for group, entry in record["groups"].items():
        inside, out = entry["fitted"], entry["left_out"]
        alone = "  no other source has its chips" if entry["alone"] else ""
        yield (
            f"{group[:19]:<20}{entry['rows']:>5}{percent(inside['median']):>9}"
            f"{percent(inside['p90']):>8}{percent(out['median']):>10}{percent(out['p90']):>8}"
            f"{percent(entry['covered']):>8}{alone}"
        )
    yield ""
    for place, value, low, high in constants_of(found):
        yield f"  {place[0] or 'all':<12}{place[1]:<34}{value:>8.4g}   {low:.4g} to {high:.4g}"


def constants_of(found: Fit) -> Iterator[tuple[tuple[str, str], float, float, float]]:
    """Yield each constant that the rows inform: its place, value and interval."""
    for key, value, spread, informed in zip(
        found.keys, found.values, found.spreads, found.informed, strict=True
    ):
        if informed:
            bounds = np.exp([value, value - 2.0 * spread, value + 2.0 * spread])
            named = _written(key, bounds)
            for name, (middle, low, high) in named.items():
                yield (key.family, name), middle, low, high


def _written(key: Key, bounds: FloatArray) -> dict[str, tuple[float, float, float]]:
    """Return the constants of a key, each with its interval inside what is allowed."""
    base = load_calibration(key.family, BASE)
    found = {}
    for name, values in draws_of(key, bounds, base).items():
        value, low, high = (float(entry) for entry in values)
        least = 1.0 if name.endswith("_factor") else 0.0
        most = 1.0 if name.endswith("_efficiency") else np.inf
        found[name] = value, max(low, least), min(high, most)
    return found


def _entries(found: Fit, family: str) -> dict[str, Any]:
    """Return the constants of a family as they are written; families not seen share the rest."""
    entries = {
        place[1]: sourced(value, low, high, "fitted")
        for place, value, low, high in constants_of(found)
        if place[0] == family
    }
    if family == "":
        entries |= _neutral(found)
    return entries


def _neutral(found: Fit) -> dict[str, Any]:
    """Return constants for families that no row has: the median of those fitted.

    Each may lie as low and as high as that of any family.
    """
    of_name: Mapping[str, list[tuple[float, float, float]]] = defaultdict(list)
    own = {free.name for free in FREE if free.per_family and not free.scales}
    for place, value, low, high in constants_of(found):
        if place[0] and place[1] in own:
            of_name[place[1]].append((value, low, high))
    entries = {}
    for name, known in of_name.items():
        values, lows, highs = np.array(known).T
        middle = float(np.median(values))
        entries[name] = sourced(middle, lows.min(), highs.max(), "median of the families fitted")
    return entries


def sourced(value: float, low: float, high: float, why: str) -> dict[str, Any]:
    """Return one value with its origin."""
    bounds = [float(f"{low:.4g}"), float(f"{high:.4g}")]
    shown = float(f"{value:.4g}")
    return {"value": shown, "derived": True, "source": "rows", "range": bounds, "why": why}


def _share(inside: BoolArray) -> float:
    """Return the share of rows that are inside."""
    return round(float(np.mean(inside)), 4)


def measures(errors: FloatArray, groups: Any) -> dict[str, float | None]:
    """Return the headline and the pooled errors."""
    known = ~np.isnan(errors)
    if not known.any():
        return {"median_of_medians": None, "median": None, "p90": None, "bias": None}
    size = np.abs(errors)
    medians = [np.median(size[known & (groups == g)]) for g in dict.fromkeys(groups[known])]
    return {
        "median_of_medians": round(float(np.median(medians)), 4),
        **errors_of_rows(errors[known]),
    }


def errors_of_rows(errors: FloatArray) -> dict[str, Any]:
    """Return median and 90th percentile of absolute errors, and the median error."""
    if np.isnan(errors).any():
        return {"median": None, "p90": None, "bias": None}
    size = np.abs(errors)
    return {
        "median": round(float(np.median(size)), 4),
        "p90": round(float(np.quantile(size, 0.9)), 4),
        "bias": round(float(np.median(errors)), 4),
    }


def _is_alone(found: Fit, group: str) -> bool:
    """Return whether no other stack has rows of the chips of a source."""
    rows = found.rows
    mine = {f for f, g in zip(rows.families, rows.groups, strict=True) if g == group}
    stack = next(s for s, g in zip(rows.stacks, rows.groups, strict=True) if g == group)
    others = {f for f, s in zip(rows.families, rows.stacks, strict=True) if s != stack}
    return not mine & others
