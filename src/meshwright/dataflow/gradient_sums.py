"""Sums of the gradients of weights over replicas, beside the backward pass, and their bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.cost.communication import overlapped, slowdown_s
from meshwright.dataflow.roofline import Links
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class GradientSums:
    """Sums of the gradients of weights over replicas, in buckets during the last backward pass.

    A bucket is sent as soon as its gradients are there, the last one when the pass has ended;
    computation beside a transfer is slower. Or all gradients are sent at once, behind the pass.
    """

    links: Links | None
    """Links between replicas; None: there is one."""
    bytes_per_param: float
    most_buckets: int
    slowdown: float
    """Seconds that a second of hidden transfer adds to the computation [1]."""

    def whole_s(self, params: float) -> float:
        """Return the seconds of all gradients at once [s]."""
        if self.links is None:
            return 0.0
        return self.links.time_s(CollectiveKind.ALL_REDUCE, params * self.bytes_per_param)

    def time_s(self, params: float, window_s: float) -> float:
        """Return the seconds that the sums add to a step with a backward pass of some seconds [s].

        Exposed + slowdown hidden, of the best number of buckets. 8 buckets of 1 ms beside a pass of
        5 ms, with a slowdown of 0.1: max(8 - 5, 1) = 3 are exposed, 5 are hidden: 3.5 ms.
        """
        found = []
        for number in self._numbers:
            sent = overlapped(number * self.whole_s(params / number), window_s, number)
            added_s = slowdown_s(sent.hidden_s, window_s, self.slowdown)
            found.append(float(sent.exposed_s + added_s))
        return min(found)

    @property
    def _numbers(self) -> tuple[int, ...]:
        """Numbers of buckets that are tried."""
        return tuple(1 << power for power in range(self.most_buckets.bit_length()))

    @property
    def bounds(self) -> tuple[SumsBound, ...]:
        """Lower bounds of the time, whatever the buckets.

        The last of the most buckets, and the slowdown by all others; the whole less the window; and
        the mean of both.
        """
        if self.links is None or not self.bytes_per_param or self.most_buckets == 1:
            return (SumsBound(self.whole_s, 0.0),)

        def last_s(params: float) -> float:
            last = self.whole_s(params / self._numbers[-1])
            return (1.0 - self.slowdown) * last + self.slowdown * self.whole_s(params)

        def mean_s(params: float) -> float:
            return 0.5 * (last_s(params) + self.whole_s(params))

        shown = 1.0 - self.slowdown
        return (
            SumsBound(last_s, 0.0), SumsBound(self.whole_s, shown), SumsBound(mean_s, 0.5 * shown)
        )  # fmt: skip


class SumsBound(NamedTuple):
    """A lower bound of sums of gradients, concave in the parameters, less a share of the window."""

    least_s: Callable[[float], float]
    hidden: float
