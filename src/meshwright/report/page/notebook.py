"""Charts of reports as charts of Altair, for notebooks: the same specification, a fixed width."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, TypeAlias

from meshwright.base.errors import UnsupportedError
from meshwright.report.page.parts import Chart

if TYPE_CHECKING:
    import altair

    AltairChart: TypeAlias = altair.Chart | altair.LayerChart

WIDTH = 720
"""Of a chart outside of a page, names and legend included [px]."""
LEGEND_COLUMNS = 5
INK, GRID = "#757575", "#75757540"
"""Text and lines that are read on white and on black."""


def figure(chart: Chart | None, why_none: str = "") -> AltairChart:
    """Return a chart of a report as a chart of Altair.

    Parameters
    ----------
    why_none
        Why there is none.

    Raises
    ------
    UnsupportedError
        There is nothing to draw, or Altair is not installed.
    """
    if chart is None:
        raise UnsupportedError(f"there is nothing to draw: {why_none}")
    try:
        import altair
    except ImportError:
        message = "Altair is not installed; pip install 'meshwright[plot]'"
        raise UnsupportedError(message) from None
    title = {"text": chart.title, "subtitle": _lines(chart.says), "anchor": "start"}
    own = {"width": WIDTH, "title": title, "description": chart.says, "config": _config()}
    found: AltairChart = altair.Chart.from_dict(deepcopy(dict(chart.spec)) | own)
    return found


def _lines(text: str) -> list[str]:
    """Return what a chart shows in lines of its width."""
    from textwrap import wrap

    return wrap(text, WIDTH // 6)


def _config() -> dict[str, object]:
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
