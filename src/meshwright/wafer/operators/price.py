"""The whole step when every group of operators has an option of its own.

The same formulas as for one strategy: the layers are means over what was chosen, gradients are
summed over as many kinds of parameters as there are options in use, and resharding comes on top.
With one option for all it is the price of that strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, column, take_rows
from meshwright.cost.communication import plain
from meshwright.cost.data_parallel import gradient_sync
from meshwright.cost.layer import LayerPrices, weighted_sum
from meshwright.cost.memory import MemoryUse, ShardDegrees, step_memory
from meshwright.cost.pipeline import PipelinePrice, StepTime, price_pipeline, table_params
from meshwright.cost.step import optimizer_step_s, step_time
from meshwright.sharding.strategy import stack
from meshwright.wafer.operators.tables import GroupCost, OperatorPrices

Place = tuple[int, int]
"""A group of operators: number of the piece of the model, and of the group in it."""


@dataclass(frozen=True)
class Assigned:
    """The option of each group of operators, in the order of the model, and what it costs."""

    places: tuple[Place, ...]
    options: tuple[int, ...]
    time: StepTime
    reshard_s: float
    """Passing tensors between different layouts, in the whole step [s]."""
    memory: MemoryUse
    pipeline: PipelinePrice

    @property
    def total_s(self) -> float:
        """The whole step [s]."""
        return float(column(self.time.total_s)[0]) + self.reshard_s

    @property
    def memory_bytes(self) -> float:
        """Of the fullest device [bytes]."""
        return float(np.max(self.memory.total_bytes))


def price_assigned(
    prices: OperatorPrices, places: Sequence[Place], options: Sequence[int], reshard_s: float
) -> Assigned:
    """Return the price of one option for each group of operators of the model.

    Parameters
    ----------
    places, options
        Of each group, in the order of the model: embedding, layers, head.
    reshard_s
        Of one micro-batch [s].
    """
    problem, frame = prices.problem, prices.options.frame
    structure = frame.structure
    used = Counter(zip(places, options, strict=True))
    strategy = stack([prices.options.strategy(options[-1])])
    price = price_pipeline(problem, structure, strategy, _layers(prices, used), np.zeros(1))
    params = _params(prices, used)
    if problem.graph.tied:
        first = stack([prices.options.strategy(options[0])])
        table = float(column(table_params(problem, first))[0])
        is_one_copy = options[0] == options[-1]
        params[options[0]] -= table * is_one_copy
        price = price if is_one_copy else _with_second_table(price, table)
    shards = ShardDegrees(dense=_shard_degree(prices, params), expert=1.0)
    optimizer = problem.workload.optimizer
    kinds = [(np.array([n]), take_rows(prices.links, [o])) for o, n in params.items()]
    time = step_time(
        price.pipeline,
        gradient_sync(kinds, price.pipeline, structure, optimizer),
        optimizer_step_s(
            price.heaviest, shards, structure, optimizer, problem.rates.memory_bytes_per_s
        ),
        plain(np.zeros(1)),
        sigma=problem.calibration.overlap_slowdown,
        jitter=price.jitter,
    )
    times = float(column(price.pipeline.num_micro_batches)[0]) * (
        1.0 + float(column(price.jitter)[0])
    )
    return Assigned(
        places=tuple(places),
        options=tuple(options),
        time=time,
        reshard_s=reshard_s * times,
        memory=step_memory(problem, structure, shards, price.states)[0],
        pipeline=price,
    )


def _layers(prices: OperatorPrices, used: Counter[tuple[Place, int]]) -> LayerPrices:
    """Return the mean layer of each kind, and the edges."""
    found = []
    for number, piece in enumerate(prices.problem.pieces):
        mine = {key: count for key, count in used.items() if key[0][0] == number}
        costs = {
            (place, option): take_rows(prices.costs[place[0]][place[1]], [option])
            for place, option in mine
        }
        shares = [count / piece.count for count in mine.values()]
        mean = weighted_sum([cost.layer for cost in costs.values()], shares)
        found.append(replace(mean, working_bytes=_working_bytes(costs)))
    head = found[-1]
    working = head.working_bytes + head.kept_bytes
    head = replace(head, working_bytes=working, kept_bytes=head.kept_bytes * 0.0)
    return LayerPrices(tuple(found[:-2]), found[-2], head)


def _working_bytes(costs: Mapping[tuple[Place, int], GroupCost]) -> Any:
    """Return the largest transient, and what recomputation of a whole layer brings back."""
    brought_back: dict[Place, Any] = {}
    for (place, _), cost in costs.items():
        before = brought_back.get(place, 0.0)
        brought_back[place] = np.maximum(before, cost.recomputed_bytes)
    transient = np.max([cost.transient_bytes for cost in costs.values()], axis=0)
    return transient + sum(brought_back.values())


def _params(prices: OperatorPrices, used: Counter[tuple[Place, int]]) -> dict[int, float]:
    """Return the parameters on one device by the option that splits them [1]."""
    found: dict[int, float] = {}
    for (place, option), count in used.items():
        each = float(column(prices.costs[place[0]][place[1]].layer.dense_params)[option])
        found[option] = found.get(option, 0.0) + count * each
    return found


def whole_params(prices: OperatorPrices, places: Sequence[Place]) -> FloatArray:
    """Return the dense parameters on one device where all groups have one option, by option [1]."""
    total = sum(prices.costs[place[0]][place[1]].layer.dense_params for place in places)
    if prices.problem.graph.tied:
        total = total - table_params(prices.problem, prices.options.columns)
    whole: FloatArray = np.asarray(total, dtype=float)
    return whole


def _shard_degree(prices: OperatorPrices, params: dict[int, float]) -> float:
    """Return the degree that shards all parameters into as much as the options do."""
    columns = prices.options.columns
    shared = sum(n / float(columns.dp_shard[o] * columns.cp[o]) for o, n in params.items())
    return sum(params.values()) / shared


def _with_second_table(price: PipelinePrice, table: float) -> PipelinePrice:
    """Return the pipeline where a tied table is held twice: its ends split it differently."""
    states = tuple(replace(s, dense_params=s.dense_params + table) for s in price.states)
    heaviest = replace(price.heaviest, dense_params=price.heaviest.dense_params + table)
    return replace(price, states=states, heaviest=heaviest)
