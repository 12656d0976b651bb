"""Plans that share their layers or their pipeline, priced together and each by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.arrays import take_rows
from meshwright.cost.parts import TimePart
from meshwright.cost.step import price_columns, price_each
from meshwright.sharding.strategy import AXES, Offload, PlanOptions, Recompute, StrategyOf, stack
from meshwright.train.question import make_problem, training

FIRST = StrategyOf(
    dp_replicate=1.0, dp_shard=4.0, tp=1.0, cp=1.0, ep=1.0, etp=1.0, pp=2.0, tatp=1.0,
    num_virtual_stages=1.0, micro_batch_size=1.0,
)  # fmt: skip
STRATEGIES = [FIRST, replace(FIRST, micro_batch_size=2.0), replace(FIRST, tp=2.0, dp_shard=2.0)]
OPTION_SETS = [
    replace(PlanOptions(), **chosen)
    for chosen in (
        {"zero_stage": 1},
        {"zero_stage": 3, "reshard_after_forward": False},
        {"zero_stage": 2, "recompute": Recompute.FULL},
        {"zero_stage": 3},
        {"zero_stage": 1, "offload": Offload.OPTIMIZER},
        {"zero_stage": 1},
    )
]


@pytest.mark.parametrize("framework", [None, "automodel"])
def test_plans_priced_together_cost_what_each_costs(framework: str | None) -> None:
    work = training("8xH100", sequence_length=2048, global_batch_size=32, framework=framework)
    problem = make_problem("llama3.2-1b", "8xH100", work, "uncalibrated")
    strategies = [one for _ in OPTION_SETS for one in STRATEGIES]
    network = problem.network(AXES, stack(strategies))
    found = price_each(problem, [(one, len(STRATEGIES)) for one in OPTION_SETS], network)
    assert sorted(np.concatenate([rows for rows, _ in found])) == list(range(len(strategies)))
    for rows, together in found:
        part = take_rows(network, rows)
        alone = price_columns(problem, together.plan_options, part.strategy, part)
        for name in TimePart:
            np.testing.assert_array_equal(together.step.time[name], alone.step.time[name])
        np.testing.assert_array_equal(together.step.memory_bytes, alone.step.memory_bytes)
        assert {OPTION_SETS[row // len(STRATEGIES)] for row in rows} == {together.plan_options}
