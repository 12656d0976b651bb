"""A sweep: one question, what stays the same in it, and what is varied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from meshwright.spec.declaration import Declaration


def _plain(value: Any) -> Any:
    if not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, a word, or yes or no, found {value!r}")
    return value


Value = Annotated[Any, AfterValidator(_plain)]
"""A number, a word, or yes or no."""
Better = Literal["highest", "lowest"]


class HeatMap(Declaration):
    """One picture of a sweep: a value over two of the fields that vary."""

    rows: str
    columns: str
    shows: str
    """Name of a result."""
    better: Better = "highest"
    """Which value stands in a cell where further fields vary."""


class SweepSpec(Declaration):
    """All combinations of the values that vary, beside what is fixed."""

    name: str
    ask: Literal["plan", "graph"]
    fixed: Mapping[str, Value] = Field(default_factory=dict)
    vary: Mapping[str, tuple[Value, ...]]
    heat_map: HeatMap | None = None

    @model_validator(mode="after")
    def _fields_vary_or_not(self) -> Self:
        both = sorted(set(self.fixed) & set(self.vary))
        if both:
            raise ValueError(f"vary: {both[0]} is fixed as well")
        empty = [name for name, values in self.vary.items() if not values]
        if empty or not self.vary:
            raise ValueError(f"vary: {empty[0] if empty else 'nothing'} has no values")
        twice = [name for name, values in self.vary.items() if len(set(values)) < len(values)]
        if twice:
            raise ValueError(f"vary: a value of {twice[0]} stands there twice")
        if self.heat_map is not None:
            for side in (self.heat_map.rows, self.heat_map.columns):
                if side not in self.vary:
                    raise ValueError(f"heat_map: {side!r} does not vary")
        return self
