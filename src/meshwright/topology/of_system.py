"""The network that a system declares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshwright.base.errors import Fault, SpecError
from meshwright.spec.system import NetworkLevel, SystemSpec
from meshwright.topology.hierarchical import Hierarchical
from meshwright.topology.lengths import too_long_links, with_error_correction
from meshwright.topology.levels import level_link
from meshwright.topology.multi_wafer import MultiWafer
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology
from meshwright.topology.wafer import Wafer


def topology_of(system: SystemSpec) -> Topology:
    """Return the topology that the levels declare, with all of their places taken."""
    if system.levels and system.levels[-1].through_io_dies:
        return _wafers(system.levels)
    return Hierarchical(system.levels)


def network_of(system: SystemSpec) -> Network:
    """Return the network of the devices of a system, without what is dead.

    Links that are longer than their level allows have the latency of error correction.

    Raises
    ------
    SpecError
        When a dead link is none of the network, or a wafer is not whole.
    """
    topology = topology_of(system)
    if isinstance(topology, Hierarchical):
        network = topology.occupied(system.num_devices)
    elif system.num_devices == topology.num_devices:
        network = topology.build()
    else:
        raise SpecError(Fault("num_devices", f"{system.num_devices} are no {topology.shape}"))
    limits_m = [level.max_link_length_m if level.pitch_m else None for level in system.levels]
    network = with_error_correction(network, too_long_links(network, limits_m))
    speed_factor = network.speed_factor.copy()
    speed_factor[list(system.speed_factors)] = list(system.speed_factors.values())
    network = replace(network, speed_factor=speed_factor)
    if not (system.dead_devices or system.dead_links):
        return network
    _check_links(network, system.dead_links)
    return network.without(system.dead_devices, system.dead_links)


def _check_links(network: Network, dead_links: Iterable[tuple[int, int]]) -> None:
    """Raise a :class:`SpecError` where devices that lost their link never had one."""
    faults = [
        Fault(f"dead_links[{index}]", f"devices {a} and {b} have no link between them")
        for index, (a, b) in enumerate(dead_links)
        if (a, b) not in network.link_between
    ]
    if faults:
        raise SpecError(faults)


def _wafers(levels: tuple[NetworkLevel, ...]) -> MultiWafer:
    """Return wafers in a row: the sides of the mesh of one, and the seam between two."""
    columns, rows, seam = levels
    wafer = Wafer(
        (rows.size, columns.size),
        (level_link(rows), level_link(columns)),
        die_m=(columns.pitch_m or Wafer.die_m[0], rows.pitch_m or Wafer.die_m[1]),
    )
    share = level_link(seam)
    total_bytes_per_s = share.bandwidth_bytes_per_s * wafer.num_devices
    return MultiWafer(
        seam.size,
        wafer,
        LinkSpec(total_bytes_per_s, share.latency_s, share.message_half_bytes),
    )
