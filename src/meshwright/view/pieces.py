"""Parts that reports of several answers share: memory, time, counts, sources of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from meshwright.base.units import format_bytes, format_seconds
from meshwright.spec.doubled import of_level
from meshwright.view import charts
from meshwright.view.declared_values import declared_values, origin_text, unit_of, value_text
from meshwright.view.drawn import drawn
from meshwright.view.parts import Chart, Code, Folded, Part, Plot, Table, Text, Tile
from meshwright.view.words import words

if TYPE_CHECKING:
    from meshwright.spec.system import SystemSpec

GIB = 2.0**30
Gains = Mapping[str, tuple[float, float]]
"""Time with each change of the system [s], and the fraction that it saves."""
SHOWN_GAIN = 0.002
"""Least gain of a better system that is shown."""


def ranked(parts: Mapping[str, float]) -> dict[str, float]:
    """Return parts by their names in words, the largest first; parts of 0 are left out."""
    named = {words(name): part for name, part in parts.items() if part}
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def largest(parts_s: Mapping[str, float], whole_s: float, most: int = 3) -> str:
    """Return the largest parts of a time with their shares of it; none below half a percent."""
    shares = {name: part / whole_s for name, part in ranked(parts_s).items()}
    shown = [f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005]
    return ", ".join(shown[:most])


def memory_chart(
    title: str, parts_bytes: Mapping[str, float], capacity_bytes: float
) -> Chart:  # fmt: skip
    """Return the chart of the parts of a memory, against its capacity [bytes]."""
    parts, used = ranked(parts_bytes), sum(parts_bytes.values())
    first = ", ".join(f"{name} {format_bytes(size)}" for name, size in list(parts.items())[:3])
    return Chart(
        title,
        f"{format_bytes(used)} of {format_bytes(capacity_bytes)} ({used / capacity_bytes:.0%}); "
        f"largest: {first}",
        charts.stacked(
            ["device"], {name: [size / GIB] for name, size in parts.items()}, "memory [GiB]",
            row_title="", limit=capacity_bytes / GIB,
        ),
        Table(("part", "GiB>", "share of the capacity>"),
              [(name, f"{size / GIB:.2f}", f"{size / capacity_bytes:.1%}")
               for name, size in parts.items()]),
    )  # fmt: skip


def time_chart(title: str, parts_s: Mapping[str, float], whole_s: float) -> Chart:
    """Return the chart of the parts of a time [s]."""
    parts = ranked(parts_s)
    shares = {name: f"{part / whole_s:.1%}" for name, part in parts.items()}
    return Chart(
        title,
        f"{format_seconds(whole_s)}: {largest(parts_s, whole_s)}",
        charts.bars(
            list(parts), list(parts.values()),
            [f"{format_seconds(part)}, {shares[name]}" for name, part in parts.items()],
            "time [s]",
        ),
        Table(("part", "time>", "share>"),
              [(name, format_seconds(part), shares[name]) for name, part in parts.items()]),
    )  # fmt: skip


def count_chart(title: str, counts: Mapping[str, int], things: str) -> Chart:
    """Return the chart of the number of things of each kind; kinds without any are left out."""
    shown = {name: f"{number:,}" for name, number in counts.items() if number}
    return Chart(
        title,
        "; ".join(f"{name}: {number}" for name, number in shown.items()),
        charts.bars(list(shown), [counts[name] for name in shown], list(shown.values()), things),
        Table(("", f"{things}>"), list(shown.items())),
    )


def network_tile(system: SystemSpec, gains: Gains) -> Tile:
    """Return the gain of twice the best of the networks, beside the largest gain of all."""
    links = {name: gains[name][1] for name in map(of_level, system.levels) if name in gains}
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


def gain_chart(title: str, gains: Gains) -> Chart | None:
    """Return the gains of the same plan from changes of the system; None: at most 0.2 %."""
    found = drawn(next(gain_parts(title, gains)))
    return found if isinstance(found, Chart) else None


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
    chip = system.chip
    declared = (
        (chip.name, chip, chip.provenance, chip.sources),
        (system.name, system, system.provenance, system.sources),
    )
    for name, declaration, origins, sources in declared:
        rows = [
            (entry.path, value_text(entry.value, entry.unit), origin_text(entry))
            for entry in declared_values(declaration, origins)
        ]
        yield Table(("value", "is>", "from"), rows, name)
        if sources:
            yield Table(("source", "title", "where"),
                        [(key, one.title, one.url or "/".join(filter(None, (one.repo, one.path))))
                         for key, one in sources.items()])  # fmt: skip


def constants(values: Mapping[str, tuple[float, float, float]], name: str) -> Folded:
    """Return the constants of a calibration with their intervals."""
    rows = []
    for key, (value, low, high) in values.items():
        unit = unit_of(key)
        spread = "" if low == high else f"{value_text(low, unit)} to {value_text(high, unit)}"
        rows.append((words(key), value_text(float(f"{value:.4g}"), unit), spread))
    heading = f"Constants of the cost model: {name}"
    return Folded(heading, [Table(("constant", "value>", "interval>"), rows)])
