"""Charts of reports as charts of Altair, for notebooks: the same specification, a fixed width."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

from meshwright.base.errors import UnsupportedError
from meshwright.view.drawn import chart_of
from meshwright.view.parts import Chart, Page

if TYPE_CHECKING:
    import altair

    AltairChart: TypeAlias = altair.Chart | altair.LayerChart

WIDTH = 720
"""Width of a chart outside of a page, names and legend included [px]."""
LEGEND_COLUMNS = 5
INK, GRID = "#757575", "#75757540"
"""Colours of text and lines that are legible on white and on black."""
OF_WHOLES = ("$schema", "autosize", "config")
"""Keys that Vega-Lite allows in a whole chart only, not in one beside others."""


def plot_of(page: Page, name: str) -> AltairChart:
    """Return a chart of a page by its title, or the first chart of a section by its key.

    Raises
    ------
    UnknownNameError, UnsupportedError
        The page has no such chart, or Altair is not installed.
    """
    return figure(chart_of(page, name))


def figure(chart: Chart) -> AltairChart:
    """Return a chart of a report as a chart of Altair.

    Raises
    ------
    UnsupportedError
        Altair is not installed.
    """
    try:
        import altair
    except ImportError:
        message = "Altair is not installed; pip install 'meshwright[plot]'"
        raise UnsupportedError(message) from None
    title = {"text": chart.title, "subtitle": _lines(chart.says), "anchor": "start"}
    own = {"width": WIDTH, "title": title, "description": chart.says}
    spec = {key: value for key, value in chart.spec.items() if key not in OF_WHOLES}
    found: AltairChart = altair.Chart.from_dict(deepcopy(spec) | own)
    kind = type(found)
    object.__setattr__(found, "__class__", type(kind.__name__, (_Styled, kind), {}))
    return found


class _Styled:
    """A chart that has our colours and fits its width, unless it is part of another."""

    def to_dict(self: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the specification."""
        chart = self.copy(deep=False)
        if (options.get("context") or {}).get("top_level", True):
            chart.autosize = {"type": "fit-x", "contains": "padding"}
            chart.config = _config() | chart.to_dict(context={"top_level": False}).get("config", {})
        found: dict[str, Any] = super(_Styled, chart).to_dict(*args, **options)  # type: ignore[misc]
        return found


def _lines(text: str) -> list[str]:
    """Return a text of a chart in lines of its width."""
    from textwrap import wrap

    return wrap(text, WIDTH // 6)


def _config() -> dict[str, Any]:
    """Return colours that suit light and dark notebooks."""
    told = {"labelColor": INK, "titleColor": INK}
    lines = {"gridColor": GRID, "domainColor": GRID, "tickColor": GRID}
    return {
        "background": "transparent",
        "view": {"stroke": GRID},
        "axis": told | lines,
        "legend": told | {"orient": "top", "columns": LEGEND_COLUMNS},
        "title": {"color": INK, "subtitleColor": INK, "fontSize": 14},
        "text": {"color": INK},
    }
