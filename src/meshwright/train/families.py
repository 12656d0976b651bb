"""Families of candidates and their members, priced by the exhaustive search.

A family is a row of degrees under a set of plan options; members differ in how data-parallel
replicas are divided into shards, in the ZeRO stage and in offload. Members cost no more than a few
sums each, so a whole family is refused or bounded at once. Collectives over the data-parallel axes
are priced once for every grid and every division of the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from itertools import product
from typing import Any

import numpy as np

from meshwright.base.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    column,
    groups_of,
    joined,
    larger,
    take_rows,
)
from meshwright.base.cluster import every_answer
from meshwright.base.errors import InfeasibleError
from meshwright.cost.bound import Layers, best_paces, layer_prices, pipeline_price
from meshwright.cost.communication import (
    DATA_PARALLEL_ONLY,
    AxisNetwork,
    AxisPlacement,
    Collectives,
    crosses_data_parallel_network,
    plain,
)
from meshwright.cost.energy import least_pipeline_s, throttled
from meshwright.cost.layer import layer_keys, prices_of, recomputes_of
from meshwright.cost.memory import (
    Room,
    ShardDegrees,
    StageState,
    room_for,
    shard_degrees,
    step_memory,
)
from meshwright.cost.parts import StepTime
from meshwright.cost.pipeline import (
    PipelinePrice,
    jitter_fraction,
    micro_batches,
)
from meshwright.cost.problem import Problem
from meshwright.cost.step import (
    DataParallelLinks,
    SyncLinks,
    send_s,
    step_time,
    step_times,
    sync_links,
)
from meshwright.search.exhaustive import Counts
from meshwright.sharding.axes import all_rules, first_refusals
from meshwright.sharding.launching import has_zero, launched, recomputes_beside_experts
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import (
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    StrategyColumns,
    Streamed,
    make_strategy,
    row,
    stack,
    take,
)
from meshwright.train.space import (
    EXPERTS_REGROUP,
    GRID_AXES,
    SearchSpace,
    dp_shard_degrees,
    experts_regroup,
    is_divided,
    is_whole,
    member_choices,
    num_divisions,
    orders_of,
)

ROUNDING = 1e-9
"""Largest relative difference between sums of the same parts in another order [1]."""


@dataclass(frozen=True)
class Families:
    """Legal families with the shared part of their price; one row each."""

    option_sets: tuple[PlanOptions, ...]
    option_set_of: IntArray
    """Index into ``option_sets`` of each row."""
    strategy: StrategyColumns
    priced: IntArray
    """Rows with a price, ascending; others are priced again where they are taken."""
    price: PipelinePrice
    """Price of the rows in ``priced``."""
    num_members: FloatArray
    bound_s: FloatArray
    """Lower bound on the step time of any member [s]; infinite where none can run."""
    least_memory_bytes: FloatArray
    """Lower bound on the memory of the fullest device of any member [bytes]."""

    def __len__(self) -> int:
        return len(self.option_set_of)


class LayerTimes:
    """Least seconds of a micro-batch in all layers, wherever the axes lie, by what splits a layer.

    More data parallelism or pipeline stages leave them as they are, so those of one number of
    devices hold for any other.
    """

    def __init__(self) -> None:
        self._known: dict[PlanOptions, dict[bytes, float]] = {}

    def note(self, layout: PlanOptions, strategy: StrategyColumns, seconds: FloatArray) -> None:
        """Keep the times of some rows [s]; of rows with equal degrees the least."""
        keys, group_of = _layer_degrees(strategy)
        least = np.full(len(keys), np.inf)
        np.minimum.at(least, group_of, seconds)
        self._fold(layout, dict(zip(keys, least.tolist(), strict=True)))

    def add(self, other: LayerTimes) -> None:
        """Keep the times that another one knows."""
        for layout, times in other._known.items():
            self._fold(layout, times)

    def _fold(self, layout: PlanOptions, times: Mapping[bytes, float]) -> None:
        known = self._known.setdefault(layout, {})
        for key, least_s in times.items():
            known[key] = min(least_s, known.get(key, np.inf))

    def of(self, layout: PlanOptions, strategy: StrategyColumns) -> FloatArray:
        """Return the least time of each row [s]; 0 where it is not known."""
        known = self._known.get(layout, {})
        keys, group_of = _layer_degrees(strategy)
        found: FloatArray = np.array([known.get(key, 0.0) for key in keys])[group_of]
        return found


_SPLITS_LAYERS = ("tp", "tatp", "cp", "ep", "etp", "micro_batch_size")


def _layer_degrees(strategy: StrategyColumns) -> tuple[list[bytes], IntArray]:
    """Return a key for each distinct way to split a layer, and the way of each row."""
    columns = [getattr(strategy, name) for name in _SPLITS_LAYERS]
    first, group_of = groups_of(columns)
    table = np.stack([column[first] for column in columns], axis=1)
    return [row.tobytes() for row in table], group_of


@dataclass(frozen=True)
class AllFamilies:
    """Families in the parts in which they were priced; rows count through all of them."""

    space: SearchSpace
    parts: tuple[Families, ...]
    is_complete: bool
    """False after an interrupt: some families are missing."""
    layer_times: LayerTimes

    def column(self, name: str) -> FloatArray:
        """Return a field of all families."""
        return np.concatenate([getattr(part, name) for part in self.parts])

    @cached_property
    def strategy(self) -> StrategyColumns:
        """The degrees of all families."""
        return joined([part.strategy for part in self.parts])

    @property
    def streams(self) -> tuple[object, ...]:
        """Degrees of tensor streams."""
        return tuple(int(n) for n in np.unique(self.strategy.tatp).tolist() if n > 1)

    def take(self, rows: IntArray) -> Families:
        """Return some of the families; their rows ascend."""
        starts = np.cumsum([0, *map(len, self.parts)])
        cuts = np.searchsorted(rows, starts)
        option_sets: list[PlanOptions] = []
        found = []
        for part, start, one, end in zip(self.parts, starts, cuts, cuts[1:], strict=False):
            if end > one:
                some = _taken(self.space, part, rows[one:end] - start)
                found.append(replace(some, option_set_of=some.option_set_of + len(option_sets)))
                option_sets += part.option_sets
        every = joined(found)
        return replace(every, option_sets=tuple(option_sets), priced=np.arange(len(every)))

    def named(self, rows: IntArray) -> list[tuple[PlanOptions, Strategy]]:
        """Return plan options and degrees of some families; their rows ascend."""
        starts = np.cumsum([0, *map(len, self.parts)])
        found = []
        for whole in rows.tolist():
            number = int(np.searchsorted(starts, whole, side="right")) - 1
            part, index = self.parts[number], whole - int(starts[number])
            plan_options = part.option_sets[int(part.option_set_of[index])]
            found.append((plan_options, row(part.strategy, index)))
        return found


MOST_PRICES = 500_000
"""Families that keep their prices, 0.45 GB of them; of more only those that are near the best."""
NEAR = 3.0
"""Largest bound over the least of all families that fit, of families that are near [1]."""


def _near(part: Families, most_s: float, capacity_bytes: float) -> Families:
    """Return families with the prices of those alone that fit and have a small bound."""
    near = (part.bound_s <= most_s) & (part.least_memory_bytes <= capacity_bytes)
    kept = np.flatnonzero(near[part.priced])
    return replace(part, priced=part.priced[kept], price=take_rows(part.price, kept))


def _taken(space: SearchSpace, part: Families, rows: IntArray) -> Families:
    """Return some families without their plan options, all with their price; rows ascend."""
    if np.isin(rows, part.priced).all():
        price = take_rows(part.price, np.searchsorted(part.priced, rows))
    else:
        price = _priced_again(space, part, rows)
    return Families(
        (), part.option_set_of[rows], take(part.strategy, rows), np.arange(len(rows)), price,
        part.num_members[rows], part.bound_s[rows], part.least_memory_bytes[rows],
    )  # fmt: skip


def _priced_again(space: SearchSpace, part: Families, rows: IntArray) -> PipelinePrice:
    """Return the price of some families, from their degrees alone."""
    plan_options = part.option_sets[0]
    by_order = np.argsort(part.option_set_of[rows], kind="stable")
    orders, strategy = part.option_set_of[rows][by_order], take(part.strategy, rows[by_order])
    placed = [space.placement(order, take(strategy, orders == number))
              for number, order in enumerate(space.orders)]  # fmt: skip
    problem = _at_best_pace(space, strategy)
    network = problem.network_with(joined(placed), strategy)
    kinds = recomputes_of(plan_options)
    tables, _, groups, sends_s = _layer_table(problem, plan_options, network, kinds)
    layers = take_rows(prices_of(plan_options, tables), groups)
    price = pipeline_price(problem, plan_options, strategy, layers, sends_s)
    return take_rows(price, np.argsort(by_order))


def _bound_s(problem: Problem, strategy: StrategyColumns, price: PipelinePrice) -> FloatArray:
    """Return a lower bound on the step time of each family [s]; infinite where none can run.

    It is the step without data-parallel communication, update and offload; under a power cap also
    the time in which its passes stay below the cap.
    """
    nothing = plain(0.0 * price.jitter)
    alone = step_time(
        price, nothing, nothing.exposed_s, nothing,
        sigma=problem.calibration.overlap_slowdown,
    )  # fmt: skip
    bound_s = column(alone.total_s) * (1.0 - ROUNDING)
    if problem.system.is_power_capped:
        drawn_s = least_pipeline_s(problem, strategy, price) * (1.0 - ROUNDING)
        bound_s = np.maximum(bound_s, drawn_s)
    return bound_s


def _least_memory_bytes(
    space: SearchSpace, strategy: StrategyColumns, price: PipelinePrice
) -> FloatArray:
    """Return a lower bound on the memory of the fullest device of each family [bytes].

    Everything is sharded, and offloaded where any stage allows it. Layers that sharding or offload
    loads for a while are left out, so that no member needs less than this.
    """
    problem, kinds = _at_best_pace(space, strategy), space.offloads
    stage = max(stage for stage, _ in space.zero_choices)
    shards = shard_degrees(problem, strategy)
    found = []
    leanest_kinds = (Offload.ALL, Offload.STATE)  # no other kind takes more off the device
    has_both = set(leanest_kinds) <= set(kinds)
    for kind in leanest_kinds if has_both else kinds or (Offload.NONE,):
        leanest = PlanOptions(zero_stage=stage, offload=kind)
        uses = step_memory(problem, leanest, shards, price.states, is_bound=True)
        found.append(reduce(larger, [column(use.total_bytes) for use in uses]))
    least: FloatArray = reduce(np.minimum, found)
    return least


def rows_within(every: AllFamilies, space: SearchSpace) -> BoolArray:
    """Return the families inside a space of fewer degrees or kinds of recomputation.

    The other choices of the space must be those of the families, but for the ZeRO stage and
    offload, on which only members differ.
    """
    allowed = space.choices.allowed
    keep = np.concatenate([
        np.full(len(part), space.choices.keeps("recompute", part.option_sets[0].recompute))
        for part in every.parts
    ])  # fmt: skip
    for name in ("tp", "tatp", "cp", "dp", "pp", "ep", "etp"):
        if name in allowed:
            degrees = np.array(allowed[name], dtype=float)
            keep &= np.isin(getattr(every.strategy, name), degrees)
    return keep


_OF_LAYER = ("vocabulary_parallel", "recompute_modules", "kept_tensors", "offloaded_tensors")
_OF_PIPELINE = ("embedding_layers", "head_layers", "stage_layers", "overlap_expert_parallel")
"""Choices that are searched only where the user states values of them."""


def _stated(space: SearchSpace, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return each combination of the stated values of choices; the usual value where none is."""
    values = [space.choices.allowed.get(name, (getattr(PlanOptions, name),)) for name in names]
    return [dict(zip(names, chosen, strict=True)) for chosen in product(*values)]


