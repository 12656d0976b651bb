"""Declarations of flow files and placement files: flows on links, and the devices of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.base.arrays import FloatArray
from meshwright.base.records import Brief

Label = int | str
"""Names a link, a flow or a node."""


@dataclass(frozen=True)
class FlowScenario(Brief):
    """Flows and the links they share, as columns."""

    name: str
    link_ids: tuple[Label, ...]
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    link_ends: tuple[tuple[Label, Label], ...]
    """Nodes that each link leads from and to; empty where the file does not state them."""
    flow_ids: tuple[Label, ...]
    num_bytes: FloatArray
    start_s: FloatArray
    ends: tuple[tuple[Label | None, tuple[Label, ...]], ...]
    """Sender and receivers of each flow; None and () where they are not stated."""
    routes: tuple[tuple[int, ...] | None, ...]
    """Links of each flow, as indices in ``link_ids``: a path or a tree; None: it has no route."""
    after: tuple[tuple[int, ...], ...]
    """Flows that each flow waits for, as indices in ``flow_ids``."""

    def brief(self) -> str:
        """Return the numbers of flows and of links of this part in one line."""
        return f"{self.name}: {len(self.flow_ids)} flows over {len(self.link_ids)} links"


def depths_of(after: Sequence[Sequence[int]]) -> list[int]:
    """Return the most flows that end in a row before each one; -1 in and behind a cycle."""
    missing, behind = [len(waits) for waits in after], [list[int]() for _ in after]
    for flow, waits in enumerate(after):
        for before in waits:
            behind[before].append(flow)
    depth = [0 if not waits else -1 for waits in after]
    ready = [flow for flow, waits in enumerate(after) if not waits]
    for flow in ready:
        for other in behind[flow]:
            missing[other] -= 1
            if not missing[other]:
                depth[other] = 1 + max(depth[before] for before in after[other])
                ready.append(other)
    return depth


@dataclass(frozen=True)
class PlacementFile:
    """Devices of ranks as a file states them."""

    devices: tuple[int, ...]
    """Device of each rank, innermost axis first."""
    axes: Mapping[str, tuple[int, ...]] | None
    """Innermost first: rows and columns of the block in which the members of each axis count."""
