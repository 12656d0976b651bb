"""Physical networks: nodes and directed links, listed one by one, and closed forms of them."""

from dataclasses import replace

from meshwright.spec.system import NetworkLevel
from meshwright.topology.grid import mesh, ring, torus
from meshwright.topology.levels import hierarchical
from meshwright.topology.network import LinkSpec, Topology, near_square, topologies
from meshwright.topology.switched import dragonfly, fat_tree, fully_connected, leaf_spine, switch
from meshwright.topology.wafer import Wafer, one_wafer, wafers_in_a_row


def _dragonfly(num_devices: int, link: LinkSpec) -> Topology | None:
    """Return the dragonfly of this many devices that is nearest to a = 2 p = 2 h."""
    fitting = [
        (abs(a - 2 * p) + abs(a - 2 * h), (p, a, h))
        for a in range(1, num_devices + 1)
        for h in range(1, num_devices // a + 1)
        if num_devices % (a * (a * h + 1)) == 0
        for p in [num_devices // (a * (a * h + 1))]
    ]
    return dragonfly(*min(fitting)[1], link, link) if fitting else None


def _fat_tree(num_devices: int, link: LinkSpec) -> Topology | None:
    """Return the tree of k^3 / 4 devices, where that is their number."""
    sizes = {radix**3 // 4: radix for radix in range(2, 2 + 2 * num_devices, 2)}
    return fat_tree(sizes[num_devices], link) if num_devices in sizes else None


def _two_wafers(num_devices: int, link: LinkSpec) -> Topology | None:
    """Return two near-square wafers, the seam half as wide as the links inside."""
    if num_devices % 2:
        return None
    sides = near_square(num_devices // 2)
    seam = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * sides[0] / 2)
    return wafers_in_a_row(2, Wafer(sides, (link, link)), seam)


def _hosts(num_devices: int, link: LinkSpec) -> Topology | None:
    """Return near-square hosts on a switch, under a rail-optimized network half as fast."""
    num_hosts, host_size = near_square(num_devices)
    if num_hosts == 1:
        return None
    inner = NetworkLevel(
        name="hosts",
        size=host_size,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_s=link.latency_s,
        message_half_bytes=link.message_half_bytes,
    )
    changes = {
        "name": "network",
        "size": num_hosts,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s / 2,
        "rail_optimized": True,
    }
    return hierarchical((inner, inner.model_copy(update=changes)))


topologies.fill(
    {
        "dragonfly": _dragonfly,
        "fat_tree": _fat_tree,
        "fully_connected": fully_connected,
        "leaf_spine": lambda n, link: leaf_spine(*near_square(n), link, 2, 2.0),
        "mesh": lambda n, link: mesh(near_square(n), link),
        "torus": lambda n, link: torus(near_square(n), link),
        "ring": ring,
        "wafer": lambda n, link: one_wafer(Wafer(near_square(n), (link, link))),
        "multi_wafer": _two_wafers,
        "hierarchical": _hosts,
        "switch": switch,
    },
    "topologies",
)