def layout_option_sets(space: SearchSpace) -> Iterator[PlanOptions]:
    """Yield the sets of plan options that a layer sees; the order of the axes is left open."""
    keeps, stated = space.choices.keeps, _stated(space, _OF_LAYER)
    kinds = product((True, False), ContextKind, space.stream_choices, stated)
    for sequence_parallel, kind, (streamed, form), others in kinds:
        if keeps("sequence_parallel", sequence_parallel) and keeps("context_kind", kind):
            yield PlanOptions(
                sequence_parallel=sequence_parallel,
                context_kind=kind,
                zero_stage=0,
                overlap_data_parallel=space.overlaps_data_parallel,
                overlap_tensor_parallel=space.overlaps_tensor_parallel(sequence_parallel),
                streamed=streamed,
                stream_form=form,
                **others,
            )


def rows_of_layout(
    space: SearchSpace, columns: StrategyColumns, plan_options: PlanOptions
) -> BoolArray:
    """Return the rows with a set of plan options that is no other one under a different name.

    Without tp there is no sequence parallelism, without cp only one kind of it, without tatp one
    kind of stream. Both tensors stream on blocks of tp x tatp devices.
    """
    keep = np.ones(len(columns.tp), dtype=bool)
    if (plan_options.streamed, plan_options.stream_form) != space.stream_choices[0]:
        keep &= columns.tatp > 1
    if plan_options.streamed is Streamed.BOTH:
        keep &= (columns.tatp > 1) & plan_options.sequence_parallel
    if plan_options.sequence_parallel:
        keep &= columns.tp > 1
    if plan_options.context_kind is not ContextKind.RING:
        keep &= columns.cp > 1
    return keep


