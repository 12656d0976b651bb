"""The time of forward passes alone under a strategy of training: log-probabilities, and scores."""

from __future__ import annotations

from functools import reduce

from meshwright.base.arrays import larger, number_at
from meshwright.cost.bound import layer_prices
from meshwright.cost.layer import LayerCost, prices_of, recomputes_of, weighted_part
from meshwright.cost.memory import shard_degrees
from meshwright.cost.pipeline import POSITIONS, price_pipeline, send_bytes, stages_of
from meshwright.cost.problem import Problem
from meshwright.cost.step import step_collectives, step_sync
from meshwright.sharding.strategy import PlanOptions, Strategy, stack


def forward_s(problem: Problem, plan_options: PlanOptions, strategy: Strategy) -> float:
    """Return the seconds of the forward passes of a batch under a strategy of training [s].

    m micro-batches pass through the slowest of p stages, and one through each of the others, with
    a send between stages and the gathers of sharded weights that nothing hides:

        (m (f + send + gather) + sum of f of the others) (1 + jitter).

    Example: 8 micro-batches through 4 equal stages of 10 ms without sends take 8 x 10 + 3 x 10 =
    110 ms. Virtual stages would fill the pipeline faster; forward passes alone run one chunk after
    another.
    """
    network = problem.shared_network(plan_options.axis_order, stack([strategy]))
    columns = network.strategy
    links = step_collectives(problem, network)
    tables = layer_prices(problem, plan_options, network, recomputes_of(plan_options))
    costs = [cost for cost in prices_of(plan_options, tables) if isinstance(cost, LayerCost)]
    send_s = links.send.time_s(send_bytes(problem, plan_options, columns), 1.0)
    pipeline = price_pipeline(problem, plan_options, columns, costs, send_s)
    layout = stages_of(problem, plan_options, columns)
    of_stages = [weighted_part(costs, layout.counts[p], "forward_total_s") for p in POSITIONS]
    slowest_s = reduce(larger, of_stages)
    others_s = weighted_part(costs, layout.total, "forward_total_s") - slowest_s
    shards = shard_degrees(problem, columns)
    synced = step_sync(problem, plan_options, shards, pipeline, links.sync)
    waits_s = send_s * (columns.pp > 1) + synced.each_forward.exposed_s
    passes_s = pipeline.num_micro_batches * (slowest_s + waits_s) + others_s
    return number_at(passes_s * (1.0 + pipeline.jitter))
