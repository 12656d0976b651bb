"""Intervals of a price: the traits of a question, and the range of 80 % of measured values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.cost.problem import Problem, ProblemOf
from meshwright.spec.calibration import Spread, Tail
from meshwright.spec.workload import BYTES_OF, Workload

EXPERTS = "experts"
"""1 where layers have experts: balance, routing and small products are hard to foresee."""
NARROW = "narrow_words"
"""Halvings of the words of products from 16 bits [1]: casts and scales differ."""
UNSEEN = "unseen_family"
"""1 where no measured row is of the family of the chip."""
UNSEEN_SERVER = "unseen_server"
"""1 where no measured row is of the server: its host times are expected ones."""
UNNAMED = "unnamed_framework"
"""1 where the software of the step is not named: published stacks are tuned, the next one may not
be."""
HOST = "host_bound"
"""Share of the step that waits for the host, which no data sheet states."""
THROUGHPUT, TPOT, TTFT, E2E = "throughput", "TPOT", "TTFT", "end to end"
"""Figures of serving, each with intervals of its own."""
TRAITS = (EXPERTS, NARROW, UNSEEN, UNNAMED, HOST)
"""Traits of a question, known before it is measured, that widen the interval of its price."""
SERVING_TRAITS = (EXPERTS, UNSEEN, UNSEEN_SERVER)
"""Those of a question of serving."""


def traits_of(
    problem: ProblemOf[Workload], *, is_seen: bool, host_share: float = 0.0
) -> dict[str, float]:
    """Return the degree of each trait of a question."""
    word_bytes = BYTES_OF[problem.workload.precision.matmul]
    return {
        EXPERTS: float(problem.num_experts > 0),
        NARROW: max(math.log2(2.0 / word_bytes), 0.0),
        UNSEEN: float(not is_seen),
        UNNAMED: float(not problem.workload.software.framework),
        HOST: host_share,
    }


class Distances(NamedTuple):
    """Distances of the ends of an 80 % interval of times from the prediction, in logarithms."""

    slower: float
    faster: float


def distance_of(tail: Tail, degrees: Mapping[str, float]) -> float:
    """Return the distance of one end of an interval, by the degrees of the traits of its question.

    ``tail.distance * prod(factor ** degree)`` over the traits.
    """
    wider = (factor ** degrees.get(trait, 0.0) for trait, factor in tail.factors.items())
    return float(tail.distance * math.prod(wider))


def distances_of(spread: Spread, degrees: Mapping[str, float]) -> Distances:
    """Return the distances of both ends of an interval, by the degrees of the traits."""
    return Distances(distance_of(spread.slower, degrees), distance_of(spread.faster, degrees))


def distances(problem: Problem, host_share: float = 0.0) -> Distances | None:
    """Return the ends of the 80 % interval of ln(measured / predicted) of times; None: unknown.

    Parameters
    ----------
    host_share
        Share of the time of a step spent waiting for the host [1].
    """
    constants = problem.calibration
    if constants.spread is None:
        return None
    traits = traits_of(problem, is_seen=constants.is_calibrated, host_share=host_share)
    return distances_of(constants.spread, traits)


@dataclass(frozen=True)
class Certainty:
    """Spread of measured figures of serving about their prices, and the chips measured."""

    spreads: Mapping[str, Spread]
    """Spread of each figure, by its name."""
    families: frozenset[str]
    """Families of the chips that have measured rows."""
    servers: frozenset[str]
    """Names of the servers that have measured rows."""

    def ends(self, problem: ProblemOf[Workload], figure: str, server: str) -> Distances | None:
        """Return the distances of the ends of the interval of a figure from it, in logarithms."""
        if figure not in self.spreads:
            return None
        traits = traits_of(problem, is_seen=problem.system.chip.family in self.families)
        is_new = float(server not in self.servers)
        return distances_of(self.spreads[figure], traits | {UNSEEN_SERVER: is_new})


def interval(
    problem: Problem, step_s: float, host_share: float = 0.0
) -> tuple[float, float] | None:
    """Return the 80 % interval of measured times of such a step [s]; None: not known."""
    return interval_of(step_s, distances(problem, host_share))


def interval_of(time: float, ends: Distances | None) -> tuple[float, float] | None:
    """Return the interval of a time, in its unit, shortest first; None: not known."""
    if ends is None:
        return None
    return time * math.exp(-ends.faster), time * math.exp(ends.slower)


def rates_of(rate: float, ends: Distances | None) -> tuple[float, float] | None:
    """Return the interval of a rate, in its unit, lowest first, from the ends of its time."""
    found = interval_of(1.0, ends)
    return None if found is None else (rate / found[1], rate / found[0])


def surely(limit_s: float | None, ends: Distances | None) -> float | None:
    """Return the longest predicted time with a slow end within a limit [s].

    Of a limit of 50 ms with a slow end 25 % above the prediction: 40 ms.
    """
    if limit_s is None or ends is None:
        return limit_s
    return limit_s / math.exp(ends.slower)