def schedules_of(space: SearchSpace) -> tuple[ScheduleKind, ...]:
    """Return the schedules that are allowed."""
    return tuple(kind for kind in ScheduleKind if space.choices.keeps("schedule", kind))


def pipelines_of(space: SearchSpace, layout: PlanOptions) -> Iterator[PlanOptions]:
    """Yield the plan options of pipelines: each schedule, with the allowed other choices."""
    for kind, others in product(schedules_of(space), _stated(space, _OF_PIPELINE)):
        yield replace(layout, schedule=kind, **others)


def rows_of_schedule(columns: StrategyColumns, kind: ScheduleKind) -> BoolArray:
    """Return the rows that a schedule applies to; one stage needs no schedule and gets 1F1B."""
    has_chunks: BoolArray = columns.num_virtual_stages > 1
    if kind is ScheduleKind.INTERLEAVED:
        return has_chunks
    if kind is ScheduleKind.ONE_F_ONE_B:
        return ~has_chunks
    has_stages: BoolArray = columns.pp > 1
    return ~has_chunks & has_stages


def priced_parts(
    space: SearchSpace, tables: Iterable[StrategyColumns], counts: Counts, times: LayerTimes, *,
    within_s: float = np.inf, keeps_all: bool = False,
) -> tuple[tuple[Families, ...], bool]:  # fmt: skip
    """Return the legal families of all sets of plan options, and whether they are complete.

    An interrupt leaves some out. The members of refused families are counted, and those of families
    with layers that take longer than ``within_s`` by themselves.

    Parameters
    ----------
    times
        Times of layers that are known; those of the priced layers join them.
    keeps_all
        Whether all families keep their prices: those of a search that leaves none out.
    """
    parts: list[Families] = []
    capacity_bytes = space.problem.system.chip.main_memory.capacity_bytes
    least_s, number = float(np.inf), 0
    try:
        for columns in tables:
            for part in _families(space, columns, counts, times, within_s):
                fits = part.least_memory_bytes <= capacity_bytes
                least_s = float(part.bound_s[fits].min(initial=least_s))
                number += len(part)
                is_kept = keeps_all or number <= MOST_PRICES
                parts.append(part if is_kept else _near(part, NEAR * least_s, capacity_bytes))
    except KeyboardInterrupt:
        return tuple(parts), False
    return tuple(parts), True


