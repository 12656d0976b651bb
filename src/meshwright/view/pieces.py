"""Parts that pages of several answers share: better systems, launch files, sources of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from meshwright.spec.doubled import networks
from meshwright.view.declared_values import (
    DeclaredValue,
    declared_values,
    origin_text,
    unit_of,
    value_text,
)
from meshwright.view.parts import Code, Folded, Part, Plot, Table, Text, Tile
from meshwright.view.words import words

if TYPE_CHECKING:
    from meshwright.spec.declaration import Source
    from meshwright.spec.system import SystemSpec

Gains = Mapping[str, tuple[float, float]]
"""Time with each change of the system [s], and the fraction that it saves."""
SHOWN_GAIN = 0.002
"""Least gain of a better system that is shown."""


def network_tile(system: SystemSpec, gains: Gains) -> Tile:
    """Return the gain of twice the best of the networks, beside the largest gain of all."""
    links = {name: gains[name][1] for name in networks(system) if name in gains}
    best = max(links, key=lambda name: links[name], default="")
    answer = "Less than 0.2 % faster" if links else "It has none"
    if links and links[best] > SHOWN_GAIN:
        answer = f"{best}: {links[best]:.1%} faster"
    most = max(gains, key=lambda name: gains[name][1])
    note = f"most gain: {most}, {gains[most][1]:.1%} faster"
    return Tile("What if it had twice the network?", answer, note, "change")


def gains_of(times_s: Mapping[str, float], now_s: float) -> Gains:
    """Return the times with each change of the system and the gains, the largest first."""
    gains = {what: (time_s, 1.0 - time_s / now_s) for what, time_s in times_s.items()}
    return dict(sorted(gains.items(), key=lambda item: -item[1][1]))


def gain_parts(title: str, gains: Gains) -> Iterator[Part]:
    """Yield the gains of the same plan from changes of the system, or their insignificance."""
    shown = [(what, gain) for what, (_, gain) in gains.items() if gain > SHOWN_GAIN]
    if not shown:
        yield Text("Twice of any one resource makes this plan less than 0.2 % faster.")
        return
    says = "; ".join(f"{what}: {gain:.1%} faster" for what, gain in shown)
    yield Plot(title, says, "bars", Table(("change", "faster [%]"), shown))


def launch_parts(
    launches: str, files: Mapping[str, str] | None, command: str
) -> Iterator[Part]:  # fmt: skip
    """Yield the text on starting a plan, the command that writes its files, and the files."""
    yield Text(launches)
    if command:
        yield Code(command, "write these files")
    for name, text in (files or {}).items():
        yield Code(text, name)


def provenance(system: SystemSpec) -> Folded:
    """Return the values of a chip and of a system, with their sources."""
    return Folded("Where every number of the chip and the system comes from",
                  list(_declared(system)))  # fmt: skip


def _declared(system: SystemSpec) -> Iterator[Table]:
    for one in (system.chip, system):
        yield values_table(declared_values(one, one.provenance), one.name)
        if one.sources:
            yield sources_table(one.sources)


def values_table(entries: Iterable[DeclaredValue], caption: str = "") -> Table:
    """Return declared values with their origins."""
    rows = [(one.path, value_text(one.value, one.unit), origin_text(one)) for one in entries]
    return Table(("value", "is>", "from"), rows, caption)


def sources_table(sources: Mapping[str, Source]) -> Table:
    """Return the titles and the places of sources."""
    rows = [(key, one.title, one.url or "/".join(filter(None, (one.repo, one.path))))
            for key, one in sources.items()]  # fmt: skip
    return Table(("source", "title", "where"), rows)


def constants(values: Mapping[str, tuple[float, float, float]], name: str) -> Folded:
    """Return the constants of a calibration with their intervals."""
    rows = []
    for key, (value, low, high) in values.items():
        unit = unit_of(key)
        spread = "" if low == high else f"{value_text(low, unit)} to {value_text(high, unit)}"
        rows.append((words(key), value_text(float(f"{value:.4g}"), unit), spread))
    heading = f"Constants of the cost model: {name}"
    return Folded(heading, [Table(("constant", "value>", "interval>"), rows)])
