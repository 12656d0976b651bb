"""A fit as the calibration file that the catalog reads: constants, intervals, and its errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.errors import error_record, pooled_error_record
from meshwright.calibration.fit import serving as serving_fit
from meshwright.calibration.fit.constants import FREE, Free, Key
from meshwright.calibration.fit.memory import MemoryFit, constants_of_memory, memory_record
from meshwright.calibration.fit.serving import OF_CHIPS, OF_SERVERS, SHARED, ServingFit
from meshwright.calibration.fit.spread import HeldOut, held_out, spread_of
from meshwright.calibration.fit.sram import DRAFTED, REDUCTION, SramFit
from meshwright.calibration.fit.training import Fit, draws_of
from meshwright.calibration.serving import TTFT
from meshwright.catalog.calibration import (
    DEFAULT,
    UNCALIBRATED,
    CoverageRecord,
    FitRecord,
    GroupRecord,
    ServingRecord,
    SramRecord,
    load_calibration,
)
from meshwright.search.intervals import EXPERTS, FIRST_TOKEN, UNSEEN, distance_of
from meshwright.spec.calibration import Spread, Tail
from meshwright.spec.declaration import file_key

Interval = tuple[float, float, float]
"""A value, with its lowest and highest plausible value."""
FITTED = "fitted"
FEWEST_INSIDE = 0.6
"""Share of the rows of a source that intervals are to hold in four of five sources."""
OF_FAMILIES = "geometric mean of the families fitted"


def calibration_text(found: Fit, name: str, command: str, memory: MemoryFit | None = None) -> str:
    """Return a calibration file in YAML; ``memory`` are constants that other rows made.

    A file that adjusts another calibration states the constants that its rows inform, and no more.
    """
    is_first = found.base == UNCALIBRATED
    content = _head(name, len(found.errors), command, found.base) | {
        "fit": fit_record(found, memory).model_dump(exclude_none=True),
        "defaults": _entries(found) | (_median_of_those_fitted(found) if is_first else {}),
        "families": {name: _entries(found, name) for name in sorted(set(found.rows.families))},
        "frameworks": {
            name: entries
            for name in sorted(set(found.rows.frameworks))
            if (entries := _entries(found, framework=name))
        },
    }
    for key, *value in constants_of_memory(memory) if memory else ():
        content["defaults"][key] = _entry(*value, unit="" if key.endswith("_factor") else " B")
    return f"# Written by {command}; not by hand.\n{_yaml(content)}"


def serving_text(found: ServingFit) -> str:
    """Return the part of a calibration file that holds the constants of serving, in YAML."""
    labels, record = found.rows.labels, serving_fit_record(found)
    values = dict(constants_of_serving(found))

    def fitted(free: Sequence[Free], place: str) -> dict[str, Any]:
        return {file_key(f.name): _entry(*values[place, f.name], unit=_unit(f)) for f in free}

    content = {
        "fit": record.model_dump(exclude_unset=True, exclude_none=True),
        "defaults": fitted(SHARED, "") | _expected((*OF_CHIPS, *OF_SERVERS)),
        "families": {name: fitted(OF_CHIPS, name) for name in sorted(set(labels["family"]))},
        "servers": {name: fitted(OF_SERVERS, name) for name in sorted(set(labels["server"]))},
    }
    return _yaml({"serving": content})


def sram_text(found: SramFit) -> str:
    """Return the part of a calibration file for machines that serve from SRAM, in YAML."""

    def fitted(free: Free) -> dict[str, Any]:
        return {
            key.family: {file_key(free.name): _entry(*interval, unit=_unit(free))}
            for key, interval in constants_of_sram(found)
            if key.free is free
        }

    of_chips = [entry for key, entry in constants_of_sram(found) if key.free is REDUCTION]
    values, lows, highs = zip(*of_chips, strict=True)
    middle = float(np.exp(np.mean(np.log(values)))), min(lows), max(highs)
    content = {
        "fit": sram_record(found).model_dump(),
        "defaults": {
            file_key(REDUCTION.name): _entry(*middle, unit=_unit(REDUCTION), why=OF_FAMILIES)
        },
        "families": fitted(REDUCTION),
        "servers": fitted(DRAFTED),
    }
    return _yaml({"sram": content})


def sram_record(found: SramFit) -> SramRecord:
    """Return the error of each row, fitted and left out."""
    names = [job.row.id for job in found.jobs]

    def shown(errors: FloatArray) -> dict[str, float]:
        return dict(zip(names, errors.round(4).tolist(), strict=True))

    return SramRecord(fitted=shown(found.errors), left_out=shown(found.left_out))


def constants_of_sram(found: SramFit) -> Iterator[tuple[Key, Interval]]:
    """Yield each constant with its interval."""
    for key, value, spread in zip(found.keys, found.values, found.spreads, strict=True):
        middle, low, high = _two_deviations(value, spread).tolist()
        yield key, (middle, max(low, key.free.lowest), min(high, key.free.highest))


def serving_alone_text(num_rows: int, name: str, command: str) -> str:
    """Return the head of a calibration file with rows of serving only."""
    content = _head(name, num_rows, command, DEFAULT) | {"defaults": {}}
    return f"# Written by {command}; not by hand.\n{_yaml(content)}"


def _head(name: str, num_rows: int, command: str, base: str) -> dict[str, Any]:
    rows = {"title": f"{num_rows} measured rows; written by {command}"}
    return {"name": name, "is_calibrated": True, "based_on": base, "sources": {"rows": rows}}


def _yaml(content: dict[str, Any]) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True))


def _entry(value: float, low: float, high: float, *, unit: str = "", why: str = FITTED) -> Any:
    """Return one value with its origin, in four digits."""
    shown, least, most = (float(f"{number:.4g}") for number in (value, low, high))
    numbers: list[Any] = [shown, least, most]
    if unit:
        numbers = [f"{number}{unit}" for number in numbers]
    known = {"value": numbers[0], "derived": True, "source": "rows"}
    return known | {"range": numbers[1:], "why": why}


def _unit(free: Free) -> str:
    return " s" if free.name.endswith("_s") else ""


# training


def fit_record(found: Fit, memory: MemoryFit | None = None) -> FitRecord:
    """Return the errors of a fit: of its own rows, and of each source left out."""
    groups = np.array(found.rows.groups)
    names = list(dict.fromkeys(found.rows.groups))
    is_own = found.base != UNCALIBRATED
    lonely = [group for group in names if not is_own and _is_alone(found, group)]
    alone = np.isin(groups, lonely)
    spread, tested = spread_of(found), held_out(found)
    unnamed = found.unnamed.left_out_errors if found.unnamed else np.full(len(groups), np.nan)
    left_out = found.left_out_errors
    by_source = _records(
        found.rows.groups, found.errors, left_out,
        lambda group, mine: {
            "alone": group in lonely, "unnamed": error_record(unnamed[mine]),
            "covered": _covered(tested, group),
        },
    )  # fmt: skip
    return FitRecord(
        num_rows=len(found.errors),
        expected=pooled_error_record(found.expected_errors, groups) if is_own else None,
        fitted=pooled_error_record(found.errors, groups),
        left_out=pooled_error_record(np.where(alone, np.nan, left_out), groups),
        left_out_alone=pooled_error_record(np.where(alone, left_out, np.nan), groups),
        unnamed=pooled_error_record(unnamed, groups),
        spread=_spread_record(spread),
        intervals={} if tested is None else _coverages(tested),
        groups=by_source,
        memory=memory_record(memory) if memory else None,
    )


def _records(
    labels: Sequence[str], fitted: FloatArray, left_out: FloatArray,
    more: Callable[[str, BoolArray], dict[str, Any]],
) -> dict[str, GroupRecord]:  # fmt: skip
    """Return the errors of the rows of each label, in the fit and left out of it.

    ``more`` returns further fields of a label and of its rows.
    """
    return {
        label: GroupRecord(
            rows=int(mine.sum()), fitted=error_record(fitted[mine]),
            left_out=error_record(left_out[mine]), **more(label, mine),
        )
        for label in dict.fromkeys(labels)
        for mine in (np.array(labels) == label,)
    }  # fmt: skip


def _spread_record(spread: Spread | None) -> Spread | None:
    """Return the spread as files write it."""
    if spread is None:
        return None

    def rounded(tail: Tail) -> Tail:
        factors = {name: round(factor, 3) for name, factor in tail.factors.items()}
        return Tail(distance=round(tail.distance, 4), factors=factors)

    return Spread(slower=rounded(spread.slower), faster=rounded(spread.faster))


def _coverages(tested: HeldOut) -> dict[str, CoverageRecord]:
    """Return the coverage of intervals on rows left out, by a property that rows share."""
    known = ~np.isnan(tested.errors)
    return {
        name: CoverageRecord(
            rows=int(kind.sum()),
            covered=_rounded(tested.inside[kind].mean()),
            covered_by_source=_rounded(np.median(shares)),
            held_sources=_rounded(np.mean(np.array(shares) >= FEWEST_INSIDE)),
            score=_rounded(tested.scores[kind].mean()),
            slower=_rounded(np.median(tested.slower[kind])),
            faster=_rounded(np.median(tested.faster[kind])),
        )
        for name, mine in tested.kinds().items()
        if (kind := mine & known).any()
        for shares in (_shares(tested, kind),)
    }


def _shares(tested: HeldOut, kind: BoolArray) -> list[float]:
    """Return the share of some rows of each source that lie inside."""
    groups = np.array(tested.groups)
    sources = dict.fromkeys(groups[kind].tolist())
    return [float(tested.inside[kind & (groups == name)].mean()) for name in sources]


def _covered(tested: HeldOut | None, group: str) -> float | None:
    """Return the share of the rows of a source inside, with the framework where it is known.

    None: no row has an error that knows nothing of its source.
    """
    if tested is None:
        return None
    mine = (np.array(tested.groups) == group) & ~np.isnan(tested.errors)
    named = mine & tested.kinds()["framework named"]
    inside = tested.inside[named if named.any() else mine]
    return _rounded(inside.mean()) if inside.size else None


def _rounded(value: Any) -> float:
    return round(float(value), 4)


def _is_alone(found: Fit, group: str) -> bool:
    """Return whether no other stack has rows of the chips of a source."""
    rows = found.rows
    mine = {f for f, g in zip(rows.families, rows.groups, strict=True) if g == group}
    stack = next(s for s, g in zip(rows.stacks, rows.groups, strict=True) if g == group)
    others = {f for f, s in zip(rows.families, rows.stacks, strict=True) if s != stack}
    return not mine & others


def constants_of(found: Fit) -> Iterator[tuple[tuple[str, str, str], Interval]]:
    """Yield each constant that rows inform: its family, framework and name, and its interval."""
    for key, value, spread, informed in zip(
        found.keys, found.values, found.spreads, found.informed, strict=True
    ):
        if informed:
            for name, interval in _constants_of_key(key, _two_deviations(value, spread)).items():
                yield (key.family, key.framework, name), interval


def _two_deviations(value: float, spread: float) -> FloatArray:
    """Return a constant, and the ends of its interval: two standard deviations of its logarithm."""
    return np.asarray(np.exp([value, value - 2.0 * spread, value + 2.0 * spread]), dtype=float)


def _constants_of_key(key: Key, bounds: FloatArray) -> dict[str, Interval]:
    """Return the constants of a key, each with its interval within the allowed bounds."""
    base = load_calibration(key.family, UNCALIBRATED)
    found = {}
    for name, values in draws_of(key, bounds, base).items():
        value, low, high = (float(entry) for entry in values)
        least = 1.0 if name.endswith("_factor") else 0.0
        most = 1.0 if name.endswith("_efficiency") else np.inf
        found[name] = value, max(low, least), min(high, most)
    return found


def _entries(found: Fit, family: str = "", framework: str = "") -> dict[str, Any]:
    """Return the constants of a family or of a framework as files hold them, or those of all."""
    return {
        file_key(name): _entry(*interval, unit=" s" if name.endswith("_s") else "")
        for (*place, name), interval in constants_of(found)
        if place == [family, framework]
    }


def _median_of_those_fitted(found: Fit) -> dict[str, Any]:
    """Return constants of families and frameworks that no row has: the median of those fitted.

    Each may lie as low and as high as that of any.
    """
    of_name: Mapping[str, list[Interval]] = defaultdict(list)
    own = {f.name for f in FREE if (f.per_family or f.per_framework) and not f.scales}
    for (_, _, name), interval in constants_of(found):
        if name in own:
            of_name[name].append(interval)
    entries = {}
    for name, known in of_name.items():
        values, lows, highs = np.array(known).T
        middle, why = float(np.exp(np.median(np.log(values)))), "median of those fitted"
        unit = " s" if name.endswith("_s") else ""
        lowest, highest = float(lows.min()), float(highs.max())
        entries[file_key(name)] = _entry(middle, lowest, highest, unit=unit, why=why)
    return entries


# serving


def serving_fit_record(found: ServingFit) -> ServingRecord:
    """Return the errors of a fit: of its own rows; of each source, server and family left out."""
    groups = np.array(found.rows.labels["source"])
    spread = _spread_record(serving_fit.spread_of(found))
    known: dict[str, Any] = {} if spread is None else {"spread": spread}
    return ServingRecord(
        **known,
        num_rows=len(found.errors),
        fitted=pooled_error_record(found.errors, groups),
        left_out=pooled_error_record(found.left_out["source"], groups),
        groups=_parts(found, "source"),
        servers=_parts(found, "server"),
        families=_parts(found, "family"),
        figures=_figures(found, spread),
    )


def _figures(found: ServingFit, spread: Spread | None) -> dict[str, GroupRecord]:
    """Return the errors of each figure: in the fit, and with its source left out.

    Of the latter also the share that intervals hold.
    """
    left_out = found.left_out["source"]
    sparse, alone = np.array(found.rows.with_experts), found.rows.on_chips_of_one_source

    def held(figure: str, mine: BoolArray) -> dict[str, Any]:
        known = mine & ~np.isnan(left_out)
        if spread is None or not known.any():
            return {"alone": False}
        first = float(figure == TTFT)
        ends = [
            distance_of(
                spread.slower,
                {EXPERTS: float(experts), UNSEEN: float(unseen), FIRST_TOKEN: first},
            )
            for experts, unseen in zip(sparse[known], alone[known], strict=True)
        ]
        inside = np.abs(left_out[known]) <= np.array(ends)
        return {"alone": False, "covered": _rounded(inside.mean())}

    return _records(found.rows.figures, found.errors, left_out, held)


def _parts(found: ServingFit, kind: str) -> dict[str, GroupRecord]:
    """Return the errors of the rows of each label of a kind, in the fit and left out of it."""
    families = np.array(found.rows.labels["family"])
    return _records(
        found.rows.labels[kind], found.errors, found.left_out[kind],
        lambda _, mine: {"alone": not set(families[mine]) & set(families[~mine])},
    )  # fmt: skip


def constants_of_serving(found: ServingFit) -> Iterator[tuple[tuple[str, str], Interval]]:
    """Yield each constant: its family or server and its name, and its interval."""
    for key, value, spread in zip(found.rows.keys, found.values, found.spreads, strict=True):
        middle, low, high = _two_deviations(value, spread).tolist()
        yield key.place, (middle, low, high)


def _expected(free: Sequence[Free]) -> dict[str, Any]:
    """Return the constants of families or servers without rows: the expected values."""
    entries = {}
    for one in free:
        low, high = (one.prior * np.exp([-2.0 * one.spread, 2.0 * one.spread])).tolist()
        why = "expected where no row tells"
        entries[file_key(one.name)] = _entry(one.prior, low, high, unit=_unit(one), why=why)
    return entries
