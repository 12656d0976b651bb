"""A fit as the calibration file that the catalog reads: constants, intervals, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import yaml

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.errors import error_record, pooled_error_record
from meshwright.calibration.fit import serving as serving_fit
from meshwright.calibration.fit.all_reduces import constants_of_all_reduce
from meshwright.calibration.fit.between import between_of_fit
from meshwright.calibration.fit.constants import (
    FREE,
    FittedConstant,
    Free,
    entries,
    two_deviations,
)
from meshwright.calibration.fit.dispatch import fit_dispatch, timings
from meshwright.calibration.fit.latents import constants_of_latents
from meshwright.calibration.fit.memory import MemoryFit, constants_of_memory, memory_record
from meshwright.calibration.fit.own import OwnFit
from meshwright.calibration.fit.serving import OF_CHIPS, OF_SERVERS, ServingFit
from meshwright.calibration.fit.spread import HeldOut, held_out, spread_of
from meshwright.calibration.fit.sram import DRAFTED, REDUCTION, SramFit
from meshwright.calibration.fit.training import Fit, draws_of
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
from meshwright.search.intervals import TTFT
from meshwright.spec.calibration import Spread, Tail

FEWEST_INSIDE = 0.6
"""Share of the rows of a source that intervals are to hold in four of five sources."""


def calibration_text(
    found: Fit, name: str, command: str, memory: MemoryFit | None = None,
    record: FitRecord | None = None,
) -> str:  # fmt: skip
    """Return a calibration file in YAML.

    Parameters
    ----------
    memory
        Constants that other rows made.
    record
        Errors of the fit, where they are known.
    """
    constants = list(constants_of(found))
    shared = [*constants, *_median_of_those_fitted(constants)]
    record = record or fit_record(found, memory)
    return _text(name, command, UNCALIBRATED, record, shared, found.rows.families, memory)


def own_text(found: OwnFit, name: str, command: str, base: str, memory: MemoryFit | None) -> str:
    """Return the calibration file of measured jobs: the constants that they adjust, no more."""
    record = own_record(found, memory)
    families = [family for family, one in found.factors.items() if one.is_applied]
    return _text(name, command, base, record, found.constants, families, memory)


def _text(
    name: str, command: str, base: str, record: FitRecord, constants: Sequence[FittedConstant],
    families: Sequence[str], memory: MemoryFit | None,
) -> str:  # fmt: skip
    """Return a calibration file in YAML."""
    of_memory = constants_of_memory(memory) if memory else ()
    places = {one.place for one in constants} - {"", *families}
    content = _head(name, record.num_rows, command, base) | {
        "fit": record.model_dump(exclude_none=True),
        "defaults": entries([*constants, *of_memory]),
        "families": {name: entries(constants, name) for name in sorted(set(families))},
        "frameworks": {name: entries(constants, name) for name in sorted(places)},
    }
    return f"# Written by {command}; not by hand.\n{_yaml(content)}"


def own_record(found: OwnFit, memory: MemoryFit | None = None) -> FitRecord:
    """Return the errors of measured jobs: as published, under their factors, and left out."""
    groups = np.array(found.groups)
    return FitRecord(
        num_rows=len(found.errors),
        expected=pooled_error_record(found.expected, groups),
        fitted=pooled_error_record(found.errors, groups),
        left_out=pooled_error_record(found.left_out, groups),
        groups=_records(found.groups, found.errors, found.left_out, lambda *_: {"alone": False}),
        memory=memory_record(memory) if memory else None,
    )


def serving_text(found: ServingFit) -> str:
    """Return the part of a calibration file that holds the constants of serving, in YAML."""
    labels, constants = found.rows.labels, list(constants_of_serving(found))
    constants += constants_of_kernels(found.rows.trained) if found.rows.base == UNCALIBRATED else []
    places = {one.place for one in constants} - {"", *labels["server"]}
    content = {
        "fit": serving_fit_record(found).model_dump(exclude_unset=True, exclude_none=True),
        "defaults": entries([*constants, *_expected((*OF_CHIPS, *OF_SERVERS))]),
        "families": {name: entries(constants, name) for name in sorted(places)},
        "servers": {name: entries(constants, name) for name in sorted(set(labels["server"]))},
    }
    return _yaml({"serving": content})


def kernels_text(base: str) -> str:
    """Return the constants fitted to timings of kernels, on which those of serving are fitted.

    Parameters
    ----------
    base
        Calibration with the constants of training.
    """
    found = constants_of_kernels(base)
    families = {one.place: entries(found, one.place) for one in found if one.place}
    return _yaml({"serving": {"defaults": entries(found), "families": families}})


def constants_of_kernels(base: str) -> list[FittedConstant]:
    """Return the constants fitted to timings of kernels."""
    of_families = [*constants_of_latents(base), *constants_of_all_reduce(base)]
    return [*fit_dispatch(timings()).constants(), *of_families]


def sram_text(found: SramFit) -> str:
    """Return the part of a calibration file for machines that serve from SRAM, in YAML."""
    constants = list(constants_of_sram(found))
    of_chips = [one for one in constants if one.name == REDUCTION.name]
    # Where a chip states its mesh, the constant leaves the links out; other chips need them.
    linked = {job.family for job in found.jobs if job.problems[0].system.chip.core_mesh}
    of_chips = [one for one in of_chips if one.place not in linked] or of_chips
    middle = float(np.exp(np.mean(np.log([one.value for one in of_chips]))))
    lowest, highest = min(one.low for one in of_chips), max(one.high for one in of_chips)
    why = "geometric mean of the families fitted, without those that state their mesh"
    content = {
        "fit": sram_record(found).model_dump(),
        "defaults": entries([FittedConstant(REDUCTION.name, middle, lowest, highest, why)]),
        **{
            part: {key.family: entries(constants, key.family)
                   for key in found.keys if key.free is free}
            for part, free in (("families", REDUCTION), ("servers", DRAFTED))
        },
    }  # fmt: skip
    return _yaml({"sram": content})


def sram_record(found: SramFit) -> SramRecord:
    """Return the error of each row, fitted and left out."""
    names = [job.row.id for job in found.jobs]

    def shown(errors: FloatArray) -> dict[str, float]:
        return dict(zip(names, errors.round(4).tolist(), strict=True))

    return SramRecord(fitted=shown(found.errors), left_out=shown(found.left_out))


def constants_of_sram(found: SramFit) -> Iterator[FittedConstant]:
    """Yield each constant with its interval."""
    for key, value, spread in zip(found.keys, found.values, found.spreads, strict=True):
        middle, low, high = two_deviations(value, spread).tolist()
        ends = max(low, key.free.lowest), min(high, key.free.highest)
        yield FittedConstant(key.free.name, middle, *ends, part="sram", place=key.family)


def serving_alone_text(num_rows: int, name: str, command: str) -> str:
    """Return the head of a calibration file with rows of serving only."""
    content = _head(name, num_rows, command, DEFAULT) | {"defaults": {}}
    return f"# Written by {command}; not by hand.\n{_yaml(content)}"


def _head(name: str, num_rows: int, command: str, base: str) -> dict[str, Any]:
    rows = {"title": f"{num_rows} measured rows; written by {command}"}
    return {"name": name, "is_calibrated": True, "based_on": base, "sources": {"rows": rows}}


def _yaml(content: dict[str, Any]) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True))


# training


def fit_record(found: Fit, memory: MemoryFit | None = None) -> FitRecord:
    """Return the errors of a fit: of its own rows, and of each source left out."""
    groups = np.array(found.rows.groups)
    names = list(dict.fromkeys(found.rows.groups))
    lonely = [group for group in names if _is_alone(found, group)]
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
        fitted=pooled_error_record(found.errors, groups),
        left_out=pooled_error_record(np.where(alone, np.nan, left_out), groups),
        left_out_alone=pooled_error_record(np.where(alone, left_out, np.nan), groups),
        unnamed=pooled_error_record(unnamed, groups),
        spread=spread and _spread_record(spread),
        between=between_of_fit(found),
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


def _spread_record(spread: Spread) -> Spread:
    """Return the spread as files write it."""

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
            sources=len(shares),
            covered=_rounded(tested.inside[kind].mean()),
            covered_by_source=_rounded(np.median(shares)),
            held_sources=_rounded(np.mean(np.array(shares) >= FEWEST_INSIDE)),
            score=_rounded(tested.scores[kind].mean()),
            slower=_rounded(np.median(tested.slower[kind])),
            faster=_rounded(np.median(tested.faster[kind])),
        )
        for name, mine in tested.kinds.items()
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
    named = mine & tested.kinds["framework named"]
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


def constants_of(found: Fit) -> Iterator[FittedConstant]:
    """Yield each constant that rows inform, its interval within the allowed bounds."""
    for key, number, spread, informed in zip(
        found.keys, found.values, found.spreads, found.informed, strict=True
    ):
        if informed:
            base = load_calibration(key.family, UNCALIBRATED)
            for name, values in draws_of(key, two_deviations(number, spread), base).items():
                value, low, high = values.tolist()
                least = 1.0 if name.endswith("_factor") else 0.0
                most = 1.0 if name.endswith("_efficiency") else np.inf
                ends, place = (max(low, least), min(high, most)), key.family or key.framework
                yield FittedConstant(name, value, *ends, part="training", place=place)


def _median_of_those_fitted(constants: Sequence[FittedConstant]) -> Iterator[FittedConstant]:
    """Yield constants of families and frameworks that no row has: the median of those fitted.

    Each may lie as low and as high as that of any.
    """
    own = {f.name for f in FREE if (f.per_family or f.per_framework) and not f.scales}
    for name in dict.fromkeys(one.name for one in constants if one.name in own):
        known = [(one.value, one.low, one.high) for one in constants if one.name == name]
        values, lows, highs = np.array(known).T
        middle = float(np.exp(np.median(np.log(values))))
        ends = float(lows.min()), float(highs.max())
        yield FittedConstant(name, middle, *ends, "median of those fitted")


# serving


def serving_fit_record(found: ServingFit) -> ServingRecord:
    """Return the errors of a fit: of its own rows; of each source, server and family left out."""
    groups = np.array(found.rows.labels["source"])
    figures = {name: one.spread() for name, one in serving_fit.figure_rows(found).items()}
    first = serving_fit.first_token_spread(found)
    return ServingRecord(
        num_rows=len(found.errors),
        fitted=pooled_error_record(found.errors, groups),
        left_out=pooled_error_record(found.left_out["source"], groups),
        groups=_parts(found, "source"),
        servers=_parts(found, "server"),
        families=_parts(found, "family"),
        spreads={
            name: _spread_record(spread) for name, (spread, _) in figures.items() if spread
        }
        | ({TTFT: _spread_record(first)} if first else {}),
        figures=_records(
            found.rows.figures, found.errors, found.left_out["source"],
            lambda *_: {"alone": False},
        ),
        intervals={
            f"{name}, {kind}": held
            for name, (_, tested) in figures.items() if tested is not None
            for kind, held in _coverages(tested).items()
        },
    )  # fmt: skip


def _parts(found: ServingFit, kind: str) -> dict[str, GroupRecord]:
    """Return the errors of the rows of each label of a kind, in the fit and left out of it."""
    families = np.array(found.rows.labels["family"])
    return _records(
        found.rows.labels[kind], found.errors, found.left_out[kind],
        lambda _, mine: {"alone": not set(families[mine]) & set(families[~mine])},
    )  # fmt: skip


def constants_of_serving(found: ServingFit) -> Iterator[FittedConstant]:
    """Yield each constant with its interval."""
    for key, value, spread in zip(found.rows.keys, found.values, found.spreads, strict=True):
        middle, low, high = two_deviations(value, spread).tolist()
        yield FittedConstant(key.free.name, middle, low, high, part="serving", place=key.family)


def _expected(free: Sequence[Free]) -> Iterator[FittedConstant]:
    """Yield the constants of families or servers without rows: the expected values."""
    for one in free:
        low, high = (one.prior * np.exp([-2.0 * one.spread, 2.0 * one.spread])).tolist()
        yield FittedConstant(one.name, one.prior, low, high, "expected where no row tells")
