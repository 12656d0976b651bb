"""One choice of degrees after the other: priced with its best sharding, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.errors import UnsupportedError
from meshwright.dataflow.machine import Machine
from meshwright.dataflow.memory import Holding
from meshwright.dataflow.seconds import EXPOSED, NETWORK, Seconds, Weights
from meshwright.dataflow.sharding import Sharding, choose_for_largest, choose_sharding
from meshwright.dataflow.stages import Stage, cut_stages
from meshwright.dataflow.tables import SplitTables
from meshwright.dataflow.work import StagePrice, StageTime, StageWork, sent_bytes
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Unit
from meshwright.graph.op import Phase
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import OptimizerPreset

LITTLE = 1e-6
BESIDE = tuple(Weights(share, 1.0 - share) for share in (1.0 - LITTLE, LITTLE, 0.5, 0.75, 0.25))
"""Means of computation and collectives; where only one counts, a little of the other decides
between equals."""
INFINITE = float("inf")
SLOWER = "slower by its bound"


@dataclass(frozen=True)
class Refusal:
    """Degrees without a plan."""

    reason: str
    lower_bound_s: float = INFINITE
    """Of a plan that was not found but may exist [s]."""


@dataclass(frozen=True)
class GraphPlan:
    """Degrees, how kernels are split, and what a step takes."""

    tp: int
    pp: int
    dp: int
    layers: int
    """Repetitions of the graph on the fullest stage; 1 where it is cut itself."""
    sharding: Sharding | None
    """Of one repetition; None where the graph is cut."""
    stages: tuple[Stage, ...]
    """Where the graph is cut itself."""
    num_passes: int
    """Of each replica in a step."""
    stage_s: float
    """One pass through the slowest stage [s]."""
    send_s: float
    """Handing a pass on to the next stage, beside the others [s]."""
    bubble_s: float
    """Filling and emptying the stages: what the others take for one pass [s]."""
    gradient_s: float
    """Sums over replicas, once a step [s]."""
    update_s: float
    """Update of the weights, once a step [s]."""
    held_bytes: float
    """On the fullest device [bytes]."""
    lower_bound_s: float
    """No plan of these degrees takes less for a step [s]."""

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Devices that share kernels, stages, replicas."""
        return self.tp, self.pp, self.dp

    @property
    def pass_s(self) -> float:
        """Time between two passes [s]."""
        return max(self.stage_s, self.send_s)

    @property
    def step_s(self) -> float:
        """Everything [s]."""
        return sum(self.parts_s.values())

    @property
    def parts_s(self) -> Mapping[str, float]:
        """What a step is made of: the parts sum to it [s]."""
        return {
            "passes_s": self.num_passes * self.pass_s,
            "bubble_s": self.bubble_s,
            "gradient_sums_s": self.gradient_s,
            "update_s": self.update_s,
        }

    @property
    def passes_per_s(self) -> float:
        """Over all replicas."""
        return self.num_passes * self.dp / self.step_s


