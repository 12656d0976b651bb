"""What every topology offers: closed forms of its shape, and the network itself.

A topology is a small frozen value: its shape and its links. Its closed forms are proven equal to
what ``build`` lists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from meshwright.base.registry import Registry
from meshwright.topology.network import Network


@dataclass(frozen=True)
class LinkSpec:
    """One direction of a full-duplex wire; the other direction is equal."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    message_half_bytes: float = 0.0
    """Message size that reaches half of the bandwidth."""


class Topology(ABC):
    """Closed forms and enumeration of one physical network."""

    @property
    @abstractmethod
    def shape(self) -> str:
        """Its shape in words, such as ``6x8``."""

    @property
    @abstractmethod
    def num_devices(self) -> int:
        """Devices; switches and IO dies are not counted."""

    @property
    @abstractmethod
    def num_links(self) -> int:
        """Directed links: two for each wire."""

    @property
    @abstractmethod
    def diameter(self) -> int:
        """Links on the shortest way between the two devices that are farthest apart."""

    @property
    @abstractmethod
    def bisection_bytes_per_s(self) -> float:
        """Smallest bandwidth from one half of the devices to the other, one direction [bytes/s].

        Halves differ by one device at most; switches stand on the side that makes the cut smaller.
        Where ``bisection_is_exact`` is false this is the cut of one such pair of halves, so the
        true value is at most this.
        """

    @property
    def bisection_is_exact(self) -> bool:
        """Whether no other pair of equal halves has a smaller cut, by proof."""
        return True

    @abstractmethod
    def build(self) -> Network:
        """Return every node and link."""

    @classmethod
    @abstractmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return its usual shape with this many devices, or None where it has none."""


topologies: Registry[type[Topology]] = Registry("topology")
