"""Leaf switches under spine switches, with a ratio between what goes in and what goes up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from meshwright.topology.geometry import NOMINAL_PITCH_M, near_square, row_m
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import Wires, assemble


@topologies.register("leaf_spine")
@dataclass(frozen=True)
class LeafSpine(Topology):
    """Each device has a wire to its leaf, each leaf one to every spine: a two-layer fat tree."""

    num_leaves: int
    devices_per_leaf: int
    link: LinkSpec
    """Of a device."""
    num_spines: int = 1
    oversubscription: float = 1.0
    """Bandwidth into a leaf over that into the spines, at least 1."""

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return a near-square tree, half of the leaf's bandwidth going up to two spines."""
        return cls(*near_square(num_devices), link, num_spines=2, oversubscription=2.0)

    @property
    def shape(self) -> str:
        """Leaves, spines, and the ratio between them."""
        return (
            f"{self.num_leaves} leaves of {self.devices_per_leaf}, "
            f"{self.num_spines} spines, {self.oversubscription:g}:1"
        )

    @property
    def num_devices(self) -> int:
        """Leaves times the devices of each."""
        return self.num_leaves * self.devices_per_leaf

    @property
    def num_links(self) -> int:
        """Two for each device, two for each pair of leaf and spine."""
        return 2 * (self.num_devices + self.num_leaves * self.num_spines)

    @property
    def diameter(self) -> int:
        """Through a spine where there are several leaves."""
        return 4 if self.num_leaves > 1 else min(self.devices_per_leaf - 1, 1) * 2

    @property
    def bisection_bytes_per_s(self) -> float:
        """What half of the leaves send up; a leaf in the middle is cut between its devices."""
        return leaves_cut_bytes_per_s(
            self.num_leaves, self.devices_per_leaf, self.link.bandwidth_bytes_per_s,
            self.oversubscription,
        )  # fmt: skip

    def build(self) -> Network:
        """Return devices, leaves and spines, in this order."""
        devices, leaves, spines = self.num_devices, self.num_leaves, self.num_spines
        device, up = np.arange(devices), np.arange(leaves * spines)
        uplink_bytes_per_s = self.link.bandwidth_bytes_per_s * self.devices_per_leaf
        uplink = replace(
            self.link, bandwidth_bytes_per_s=uplink_bytes_per_s / self.oversubscription / spines
        )
        first_spine = devices + leaves
        width_m = devices * NOMINAL_PITCH_M
        return assemble(
            devices,
            [
                Wires(device, devices + device // self.devices_per_leaf, self.link),
                Wires(devices + up // spines, first_spine + up % spines, uplink),
            ],
            np.concatenate(
                [
                    row_m(number, width_m, 2 * turn * NOMINAL_PITCH_M)
                    for turn, number in enumerate([devices, leaves, spines])
                ]
            ),
            devices_forward=False,
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
