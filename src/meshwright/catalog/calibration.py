"""Calibration files: default constants, and the differences by family of chips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, create_model

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.files import data_path, load_file
from meshwright.spec.calibration import (
    CONSTANTS,
    FREE_SUMS,
    NEUTRAL,
    SERVING_CONSTANTS,
    Between,
    Calibration,
    ServingConstants,
    Spread,
    SramConstants,
)
from meshwright.spec.declaration import (
    Declaration,
    MessageBytes,
    Provenance,
    Seconds,
    Source,
    file_key,
)
from meshwright.spec.measured import Measured
from meshwright.spec.system import ChipSpec
from meshwright.spec.workload import Server

GENERIC = "generic"
UNCALIBRATED = "uncalibrated"
SRAM = "sram"
"""Name of on-chip memory that software manages."""
DEFAULT = "calibrated"
"""Default calibration of plans and estimates."""


_SHARE = Annotated[float, Field(ge=0, lt=1)]
_NOT_NEGATIVE = Annotated[float, Field(ge=0)]
_TYPES: Mapping[str, Any] = {
    "_s": Seconds, "_bytes": MessageBytes, "_hours": Annotated[float, Field(gt=0)],
    "_efficiency": Annotated[float, Field(gt=0, le=1)], "_factor": Annotated[float, Field(ge=1)],
    "_kernels": _NOT_NEGATIVE,
}  # fmt: skip
"""Types of constants by the end of their name; all others are a share below 1."""


def _optional(constants: Sequence[str], other: Any) -> dict[str, Any]:
    """Return the optional fields of a declaration; ``other`` is the type of those left over."""
    kinds = (next((k for e, k in _TYPES.items() if name.endswith(e)), other) for name in constants)
    return {name: (kind | None, None) for name, kind in zip(constants, kinds, strict=True)}


_SomeConstants = create_model(
    "_SomeConstants", __base__=Declaration, **_optional(CONSTANTS, _SHARE)
)
_SomeServing = create_model(
    "_SomeServing", __base__=Declaration, **_optional(SERVING_CONSTANTS, _NOT_NEGATIVE)
)


@dataclass(frozen=True)
class Constant:
    """One fitted constant with its interval, and its rows in words."""

    name: str
    value: float
    low: float
    high: float
    why: str

    @property
    def entry(self) -> dict[str, Any]:
        """The constant as a file states it, with its origin, in four digits."""
        ends = {"_s": " s", "_bytes": " B"}
        unit = next((unit for end, unit in ends.items() if self.name.endswith(end)), "")
        shown: list[Any] = [float(f"{one:.4g}") for one in (self.value, self.low, self.high)]
        numbers = [f"{one}{unit}" for one in shown] if unit else shown
        known = {"value": numbers[0], "derived": True, "source": "rows"}
        return known | {"range": numbers[1:], "why": self.why}


class ErrorRecord(Declaration):
    """Errors of some rows: median and 90th percentile of |ln(predicted / measured)|, and bias.

    Bias is the median of ln(predicted / measured): above 0 is predicted too fast, or too full.
    Values that no row states are None.
    """

    median: float | None = None
    p90: float | None = None
    bias: float | None = None


class PooledErrorRecord(ErrorRecord):
    """Errors of the rows of several sources, and the median over the sources of their medians."""

    median_of_medians: float | None = None


class RowsErrorRecord(ErrorRecord):
    """Errors of some rows, and their number."""

    rows: int


class GroupRecord(Declaration):
    """Errors of one source: with its rows in the fit, and without them."""

    rows: int
    fitted: ErrorRecord
    left_out: ErrorRecord
    alone: bool
    """Whether no other source has rows of its chips."""
    unnamed: ErrorRecord = ErrorRecord()
    """Errors of the rows when left out and priced without their framework."""
    covered: float | None = None
    """Share of its rows inside the interval of fits and intervals made without them; with the
    framework, where it is known."""


class CoverageRecord(Declaration):
    """Coverage of intervals on rows of sources left out of every fit and interval."""

    rows: int
    sources: int = 0
    """Number of sources, or of models that are left out."""
    covered: float
    """Share of the rows inside."""
    covered_by_source: float
    """Median over sources of the share of their rows."""
    held_sources: float
    """Share of the sources with at least 60 % of their rows inside."""
    score: float
    """Mean interval score of ln(measured / predicted): width, and ten times the distance of a row
    outside."""
    slower: float
    """Median distance of the slow end from the prediction, in logarithms."""
    faster: float


class MemoryGroupRecord(Declaration):
    """Errors of the memory of one source: with its rows in the fit, and without them."""

    rows: int
    fitted: RowsErrorRecord
    left_out: RowsErrorRecord


class MemoryRecord(MemoryGroupRecord):
    """Errors of the memory of all rows that state it, and of each source."""

    groups: Mapping[str, MemoryGroupRecord]


class FitRecord(Declaration):
    """Errors of a fit on its own rows, and on each source left out of it."""

    num_rows: int
    expected: PooledErrorRecord | None = None
    """Errors of the calibration that the rows adjust; None: they adjust none."""
    fitted: PooledErrorRecord
    left_out: PooledErrorRecord
    left_out_alone: PooledErrorRecord | None = None
    """Errors of sources on chips that no other source has; not part of ``left_out``."""
    unnamed: PooledErrorRecord | None = None
    """Errors of rows when left out and priced without their framework."""
    spread: Spread | None = None
    between: Between | None = None
    intervals: Mapping[str, CoverageRecord] = Field(default_factory=dict)
    """Coverage by a property that rows share."""
    groups: Mapping[str, GroupRecord]
    """Errors by source."""
    memory: MemoryRecord | None = None
    """Errors of the memory; None: no row states memory."""


class ServingRecord(FitRecord):
    """Errors of a fit of serving; servers and families of chips are left out too."""

    servers: Mapping[str, GroupRecord]
    families: Mapping[str, GroupRecord]
    spreads: Mapping[str, Spread] = Field(default_factory=dict)
    """Distances of measurements from predictions by figure."""
    figures: Mapping[str, GroupRecord] = Field(default_factory=dict)
    """Errors by the measured figure: throughput, and the times under load; sources are left out."""


class ServingPart(Declaration):
    """Constants of serving that differ by family of chips, and by server."""

    fit: ServingRecord | None = None
    defaults: _SomeServing = _SomeServing()
    families: Mapping[str, _SomeServing] = Field(default_factory=dict)
    servers: Mapping[str, _SomeServing] = Field(default_factory=dict)


class SramRecord(Declaration):
    """ln(predicted / published) of each row of a machine that serves from SRAM."""

    fitted: Mapping[str, float]
    left_out: Mapping[str, float]
    """Errors with constants fitted without the row."""


class SramChips(Declaration):
    """Constants of a family of chips that serve from SRAM."""

    reduction_s: Seconds


class SramServer(Declaration):
    """Constants of a server that drafts tokens and checks several in a pass."""

    tokens_per_pass: Annotated[float, Field(ge=1)]


class SramPart(Declaration):
    """Constants of machines that serve from SRAM: by family of chips, and by server."""

    fit: SramRecord
    defaults: SramChips
    families: Mapping[str, SramChips]
    servers: Mapping[str, SramServer] = Field(default_factory=dict)


class CalibrationFile(Declaration):
    """A calibration as it is in a file; a file based on another states only the differences."""

    name: str
    is_calibrated: bool
    based_on: str | None = None
    """Name of a calibration of the catalog; None: based on none."""
    fit: FitRecord | None = None
    defaults: _SomeConstants
    families: Mapping[str, _SomeConstants] = Field(default_factory=dict)
    frameworks: Mapping[str, _SomeConstants] = Field(default_factory=dict)
    """Constants by framework: ``NAME`` for the default version, ``NAME==VERSION``, or
    ``unnamed``."""
    serving: ServingPart = ServingPart()
    sram: SramPart | None = None
    measured: Measured | None = None
    """Measurements from which constants of families follow, if ``measure`` wrote the file."""
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


def load_calibration(
    family: str, name_or_path: str = UNCALIBRATED, framework: str = ""
) -> Calibration:
    """Return the constants for a family of chips, under a framework.

    A constant of the framework comes before one of the family, that before the default.

    Parameters
    ----------
    family
        The family of the chip: ``hopper``, ``tpu``, ``temp-die``, ... A family that the file does
        not know gets the constants of the file it is based on, then the defaults, and the result
        says so in ``family`` and ``source``.
    name_or_path
        A calibration of the catalog, or a YAML file.
    framework
        ``NAME`` or ``NAME==VERSION``; empty: not known.

    Raises
    ------
    SpecError
        With all faults of the file, among them constants without an interval.
    """
    files = _chain(name_or_path)
    names = (framework, framework.partition("==")[0]) if framework else ("unnamed",)
    of_framework = [
        (file, f"frameworks.{name}", file.frameworks[name])
        for file in files
        for name in dict.fromkeys(names)
        if name in file.frameworks
    ]
    places = [
        (file, f"families.{family}", file.families[family])
        for file in files
        if family in file.families
    ]
    is_known = bool(places)
    places = [*of_framework, *places, *((file, "defaults", file.defaults) for file in files)]
    values: dict[str, Any] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for constant in CONSTANTS:
        file, place, entry = next(p for p in places if getattr(p[2], constant) is not None)
        origin = file.provenance[f"{place}.{file_key(constant)}"]
        assert origin.low is not None
        assert origin.high is not None
        values[constant] = getattr(entry, constant)
        intervals[constant] = (origin.low, origin.high)
    home = next((f for f in files if f.is_calibrated and family in f.families), None)
    first = files[0].name
    return Calibration(
        **values,
        family=family if is_known else GENERIC,
        intervals=intervals,
        is_calibrated=home is not None,
        source=first if home else f"{first}; no constants for family {family!r}",
        spread=_spread(files, family),
        between=next((f.fit.between for f in files if f.fit and f.fit.between), None),
    )


def _spread(files: Sequence[CalibrationFile], family: str) -> Spread | None:
    """Return the distance of measurements from predictions under a calibration; None: not known.

    The spread of a fit includes its factor for families that it has no rows of. Constants measured
    on the machine itself replace that factor by their unexplained error: hypot(distance,
    unexplained) on either side. For a family that the fit has rows of, or a measured step, the
    spread stays as it is.
    """
    file, *bases = files
    spread = next((entry.fit.spread for entry in files if entry.fit and entry.fit.spread), None)
    if file.measured is None:
        return spread
    is_seen = any(base.is_calibrated and family in base.families for base in bases)
    if spread is None or is_seen or file.measured.of("step"):
        return spread
    if file.measured.unexplained is None:
        return None
    further = {
        side: tail.model_copy(
            update={"distance": math.hypot(tail.distance, file.measured.unexplained)}
        )
        for side, tail in (("slower", spread.slower), ("faster", spread.faster))
    }
    return spread.model_copy(update=further)


def under(family: str, server: Server) -> str:
    """Return the place of constants of a family of chips that hold under one server alone."""
    return f"{family} under {server.name}"


def load_serving(family: str, server: Server, name_or_path: str = UNCALIBRATED) -> ServingConstants:
    """Return the constants of serving for a family of chips under a server.

    A constant of the server comes before one of the family under this server alone, then one of the
    family, then the default; constants that no file of the calibration states are neutral.
    """
    parts = [file.serving for file in _chain(name_or_path)]
    places = [part.servers[server.name] for part in parts if server.name in part.servers]
    own = under(family, server), family
    places += [part.families[name] for part in parts for name in own if name in part.families]
    places += [part.defaults for part in parts]
    values = {}
    for name in SERVING_CONSTANTS:
        stated = [value for entry in places if (value := getattr(entry, name)) is not None]
        values[name] = stated[0] if stated else getattr(NEUTRAL, name)
    unused = ["core_pull"] if server.splits_cache else []
    unused += [] if server.has_all_reduce else ["one_shot_start_s", "two_shot_start_s"]
    values |= {name: getattr(NEUTRAL, name) for name in unused}
    return ServingConstants(**values)


def load_chip_serving(
    chip: ChipSpec, server: Server, name_or_path: str = UNCALIBRATED
) -> ServingConstants:
    """Return the constants of serving for a chip under a server.

    Constants of a chip with SRAM alone are fitted beside the rates of data sheets, to speeds of a
    user that hold the part of the server in a pass.
    """
    found = load_serving(chip.family, server, name_or_path)
    if not serves_from_sram(chip) or sram_part(name_or_path) is None:
        return found
    kept = {name: getattr(found, name) for name in _OF_REQUESTS}
    return replace(NEUTRAL, reduction_s=load_sram(chip, name_or_path).reduction_s, **kept)


def serves_from_sram(chip: ChipSpec) -> bool:
    """Return whether the SRAM of a chip is all of its memory."""
    return chip.main_memory.name == SRAM


_OF_REQUESTS = ("host_prompt_s", "host_token_s", "steps_ahead", "prompts_together")
"""Constants outside of the passes."""


def load_sram(chip: ChipSpec, name_or_path: str = UNCALIBRATED) -> SramConstants:
    """Return the SRAM constants of a chip that serves from SRAM; neutral ones for other chips."""
    part = sram_part(name_or_path)
    if part is None or chip.memories[0].name != SRAM:
        return FREE_SUMS
    if chip.family not in part.families:
        return SramConstants(part.defaults.reduction_s)
    factor = math.exp(max(abs(error) for error in part.fit.left_out.values()))
    return SramConstants(part.families[chip.family].reduction_s, factor)


def sram_part(name_or_path: str) -> SramPart | None:
    """Return the constants fitted to machines that serve from SRAM; None: none were fitted."""
    return next((file.sram for file in _chain(name_or_path) if file.sram), None)


def serving_record(name_or_path: str) -> ServingRecord | None:
    """Return the errors of the fit of the constants of serving; None: they were not fitted."""
    return next((file.serving.fit for file in _chain(name_or_path) if file.serving.fit), None)


def fit_record(name_or_path: str) -> FitRecord | None:
    """Return the errors of the fit of a calibration; None: it was not fitted."""
    return _chain(name_or_path)[0].fit


def _chain(name_or_path: str) -> tuple[CalibrationFile, ...]:
    """Return a calibration file, and those that it is based on."""
    file = _read(data_path("calibration", "calibration", name_or_path))
    return (file, *_chain(file.based_on)) if file.based_on else (file,)


@cache
def _read(path: Path) -> CalibrationFile:
    """Return a calibration file in which all constants have an interval."""
    file, faults = load_file(CalibrationFile, path), []
    if file.based_on is None:
        missing = [name for name in CONSTANTS if getattr(file.defaults, name) is None]
        fix = "state it, or add `based_on`"
        faults += [Fault(f"defaults.{file_key(name)}", "is missing", fix) for name in missing]
    stated: dict[str, Declaration] = {"defaults": file.defaults}
    stated |= {f"families.{family}": entry for family, entry in file.families.items()}
    stated |= {f"frameworks.{name}": entry for name, entry in file.frameworks.items()}
    for place, entry in stated.items():
        for constant in entry.model_fields_set:
            key = f"{place}.{file_key(constant)}"
            origin = file.provenance.get(key)
            if getattr(entry, constant) is not None and (origin is None or origin.low is None):
                faults.append(Fault(key, "has no interval", "add `range: [LOW, HIGH]`"))
    if faults:
        raise SpecError(faults, origin=str(path))
    return file
