"""From priced columns to one way of serving: plain numbers, worst stage, energy and money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cost.energy import (
    dynamic_parts_j,
    link_energy_j,
    step_cost_usd,
    system_parts_j,
    total_energy_j,
)
from meshwright.cost.stage import POSITIONS
from meshwright.serve.memory import SERVING_MEMORY_PARTS
from meshwright.serve.price import SERVING_TIME_PARTS, ServingPrice, fullest_use, price_serving
from meshwright.serve.problem import ServingProblem
from meshwright.sharding.strategy import PlanOptions, Strategy, stack

MILLION = 1.0e6


@dataclass(frozen=True)
class ServingFigures:
    """What is known of one way of serving, as plain numbers."""

    time_parts_s: dict[str, float]
    latency_s: float
    bottleneck_s: float
    memory_parts_bytes: dict[str, float]
    memory_bytes: float
    fullest_stage: str
    sequences_in_flight: float
    most_sequences: float
    tokens_per_s: float
    tokens_per_s_per_user: float
    energy_j_per_million_tokens: float | None
    cost_usd_per_million_tokens: float | None


def serving_figures(
    problem: ServingProblem, strategy: Strategy, structure: PlanOptions, num_groups: int
) -> ServingFigures:
    """Return the figures of one strategy: a column of one row."""
    price = price_serving(problem, structure, stack([strategy]), np.array([float(num_groups)]))
    use, stage = fullest_use(price)
    energy_j, cost_usd = _per_million_tokens(problem, price)
    return ServingFigures(
        time_parts_s={name: _only(getattr(price.time, name)) for name in SERVING_TIME_PARTS},
        latency_s=_only(price.latency_s),
        bottleneck_s=_only(price.bottleneck_s),
        memory_parts_bytes={name: _only(getattr(use, name)) for name in SERVING_MEMORY_PARTS},
        memory_bytes=_only(use.total_bytes),
        fullest_stage=POSITIONS[int(_only(stage))],
        sequences_in_flight=_only(price.sequences_in_flight),
        most_sequences=_only(price.most_sequences),
        tokens_per_s=_only(price.tokens_per_s),
        tokens_per_s_per_user=_only(price.tokens_per_s_per_user),
        energy_j_per_million_tokens=_known(energy_j),
        cost_usd_per_million_tokens=_known(cost_usd),
    )


def _per_million_tokens(problem: ServingProblem, price: ServingPrice) -> tuple[Any, Any]:
    """Return energy [J] and rent [USD] of the devices in use for a million tokens; NaN: unknown.

    Over a second, every device runs its share of the passes that make the tokens of a second.
    """
    system, strategy, time = problem.system, price.strategy, price.time
    rounds = 1.0 / (price.latency_s if problem.is_decode else price.bottleneck_s)
    groups = price.num_groups if problem.is_decode else 1.0
    passes = rounds * groups / strategy.pp
    busy_s = time.matmul_compute_s + time.matmul_memory_s + time.attention_s + time.elementwise_s
    one_second = 1.0 + 0.0 * rounds
    dynamic_j = dynamic_parts_j(
        system.chip, passes * busy_s, passes * price.flops, passes * price.traffic_bytes,
        link_energy_j(system, passes * price.link_bytes),
    )  # fmt: skip
    parts_j = system_parts_j(system, dynamic_j, one_second, strategy.num_devices)
    energy = total_energy_j(parts_j, one_second)
    rent = step_cost_usd(system.chip, one_second, strategy.num_devices)
    millions = price.tokens_per_s / MILLION
    return energy / millions, rent / millions


def _only(column: Any) -> float:
    """Return the entry of a column of one row."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])


def _known(column: Any) -> float | None:
    value = _only(column)
    return None if np.isnan(value) else value
