"""Devices joined by switches or routers, or each to all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.topology.network import (
    NOMINAL_PITCH_M,
    LinkSpec,
    Network,
    Topology,
    Wires,
    assemble,
    circle_m,
    pair_ends,
)


def fully_connected(size: int, link: LinkSpec) -> Topology:
    """Return devices on a circle, a wire between every pair; nobody forwards."""
    half = size // 2

    def build() -> Network:
        return assemble(size, [Wires(*pair_ends(size, size, 1), link)], circle_m(size))

    return Topology(
        shape=f"{size} devices",
        num_devices=size,
        num_links=size * (size - 1),
        diameter=min(size - 1, 1),
        bisection_bytes_per_s=half * (size - half) * link.bandwidth_bytes_per_s,
        build=build,
    )


def switch(size: int, link: LinkSpec) -> Topology:
    """Return devices in a row under a switch that never blocks, which is the last node."""

    def build() -> Network:
        device = np.arange(size)
        wires = [Wires(device, np.full_like(device, size), link)]
        return assemble(size, wires, _rows_m([size, 1], 1))

    return Topology(
        shape=f"{size} ports",
        num_devices=size,
        num_links=2 * size,
        diameter=2 if size > 1 else 0,
        bisection_bytes_per_s=size // 2 * link.bandwidth_bytes_per_s,
        build=build,
    )


def leaf_spine(
    num_leaves: int,
    devices_per_leaf: int,
    link: LinkSpec,
    num_spines: int = 1,
    oversubscription: float = 1.0,
) -> Topology:
    """Return a two-layer fat tree: devices, leaves and spines, in this order.

    Each device has a wire to its leaf, each leaf one to every spine. A leaf in the middle of the
    bisection is cut between its devices.

    Parameters
    ----------
    link
        Link of a device.
    oversubscription
        Bandwidth into a leaf over that into the spines, at least 1.
    """
    devices = num_leaves * devices_per_leaf

    def build() -> Network:
        device, up = np.arange(devices), np.arange(num_leaves * num_spines)
        up_bytes_per_s = link.bandwidth_bytes_per_s * devices_per_leaf
        uplink = replace(link, bandwidth_bytes_per_s=up_bytes_per_s / oversubscription / num_spines)
        first_spine = devices + num_leaves
        wires = [
            Wires(device, devices + device // devices_per_leaf, link),
            Wires(devices + up // num_spines, first_spine + up % num_spines, uplink),
        ]
        return assemble(devices, wires, _rows_m([devices, num_leaves, num_spines], 2))

    return Topology(
        shape=f"{num_leaves} leaves of {devices_per_leaf}, "
        f"{num_spines} spines, {oversubscription:g}:1",
        num_devices=devices,
        num_links=2 * (devices + num_leaves * num_spines),
        diameter=4 if num_leaves > 1 else min(devices_per_leaf - 1, 1) * 2,
        bisection_bytes_per_s=leaves_cut_bytes_per_s(
            num_leaves, devices_per_leaf, link.bandwidth_bytes_per_s, oversubscription
        ),
        build=build,
    )


def leaves_cut_bytes_per_s(
    num_leaves: int, devices_per_leaf: int, bandwidth_bytes_per_s: float, oversubscription: float
) -> float:
    """Return the smallest cut of leaves under a spine into equal halves of the devices [bytes/s].

    floor(L / 2) p B / f, and floor(p / 2) B more where L is odd. A leaf with a devices in the one
    half and p - a in the other adds min(a B + p B / f, (p - a) B): concave in a, so that all
    leaves but one are whole.

    Parameters
    ----------
    bandwidth_bytes_per_s
        Bandwidth of a device into its leaf, B [bytes/s].
    oversubscription
        f, at least 1.
    """
    whole = num_leaves // 2 * devices_per_leaf / oversubscription
    halved = devices_per_leaf // 2 if num_leaves % 2 else 0
    return (whole + halved) * bandwidth_bytes_per_s


def fat_tree(radix: int, link: LinkSpec) -> Topology:
    """Return the k-ary fat tree: three layers of equal switches, of k ports each.

    k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3 / 4 devices; nodes
    in this order: devices, edge, aggregation, core. It can be arranged never to block, so the
    bisection is full.

    Parameters
    ----------
    radix
        Ports of a switch, k; even.

    Source: Al-Fares, Loukissas, Vahdat 2008, A scalable, commodity data center network.
    """
    if radix < 2 or radix % 2:
        raise SpecError(Fault("radix", f"{radix} ports", "an even number of at least 2"))
    devices = radix**3 // 4

    def build() -> Network:
        wires, layers = fat_tree_wires(devices, radix, link, link, devices)
        return assemble(devices, wires, _rows_m([devices, *layers], 2))

    return Topology(
        shape=f"k = {radix}",
        num_devices=devices,
        num_links=fat_tree_links(devices, radix),
        diameter=fat_tree_diameter(devices, radix),
        bisection_bytes_per_s=devices // 2 * link.bandwidth_bytes_per_s,
        build=build,
    )


def fat_tree_wires(
    num_devices: int, radix: int, link: LinkSpec, up: LinkSpec, first: int, level: int = 0
) -> tuple[list[Wires], list[int]]:
    """Return the wires of a k-ary fat tree of these first devices, and its switches by layer.

    Edge switches and pods that serve nobody are absent, and layers that would join one switch.

    Parameters
    ----------
    link, up
        Links of a device, and between switches.
    first
        Number of the first edge switch; aggregation and core switches follow.
    """
    half = radix // 2
    edges, pods = fat_tree_counts(num_devices, radix)
    aggregation = pods * half if edges > 1 else 0
    device, wire = np.arange(num_devices), np.arange(edges * half)
    wires = [Wires(device, first + device // half, link, level)]
    if edges > 1:
        above = first + edges + wire // half**2 * half + wire % half
        wires.append(Wires(first + wire // half, above, up, level))
    if pods > 1:
        wire = np.arange(pods * half**2)
        core = first + edges + aggregation + wire // half % half * half + wire % half
        wires.append(Wires(first + edges + wire // half, core, up, level))
    layers = [edges, aggregation, half**2 if pods > 1 else 0]
    return wires, [layer for layer in layers if layer]


def fat_tree_counts(num_devices: int, radix: int) -> tuple[int, int]:
    """Return the edge switches and the pods of a fat tree that serve these devices."""
    return -(-num_devices // (radix // 2)), -(-num_devices // (radix // 2) ** 2)


def fat_tree_links(num_devices: int, radix: int) -> int:
    """Return the directed links: two for each device, and k/2 wires up from each switch below."""
    half = radix // 2
    edges, pods = fat_tree_counts(num_devices, radix)
    return 2 * (num_devices + edges * half * (edges > 1) + pods * half**2 * (pods > 1))


def fat_tree_diameter(num_devices: int, radix: int) -> int:
    """Return the links between devices of two pods, of two edge switches, or of one."""
    edges, pods = fat_tree_counts(num_devices, radix)
    return 2 * (min(num_devices - 1, 1) + (edges > 1) + (pods > 1))


def dragonfly(
    devices_per_router: int,
    routers_per_group: int,
    global_wires_per_router: int,
    link: LinkSpec,
    global_link: LinkSpec,
) -> Topology:
    """Return g = a h + 1 groups of a routers; each router has p devices and h global wires.

    The routers of a group are fully connected. Global port q of group i (router q div h) leads to
    group i + q + 1 modulo g. Nodes are the devices and then the routers, group by group.

    The bisection is the cut between half of the groups and the other half, or all links of one
    half; other halves may share fewer wires. An odd number of groups has one group in the middle,
    whose routers are split: those with global wires to the one half go with it. Where a is odd, so
    is its middle router.

    Parameters
    ----------
    devices_per_router, routers_per_group, global_wires_per_router
        p, a and h.
    link
        Link of a device, and between the routers of a group.

    Source: Kim, Dally, Scott, Abts 2008, Technology-driven, highly-scalable dragonfly topology.
    """
    p, a, h = devices_per_router, routers_per_group, global_wires_per_router
    routers = a * (a * h + 1)
    devices = p * routers

    def build() -> Network:
        wires = dragonfly_wires(devices, (p, a, h), link, link, global_link, devices)
        return assemble(devices, wires, _fanned_m(routers, p))

    return Topology(
        shape=f"p = {p}, a = {a}, h = {h}",
        num_devices=devices,
        num_links=dragonfly_links((p, a, h)),
        diameter=dragonfly_diameter((p, a, h)),
        bisection_bytes_per_s=dragonfly_cut_bytes_per_s((p, a, h), link, global_link),
        build=build,
        bisection_is_exact=False,
    )


DragonflyShape = tuple[int, int, int]
"""Devices of a router p, routers of a group a, global wires of a router h."""


def dragonfly_wires(
    num_devices: int, shape: DragonflyShape, link: LinkSpec, local: LinkSpec, across: LinkSpec,
    first: int, level: int = 0,
) -> list[Wires]:  # fmt: skip
    """Return the wires of a dragonfly with these first devices, and all of its routers."""
    p, a, h = shape
    groups, device = a * h + 1, np.arange(num_devices)
    near, far = pair_ends(a * groups, a, 1)
    # The routers at both ends of each global wire; the first group is the lower one.
    lower, upper = np.triu_indices(groups, 1)
    lower_port, upper_port = upper - lower - 1, groups - (upper - lower) - 1
    ends = first + (lower * a + lower_port // h), first + (upper * a + upper_port // h)
    return [
        Wires(device, first + device // p, link, level),
        Wires(first + near, first + far, local, level),
        Wires(*ends, across, level),
    ]


def dragonfly_links(shape: DragonflyShape) -> int:
    """Return two for each device, each pair of routers in a group, and each pair of groups."""
    p, a, h = shape
    groups = a * h + 1
    return 2 * p * a * groups + a * groups * (a - 1) + groups * (groups - 1)


def dragonfly_diameter(shape: DragonflyShape) -> int:
    """Return a global hop, a local one on either side of it, and the links of the two devices."""
    return 5 if shape[1] > 1 else 3


def dragonfly_cut_bytes_per_s(
    shape: DragonflyShape, link: LinkSpec, global_link: LinkSpec
) -> float:
    """Return the cut between halves of the groups, or all links of one half [bytes/s]."""
    p, a, h = shape
    groups = a * h + 1
    own, across = link.bandwidth_bytes_per_s, global_link.bandwidth_bytes_per_s
    half = groups // 2
    cut = half * (groups - half) * across
    if groups % 2:
        cut = half * half * across + a // 2 * (a - a // 2) * own
        cut += (h // 2 * across + p // 2 * own) * (a % 2)
    return min(cut, p * a * groups // 2 * own)


def _rows_m(numbers: Sequence[int], gap: float) -> FloatArray:
    """Return the places of layers of nodes, one above the other, as wide as the lowest one [m]."""
    width_m = numbers[0] * NOMINAL_PITCH_M
    rows = []
    for layer, number in enumerate(numbers):
        x_m = (np.arange(number) + 0.5) * width_m / number
        rows.append(np.column_stack([x_m, np.full(number, -(gap * layer * NOMINAL_PITCH_M))]))
    return np.concatenate(rows)


def _fanned_m(num_routers: int, devices_per_router: int) -> FloatArray:
    """Return the routers on a circle, after their devices, fanned outwards behind them [m]."""
    fan = np.arange(devices_per_router) - (devices_per_router - 1) / 2
    router_m = circle_m(num_routers) * devices_per_router
    outwards = router_m / np.linalg.norm(router_m, axis=1, keepdims=True)
    sideways = np.column_stack([-outwards[:, 1], outwards[:, 0]])
    places = router_m + outwards * (devices_per_router * NOMINAL_PITCH_M)
    device_m = places[:, None, :] + fan[None, :, None] * NOMINAL_PITCH_M * sideways[:, None, :]
    return np.concatenate([device_m.reshape(-1, 2), router_m])
