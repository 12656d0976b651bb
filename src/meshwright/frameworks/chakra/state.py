"""Parameters and their gradients over the data-parallel axes, and the update, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.base.arrays import ceil_div
from meshwright.cost.memory import parameters_on_device
from meshwright.cost.problem import Problem
from meshwright.frameworks.chakra.groups import PIPELINE_ENDS
from meshwright.frameworks.chakra.steps import Exchange, Work
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Held:
    """Parameters of one kind that a device holds of a piece, and the axes that share them."""

    kind: str
    params: float
    shard: str
    replicate: str
    everyone: str


class State:
    """What keeps the parameters of the pieces in step, under one stage of ZeRO."""

    def __init__(self, problem: Problem, structure: PlanOptions, strategy: Strategy) -> None:
        self.problem, self.structure, self.strategy = problem, structure, strategy
        self.optimizer = problem.workload.optimizer

    def held(self, index: int) -> tuple[Held, ...]:
        """Return the parameters of a piece on one device, outside of routed experts and in them."""
        piece = self.problem.pieces[index]
        dense, expert = parameters_on_device(piece, self.structure, self.strategy)
        is_second = piece is self.problem.graph.head and self.strategy.pp == 1
        if self.problem.graph.tied and is_second:
            dense = dense - self.table_params
        return (
            Held(
                "weights", float(dense), "dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp"
            ),
            Held("expert weights", float(expert), "edp_shard", "edp_replicate", "edp"),
        )

    @property
    def table_params(self) -> float:
        """Parameters of the token table on one device [1]."""
        rows = ceil_div(self.problem.model.vocab_size, self.strategy.tp * self.strategy.tatp)
        return float(rows * self.problem.model.hidden_size)

    def gathers(self, index: int) -> list[Exchange]:
        """Return what brings the whole parameters of a piece to a device."""
        word = self.optimizer.gathered_weight_bytes_per_param
        kind = CollectiveKind.ALL_GATHER
        return [
            Exchange(f"{held.kind} {kind}", kind, held.shard, held.params * word, is_early=True)
            for held in self.held(index)
            if held.params
        ]

    def scatters(self, index: int) -> list[Exchange]:
        """Return what brings the sums of gradients over the shards to those who keep them."""
        return self._reductions(index, CollectiveKind.REDUCE_SCATTER, is_shard=False)

    def sums(self, index: int) -> list[Exchange]:
        """Return the sums of gradients over replicas: of all of them, or of shards under ZeRO."""
        return self._reductions(
            index, CollectiveKind.ALL_REDUCE, is_shard=self.structure.zero_stage > 0
        )

    def tied_sum(self) -> Exchange:
        """Return the sum of the gradient of a tied table over both ends of the pipeline."""
        kind = CollectiveKind.ALL_REDUCE
        word = self.optimizer.reduced_gradient_bytes_per_param
        return Exchange(f"table gradient {kind}", kind, PIPELINE_ENDS, self.table_params * word)

    def _reductions(self, index: int, kind: CollectiveKind, *, is_shard: bool) -> list[Exchange]:
        word = self.optimizer.reduced_gradient_bytes_per_param
        found = []
        for held in self.held(index):
            axis = held.shard if kind is CollectiveKind.REDUCE_SCATTER else held.everyone
            num_bytes = held.params * word
            if is_shard:
                axis = held.replicate
                num_bytes = num_bytes / degree_of(held.shard, self.strategy)
            if held.params:
                found.append(Exchange(f"{held.kind} gradient {kind}", kind, axis, num_bytes))
        return found

    def update(self, indices: Sequence[int]) -> Work:
        """Return the update of the parameters of some pieces: the traffic of the optimizer."""
        is_sharded = self.structure.zero_stage > 0
        params = sum(
            held.params / (degree_of(held.shard, self.strategy) if is_sharded else 1.0)
            for index in indices
            for held in self.held(index)
        )
        traffic_bytes = params * self.optimizer.step_traffic_bytes_per_param
        seconds = traffic_bytes / float(self.problem.rates.memory_bytes_per_s)
        return Work("update", 0.0, traffic_bytes, seconds)
