"""Levels inside one another, as a system declares them: hosts on switches, grids, all pairs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Self

from meshwright.spec.system import NetworkLevel
from meshwright.topology.layout import near_square
from meshwright.topology.levels import (
    GRIDS,
    cut_between_members,
    cut_inside_members,
    has_leaves,
    level_link,
    level_wires,
    place_devices,
    place_switches,
)
from meshwright.topology.mesh import grid_bisection
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import assemble


@topologies.register("hierarchical")
@dataclass(frozen=True)
class Hierarchical(Topology):
    """Device n has the coordinate (n div domain) mod size in each level, innermost first."""

    levels: tuple[NetworkLevel, ...]

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return near-square hosts on a switch, under a rail-optimized network half as fast."""
        hosts, host_size = near_square(num_devices)
        if hosts == 1:
            return None
        inner = NetworkLevel(
            name="hosts",
            size=host_size,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s,
            message_half_bytes=link.message_half_bytes,
        )
        outer = inner.model_copy(
            update={
                "name": "network",
                "size": hosts,
                "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s / 2,
                "rail_optimized": True,
            }
        )
        return cls((inner, outer))

    @property
    def shape(self) -> str:
        """Kind and size of the levels, innermost first."""
        return ", ".join(f"{level.kind} {level.size}" for level in self.levels)

    @property
    def num_devices(self) -> int:
        """Product of the sizes."""
        return prod(level.size for level in self.levels)

    @property
    def domains(self) -> tuple[int, ...]:
        """Devices in one member of each level."""
        return tuple(prod(level.size for level in self.levels[:k]) for k in range(len(self.levels)))

    @property
    def devices_forward(self) -> bool:
        """Whether some devices reach one another through others only: on grids, and pairs of hosts.

        Chips with links to all others of their host do not forward, unless nothing else joins the
        hosts.
        """
        pairs_only = len(self.levels) > 1 and self.levels[-1].kind == "fully_connected"
        return pairs_only or any(level.kind in GRIDS for level in self.levels)

    @property
    def num_links(self) -> int:
        """Sum over the levels, spines included."""
        total = 0
        for index, level in enumerate(self.levels):
            domain, size = self.domains[index], level.size
            if level.kind == "switch":
                leaves = self._leaves_per_domain(index) if has_leaves(level, index) else 0
                total += 2 * self.num_devices
                total += 2 * leaves * (self.num_devices // (domain * size))
            else:
                neighbours = {"mesh": 2, "torus": 2, "fully_connected": size}[level.kind]
                lines = self.num_devices // size
                members = size if level.kind == "torus" and size > 1 else size - 1
                total += neighbours * members * lines
        return total

    def _leaves_per_domain(self, index: int) -> int:
        """Return the leaf switches under one spine of a level: one for each rail or member."""
        level = self.levels[index]
        return self.levels[0].size if level.rail_optimized and index else level.size

    @property
    def diameter(self) -> int:
        """Sum over direct levels; a switch takes 2 links, or 4 through its spine, at any distance.

        Where devices forward, a rail may be reached over the host instead of the spine.
        """
        hops = 0
        for index, level in enumerate(self.levels):
            if level.size == 1:
                continue
            if level.kind == "switch":
                spine = has_leaves(level, index) and self._leaves_per_domain(index) > 1
                detour = 2 + hops if self.devices_forward and level.rail_optimized else 4
                hops = min(4, detour) if spine else 2
            else:
                across = {"mesh": level.size - 1, "torus": level.size // 2}
                hops += across.get(level.kind, 1)
        return hops

    @property
    def bisection_bytes_per_s(self) -> float:
        """Between the halves of the outermost level, or through each of its members."""
        sides = self.levels[: self._num_grid_levels]
        cut = grid_bisection(
            [level.size for level in sides],
            [(1 + (s.kind == "torus")) * level_link(s).bandwidth_bytes_per_s for s in sides],
        )
        for index in range(len(sides), len(self.levels)):
            level, domain = self.levels[index], self.domains[index]
            between = cut_between_members(level, index, domain) + (cut if level.size % 2 else 0.0)
            inside = level.size * cut + cut_inside_members(level, domain)
            cut = between if domain % 2 else min(between, inside)
        return cut

    @property
    def bisection_is_exact(self) -> bool:
        """Proven for one level, for a uniform grid, and under a switch of an even size.

        A switch alone is cut by no halves in less than its own bisection; rails whose spine is
        oversubscribed are left out, because halves of the hosts and of the rails compete there.
        """
        if len(self.levels) <= 1:
            return not any(level.kind == "torus" and level.size % 2 for level in self.levels)
        last = self.levels[-1]
        if self._num_grid_levels == len(self.levels):
            equal = len({level_link(level).bandwidth_bytes_per_s for level in self.levels}) == 1
            kinds = {level.kind for level in self.levels}
            longest = max(level.size for level in self.levels)
            return equal and (kinds == {"mesh"} or (kinds == {"torus"} and longest % 2 == 0))
        competing = last.rail_optimized and last.oversubscription > 1
        return last.kind == "switch" and last.size % 2 == 0 and not competing

    @property
    def _num_grid_levels(self) -> int:
        """Innermost levels that together are one grid."""
        others = (k for k, level in enumerate(self.levels) if level.kind not in GRIDS)
        return next(others, len(self.levels))

    def build(self) -> Network:
        """Return all devices and their switches."""
        return self.occupied(self.num_devices)

    def occupied(self, num_devices: int) -> Network:
        """Return the network of the first so many devices; switches that serve none are absent."""
        wires, first_switch = [], num_devices
        for index in range(len(self.levels)):
            added, num_switches = level_wires(self.levels, index, num_devices, first_switch)
            wires += added
            first_switch += num_switches
        device_m = place_devices(self.levels, num_devices)
        is_grid = self._num_grid_levels == len(self.levels) and num_devices == self.num_devices
        sides = tuple(level.size for level in reversed(self.levels))
        return assemble(
            num_devices,
            wires,
            place_switches(self.levels, wires, device_m, first_switch),
            devices_forward=self.devices_forward,
            grid_shape=sides if is_grid else (),
        )
