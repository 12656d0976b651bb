"""The best points of a sweep under limits: least cost above a floor, most below a ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Brief
from meshwright.base.units import format_si
from meshwright.spec.sweep import Objective, SweepSpec
from meshwright.sweep.quantities import QUANTITIES

Record = Mapping[str, Any]


EQUAL = 1e-9
"""Largest relative difference of ties: rounding of one formula."""


def with_unit(name: str, value: float) -> str:
    """Return a result with its unit, where it has one."""
    unit = QUANTITIES[name].unit
    if "/" in unit and " " not in unit:
        unit = f" {unit}"  # a prefix belongs to the number: 774 k tokens/s
    shown = format_si(value, "" if " " in unit.strip() else unit).replace("  ", " ")
    return f"{name} {shown}".rstrip()


def text_of(objective: Objective) -> str:
    """Return an objective in words."""
    limits = [f"{with_unit(name, limit)} or more" for name, limit in objective.at_least.items()]
    limits += [f"{with_unit(name, limit)} or less" for name, limit in objective.at_most.items()]
    text = f"{'most' if objective.least is None else 'least'} {objective.name}"
    return f"{text} with {' and '.join(limits)}" if limits else text


def is_within(objective: Objective, record: Record) -> bool:
    """Tell whether a point has all results of the objective, within their limits."""
    return all(has_value(record, name) for name in objective.names) and (
        all(float(record[name]) >= limit for name, limit in objective.at_least.items())
        and all(float(record[name]) <= limit for name, limit in objective.at_most.items())
    )


def has_value(record: Record, name: str) -> bool:
    """Tell whether a point has a number of that name."""
    return isinstance(record.get(name), int | float)


@dataclass(frozen=True)
class Choice(Brief):
    """The best points for an objective: more than one where they tie."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        **{name: f"objective.{name}" for name in ("least", "most", "at_least", "at_most")},
        **{name: name for name in ("group", "num_within", "num_found", "best")},
    }  # fmt: skip
    objective: Objective
    group: str | None
    """Value of the field with one choice for each of its values; None: all points."""
    best: tuple[Record, ...]
    num_within: int
    """Number of points within all limits."""
    num_found: int
    """Number of points with a plan."""


def objective_of(
    names: Sequence[str],
    least: str | None,
    most: str | None,
    floors: Sequence[str],
    ceilings: Sequence[str],
) -> Objective | None:
    """Return the objective of the options; None where they set none.

    Parameters
    ----------
    names
        Names of the results of a point.
    floors, ceilings
        Limits such as ``utilisation=0.5``.

    Raises
    ------
    SpecError
        With all faults: two objectives, limits without one, invalid names and numbers.
    """
    faults: list[Fault] = []
    if least is not None and most is not None:
        faults.append(Fault("--least, --most", "both are given", "one of them"))
    if least is None and most is None and (floors or ceilings):
        faults.append(Fault("--at-least, --at-most", "limits without an objective",
                            "with --least NAME or --most NAME"))  # fmt: skip
    limits: dict[str, dict[str, float]] = {"--at-least": {}, "--at-most": {}}
    for option, given in (("--at-least", floors), ("--at-most", ceilings)):
        for text in given:
            name, _, number = text.partition("=")
            try:
                limits[option][name] = float(number)
            except ValueError:
                faults.append(Fault(option, f"found {text!r}", f"such as {names[0]}=0.5"))
    sought = [("--least", least), ("--most", most)]
    sought += [(option, name) for option, given in limits.items() for name in given]
    faults += [
        Fault(option, f"{name!r} is not a result", f"one of: {', '.join(names)}")
        for option, name in sought
        if name is not None and name not in names
    ]
    if faults:
        raise SpecError(faults)
    if least is None and most is None:
        return None
    return Objective(
        least=least, most=most, at_least=limits["--at-least"], at_most=limits["--at-most"]
    )


def choices(objective: Objective, sweep: SweepSpec, records: Sequence[Record]) -> Iterator[Choice]:
    """Yield the best points, for each section of the file's report where it has one.

    All points are compared, so no point of the grid is better; all ties are listed.
    """
    each = sweep.report.each if sweep.report is not None else None
    groups = [None] if each is None else [str(value) for value in sweep.sides[each]]
    for group in groups:
        here = [one for one in records if each is None or str(one[each]) == group]
        within = [one for one in here if is_within(objective, one)]
        values = [float(one[objective.name]) for one in within]
        best = (max if objective.least is None else min)(values, default=0.0)
        tied = tuple(
            one
            for one, value in zip(within, values, strict=True)
            if abs(value - best) <= EQUAL * abs(best)
        )
        found = sum(one["status"] == "found" for one in here)
        yield Choice(objective, group, tied, len(within), found)
