"""A Vega-Lite chart as one SVG file: in the colours of the reader's background, words as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any
from xml.etree import ElementTree

from meshwright.base.errors import UnsupportedError
from meshwright.view.charts import MARK, Spec
from meshwright.view.drawn import chart_of
from meshwright.view.parts import Chart, Page

INK, QUIET, LINE, PAPER = "#1b1f27", "#525a68", "#d6dae1", "#ffffff"
DARK = {INK: "#e6e9ef", QUIET: "#a9b1c0", LINE: "#343b48", PAPER: "#14171d", MARK: "#3a9fe0"}
"""The colours of words, grid, paper and most marks, and the same on a dark background."""
FONT, MEASURED = "Arial, Helvetica, 'Liberation Sans', sans-serif", "Liberation Sans"
"""Fonts of equal widths; the drawing package measures words with one of them."""
WIDTH = 520
"""Width of a chart that is as wide as its page [px]."""
PADDING = 16
LETTERS = 96 / WIDTH
"""Most characters of a line below the title, for each pixel of the width."""
VEGA_LITE = "6.4"
"""The release that reports carry."""
NAMESPACE = "http://www.w3.org/2000/svg"
GROUP = f"{{{NAMESPACE}}}g"
INHERITED = {"fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-size",
             "font-weight", "text-anchor"}  # fmt: skip
"""Attributes that the elements of a group inherit."""
DROPPED = {"class", "role", "pointer-events", "font-family", "stroke-miterlimit"}
NEUTRAL = {("opacity", "1"), ("transform", "translate(0,0)")}
PLACES = {"d", "transform", "x", "y", "x2", "y2", "width", "height"}
COUNTED = re.compile(r"\b(clip|gradient_)\d+")
NUMBER = re.compile(r"-?\d+\.\d+(e-?\d+)?")


def check_drawable() -> None:
    """Refuse to begin work with pictures that cannot be drawn.

    Raises
    ------
    UnsupportedError
        Without the package that draws them.
    """
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        message = "pictures need vl-convert-python; pip install 'meshwright[plot]'"
        raise UnsupportedError(message) from None


def svg_of(spec: Spec, title: str, subtitle: str = "", *, width: int = WIDTH) -> str:
    """Return a chart as SVG below its title.

    Parameters
    ----------
    subtitle
        Subject and setting; lines that are too long are broken.
    width
        Width of a chart that takes the width of its page [px].
    """
    check_drawable()
    import vl_convert

    drawn = {key: value for key, value in spec.items() if key != "autosize"}
    if drawn.get("width") == "container":
        drawn["width"] = width
    letters = round(LETTERS * max(width, WIDTH))
    heading = {"text": wrap(title, letters * 3 // 4), "subtitle": wrap(subtitle, letters)}
    drawing = vl_convert.vegalite_to_svg(
        {**drawn, "title": heading, "config": _config(), "padding": PADDING, "background": PAPER},
        vl_version=VEGA_LITE, allowed_base_urls=[],
    )  # fmt: skip
    numbers: dict[str, str] = {}  # the drawing package counts clips and gradients of all drawings
    text = COUNTED.sub(lambda m: numbers.setdefault(m[0], f"{m[1]}{len(numbers)}"), drawing)
    return _cleaned(text, title, subtitle)


def together_svg(drawn: Sequence[Chart], title: str, subtitle: str, *, width: int) -> str:
    """Return charts below each other as one SVG, each under its own title."""
    left_out, letters = ("$schema", "autosize", "params", "width"), round(LETTERS * width)
    every = [
        {"title": {"text": chart.title, "subtitle": wrap(chart.says, letters), "fontSize": 13},
         "width": width,
         **{key: value for key, value in chart.spec.items() if key not in left_out}}
        for chart in drawn
    ]  # fmt: skip
    own = {"scale": {"color": "independent"}}
    spec = {"vconcat": every, "resolve": own, "spacing": 28}
    return svg_of(spec, title, subtitle, width=width)


def chart_svg(page: Page, name: str) -> str:
    """Return a chart of a page as SVG, by its title or by the key of its section."""
    chart = chart_of(page, name)
    return svg_of(dict(chart.spec), chart.title, f"{page.title}. {chart.says}")


def _config() -> dict[str, Any]:
    """Return the configuration that all charts share."""
    words = {"labelColor": INK, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 12,
             "titleFontWeight": "normal", "labelLimit": 440}  # fmt: skip
    return {
        "aria": False, "font": MEASURED,
        "axis": {**words, "gridColor": LINE, "domainColor": QUIET, "tickColor": QUIET,
                 "labelOverlap": "greedy"},
        "axisY": {"labelOverlap": False},
        "legend": {**words, "orient": "top", "labelFontSize": 12, "symbolStrokeWidth": 2,
                   "direction": "horizontal", "columnPadding": 20},
        "header": {"labelColor": INK, "labelFontSize": 12, "labelFontWeight": "bold",
                   "labelAnchor": "start", "labelLimit": 400},
        "title": {"anchor": "start", "frame": "bounds", "color": INK, "fontSize": 16,
                  "subtitleColor": QUIET, "subtitleFontSize": 12, "subtitlePadding": 5,
                  "offset": 14},
        "view": {"stroke": LINE}, "text": {"color": INK, "fontSize": 11},
    }  # fmt: skip


def _cleaned(text: str, title: str, subtitle: str) -> str:
    """Return a drawing without invisible parts, with its name, in light and dark colours."""
    ElementTree.register_namespace("", NAMESPACE)
    root = ElementTree.fromstring(text)
    box = {name: root.attrib[name] for name in ("width", "height", "viewBox")}
    for child in list(root):
        _clean(child)
    root.attrib = {**box, "role": "img"}
    heads = [("title", title), *([("desc", subtitle)] if subtitle else []), ("style", _style())]
    for place, (tag, words) in enumerate(heads):
        head = ElementTree.Element(f"{{{NAMESPACE}}}{tag}")
        head.text = words
        root.insert(place, head)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _style() -> str:
    """Return rules for words, and for dark backgrounds."""
    rules = "".join(
        f'[{name}="{light}"]{{{name}:{dark}}}'
        for light, dark in DARK.items()
        for name in ("fill", "stroke")
    )
    return f"text{{font-family:{FONT}}}@media (prefers-color-scheme:dark){{{rules}}}"


def _clean(element: ElementTree.Element) -> None:
    """Drop invisible parts of a drawing; state common attributes of a group once."""
    for child in element:
        _clean(child)
    for name, value in list(element.attrib.items()):
        if name in DROPPED or name.startswith("aria-") or (name, value) in NEUTRAL:
            del element.attrib[name]
        elif name in PLACES:
            element.set(name, NUMBER.sub(lambda found: f"{float(found[0]):.4g}", value))
    kept = _together(part for child in element for part in _seen(child))
    element[:] = kept
    if element.tag == GROUP and kept:
        for name in sorted(INHERITED & kept[0].attrib.keys() - element.attrib.keys()):
            if len({child.get(name) for child in kept}) == 1:
                element.set(name, kept[0].attrib[name])
                for child in kept:
                    del child.attrib[name]


def _together(parts: Iterable[ElementTree.Element]) -> list[ElementTree.Element]:
    """Return parts, with adjacent shapes of equal looks joined."""
    kept: list[ElementTree.Element] = []
    for part in parts:
        shape = part.attrib.pop("d", None)
        if shape and kept and kept[-1].tag == part.tag and "transform" not in part.attrib:
            last = {name: value for name, value in kept[-1].attrib.items() if name != "d"}
            if last == part.attrib:
                kept[-1].set("d", kept[-1].get("d", "") + shape)
                continue
        if shape:
            part.set("d", shape)
        kept.append(part)
    return kept


def _seen(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield a part where it is visible; the parts of a group without attributes."""
    if element.tag == GROUP:
        if element.attrib and len(element):
            yield element
        else:
            yield from element
    elif element.tag.endswith("}path"):
        if element.get("d") and ("fill" in element.attrib or "stroke" in element.attrib):
            yield element
    elif element.get("opacity") != "0":
        yield element