def families(
    space: SearchSpace, tables: Iterable[StrategyColumns], counts: Counts, *, keeps_all: bool
) -> AllFamilies:
    """Return the legal families of all plan options, and count the members of the refused ones."""
    if not (space.zero_choices and space.offloads):
        raise InfeasibleError(
            "the choices contradict each other: no way to shard or offload is left"
        )
    times = LayerTimes()
    parts, is_complete = priced_parts(space, tables, counts, times, keeps_all=keeps_all)
    if not (parts or is_complete):
        raise KeyboardInterrupt
    if not parts and not counts.refused:
        raise InfeasibleError(f"the choices contradict each other: no strategy has {space.choices}")
    if not parts:
        name, _ = counts.refused.most_common(1)[0]
        why = (
            f"; most of them by {name}: {all_rules()[name].explanation}"
            if name in all_rules()
            else ""
        )
        raise InfeasibleError(f"every candidate is refused by a rule: {counts.summary}{why}")
    return AllFamilies(space, parts, is_complete, times)


@dataclass(frozen=True)
class _Rows:
    """Degrees that are judged under each set of plan options, with all that no option changes."""

    strategy: StrategyColumns
    is_tried: BoolArray
    """Whether each order of the axes is tried, shape (rows, orders)."""
    num_members: FloatArray
    """Legal members under one order and one kind of recomputation."""
    num_regrouped: FloatArray
    """Members whose experts find no devices (``EXPERTS_REGROUP``)."""

    def __len__(self) -> int:
        return len(self.num_members)


