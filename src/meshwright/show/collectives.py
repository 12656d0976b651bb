"""Collectives of one group as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from typing_extensions import TypedDict

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.collectives.bounds import TimedAlgorithm
from meshwright.collectives.group import Group
from meshwright.spec.system import NetworkLevel

Comparison = Mapping[str, Sequence[TimedAlgorithm]]
"""The algorithms of each kind of collective, fastest first."""


def collectives_lines(
    title: str,
    num_bytes: float,
    levels: Sequence[NetworkLevel],
    group: Group[float] | None,
    comparison: Comparison,
) -> Iterator[str]:
    """Yield the spans of the group, if any, and a table of each kind of collective."""
    yield f"{title}, {format_bytes(num_bytes)} on each member"
    if group is None:
        yield "  no block of the levels: messages are routed and played (simulated)"
    for level, span in zip(levels, group.spans if group else (), strict=group is not None):
        if span.size > 1:
            bandwidth = format_si(float(span.bandwidth_bytes_per_s), "B/s")
            latency = format_seconds(float(span.latency_s))
            yield f"  {level.name:<12} {span.size:>5.0f} members  {bandwidth:>10}  {latency:>7}"
    for kind, rows in comparison.items():
        yield ""
        yield f"{kind:<38} {'time':>10} {'bus bandwidth':>15} {'of the bound':>13}"
        for row in rows:
            bus = format_si(row.bus_bandwidth_bytes_per_s, "B/s")
            time = format_seconds(row.time_s)
            yield f"  {row.name:<36} {time:>10} {bus:>15} {row.bound_fraction:>12.0%}"


class SpanRecord(TypedDict):
    """A level that a group spans."""

    level: str
    size: float
    bandwidth_bytes_per_s: float
    latency_s: float


class CollectivesRecord(TypedDict):
    """Algorithms of every kind of collective on a group, fastest first."""

    system: str
    stride: int
    num_bytes: float
    fidelity: str
    devices: Sequence[int]
    spans: Sequence[SpanRecord]
    collectives: Mapping[str, Sequence[TimedAlgorithm]]


def collectives_record(
    system: str,
    stride: int,
    num_bytes: float,
    levels: Sequence[NetworkLevel],
    group: Group[float] | None,
    comparison: Comparison,
    devices: Sequence[int],
) -> CollectivesRecord:
    """Return the algorithms of each kind of collective on a group as data."""
    spans: list[SpanRecord] = [
        {
            "level": level.name,
            "size": float(span.size),
            "bandwidth_bytes_per_s": float(span.bandwidth_bytes_per_s),
            "latency_s": float(span.latency_s),
        }
        for level, span in zip(levels, group.spans if group else (), strict=group is not None)
    ]
    return {
        "system": system,
        "stride": stride,
        "num_bytes": num_bytes,
        "fidelity": "closed_form" if group else "simulated",
        "devices": devices,
        "spans": spans,
        "collectives": comparison,
    }
