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
        Of a device.
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
        Of a device into its leaf, B [bytes/s].
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
    devices, half, per_layer = radix**3 // 4, radix // 2, radix * (radix // 2)

    def build() -> Network:
        edge, aggregation, core = (devices + per_layer * layer for layer in range(3))
        wire = np.arange(devices)
        pod, lower, upper = wire // half**2, wire // half % half, wire % half
        layers = [
            (wire, edge + wire // half),
            (edge + pod * half + lower, aggregation + pod * half + upper),
            (aggregation + pod * half + lower, core + lower * half + upper),
        ]
        wires = [Wires(first, second, link) for first, second in layers]
        return assemble(devices, wires, _rows_m([devices, per_layer, per_layer, half**2], 2))

    return Topology(
        shape=f"k = {radix}",
        num_devices=devices,
        num_links=6 * devices,  # as many wires in each of the three layers as there are devices
        diameter=6,
        bisection_bytes_per_s=devices // 2 * link.bandwidth_bytes_per_s,
        build=build,
    )


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
        Of a device, and between the routers of a group.

    Source: Kim, Dally, Scott, Abts 2008, Technology-driven, highly-scalable dragonfly topology.
    """
    p, a, h = devices_per_router, routers_per_group, global_wires_per_router
    groups = a * h + 1
    routers = a * groups
    devices = p * routers
    device_bytes_per_s, across = link.bandwidth_bytes_per_s, global_link.bandwidth_bytes_per_s
    half = groups // 2
    cut = half * (groups - half) * across
    if groups % 2:
        cut = half * half * across + a // 2 * (a - a // 2) * device_bytes_per_s
        cut += (h // 2 * across + p // 2 * device_bytes_per_s) * (a % 2)

    def build() -> Network:
        device = np.arange(devices)
        near, far = pair_ends(routers, a, 1)
        # The routers at both ends of each global wire; the first group is the lower one.
        lower, upper = np.triu_indices(groups, 1)
        lower_port, upper_port = upper - lower - 1, groups - (upper - lower) - 1
        wires = [
            Wires(device, devices + device // p, link),
            Wires(devices + near, devices + far, link),
            Wires(
                devices + (lower * a + lower_port // h),
                devices + (upper * a + upper_port // h),
                global_link,
            ),
        ]
        return assemble(devices, wires, _fanned_m(routers, p))

    return Topology(
        shape=f"p = {p}, a = {a}, h = {h}",
        num_devices=devices,
        # Two for each device, each pair of routers in a group, and each pair of groups.
        num_links=2 * devices + routers * (a - 1) + groups * (groups - 1),
        # A global hop, a local one on either side of it, and the links of the two devices.
        diameter=5 if a > 1 else 3,
        bisection_bytes_per_s=min(cut, devices // 2 * device_bytes_per_s),
        build=build,
        bisection_is_exact=False,
    )


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
