"""A graph at some degrees: the best sharding or cut of its kernels, or the reason for none.

Devices of a group for ``tp`` are neighbours; those of ``dp`` come next, those of ``pp`` are
farthest apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from meshwright.base.errors import UnsupportedError
from meshwright.dataflow.answer import SLOWER, RefusedDegrees, SplitPlan, parts_of_step
from meshwright.dataflow.branches import OpenDims, least_of_branches
from meshwright.dataflow.gradient_sums import GradientSums, SumsBound
from meshwright.dataflow.price import EXPOSED, NETWORK_ONLY, Residency, SplitTimes, TimeWeights
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.dataflow.sharding import PROVEN, GraphSharding, SplitTables, choose_for_largest
from meshwright.dataflow.stages import (
    KernelStage,
    StagePrice,
    StageTime,
    StageWork,
    cut_stages,
    sent_bytes,
)  # fmt: skip
from meshwright.graph.kernels.backward import forward_kernels
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Unit
from meshwright.graph.op import Phase
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import OptimizerPreset

LITTLE = 1e-6
OVERLAP_MEANS = tuple(
    TimeWeights(share, 1.0 - share) for share in (1.0 - LITTLE, LITTLE, 0.5, 0.75, 0.25)
)
"""Means of computation and collectives; where only one counts, a little of the other decides
between equals."""


@dataclass(frozen=True)
class DegreePricing:
    """A graph on a system: the best plan, or a refusal, for any degrees."""

    graph: DataflowGraph
    system: CalibratedSystem
    num_passes: int = 1
    """Passes of one step over all replicas: samples, where the graph is one sample."""
    optimizer: OptimizerPreset | None = None
    """Optimizer, by which a parameter is priced; needed where the graph makes gradients of
    weights."""
    hides_network: bool = False
    """Whether collectives overlap the computation of other inputs, as on chips through which tiles
    flow; else one waits for the other."""
    stage_time: StageTime | None = None
    """Prices a stage once its kernels are split, in place of the roofline: fusion on a chip."""
    only_best: bool = False
    """Whether plans that a bound shows to be slower than a known one may be refused, and a gap that
    takes integer programs stays open where ``stage_time`` prices stages: for many questions."""

    @property
    def closes_gaps(self) -> bool:
        """Whether integer programs may close the gap of a plan."""
        return self.stage_time is None or not self.only_best

    def priced(
        self, tp: int, pp: int, dp: int, *, is_final: bool = True, enough_s: float = inf
    ) -> SplitPlan | RefusedDegrees:
        """Return the best plan of some degrees, or the reason for no plan.

        Parameters
        ----------
        is_final
            False: a first look, which leaves the gap open that comes from a limit on memory.
        enough_s
            Time of a plan that is known: a graph is not cut where that cannot be faster [s].
        """
        if (at := self.of_batch(dp)) is None:
            return RefusedDegrees("more replicas than passes")
        if at is not self:
            plan = at.priced(tp, pp, dp, is_final=is_final, enough_s=enough_s)
            parts = at.num_passes // self.num_passes
            return replace(plan, batch_parts=parts) if isinstance(plan, SplitPlan) else plan
        if tp > max(self.graph.sizes.values()):
            return RefusedDegrees("no dim has so many parts")
        if self.graph.repeats > 1 and not self.is_repeated(pp):
            return RefusedDegrees("more stages than repetitions")
        if dp > 1 and self._bytes_per_row is not None:
            return RefusedDegrees("rows of tables are updated by one replica")
        if self.is_repeated(pp):
            return self._repeated(tp, pp, dp, is_final, enough_s if self.only_best else inf)
        if forward_kernels(self.graph) is None:
            return RefusedDegrees("gradients without the name of their kernel")
        if self.least_s(tp, pp, dp, is_final=False) >= enough_s:
            return RefusedDegrees(SLOWER)
        return self._cut(tp, pp, dp, enough_s)

    def of_batch(self, dp: int) -> DegreePricing | None:
        """Return the pricing of passes of a part of the batch where replicas are more than passes.

        None where they have no equal numbers of parts.
        """
        if dp <= self.num_passes:
            return self
        parts, dims = dp // self.num_passes, self.graph.batch_dims
        if dp % self.num_passes or not dims or self.graph.sizes[dims[0]] < parts:
            return None
        return replace(self, graph=self.graph.part_of_batch(parts), num_passes=dp)

    def is_repeated(self, pp: int) -> bool:
        """Return whether stages are made of whole repetitions."""
        return pp == 1 or pp <= self.graph.repeats

    def _repeated(
        self, tp: int, pp: int, dp: int, is_final: bool, most_s: float
    ) -> SplitPlan | RefusedDegrees:
        """Return the plan with repetitions of the graph as stages."""
        layers, passes = -(-self.graph.repeats // pp), -(-self.num_passes // dp)
        rounds = passes + pp - 1
        seconds = self._seconds(tp, dp, self._residency(layers, min(pp, passes)))
        sums = self._gradient_sums(tp, dp, layers, self.graph.kernels)
        plain = self._sums(seconds)
        lines = [(*self._line(seconds, bound), bound.hidden) for bound in sums.bounds]
        fixed_s = min(fixed for _, fixed, _ in lines)
        each_s = lines[0][0] / rounds
        found = choose_for_largest(
            [_charged(one, seconds, slope / rounds, hidden / rounds)
             for slope, _, hidden in lines for one in plain],
            self.system.usable_bytes, uses_program=is_final and len(lines) == 1,
        )  # fmt: skip
        if not found:
            return RefusedDegrees("memory")
        tables, network = seconds.tables(), seconds.tables(NETWORK_ONLY)
        works = [
            StageWork(self.graph, tp, replace(one, tables=tables), network, layers=layers,
                      num_passes=passes, most_s=most_s / rounds)
            for one in found
        ]  # fmt: skip
        priced = [(price, n) for n, work in enumerate(works)
                  if (price := self._stage(work, seconds, each_s, plain)) is not None]  # fmt: skip
        if not priced:
            return RefusedDegrees("memory of a chip")

        def once_a_step(work: StageWork) -> tuple[float, float]:
            params = _parameters(seconds, work.sharding)
            window_s = layers * _backward_s(seconds, work.sharding)
            return sums.time_s(params, window_s), self._update_s(params)

        price, number = min(
            priced, key=lambda one: rounds * one[0].time_s + sum(once_a_step(works[one[1]]))
        )
        if price.time_s == inf:
            return RefusedDegrees(SLOWER, rounds * min(one.bound_s for one, _ in priced) + fixed_s)
        work = works[number]
        if is_final and self.stage_time is not None:
            price, work = self._refined(price, work, seconds, each_s, plain)
            price = replace(price, bound_s=self._bound_of_branches(price, work, plain))
        sharding, send_s = work.sharding, 0.0
        if pp > 1:
            links = self.system.links(tp * dp, pp)
            num_bytes = sent_bytes(self.graph, tp, sharding)
            send_s = links.time_s(CollectiveKind.SEND, num_bytes)
        gradient_s, update_s = once_a_step(work)
        pass_s = max(price.time_s, send_s)
        return SplitPlan(
            tp=tp, pp=pp, dp=dp, layers_per_stage=layers, num_passes=passes, sharding=sharding,
            parts_s=parts_of_step(
                num_passes=passes, pass_s=pass_s, bubble_s=(pp - 1) * pass_s,
                gradient_s=gradient_s, update_s=update_s,
            ),
            stage_s=price.time_s, send_s=send_s, held_bytes=sharding.held_bytes,
            lower_bound_s=max(
                rounds * price.bound_s + fixed_s,
                self._apart_s(seconds, plain, sums, rounds) if len(lines) > 1 else 0.0,
            ),
        )  # fmt: skip

    def _apart_s(
        self, seconds: SplitTimes, plain: Sequence[SplitTables], sums: GradientSums, rounds: int
    ) -> float:
        """Return a bound of the step: passes, sums and update, each at its best [s]."""
        layers = seconds.residency.layers
        fewest = layers * sum(float(params.min()) for params in seconds.parameters)
        window_s = layers * sum(
            float(costs.max())
            for kernel, costs in zip(self.graph.kernels, seconds.compute_s, strict=True)
            if kernel.phase is not Phase.FORWARD
        )
        alone = choose_for_largest(plain, self.system.usable_bytes, uses_program=False)
        passes_s = rounds * layers * max(one.lower_bound for one in alone)
        return passes_s + sums.time_s(fewest, window_s) + self._update_s(fewest)

    def _line(self, seconds: SplitTimes, bound: SumsBound) -> tuple[float, float]:
        """Return a line below the time of parameters once a step: seconds for each, and the rest.

        Collectives have the time of their fastest algorithm, which is concave in the bytes: the
        chord between the fewest and the most parameters lies below it.
        """
        few, many = (
            seconds.residency.layers * sum(float(pick(params)) for params in seconds.parameters)
            for pick in (np.min, np.max)
        )
        low, high = (bound.least_s(p) + self._update_s(p) for p in (few, many))
        slope = (high - low) / (many - few) if many > few else 0.0
        return slope, low - slope * few

    def _refined(
        self, price: StagePrice, work: StageWork, seconds: SplitTimes, each_s: float,
        plain: Sequence[SplitTables],
    ) -> tuple[StagePrice, StageWork]:  # fmt: skip
        """Return a stage that no other split of a single kernel makes faster, and its price."""
        tried = {work.sharding.ways}
        is_better = True
        while is_better and price.time_s > price.bound_s * (1.0 + PROVEN):
            is_better = False
            for ways in work.sharding.neighbours:
                if ways in tried:
                    continue
                tried.add(ways)
                sharding = work.sharding.at(ways)
                if sharding.held_bytes > self.system.usable_bytes:
                    continue
                other = replace(work, sharding=sharding, most_s=price.time_s)
                found = self._stage(other, seconds, each_s, plain)
                if found is not None and found.time_s < price.time_s:
                    price, work, is_better = replace(found, bound_s=price.bound_s), other, True
        return price, work

    def _bound_of_branches(
        self, price: StagePrice, work: StageWork, plain: Sequence[SplitTables]
    ) -> float:
        """Return the bound of a stage with the splits of its largest kernels told apart [s]."""
        stage, kernels = self.stage_time, self.graph.kernels
        if stage is None or price.time_s <= price.bound_s * (1.0 + PROVEN):
            return price.bound_s
        least = [float(costs.min()) for costs in plain[0].costs]
        order = sorted(range(len(kernels)), key=lambda kernel: -least[kernel])

        def bound_s(dims: OpenDims) -> float:
            """Return the larger one of the least mean, and of fusion where that is below."""
            alone = choose_for_largest(
                [tables.over(dims) for tables in plain], self.system.usable_bytes,
                uses_program=False,
            )  # fmt: skip
            if not alone:
                return inf
            mean_s = work.layers * alone[0].lower_bound
            if mean_s >= price.time_s:
                return mean_s
            return max(mean_s, stage.bound_s(work, dims, price.time_s))

        names = [kernels[number].name for number in order]
        dims = plain[0].open_dims
        return least_of_branches(dims, names, bound_s, price.time_s, price.bound_s)

    def _stage(
        self, work: StageWork, seconds: SplitTimes, each_s: float, plain: Sequence[SplitTables]
    ) -> StagePrice | None:
        """Return the price of a pass through a stage: by its sharding, or by ``stage_time``.

        Parameters
        ----------
        each_s
            Time of a parameter once a step, spread over the passes: part of the bound [s].
        plain
            Tables of a pass alone; the largest of their sums counts.
        """
        sharding, least = work.sharding, sum(float(p.min()) for p in seconds.parameters)
        if self.stage_time is None:
            pass_s = max(tables.cost(sharding.ways) for tables in plain)
            return StagePrice(work.layers * pass_s, work.layers * sharding.lower_bound)
        price = self.stage_time.price(work)
        if price is None:
            return None
        bound_s = max(
            price.bound_s + work.layers * each_s * least, work.layers * sharding.lower_bound
        )
        return replace(price, bound_s=bound_s)

    def _cut(self, tp: int, pp: int, dp: int, enough_s: float) -> SplitPlan | RefusedDegrees:
        """Return the plan with parts of the graph as stages."""
        passes, limit = -(-self.num_passes // dp), self.system.usable_bytes
        seconds = self._seconds(tp, dp, self._residency())
        every = self._sums(seconds)
        sums = [tables for one in every if (tables := one.within(limit)) is not None]
        if not sums:
            return RefusedDegrees("memory")
        links = self.system.links(tp * dp, pp)
        try:
            found = cut_stages(
                sums, pp, lambda b: links.time_s(CollectiveKind.SEND, b), most=enough_s / passes
            )
        except UnsupportedError:
            return RefusedDegrees(
                "too many branches side by side for stages",
                self.least_s(tp, pp, dp, is_final=self.closes_gaps),
            )
        if found is None:
            return RefusedDegrees(SLOWER)
        bound_s = self.least_s(tp, pp, dp, found.lower_bound, is_final=self.closes_gaps)
        held = max(self._held_bytes(tp, found.stages, passes))
        if held > limit:
            return RefusedDegrees("memory of the fastest stages", bound_s)
        slowest = max(found.stages, key=lambda stage: stage.cost)
        once = [self._once_a_step(tp, dp, seconds, stage) for stage in found.stages]
        gradient_s, update_s = max(once, key=sum)
        return SplitPlan(
            tp=tp, pp=len(found.stages), dp=dp, layers_per_stage=1, num_passes=passes,
            stages=found.stages,
            parts_s=parts_of_step(
                num_passes=passes, pass_s=max(slowest.busy, slowest.send),
                bubble_s=sum(stage.cost for stage in found.stages) - slowest.cost,
                gradient_s=gradient_s, update_s=update_s,
            ),
            stage_s=slowest.busy, send_s=slowest.send, held_bytes=held, lower_bound_s=bound_s,
        )  # fmt: skip

    def _residency(self, layers: int = 1, passes_in_flight: int = 1) -> Residency:
        bytes_per_param = None
        if (preset := self._trained) is not None:
            bytes_per_param = (
                preset.weight_bytes_per_param
                + preset.gradient_bytes_per_param
                + preset.state_bytes_per_param
            )
        return Residency(layers, passes_in_flight, bytes_per_param, self._bytes_per_row)

    def _held_bytes(self, tp: int, stages: Sequence[KernelStage], passes: int) -> Iterator[float]:
        """Yield the memory of a device of each stage, from the last to the first [bytes].

        One pass goes forward, one backward: the last of three stages holds one, the first three.
        """
        once, twice = (
            self._seconds(tp, 1, self._residency(passes_in_flight=number)).held_bytes
            for number in (1, 2)
        )
        for later, stage in enumerate(reversed(stages), start=1):
            in_flight, inside = min(later, passes), set(stage.kernels)
            kept = {
                edge.producer
                for edge in self.graph.edges
                if edge.consumer in inside
                and self.graph.kernels[edge.consumer].phase is not Phase.FORWARD
            }
            more = [(b - a) * (n in kept) for n, (a, b) in enumerate(zip(once, twice, strict=True))]
            yield (
                stage.total(once) + (in_flight - 1) * stage.total(more)
                + in_flight * stage.kept_bytes
            )  # fmt: skip

    def _once_a_step(
        self, tp: int, dp: int, seconds: SplitTimes, stage: KernelStage
    ) -> tuple[float, float]:
        """Return the sums of gradients over replicas, and the update, of one stage [s]."""
        kernels, params = self.graph.kernels, stage.total(seconds.parameters)
        back = [
            costs if kernel.phase is not Phase.FORWARD else np.zeros(len(costs))
            for kernel, costs in zip(kernels, seconds.compute_s, strict=True)
        ]
        sums = self._gradient_sums(tp, dp, 1, [kernels[number] for number in stage.kernels])
        return sums.time_s(params, stage.total(back)), self._update_s(params)

    def repeated_least_s(self, tp: int, pp: int, dp: int) -> float:
        """Return a bound of plans with repetitions as stages [s]: computation alone."""
        at = self.of_batch(dp)
        if at is None or not self.is_repeated(pp):
            return 0.0
        if at is not self:
            return at.repeated_least_s(tp, pp, dp)
        layers, passes = -(-self.graph.repeats // pp), -(-self.num_passes // dp)
        return (passes + pp - 1) * layers * self._computation_s(tp)

    def _computation_s(self, tp: int) -> float:
        """Return the least computation of one repetition and pass [s]."""
        if self.stage_time is None:
            return sum(float(costs.min()) for costs in self._seconds(tp, 1, Residency()).compute_s)
        work = sum(k.flops(self.graph.sizes) for k in self.graph.kernels if k.unit is Unit.MATRIX)
        num_devices, rate = self.system.spec.num_alive, self.system.peak_flops_per_s(self.graph)
        return work * num_devices / (tp * rate)

    def least_s(
        self, tp: int, pp: int, dp: int, slowest_s: float = 0.0, *, is_final: bool = True
    ) -> float:
        """Return a bound of all cuts [s]: the graph on one group, spread evenly over the stages.

        Parameters
        ----------
        slowest_s
            Seconds that the slowest stage of every cut takes [s].
        is_final
            False: the bound of means alone, without integer programs: a little lower.
        """
        passes = -(-self.num_passes // dp)
        seconds = self._seconds(tp, dp, self._residency())
        sums = self._sums(seconds, is_cut=True)
        whole = choose_for_largest(sums, uses_program=is_final)
        total = whole[0].lower_bound if whole else 0.0
        least = max(float(costs.min()) for tables in sums for costs in tables.costs)
        fewest = sum(float(params.min()) for params in seconds.parameters)
        pass_s = max(total / pp, least, slowest_s)
        return max(total, slowest_s) + (passes - 1) * pass_s + self._update_s(fewest / pp)

    def _seconds(self, tp: int, dp: int, residency: Residency) -> SplitTimes:
        return SplitTimes(self.graph, self.system, tp, residency, -(-self.num_passes // dp))

    def _sums(self, seconds: SplitTimes, *, is_cut: bool = False) -> list[SplitTables]:
        """Return the tables of all means of computation and collectives."""
        means = OVERLAP_MEANS if self.hides_network else (EXPOSED,)
        if self.stage_time is None:
            return [seconds.tables(mean, is_cut=is_cut) for mean in means]
        columns = self.stage_time.compute_s(seconds)
        found = []
        for mean in means:
            sent = seconds.tables(replace(mean, compute=0.0), is_cut=is_cut)
            costs = zip(sent.costs, columns, strict=True)
            found.append(replace(sent, costs=tuple(n + mean.compute * c for n, c in costs)))
        return found

    @property
    def _trained(self) -> OptimizerPreset | None:
        """The optimizer where the graph makes gradients of weights."""
        return self.optimizer if self.graph.trains else None

    @property
    def _bytes_per_row(self) -> float | None:
        """State of a row of a table; None where tables are trained like other weights, or not."""
        tables = any(kernel.unit is Unit.NONE and kernel.weights for kernel in self.graph.kernels)
        return self._trained.row_state_bytes if self._trained and tables else None

    def _gradient_sums(
        self, tp: int, dp: int, layers: int, kernels: Sequence[Kernel]
    ) -> GradientSums:
        """Return the sums of gradients over replicas, a bucket for each kernel with weights."""
        each = self._trained.reduced_gradient_bytes_per_param if self._trained else 0.0
        holders = sum(
            bool(k.weights) and k.phase is Phase.FORWARD and k.unit is not Unit.NONE
            for k in kernels
        )
        return GradientSums(
            self.system.links(tp, dp) if dp > 1 else None, each,
            most_buckets=max(layers * holders, 1) if self.stage_time is None else 1,
            slowdown=float(self.system.calibration.overlap_slowdown),
        )  # fmt: skip

    def _update_s(self, params: float) -> float:
        """Return the seconds of the update of parameters [s]."""
        if self._trained is None:
            return 0.0
        moved = params * self._trained.step_traffic_bytes_per_param
        return moved / float(self.system.engine(self.graph).memory_bytes_per_s)


def _charged(tables: SplitTables, seconds: SplitTimes, each_s: float, hidden: float) -> SplitTables:
    """Return tables with seconds of each parameter, and a share of backward computation less."""
    columns = zip(
        seconds.graph.kernels, tables.costs, seconds.parameters, seconds.compute_s, strict=True
    )
    return replace(tables, costs=tuple(
        cost + each_s * params - hidden * (kernel.phase is not Phase.FORWARD) * compute
        for kernel, cost, params, compute in columns
    ))  # fmt: skip


def _backward_s(seconds: SplitTimes, sharding: GraphSharding) -> float:
    """Return the computation of the backward pass of one repetition [s]."""
    chosen = zip(seconds.graph.kernels, seconds.compute_s, sharding.ways, strict=True)
    return sum(float(costs[way]) for k, costs, way in chosen if k.phase is not Phase.FORWARD)


def _parameters(seconds: SplitTimes, sharding: GraphSharding) -> float:
    """Return the parameters on a device, over all repetitions."""
    chosen = zip(seconds.parameters, sharding.ways, strict=True)
    return seconds.residency.layers * sum(float(params[way]) for params, way in chosen)
