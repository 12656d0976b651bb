"""Pictures that are no charts as SVG: the page around them, shapes, words, and their colours.

Every picture is one file without anything from outside, equal for equal input. Colours follow the
reader's light or dark background. The heat scale runs from pale to dark on white and from dark to
pale on black, so that it also orders links in grey; line width repeats the value.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable
from html import escape

HEAT_STEPS = 10
"""Steps of the heat scale; step 0 is idle."""
NUM_GROUP_COLOURS = 12
"""Fills of groups; further groups begin again, and letters tell them apart."""
_HEAT_LIGHT = ((0.0, "#e8c468"), (0.35, "#f08c3c"), (0.7, "#cf3a2b"), (1.0, "#5c0a1e"))
_HEAT_DARK = ((0.0, "#6b3a63"), (0.35, "#c2405a"), (0.7, "#f58a3c"), (1.0, "#fff2a8"))
_HUES = (0, 5, 10, 3, 8, 1, 6, 11, 4, 9, 2, 7)
"""Places on the colour circle, in twelfths: close numbers get distant colours."""


def heat_step(share: float) -> int:
    """Return the step of a load: 0 for none, 1 for up to a tenth, 10 for more than nine tenths."""
    return min(max(-int(-share * HEAT_STEPS // 1), 0), HEAT_STEPS)


def group_class(index: int) -> str:
    """Return the class that fills the devices of a group; -1 for none."""
    return f"g{index % NUM_GROUP_COLOURS}" if index >= 0 else "none"


def style_sheet() -> str:
    """Return the rules for everything that is drawn."""
    light = [*_shades("fill", 0.86, 0.62), *_heat(_HEAT_LIGHT), ".h0{fill:#c3c8d0}"]
    dark = [*_shades("fill", 0.27, 0.38), *_heat(_HEAT_DARK), ".h0{fill:#5d6576}"]
    return "".join([_BASE, *light, "@media (prefers-color-scheme: dark){", _DARK, *dark, "}"])


def _shades(what: str, lightness: float, saturation: float) -> list[str]:
    """Return the fills of the groups, their hues spread over the circle."""
    hues = [step / NUM_GROUP_COLOURS for step in _HUES]
    return [
        f".g{index}{{{what}:{_hex(colorsys.hls_to_rgb(hue, lightness, saturation))}}}"
        for index, hue in enumerate(hues)
    ]


def _heat(stops: tuple[tuple[float, str], ...]) -> list[str]:
    """Return the fills of the steps above idle, between the stops of a scale."""
    shares = [(step - 1) / (HEAT_STEPS - 1) for step in range(1, HEAT_STEPS + 1)]
    return [f".h{step}{{fill:{_blend(stops, share)}}}" for step, share in enumerate(shares, 1)]


def _blend(stops: tuple[tuple[float, str], ...], share: float) -> str:
    """Return the colour of a scale at a share."""
    above = next(i for i, (at, _) in enumerate(stops) if at >= share)
    (low, first), (high, second) = stops[max(above - 1, 0)], stops[above]
    mix = (share - low) / (high - low) if high > low else 0.0
    pairs = zip(_rgb(first), _rgb(second), strict=True)
    return _hex(tuple(a + (b - a) * mix for a, b in pairs))


def _rgb(text: str) -> tuple[float, ...]:
    return tuple(int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _hex(colour: tuple[float, ...]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


_BASE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1b1f27}"
    ".paper{fill:#ffffff}.title{font-size:18px;font-weight:600}.note{font-size:12px}"
    ".quiet{fill:#5a6170}.number{font-size:17px;font-weight:600}.letter{font-size:12px;"
    "font-weight:700}.label{font-size:10.5px}.die{stroke:#39404d;stroke-width:1.2}"
    ".hatched{fill:url(#hatch)}.none{fill:#eceef1}.dead{fill:#ffffff;stroke-dasharray:4 3}"
    ".io{fill:#39404d}.struck,.load{paint-order:stroke;stroke:#ffffff;stroke-width:6px}"
    ".load{font-size:9px;stroke-width:2px}.seam{stroke:#39404d;stroke-dasharray:2 5}"
    ".link{stroke:#39404d;stroke-width:.6;stroke-linejoin:round}"
    ".mark{stroke:#39404d;stroke-width:2;fill:none}.hatch{stroke:#39404d;stroke-width:1.1;"
    "opacity:.45}.axis{stroke:#39404d;stroke-width:1;fill:none}"
)
_DARK = (
    "text{fill:#e6e9ef}.paper{fill:#14171d}.quiet{fill:#a2a9b8}"
    ".struck,.load{stroke:#14171d}.seam,.die{stroke:#aab1bf}.none{fill:#232831}.dead{fill:#14171d}.io{fill:#aab1bf}"
    ".link{stroke:#0b0d11}.mark{stroke:#aab1bf}.hatch{stroke:#e6e9ef}.axis{stroke:#aab1bf}"
)


TICK = 5.0
"""Length of a tick [px]."""
NEAT = (1.0, 2.0, 5.0)
"""First digits of ticks."""


def neat_ticks(high: float, most: int) -> list[float]:
    """Return multiples of a neat step from 0 to at most ``high``, at most ``most`` steps."""
    rough = high / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(digit for digit in (*NEAT, 10.0) if digit * power >= rough * (1 - 1e-9))
    return [step * number for number in range(int(high / step * (1 + 1e-9)) + 1)]


def page(
    width: float, height: float, title: str, parts: Iterable[str], *, style: str = "",
    definitions: str = "",
) -> str:  # fmt: skip
    """Return a picture in the colours of the reader's background, around its parts.

    Parameters
    ----------
    width, height
        Size of the whole picture [px].
    style
        Further rules of the style sheet.
    definitions
        Patterns and the like, as the content of ``<defs>``.
    """
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{style_sheet()}{style}</style>",
        *([f"<defs>{definitions}</defs>"] if definitions else []),
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def label(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return words on a page in a class of the style sheet: title, note, label, quiet, ..."""
    named = f' class="{kind}"' if kind else ""
    turn = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{named} x="{x:.1f}" y="{y:.1f}"{turn}>{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """Return a filled rectangle in a class of the style sheet; the tip shows under the mouse."""
    shape = (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.0):.1f}" '
        f'height="{height:.1f}"/>'
    )
    return f"<g><title>{escape(tip)}</title>{shape}</g>" if tip else shape