@dataclass(frozen=True)
class Candidates:
    """A graph on a system, for any degrees."""

    graph: DataflowGraph
    machine: Machine
    num_passes: int
    optimizer: OptimizerPreset | None
    hides_network: bool
    stage_time: StageTime | None
    only_best: bool = False
    """Whether plans that are certainly slower than a known one may be refused."""

    @cached_property
    def trains(self) -> bool:
        """Whether the graph makes gradients of weights."""
        return any(kernel.phase is Phase.WEIGHT_GRADIENT for kernel in self.graph.kernels)

    def priced(
        self, tp: int, pp: int, dp: int, *, is_final: bool = True, enough_s: float = INFINITE
    ) -> GraphPlan | Refusal:
        """Return the best plan of some degrees, or why there is none.

        Parameters
        ----------
        is_final
            Without it a gap that a limit on memory leaves stays open: a first look.
        enough_s
            Time of a plan that is known: a graph is not cut where that cannot be faster [s].
        """
        if dp > self.num_passes:
            return Refusal("more replicas than passes")
        if tp > max(self.graph.sizes.values()):
            return Refusal("no dim has so many parts")
        if self.is_repeated(pp):
            most_s = enough_s if self.only_best else INFINITE
            return self._repeated(tp, pp, dp, is_final, most_s)
        if self.graph.repeats > 1:
            return Refusal("more stages than repetitions")
        if any(kernel.phase is not Phase.FORWARD for kernel in self.graph.kernels):
            return Refusal("a graph with gradients is cut between repetitions only")
        if self.least_s(tp, pp, dp) >= enough_s:
            return Refusal(SLOWER)
        return self._cut(tp, pp, dp, enough_s)

    def is_repeated(self, pp: int) -> bool:
        """Return whether stages are made of whole repetitions."""
        return pp == 1 or pp <= self.graph.repeats

    def _repeated(
        self, tp: int, pp: int, dp: int, is_final: bool, most_s: float
    ) -> GraphPlan | Refusal:
        """Return the plan whose stages are repetitions of the graph."""
        layers, passes = -(-self.graph.repeats // pp), -(-self.num_passes // dp)
        rounds = passes + pp - 1
        holding = Holding(layers, min(pp, passes), self._bytes_per_param)
        seconds = self._seconds(tp, dp, holding)
        slope, fixed_s = self._line(seconds, dp)
        each_s = slope / rounds
        found = choose_for_largest(
            self._sums(seconds, each_s), self.machine.room_bytes, uses_program=is_final
        )
        if not found:
            return Refusal("memory")
        tables, network = seconds.tables(), seconds.tables(NETWORK)
        works = [
            StageWork(
                self.graph,
                tp,
                replace(one, tables=tables),
                network,
                layers=layers,
                num_passes=passes,
                most_s=most_s / rounds,
            )
            for one in found
        ]
        priced = [(price, n) for n, work in enumerate(works)
                  if (price := self._stage(work, seconds, each_s)) is not None]  # fmt: skip
        if not priced:
            return Refusal("memory of a chip")
        price, number = min(priced, key=lambda one: one[0].time_s)
        if price.time_s == INFINITE:
            return Refusal(SLOWER, rounds * min(one.bound_s for one, _ in priced) + fixed_s)
        sharding, send_s = works[number].sharding, 0.0
        if pp > 1:
            links = self.machine.links(tp * dp, pp)
            num_bytes = sent_bytes(self.graph, tp, sharding)
            send_s = links.time_s(CollectiveKind.SEND, num_bytes)
        gradient_s, update_s = self._once_a_step(_parameters(seconds, sharding), tp, dp)
        return GraphPlan(
            tp, pp, dp, layers, sharding, (), passes, price.time_s, send_s,
            (pp - 1) * max(price.time_s, send_s), gradient_s, update_s, sharding.held_bytes,
            rounds * price.bound_s + fixed_s,
        )  # fmt: skip

    def _line(self, seconds: Seconds, dp: int) -> tuple[float, float]:
        """Return a line below what parameters take once a step: seconds for each, and the rest.

        Collectives have the time of their fastest algorithm, which is concave in the bytes: the
        chord between the fewest and the most parameters lies below it.
        """
        few, many = (
            seconds.holding.layers * sum(float(pick(params)) for params in seconds.parameters)
            for pick in (np.min, np.max)
        )
        low, high = (sum(self._once_a_step(p, seconds.degree, dp)) for p in (few, many))
        slope = (high - low) / (many - few) if many > few else 0.0
        return slope, low - slope * few

    def _stage(self, work: StageWork, seconds: Seconds, each_s: float) -> StagePrice | None:
        """Return what a pass through a stage takes: as its sharding says, or by whoever knows.

        Parameters
        ----------
        each_s
            What a parameter takes once a step, spread over the passes: part of the bound [s].
        """
        sharding, least = work.sharding, sum(float(p.min()) for p in seconds.parameters)
        if self.stage_time is None:
            once_s = each_s * _parameters(seconds, sharding)
            return StagePrice(
                work.layers * sharding.cost - once_s, work.layers * sharding.lower_bound
            )
        price = self.stage_time(work)
        if price is None:
            return None
        return replace(price, bound_s=price.bound_s + work.layers * each_s * least)

    def _cut(self, tp: int, pp: int, dp: int, enough_s: float) -> GraphPlan | Refusal:
        """Return the plan whose stages are parts of the graph."""
        passes, room = -(-self.num_passes // dp), self.machine.room_bytes
        fitting = [tables.within(room) for tables in self._sums(self._seconds(tp, dp, Holding()))]
        sums = [tables for tables in fitting if tables is not None]
        if not sums:
            return Refusal("memory")
        links = self.machine.links(tp * dp, pp)
        try:
            found = cut_stages(
                sums, pp, lambda b: links.time_s(CollectiveKind.SEND, b), most=enough_s / passes
            )
        except UnsupportedError:
            return Refusal("too many branches side by side for stages", self.least_s(tp, pp, dp))
        if found is None:
            return Refusal(SLOWER)
        bound_s = max(passes * found.lower_bound, self.least_s(tp, pp, dp))
        held = max(stage.held_bytes(sums[0]) for stage in found.stages)
        if held > room:
            return Refusal("memory of the fastest stages", bound_s)
        slowest = max(found.stages, key=lambda stage: stage.cost)
        return GraphPlan(
            tp, len(found.stages), dp, 1, None, found.stages, passes, slowest.busy, slowest.send,
            sum(stage.cost for stage in found.stages) - slowest.cost, 0.0, 0.0, held, bound_s,
        )  # fmt: skip

    def repeated_least_s(self, tp: int, pp: int, dp: int) -> float:
        """Return a bound of plans whose stages are repetitions [s]: computation alone."""
        if not self.is_repeated(pp):
            return 0.0
        layers, passes = -(-self.graph.repeats // pp), -(-self.num_passes // dp)
        return (passes + pp - 1) * layers * self._computation_s(tp)

    def _computation_s(self, tp: int) -> float:
        """Return the least computation of one repetition and pass [s]."""
        if self.stage_time is None:
            return sum(float(costs.min()) for costs in self._seconds(tp, 1, Holding()).compute_s)
        work = sum(k.flops(self.graph.sizes) for k in self.graph.kernels if k.unit is Unit.MATRIX)
        machine = self.machine
        return work * machine.system.num_alive / (tp * machine.peak_flops_per_s(self.graph))

    def least_s(self, tp: int, pp: int, dp: int) -> float:
        """Return a bound of all cuts [s]: the graph on one group, spread evenly over the stages."""
        passes, bound_s = -(-self.num_passes // dp), 0.0
        for tables in self._sums(self._seconds(tp, dp, Holding())):
            whole = choose_sharding(tables)
            total = 0.0 if whole is None else whole.lower_bound
            slowest = max(total / pp, *(float(costs.min()) for costs in tables.costs))
            bound_s = max(bound_s, total + (passes - 1) * slowest)
        return bound_s

    def _seconds(self, tp: int, dp: int, holding: Holding) -> Seconds:
        return Seconds(self.graph, self.machine, tp, holding, -(-self.num_passes // dp))

    def _sums(self, seconds: Seconds, s_per_param: float = 0.0) -> list[SplitTables]:
        weights = BESIDE if self.hides_network else (EXPOSED,)
        return [seconds.tables(each, s_per_param=s_per_param) for each in weights]

    @property
    def _bytes_per_param(self) -> float | None:
        if self.optimizer is None or not self.trains:
            return None
        preset = self.optimizer
        return (
            preset.weight_bytes_per_param
            + preset.gradient_bytes_per_param
            + preset.state_bytes_per_param
        )

    def _once_a_step(self, params: float, tp: int, dp: int) -> tuple[float, float]:
        """Return the seconds of summing gradients over replicas, and of the update [s]."""
        if self.optimizer is None or not self.trains:
            return 0.0, 0.0
        gradients = params * self.optimizer.reduced_gradient_bytes_per_param
        sums_s = self.machine.links(tp, dp).time_s(CollectiveKind.ALL_REDUCE, gradients)
        moved = params * self.optimizer.step_traffic_bytes_per_param
        return sums_s, moved / float(self.machine.engine(self.graph).memory_bytes_per_s)


def _parameters(seconds: Seconds, sharding: Sharding) -> float:
    """Return the parameters on a device, over all repetitions."""
    chosen = zip(seconds.parameters, sharding.ways, strict=True)
    return seconds.holding.layers * sum(float(params[way]) for params, way in chosen)