def _families(
    space: SearchSpace, columns: StrategyColumns, counts: Counts, times: LayerTimes,
    within_s: float,
) -> Iterator[Families]:  # fmt: skip
    """Yield the legal families of each set of plan options for some degrees."""
    whole, sharded = member_choices(space, columns)
    legal, regrouped = num_divisions(space, columns)
    table = _Rows(
        columns, orders_of(space, columns).T, whole + legal * sharded, regrouped * sharded
    )
    number, layouts = space.cluster.num_workers, list(layout_option_sets(space))
    rows_of = [np.flatnonzero(rows_of_layout(space, columns, layout)) for layout in layouts]
    if number == 1 or len(table) < LEAST_ROWS:
        for layout, rows in zip(layouts, rows_of, strict=True):
            yield from _of_layout(space, layout, take_rows(table, rows), counts, times, within_s)
        return
    num_runs = -(-RUNS_OF_WORKER * number // len(layouts))
    asked = [(space.of_worker, layout, take_rows(table, run), times, within_s)
             for layout, rows in zip(layouts, rows_of, strict=True)
             for run in np.array_split(rows, num_runs)]  # fmt: skip
    found = [*every_answer(space.cluster, _of_run, asked)]
    for first in range(0, len(found), num_runs):
        runs = found[first : first + num_runs]
        by_options: dict[PlanOptions, list[Families]] = {}
        for parts, counted, noted in runs:
            counts.add(counted)
            times.add(noted)
            for part in parts:
                by_options.setdefault(part.option_sets[0], []).append(part)
        yield from map(_of_runs, by_options.values())


LEAST_ROWS = 2_048
"""Rows of degrees that workers share at least."""
RUNS_OF_WORKER = 2
"""Runs of rows of one layout for each worker, about."""
MOST_SENT = 32_768
"""Families of a run that come back with their prices: those with the least bounds."""


def _of_run(
    asked: tuple[SearchSpace, PlanOptions, _Rows, LayerTimes, float],
) -> tuple[list[Families], Counts, LayerTimes]:
    """Return the legal families of a layout on a worker, the counts of the others, and its times.

    The time beyond which no family is wanted comes with the rows.
    """
    (space, layout, rows, times, within_s), counts = asked, Counts()
    parts = list(_of_layout(space, layout, rows, counts, times, within_s))
    capacity_bytes = space.problem.system.chip.main_memory.capacity_bytes
    bounds_s = [part.bound_s[part.least_memory_bytes <= capacity_bytes] for part in parts]
    every_s = np.sort(np.concatenate(bounds_s)) if parts else np.zeros(0)
    most_s = every_s[:MOST_SENT].max(initial=0.0)
    return [_near(part, most_s, capacity_bytes) for part in parts], counts, times


def _of_runs(parts: Sequence[Families]) -> Families:
    """Return the families of equal plan options of all runs of rows, in order of their rows."""
    if len(parts) == 1:
        return parts[0]
    left_out: Any = ()
    bare = [
        replace(part, option_sets=(), priced=part.option_set_of, price=left_out) for part in parts
    ]
    whole, starts = joined(bare), np.cumsum([0, *map(len, parts[:-1])])
    by_order = np.argsort(whole.option_set_of, kind="stable")
    priced = [part.priced + start for part, start in zip(parts, starts, strict=True)]
    place = np.argsort(by_order)[np.concatenate(priced)]
    ascending = np.argsort(place)
    return replace(
        take_rows(whole, by_order),
        option_sets=parts[0].option_sets,
        priced=place[ascending],
        price=take_rows(joined([part.price for part in parts]), ascending),
    )


def _of_layout(
    space: SearchSpace, layout: PlanOptions, rows: _Rows, counts: Counts, times: LayerTimes,
    within_s: float,
) -> Iterator[Families]:  # fmt: skip
    """Yield the legal families of one layout."""
    parts = []
    for plan_options in pipelines_of(space, layout):
        chosen = take_rows(rows, rows_of_schedule(rows.strategy, plan_options.schedule))
        if len(chosen):
            legal = _legal_rows(space, plan_options, chosen, counts)
            if np.isfinite(within_s) and len(legal):
                legal = _rows_within(space, layout, plan_options, legal, counts, times, within_s)
            parts.append((plan_options, legal))
    legal_parts = [(o, r) for o, r in parts if len(r)]
    yield from _priced(space, layout, legal_parts, counts, times, within_s)


def _rows_within(
    space: SearchSpace, layout: PlanOptions, plan_options: PlanOptions, rows: _Rows,
    counts: Counts, times: LayerTimes, within_s: float,
) -> _Rows:  # fmt: skip
    """Return the rows with layers that may take as little as a time; the others are counted."""
    layers_s = times.of(layout, rows.strategy)
    wanted = _layers_of_step_s(space, plan_options, rows.strategy, layers_s) <= within_s
    weight = len(_recomputes(space, plan_options)) * rows.is_tried.sum(axis=1)
    counts.pruned_by_bound += int((rows.num_members * weight)[~wanted].sum())
    return take_rows(rows, wanted)


def _layers_of_step_s(
    space: SearchSpace, plan_options: PlanOptions, strategy: StrategyColumns, layers_s: FloatArray
) -> FloatArray:
    """Return a lower bound on the time of a step [s], from that of a micro-batch in all layers.

    The slowest of p stages takes at least 1/p of it, each time. 0 where batches share their time.
    """
    if plan_options.overlap_expert_parallel:
        return 0.0 * layers_s
    jitter = jitter_fraction(strategy.num_devices, space.problem.calibration.jitter)
    m = micro_batches(space.problem, strategy)
    seconds: FloatArray = (1.0 + jitter) * m * layers_s / strategy.pp
    return seconds


def _legal_rows(
    space: SearchSpace, plan_options: PlanOptions, rows: _Rows, counts: Counts
) -> _Rows:
    """Return the rows that no rule refuses; refused families count with all their members."""
    problem = space.problem
    chip = problem.system.chip
    weight = len(_recomputes(space, plan_options)) * rows.is_tried.sum(axis=1)
    members = (rows.num_members + rows.num_regrouped) * weight
    is_legal = np.ones(len(rows), dtype=bool)
    case = Case(
        problem.model, problem.workload, plan_options, rows.strategy,
        chip.tile_rows, chip.tile_columns,
    )  # fmt: skip
    for name, refused in first_refusals(case):
        counts.refused[name] += int(members[refused].sum())
        is_legal[refused] = False
    counts.refused[EXPERTS_REGROUP] += int((rows.num_regrouped * weight)[is_legal].sum())
    return take_rows(rows, is_legal)


def _recomputes(space: SearchSpace, plan_options: PlanOptions) -> tuple[PlanOptions, ...]:
    """Return the plan options under each kind of recomputation.

    Full recomputation has the layers of each chunk, or else of a run; selective recomputation has
    the modules.
    """
    launches = space.launches
    numbers = [
        one
        for one in _stated(space, ("recompute_layers", "recompute_run"))
        if not one["recompute_layers"] or one["recompute_run"] == 1
    ]
    if launches is not None:
        numbers = [
            one
            for one in numbers
            if (launches.recompute_layers or not one["recompute_layers"])
            and (launches.recompute_runs or one["recompute_run"] == 1)
        ]
    if not recomputes_beside_experts(launches, plan_options):
        numbers = []
    known = None if launches is None else launches.recompute
    kinds = launched((r for r in Recompute if space.choices.keeps("recompute", r)), known)
    if (
        plan_options.recompute_modules
        or plan_options.kept_tensors
        or plan_options.offloaded_tensors
    ):
        kinds = tuple(kind for kind in kinds if kind is Recompute.SELECTIVE)
    return tuple(
        replace(plan_options, recompute=kind, **one)
        for kind in kinds
        for one in (numbers if kind is Recompute.FULL else [{}])
    )


@dataclass(frozen=True)
class _Ordered:
    """Rows of one pipeline, once for each order of the axes to try."""

    plan_options: PlanOptions
    strategy: StrategyColumns
    num_members: FloatArray
    order_of: IntArray
    layout: AxisPlacement


def _ordered(
    space: SearchSpace, plan_options: PlanOptions, legal: _Rows, counts: Counts
) -> _Ordered:
    """Return the rows with their strides, order by order; a network may refuse some orders."""
    columns = legal.strategy
    orders, rows = np.nonzero(legal.is_tried.T)
    if any(level.data_parallel_only for level in space.problem.system.levels):
        refused = _refused_orders(space, columns, orders, rows)
        members = legal.num_members[rows[refused]] * len(_recomputes(space, plan_options))
        counts.refused[DATA_PARALLEL_ONLY] += int(members.sum())
        orders, rows = orders[~refused], rows[~refused]
    parts = [
        space.placement(order, take(columns, rows[orders == number]))
        for number, order in enumerate(space.orders)
    ]
    members = legal.num_members[rows]
    return _Ordered(plan_options, take(columns, rows), members, orders, joined(parts))


def _refused_orders(
    space: SearchSpace, columns: StrategyColumns, orders: IntArray, rows: IntArray
) -> BoolArray:
    """Return the rows with an order where another axis than dp crosses a network for dp only."""
    refused = np.zeros(len(rows), dtype=bool)
    for number, order in enumerate(space.orders):
        of_order = orders == number
        network = space.problem.network(order, take(columns, rows[of_order]))
        refused[of_order] = crosses_data_parallel_network(network)
    return refused


def _priced(
    space: SearchSpace,
    layout: PlanOptions,
    legal: Sequence[tuple[PlanOptions, _Rows]],
    counts: Counts,
    times: LayerTimes,
    within_s: float,
) -> Iterator[Families]:
    """Yield the families of one layout: layers are priced once for all pipelines and orders."""
    kinds = {
        kind: None
        for plan_options in _recomputes(space, layout)
        for kind in recomputes_of(plan_options)
    }
    if not (legal and kinds):
        return
    ordered = [_ordered(space, plan_options, rows, counts) for plan_options, rows in legal]
    parts = [part for part in ordered if len(part.order_of)]
    if not parts:
        return
    network = space.problem.network_with(
        joined([part.layout for part in parts]), joined([part.strategy for part in parts])
    )
    problem = _at_best_pace(space, network.strategy)
    prices, first, groups, sends = _layer_table(problem, layout, network, tuple(kinds))
    if not problem.is_unequal:
        times.note(layout, take(network.strategy, first), _layers_s(problem, prices, "anywhere_s"))
    layers_s = _layers_s(problem, prices)
    start = 0
    for part in parts:
        rows = np.arange(start, start + len(part.order_of))
        start += len(rows)
        members = part.num_members
        step_s = _layers_of_step_s(space, part.plan_options, part.strategy, layers_s[groups[rows]])
        wanted = step_s <= within_s
        recomputes = _recomputes(space, part.plan_options)
        counts.pruned_by_bound += int(members[~wanted].sum()) * len(recomputes)
        if not wanted.any():
            continue
        rows, members = rows[wanted], members[wanted]
        strategy, order_of = take(part.strategy, wanted), part.order_of[wanted]
        for plan_options in recomputes:
            gathered = take_rows(prices_of(plan_options, prices), groups[rows])
            paced = problem.of_rows(rows)
            price = pipeline_price(paced, plan_options, strategy, gathered, sends[rows])
            option_sets = tuple(replace(plan_options, axis_order=order) for order in space.orders)
            yield Families(
                option_sets, order_of, strategy, np.arange(len(members)), price, members,
                _bound_s(space.problem, strategy, price),
                _least_memory_bytes(space, strategy, price),
            )  # fmt: skip


def _at_best_pace(space: SearchSpace, strategy: StrategyColumns) -> Problem:
    """Return the problem at the best pace of each row, where axes are to be placed."""
    problem = space.problem
    if not (space.is_open and problem.is_unequal):
        return problem
    return problem.at_pace(*best_paces(problem, strategy))


def _layers_s(
    problem: Problem, prices: Mapping[Recompute, Layers], name: str = "total_s"
) -> FloatArray:
    """Return a lower bound on the time of a micro-batch in all layers [s].

    It holds for any recomputation. ``anywhere_s`` leaves out rounds of streams too, since they
    depend on the links.
    """
    totals = [
        reduce(np.minimum, (column(getattr(pieces[kind], name)) for pieces in prices.values()))
        * layer.count
        for kind, layer in enumerate(problem.graph.layers)
    ]
    return np.asarray(sum(totals) * (1.0 - ROUNDING))


def _layer_table(
    problem: Problem, layout: PlanOptions, network: AxisNetwork, recomputes: Sequence[Recompute]
) -> tuple[Mapping[Recompute, Layers], IntArray, IntArray, FloatArray]:
    """Return the distinct layer prices, the first row of each, that of each row, and its sends."""
    first, groups = layer_keys(network, layout, problem.pace_keys)
    few = problem.network_with(take_rows(network.placement, first), take(network.strategy, first))
    tables = layer_prices(problem.of_rows(first), layout, few, tuple(recomputes))
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    return tables, first, groups, column(send_s(problem, layout, network.strategy, collectives))


@dataclass(frozen=True)
class PricedBlock:
    """Members that fit, priced; ``plan_options`` holds the choices on which members differ."""

    families: Families
    plan_options: PlanOptions
    family_rows: IntArray
    dp_shard: FloatArray
    price: PipelinePrice
    """Price of all members of a family; states of single stages and mean work are left out."""
    time: StepTime
    memory_bytes: FloatArray

    @cached_property
    def price_with_mean(self) -> PipelinePrice:
        """The price with the mean work of a device, collected on first use."""
        return replace(self.price, mean=take_rows(self.families.price.mean, self.family_rows))

    @cached_property
    def strategy(self) -> StrategyColumns:
        """The degrees of the members, collected on first use."""
        strategy = take(self.families.strategy, self.family_rows)
        replicas = strategy.dp / self.dp_shard
        return replace(strategy, dp_shard=self.dp_shard, dp_replicate=replicas)


@dataclass(frozen=True)
class _Part:
    """Some of the families, contiguous in memory, so that pricing their members stays in cache."""

    families: Families
    links: LinkTable
    rows: IntArray
    price: PipelinePrice


@dataclass(frozen=True)
class _Expansion:
    """Families of a part with their replicas divided into shards."""

    part_rows: IntArray
    link_rows: IntArray
    dp_shard: FloatArray
    shards: ShardDegrees
    states: tuple[StageState, ...]

    def __len__(self) -> int:
        return len(self.part_rows)


def members(
    space: SearchSpace, families: Families, links: LinkTable, rows: IntArray, counts: Counts
) -> Iterator[PricedBlock]:
    """Yield the members of the named families that fit, priced, and count the others.

    Offload is priced only where the same plan does not fit without it: it never makes a step
    faster, so elsewhere its members are dominated, and counted so.
    """
    part = _Part(families, links, rows, take_rows(families.price, rows))
    whole, shards = _whole(space, part), _divided(space, part)
    degrees = take(families.strategy, rows)
    problem = _at_best_pace(space, degrees)
    for (stage, reshard), first in space.first_offloads.items():
        plan_options = PlanOptions(
            zero_stage=stage,
            reshard_after_forward=reshard,
            overlap_data_parallel=space.overlaps_data_parallel,
        )
        of_stage = [(whole, is_whole(space, stage, degrees), first)]
        if stage > 0:
            starts = has_zero(space.launches, stage, degrees)
            of_stage.append((shards, starts, space.offloads_under(stage)))
        for expansion, kept, offloads in of_stage:
            started = take_rows(expansion, np.flatnonzero(kept[expansion.part_rows]))
            if len(started) and offloads:
                yield from _with_offloads(
                    space, problem, part, plan_options, started, offloads, counts
                )


def _with_offloads(
    space: SearchSpace, problem: Problem, part: _Part, plan_options: PlanOptions,
    expansion: _Expansion, offloads: Sequence[Offload], counts: Counts,
) -> Iterator[PricedBlock]:  # fmt: skip
    """Yield the members that fit as they are, then those that fit with a kind of offload only."""
    for number, offload in enumerate(offloads):
        chosen = replace(plan_options, offload=offload)
        paced = problem.of_rows(expansion.part_rows)
        room = room_for(paced, chosen, expansion.shards, expansion.states)
        fits, fitting = room.fits, np.flatnonzero(room.fits)
        counts.priced += len(fitting)
        counts.does_not_fit += len(expansion) - len(fitting)
        _note_shortage(counts, room)
        if len(fitting):
            yield _block(space, part, chosen, expansion, fitting, column(room.device_bytes))
        if number == 0 and offload is Offload.NONE:
            counts.dominated += len(fitting) * (len(offloads) - 1)
            if len(fitting) and len(offloads) > 1:
                expansion = take_rows(expansion, np.flatnonzero(~fits))
        if not len(expansion):
            return


def _note_shortage(counts: Counts, room: Room) -> None:
    """Keep the least memory that a device, or its host, lacks for a row that does not fit."""
    over_host = room.on_device & np.logical_not(room.on_host)
    on_device = column(room.device_bytes)[np.logical_not(room.on_device)]
    on_host = column(room.host_bytes)[over_host]
    counts.over_host += len(on_host)
    counts.least_device_bytes = float(on_device.min(initial=counts.least_device_bytes))
    counts.least_host_bytes = float(on_host.min(initial=counts.least_host_bytes))


def _block(
    space: SearchSpace, part: _Part, plan_options: PlanOptions, expansion: _Expansion,
    rows: IntArray, memory_bytes: FloatArray,
) -> PricedBlock:  # fmt: skip
    """Return some rows of an expansion, priced."""
    part_rows = expansion.part_rows[rows]
    price = take_rows(replace(part.price, states=(), mean=None), part_rows)
    time = step_times(
        space.problem, plan_options, take_rows(expansion.shards, rows), price,
        part.links.take(expansion.link_rows[rows], plan_options.zero_stage),
    )  # fmt: skip
    block = PricedBlock(
        part.families, plan_options, part.rows[part_rows], expansion.dp_shard[rows], price, time,
        memory_bytes[rows],
    )  # fmt: skip
    if not space.problem.system.is_power_capped:
        return block
    slower = throttled(
        space.problem, plan_options, block.strategy, block.price_with_mean, block.time
    )
    return replace(block, time=slower)


def _whole(space: SearchSpace, part: _Part) -> _Expansion:
    """Return the families with all replicas whole: without ZeRO there is no other way."""
    number = len(part.rows)
    link_rows = part.links.whole_row[part.rows]
    return _expansion(space, part, np.arange(number), link_rows, np.ones(number))


def _divided(space: SearchSpace, part: _Part) -> _Expansion:
    """Return the families with every division of their replicas that shards something."""
    counts = part.links.num_divisions[part.rows]
    index = np.repeat(np.arange(len(part.rows)), counts)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    link_rows = part.links.first_division[part.rows][index] + offset
    return _expansion(space, part, index, link_rows, part.links.dp_shard[link_rows])


def _expansion(
    space: SearchSpace, part: _Part, index: IntArray, link_rows: IntArray, dp_shard: FloatArray
) -> _Expansion:
    """Return families of a part, each with one division of its replicas."""
    names = ("cp", "tp", "ep", "etp") if space.problem.num_experts else ("cp",)
    whole = part.families.strategy
    needed = {name: getattr(whole, name)[part.rows][index] for name in names}
    replicas = whole.dp[part.rows][index] / dp_shard
    strategy = replace(stack([make_strategy()]), dp_shard=dp_shard, dp_replicate=replicas, **needed)
    states = take_rows(part.price.states, index)
    return _Expansion(index, link_rows, dp_shard, shard_degrees(space.problem, strategy), states)


@dataclass(frozen=True)
class LinkTable:
    """Collectives by row; families know the rows of their divisions.

    Row ``whole_row`` of a family is the undivided one; its useful divisions are at
    ``first_division`` and the ``num_divisions`` - 1 rows behind it.
    """

    links: SyncLinks
    dp_shard: FloatArray
    whole_row: IntArray
    first_division: IntArray
    num_divisions: IntArray

    def take(self, rows: IntArray, zero_stage: int) -> SyncLinks:
        """Return the collectives of some rows; those that a ZeRO stage leaves unused stay whole."""
        sharded = ("reduce_scatter", "all_gather", "replicate_all_reduce", "degrees")
        used = {
            0: ("all_reduce",),
            1: (*sharded, "all_reduce", "broadcast"),
        }.get(zero_stage, sharded)
        return _each(self.links, lambda name, one: take_rows(one, rows) if name in used else one)


def link_table(space: SearchSpace, families: Families) -> LinkTable:
    """Return the collectives of all members of the families."""
    orders = {plan_options.axis_order for plan_options in families.option_sets}
    parts: list[SyncLinks] = []
    shards: list[FloatArray] = []
    whole, first, number = (np.zeros(len(families), dtype=np.int64) for _ in range(3))
    start = 0
    for order in sorted(orders):
        of_order = [i for i, s in enumerate(families.option_sets) if s.axis_order == order]
        rows = np.flatnonzero(np.isin(families.option_set_of, of_order))
        grids, grid_of = _unique_grids(take(families.strategy, rows))
        index, shard, lengths, divides_one = _divisions(space, grids)
        expanded = take(grids, index)
        expanded = replace(expanded, dp_shard=shard, dp_replicate=expanded.dp_shard / shard)
        network = space.problem.network_with(space.placement(order, expanded), expanded)
        launch_s = space.problem.calibration.collective_launch_s
        parts.append(sync_links(space.problem, Collectives(network, launch_s, all_forms=True)))
        shards.append(shard)
        ends = np.cumsum(lengths)
        whole[rows] = (start + ends - lengths)[grid_of]
        first[rows] = whole[rows] + ~divides_one[grid_of]
        number[rows] = (lengths - ~divides_one)[grid_of]
        start += len(shard)
    links = _each(joined(parts), lambda _, one: getattr(one, "thinned", one))
    return LinkTable(links, np.concatenate(shards), whole, first, number)


def _unique_grids(strategy: StrategyColumns) -> tuple[StrategyColumns, IntArray]:
    """Return the distinct grids of devices, and the grid of each row."""
    first, grid_of = groups_of(getattr(strategy, name) for name in GRID_AXES)
    return take(strategy, first), grid_of


def _divisions(
    space: SearchSpace, grids: StrategyColumns
) -> tuple[IntArray, FloatArray, IntArray, BoolArray]:
    """Return (grid, dp_shard) of every division, the number of each grid's, and whether 1 is one.

    The undivided one comes first, whether it is a division (of cp alone) or not.
    """
    degrees = [dp_shard_degrees(space, int(dp)) for dp in grids.dp_shard.tolist()]
    lengths = np.array([len({1, *d}) for d in degrees], dtype=np.int64)
    index = np.repeat(np.arange(len(degrees)), lengths)
    shard = np.array([s for d in degrees for s in sorted({1, *d})], dtype=float)
    divided = take(grids, index)
    divided = replace(divided, dp_shard=shard, dp_replicate=divided.dp_shard / shard)
    regroups, is_one = experts_regroup(space, divided), shard == 1
    regroups &= is_divided(space, divided)
    may_be_one = np.array([1 in d for d in degrees], dtype=bool)
    divides_one: BoolArray = regroups[is_one] & (grids.cp > 1) & may_be_one
    kept = regroups | is_one
    lengths = np.bincount(index[kept], minlength=len(degrees))
    return index[kept], shard[kept], lengths, divides_one


def _each(links: SyncLinks, change: Callable[[str, Any], Any]) -> SyncLinks:
    """Return the collectives with each field changed, given its name."""

    def changed(of: DataParallelLinks) -> DataParallelLinks:
        parts = {entry.name: getattr(of, entry.name) for entry in fields(of)}
        return DataParallelLinks(**{name: change(name, part) for name, part in parts.items()})

    return SyncLinks(changed(links.dense), None if links.expert is None else changed(links.expert))
