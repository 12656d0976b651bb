"""A sweep: one question, its fixed fields, and its varied fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from meshwright.spec.declaration import Declaration


def _plain(value: Any) -> Any:
    if not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, a word, or yes or no, found {value!r}")
    return value


Value = Annotated[Any, AfterValidator(_plain)]
"""A number, a word, or yes or no."""
Better = Literal["highest", "lowest", "mean", "p10"]


class HeatMap(Declaration):
    """One picture of a sweep: a value over two of the fields that vary."""

    rows: str
    columns: str
    shows: str
    """Name of a result."""
    better: Better = "highest"
    """Value that a cell shows where further fields vary, such as random wafers: the best one, their
    mean, or the value that nine of ten reach; the last two count 0 where nothing fits."""
    is_relative: bool = Field(default=False, alias="relative")
    """Whether cells show their share of the best value of their column."""

    @model_validator(mode="after")
    def _has_two_sides(self) -> Self:
        if self.rows == self.columns:
            raise ValueError(f"columns: {self.columns} is the field of the rows as well")
        return self

    @property
    def both(self) -> tuple[str, str]:
        """The fields of the rows and of the columns."""
        return self.rows, self.columns


class Compared(Declaration):
    """Two groups of the values of a field, such as dataflow chips and others."""

    field: str
    groups: Mapping[str, tuple[Value, ...]]
    """The first is set over the second."""

    @model_validator(mode="after")
    def _has_two_groups(self) -> Self:
        if len(self.groups) != 2:
            raise ValueError(f"groups: {len(self.groups)} of them where two are compared")
        return self


class Objective(Declaration):
    """A result to minimise or to maximise while others keep their limits."""

    least: str | None = None
    """Name of the result that is minimised; None: another one is maximised."""
    most: str | None = None
    """Name of the result that is maximised; None: another one is minimised."""
    at_least: Mapping[str, float] = Field(default_factory=dict)
    """Lower limits of results, by name."""
    at_most: Mapping[str, float] = Field(default_factory=dict)
    """Upper limits of results, by name."""

    @property
    def name(self) -> str:
        """The result that is sought."""
        return self.least if self.least is not None else str(self.most)

    @property
    def names(self) -> tuple[str, ...]:
        """All results that count, each once."""
        return tuple(dict.fromkeys((self.name, *self.at_least, *self.at_most)))

    @model_validator(mode="after")
    def _seeks_one_result(self) -> Self:
        if (self.least is None) == (self.most is None):
            raise ValueError("either least or most is needed")
        return self


class SweepReport(Declaration):
    """Contents of the document of a sweep."""

    each: str
    """A field: one section for each of its values."""
    shows: tuple[str, ...]
    """Results for which the best points are reported."""
    heat_maps: tuple[HeatMap, ...] = ()
    """Drawn for each section, or once where the field of the sections is a side of the picture."""
    choose: tuple[Objective, ...] = ()
    """Objectives that are met in each section."""
    compare: Compared | None = None
    beside: tuple[str, str] | None = None
    """A result of this product, and the result of other rules beside it."""
    remarks: tuple[str, ...] = ()
    """Paragraphs at the end."""


class SweepSpec(Declaration):
    """All combinations of the varied values, together with the fixed fields."""

    name: str
    about: str = ""
    ask: Literal["plan", "graph"]
    fixed: Mapping[str, Value] = Field(default_factory=dict)
    cases: Mapping[str, Mapping[str, Mapping[str, Value]]] = Field(default_factory=dict)
    """Names, each for several fields at once: a workload for a graph and its passes."""
    vary: Mapping[str, tuple[Value, ...]]
    heat_map: HeatMap | None = None
    report: SweepReport | None = None

    @property
    def sides(self) -> Mapping[str, tuple[Value, ...]]:
        """Values of each field or case that varies, by name; the last one changes fastest."""
        return {**{name: tuple(cases) for name, cases in self.cases.items()}, **self.vary}

    @property
    def fields_of_cases(self) -> frozenset[str]:
        """Fields that cases set."""
        every = (case for cases in self.cases.values() for case in cases.values())
        return frozenset(field for case in every for field in case)

    @model_validator(mode="after")
    def _fields_vary_or_not(self) -> Self:
        both = sorted(set(self.fixed) & set(self.vary))
        if both:
            raise ValueError(f"vary: {both[0]} is fixed as well")
        stated = {*self.fixed, *self.vary}
        both = sorted((set(self.cases) | self.fields_of_cases) & stated)
        if both:
            raise ValueError(f"cases: {both[0]} is fixed or varies as well")
        empty = [name for name, values in self.vary.items() if not values]
        if empty or not self.vary:
            raise ValueError(f"vary: {empty[0] if empty else 'nothing'} has no values")
        twice = [name for name, values in self.vary.items() if len(set(values)) < len(values)]
        if twice:
            raise ValueError(f"vary: a value of {twice[0]} is listed twice")
        still = [
            f"{place}: {name!r} does not vary"
            for place, name in self._shown()
            if name not in self.sides
        ]
        if still:
            raise ValueError("; ".join(still))
        return self

    def _shown(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that pictures and tables show, each with its place."""
        if self.heat_map is not None:
            yield from (("heat_map", side) for side in self.heat_map.both)
        if self.report is not None:
            yield "report.each", self.report.each
            for shown in self.report.heat_maps:
                yield from (("report.heat_maps", side) for side in shown.both)
            if self.report.compare is not None:
                yield "report.compare", self.report.compare.field
