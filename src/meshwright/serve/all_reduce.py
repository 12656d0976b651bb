"""All-reduce of small messages by kernels that servers bring along, beside those of a library.

Devices of one host read the memory of each other directly. The faster of two kernels is priced, and
the library where it is faster than both.
Source: vLLM, csrc/custom_all_reduce.cuh (one and two stages); TensorRT-LLM, customAllReduceKernels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from meshwright.base.arrays import Num, larger, smaller, where
from meshwright.collectives.group import Group
from meshwright.cost.communication import AxisNetwork, Collectives
from meshwright.spec.calibration import ServingConstantsOf
from meshwright.spec.collective import CollectiveKind


class PassCollectives(Collectives):
    """Times of collectives in a pass: of a library, or of the kernels of the server."""

    def __init__(
        self, network: AxisNetwork, launch_s: Num, constants: ServingConstantsOf[Num]
    ) -> None:
        share = constants.collective_rate_share
        inside = tuple(reached * share for reached in network.efficiency[:1])
        super().__init__(replace(network, efficiency=inside + network.efficiency[1:]), launch_s)
        self.constants = constants
        self._links: dict[str, Group[Num] | None] = {}

    def time_s(self, kind: CollectiveKind, axis: str, num_bytes: Num) -> Num:
        """Return the seconds of one collective."""
        library_s = super().time_s(kind, axis, num_bytes)
        if kind is not CollectiveKind.ALL_REDUCE or np.all(
            np.isinf(self.constants.one_shot_start_s)
        ):
            return library_s
        if axis not in self._links:
            self._links[axis] = self.network.at_full_rate.links(axis)
        links = self._links[axis]
        if links is None:
            return library_s
        return smaller(library_s, all_reduce_s(num_bytes, links, self.constants))


def all_reduce_s(num_bytes: Num, links: Group[Num], constants: ServingConstantsOf[Num]) -> Num:
    """Return the seconds of an all-reduce by the faster kernel; infinity between hosts.

    n devices, each with links of B bytes/s in each direction, add up a message of m bytes. In one
    shot each reads the messages of all others; in two each adds up a part, and then reads the other
    parts:

        one shot    start_1 + (n - 1) m / B
        two shots   start_2 + 2 (n - 1) m / (n B)

    Example: 8 devices with 450 GB/s, 0.63 of it reached, 16 KiB: 4.2 us and 0.4 us for the bytes.

    Valid for: 2 to 8 devices and up to 4 MiB; beyond, the library is usually faster.
    """
    inner, *outer = links.spans
    rate = inner.bandwidth_bytes_per_s * constants.shot_link_share
    one_s = constants.one_shot_start_s + (inner.size - 1.0) * num_bytes / rate
    share = 2.0 * (inner.size - 1.0) / larger(inner.size, 1.0)
    two_s = constants.two_shot_start_s + share * num_bytes / rate
    hosts: Num = reduce(np.multiply, [span.size for span in outer], 1.0 + 0.0 * inner.size)
    return where((hosts > 1.0) | (inner.size < 2.0), np.inf, smaller(one_s, two_s))
