"""Calibration files: default constants and what differs by family of chips."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, create_model

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.files import data_path, load_file
from meshwright.spec.calibration import CONSTANTS, Calibration
from meshwright.spec.declaration import Declaration, MessageBytes, Seconds, file_key
from meshwright.spec.provenance import Provenance, Source

GENERIC = "generic"
DEFAULT = "uncalibrated"
"""The calibration that is used where none is named."""


def _type_of(constant: str) -> Any:
    """Return the type of a constant in a file, by its name."""
    if constant.endswith("_s"):
        return Seconds
    if constant.endswith("_bytes"):
        return MessageBytes
    if constant.endswith(("_efficiency", "_hours")):
        highest = 1.0 if constant.endswith("_efficiency") else None
        return Annotated[float, Field(gt=0, le=highest)]
    if constant.endswith("_factor"):
        return Annotated[float, Field(ge=1)]
    return Annotated[float, Field(ge=0, lt=1)]


_ALL: dict[str, Any] = {name: (_type_of(name), ...) for name in CONSTANTS}
_SOME: dict[str, Any] = {name: (_type_of(name) | None, None) for name in CONSTANTS}
_AllConstants = create_model("_AllConstants", __base__=Declaration, **_ALL)
_SomeConstants = create_model("_SomeConstants", __base__=Declaration, **_SOME)


class CalibrationFile(Declaration):
    """A calibration as it stands in a file."""

    name: str
    is_calibrated: bool
    defaults: _AllConstants
    families: Mapping[str, _SomeConstants] = Field(default_factory=dict)
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


def load_calibration(family: str, name_or_path: str = "uncalibrated") -> Calibration:
    """Return the constants for a family of chips.

    Parameters
    ----------
    family
        The family of the chip: ``hopper``, ``tpu``, ``temp-die``, ... A family that the file does
        not know gets the defaults, and the result says so in ``family`` and ``source``.
    name_or_path
        A calibration of the catalog, or a YAML file.

    Raises
    ------
    SpecError
        With all faults of the file, among them constants without an interval.
    """
    file = _read(data_path("calibration", "calibration", name_or_path))
    is_known = family in file.families
    values, intervals = {}, {}
    for constant in CONSTANTS:
        own = getattr(file.families[family], constant) if is_known else None
        place = "defaults" if own is None else f"families.{family}"
        origin = file.provenance[f"{place}.{file_key(constant)}"]
        values[constant] = getattr(file.defaults, constant) if own is None else own
        intervals[constant] = (_bound(origin.low), _bound(origin.high))
    return Calibration(
        **values,
        family=family if is_known else GENERIC,
        intervals=MappingProxyType(intervals),
        is_calibrated=file.is_calibrated,
        source=file.name if is_known else f"{file.name}; no constants for family {family!r}",
    )


@cache
def _read(path: Path) -> CalibrationFile:
    """Return a calibration file whose constants all have an interval."""
    file = load_file(CalibrationFile, path)
    stated: dict[str, Any] = {"defaults": file.defaults}
    stated |= {f"families.{family}": entry for family, entry in file.families.items()}
    faults = []
    for place, entry in stated.items():
        for constant in entry.model_fields_set:
            key = f"{place}.{file_key(constant)}"
            if key not in file.provenance or file.provenance[key].low is None:
                faults.append(Fault(key, "has no interval", "add `range: [LOW, HIGH]`"))
    if faults:
        raise SpecError(faults, origin=str(path))
    return file


def _bound(value: float | None) -> float:
    """Return a bound that was checked to be there."""
    assert value is not None
    return value
