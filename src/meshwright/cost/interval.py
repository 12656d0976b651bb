"""Between which values a measurement is expected, from the errors of measured rows alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.cost.problem import Problem, ProblemOf
from meshwright.spec.calibration import Spread
from meshwright.spec.workload import BYTES_OF, Workload

UNCALIBRATED_NOTE = "uncalibrated: constants come from data sheets and public sources"
"""What every answer says where no constant was fitted to measurements of its chips."""

EXPERTS = "experts"
"""1 where layers have experts: balance, routing and small products are hard to foresee."""
NARROW = "narrow_words"
"""How many times the words of products are halved from 16 bits: casts and scales differ."""
UNSEEN = "unseen_family"
"""1 where no measured row is of the family of the chip."""
TRAITS = (EXPERTS, NARROW, UNSEEN)
"""What is known of a question before it is measured and tells how far off its price may be."""


def traits_of(problem: ProblemOf[Workload], *, is_seen: bool) -> dict[str, float]:
    """Return the degree of each trait of a question."""
    word_bytes = BYTES_OF[problem.workload.precision.matmul]
    return {
        EXPERTS: float(problem.num_experts > 0),
        NARROW: max(math.log2(2.0 / word_bytes), 0.0),
        UNSEEN: float(not is_seen),
    }


def half_width_of(spread: Spread, degrees: Mapping[str, float]) -> float:
    """Return half of the width of an interval, from the degrees of the traits of its question.

    ``spread.half_width * prod(factor ** degree)`` over the traits.
    """
    wider = (factor ** degrees.get(trait, 0.0) for trait, factor in spread.factors.items())
    return float(spread.half_width * math.prod(wider))


def half_width(problem: Problem) -> float | None:
    """Return half of the width of the 80 % interval of ln(measured / predicted); None: unknown."""
    constants = problem.calibration
    if constants.spread is None:
        return None
    traits = traits_of(problem, is_seen=constants.is_calibrated)
    return half_width_of(constants.spread, traits)


def interval(problem: Problem, value: float) -> tuple[float, float] | None:
    """Return where four of five measurements of such a question lie; None: not known.

    Parameters
    ----------
    value
        The prediction, of a time or a throughput: the interval is symmetric in its logarithm.
    """
    width = half_width(problem)
    if width is None:
        return None
    factor = math.exp(width)
    return value / factor, value * factor
