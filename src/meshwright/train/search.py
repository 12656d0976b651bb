"""The proven best of the whole space: every candidate is priced, refused, or bounded away.

Families are taken in the order of their lower bounds, so that a good plan is found at once and
most of the others need not be combined with all ways to shard them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from meshwright.base.arrays import IntArray, Num, column, gap_of, joined, keep_freed_memory
from meshwright.base.errors import InfeasibleError
from meshwright.cost.energy import IDLE_ABOVE_CAP
from meshwright.cost.problem import Problem
from meshwright.graph.flops import step_flops
from meshwright.search.exhaustive import (
    FIRST_ROWS,
    BoundedSearch,
    Counts,
    Coverage,
    FastestCandidates,
    Found,
    Price,
    Progress,
)
from meshwright.search.leading import axes_in_use, num_unusual
from meshwright.sharding.space import (
    MICRO_BATCH_SIZES,
    Choices,
    Grid,
    degree_columns,
    divisors,
)
from meshwright.sharding.strategy import Offload, StrategyColumns
from meshwright.train.families import (
    AllFamilies,
    PricedBlock,
    families,
    link_table,
    members,
    priced_parts,
    rows_within,
)
from meshwright.train.space import SearchSpace

MOST_MORE = 2
"""Demands that members add to the least of their family: replicas of shards, and offload."""
KEPT = 512
MOST_KEPT = 100_000
Visit = Callable[[PricedBlock], None]


@dataclass(frozen=True)
class SearchResult:
    """The best candidates in order of time, and the coverage of the space.

    ``lower_bound_s`` is a proven bound on the time of any candidate; it equals the time of the
    best one when the search ended, and is below it when the search was interrupted.
    """

    found: tuple[Found, ...]
    beyond_s: float
    """Least time of candidates that are not among those found [s]."""
    counts: Counts
    families: AllFamilies
    lower_bound_s: float
    least_memory_bytes: float
    """Least memory of the fullest device of any legal candidate [bytes]."""
    is_complete: bool
    elapsed_s: float

    @property
    def gap(self) -> float:
        """Largest distance of the best found from the best possible candidate, as a fraction."""
        return gap_of(self.found[0].time_s, self.lower_bound_s) if self.found else float("inf")

    @property
    def coverage(self) -> Coverage:
        """Coverage of the space."""
        return self.counts.coverage(
            self.lower_bound_s, self.elapsed_s, gap=self.gap, is_complete=self.is_complete
        )


def search(
    space: SearchSpace,
    *,
    top: int = 5,
    prune: bool = True,
    progress: Progress | None = None,
    visit: Visit | None = None,
    among: AllFamilies | None = None,
    within_s: float | None = None,
    simpler_than: float | None = None,
) -> SearchResult:
    """Return the proven fastest candidates of a space.

    Parameters
    ----------
    top
        Candidates with a proven order; more are kept where they tie with the best.
    prune
        Leave out families with a bound above the best ones. Without it every legal candidate
        that fits is priced: for benchmarks and fronts.
    progress
        Called after each block with counts, the best so far, and the bound of the rest [s].
    visit
        Called with each priced block: for fronts and for materialising samples.
    among
        Families that are priced already, of this space or of a wider one; the counts then lack
        the members that rules refuse.
    within_s
        All candidates within this time are returned [s]; None: the fastest ones.
    simpler_than
        With ``within_s``: the simplest candidates within this time that ask less of a framework
        than this (:func:`~meshwright.search.exhaustive.complexity`), simplest first.
    """
    started = time.perf_counter()
    size = max(KEPT, 2 * top) if within_s is None or simpler_than else MOST_KEPT
    run = _Run(space, FastestCandidates(size, top, within_s), visit, among, simpler_than, Counts())
    is_complete = run.cover(prune=prune, progress=progress)
    best = run.best
    proven_s = float(best.times_s.min(initial=np.inf))
    left_s = float(np.inf) if is_complete else run.bounded.left_s
    slowest_s = float(best.times_s[-1]) if len(best.times_s) == size else float(np.inf)
    return SearchResult(
        found=_found(run.families, best),
        beyond_s=min(best.limit_s, slowest_s, left_s),
        families=run.families,
        counts=run.counts,
        lower_bound_s=min(proven_s, left_s),
        least_memory_bytes=run.least_memory_bytes,
        is_complete=is_complete,
        elapsed_s=time.perf_counter() - started,
    )


class _Run:
    """One search: its families, its counts, and the best so far."""

    def __init__(
        self,
        space: SearchSpace,
        best: FastestCandidates,
        visit: Visit | None,
        among: AllFamilies | None,
        simpler_than: float | None,
        counts: Counts,
    ) -> None:
        self.space, self.best, self.visit = space, best, visit
        self.counts = counts
        if among is None:
            among = priced_families(space, self.counts, keeps_all=visit is not None)
        self.families = among
        self.rows = True if self.families.space is space else rows_within(self.families, space)
        self.complexity: IntArray | None = None
        if simpler_than is not None:
            self.complexity = least_complexity(self.families)
            self.rows = self.rows & (self.complexity < simpler_than)
        self.bounded = BoundedSearch(
            bound_s=self.families.column("bound_s"),
            num_members=self.families.column("num_members"),
            counts=self.counts,
            best=best,
            prepare=self._pricing,
        )
        self.least_memory_bytes = float("inf")

    def cover(self, *, prune: bool, progress: Progress | None) -> bool:
        """Go through all families in order of their bounds; False after an interrupt."""
        rows = self._fitting()
        if self.families.is_complete:
            return self.bounded.cover(rows, prune=prune, progress=progress)
        self.bounded.price(rows[:FIRST_ROWS], prune=False, progress=None)
        problem = self.space.problem
        self.bounded.left_s = float(arithmetic_s(problem, problem.system.num_alive))
        return False

    def _fitting(self) -> IntArray:
        """Return the families that can run and may fit, in order of their bounds."""
        problem, counts, bounded = self.space.problem, self.counts, self.bounded
        can_run = np.isfinite(bounded.bound_s)
        counts.refused[IDLE_ABOVE_CAP] += int(bounded.num_members[~can_run].sum())
        can_run &= self.rows
        needed = np.where(can_run, self.families.column("least_memory_bytes"), np.inf)
        can_fit = needed <= problem.system.chip.main_memory.capacity_bytes
        counts.pruned_by_memory += int(bounded.num_members[can_run & ~can_fit].sum())
        self.least_memory_bytes = float(needed.min())
        rows = np.flatnonzero(can_fit)
        return rows[np.argsort(bounded.bound_s[rows], kind="stable")]

    def _pricing(self, collected: IntArray) -> Price:
        """Return the pricing of members of the collected families: links are priced once."""
        table = self.families.take(collected)
        links = link_table(self.space, table)

        def price(part: IntArray) -> None:
            places = np.searchsorted(collected, part)
            for block in members(self.space, table, links, places, self.counts):
                self._fold(block, collected)

        return price

    def _fold(self, block: PricedBlock, collected: IntArray) -> None:
        """Add the members of a block to the counts and the best so far."""
        times_s, identities = column(block.time.total_s), _identities(block, collected)
        ranks = None if self.complexity is None else self.complexity[identities[:, 0]]
        if ranks is not None:
            replicas = block.families.strategy.dp_shard[block.family_rows] / block.dp_shard
            ranks = (
                ranks + (np.minimum(block.dp_shard, replicas) > 1) + block.plan_options.uses_host
            )
        self.best.fold(times_s, block.memory_bytes, identities, ranks)
        if self.visit is not None:
            self.visit(block)


def priced_families(space: SearchSpace, counts: Counts, *, keeps_all: bool = False) -> AllFamilies:
    """Return the legal families of a space, priced; members that a rule refuses are counted.

    Where rules refuse all that use the most devices, those on fewer ones.
    """
    keep_freed_memory()
    problem = space.problem
    numbers = space.choices.of("num_devices", problem.device_numbers)
    fewer = [
        number
        for number in problem.fewer_device_numbers
        if number not in numbers and space.choices.keeps("num_devices", number)
    ]
    try:
        tables = _in_batches(degree_tables(space, numbers))
        return families(space, tables, counts, keeps_all=keeps_all)
    except InfeasibleError:
        if not (fewer and counts.refused):
            raise
    return families(space, _in_batches(degree_tables(space, fewer)), counts, keeps_all=keeps_all)


def model_flops(problem: Problem) -> Num:
    """Return the FLOPs of the model in a step, recomputation left out [FLOP]."""
    work = problem.workload
    return step_flops(
        problem.graph,
        num_tokens=float(work.tokens_per_step),
        sequence_length=float(work.attended_length),
        freezes_weights=work.optimizer.freezes_weights,
    ).model


def arithmetic_s(problem: Problem, num_devices: Num) -> Num:
    """Return the seconds of the model's FLOPs on the fastest devices: a lower bound [s]."""
    _, speed = problem.fastest_devices(num_devices)
    return model_flops(problem) / (speed * problem.rates_at(1.0).matmul_flops_per_s)


def degree_tables(space: SearchSpace, numbers: Sequence[int]) -> Iterator[StrategyColumns]:
    """Yield the degrees to try, for each of some numbers of devices in use."""
    problem = space.problem
    for number in numbers:
        grid = Grid(
            num_devices=number,
            num_layers=problem.model.num_layers,
            global_batch_size=problem.workload.global_batch_size,
            uses_tatp=problem.has_grid,
            num_experts=problem.num_experts,
            choices=space.choices,
        )
        columns = degree_columns(grid)
        if len(columns.tp):
            yield columns


def fewer_devices(
    space: SearchSpace, result: SearchResult, within_s: float, *, top: int = KEPT
) -> SearchResult:
    """Return a result that covers every legal number of devices: more are then never worse.

    Numbers that the search left out are priced where their arithmetic alone leaves room for a plan
    within a time, with replicas and micro-batches that deal the batch evenly: rules refuse others.

    Parameters
    ----------
    within_s
        Longest step time of the added candidates [s].
    top
        Most candidates of those numbers that are added.
    """
    problem, started = space.problem, time.perf_counter()
    covered = {*space.choices.of("num_devices", problem.device_numbers)}
    for part in result.families.parts:
        covered |= {*np.unique(part.strategy.num_devices).tolist()}
    numbers = [
        number
        for number in problem.fewer_device_numbers
        if number not in covered
        and space.choices.keeps("num_devices", number)
        and arithmetic_s(problem, number) <= within_s
    ]
    even, allowed = divisors(problem.workload.global_batch_size), space.choices.allowed
    sizes = allowed.get("micro_batch_size", MICRO_BATCH_SIZES)
    shares: dict[str, tuple[object, ...]] = {
        "dp": space.choices.of("dp", even),
        "micro_batch_size": tuple(size for size in sizes if size in even),
    }
    evenly = replace(space, choices=Choices({**allowed, **shares}))
    counts, tables = Counts(), degree_tables(evenly, numbers)
    times = result.families.layer_times
    parts, is_complete = priced_parts(space, _in_batches(tables), counts, times, within_s=within_s)
    if not parts:
        counted = result.counts.plus(counts)
        return replace(result, counts=counted, is_complete=is_complete)
    run = _Run(
        space,
        FastestCandidates(top, top, within_s),
        None,
        AllFamilies(space, parts, is_complete, times),
        None,
        counts,
    )
    is_complete = is_complete and run.cover(prune=True, progress=None)
    best = run.best
    best_s = float(best.times_s.min(initial=np.inf))
    left_s = np.inf if is_complete else float(arithmetic_s(problem, problem.system.num_alive))
    full_s = float(best.times_s[-1]) if len(best.times_s) == top else within_s
    found = sorted((*result.found, *_found(run.families, best)), key=attrgetter("time_s"))
    return SearchResult(
        found=tuple(found),
        beyond_s=min(result.beyond_s, full_s, left_s),
        counts=result.counts.plus(counts),
        families=replace(result.families, parts=(*result.families.parts, *parts)),
        lower_bound_s=min(result.lower_bound_s, best_s, left_s),
        least_memory_bytes=min(result.least_memory_bytes, run.least_memory_bytes),
        is_complete=is_complete,
        elapsed_s=result.elapsed_s + time.perf_counter() - started,
    )


AT_ONCE = 400_000
"""Rows of degrees of several numbers of devices that are priced together."""


def _in_batches(tables: Iterable[StrategyColumns]) -> Iterator[StrategyColumns]:
    """Yield tables joined, as many together as have some rows: equal layers are priced once."""
    batch: list[StrategyColumns] = []
    for table in tables:
        batch.append(table)
        if sum(len(one.tp) for one in batch) >= AT_ONCE:
            yield joined(batch)
            batch = []
    if batch:
        yield joined(batch)


def least_complexity(every: AllFamilies) -> IntArray:
    """Return the least complexity of each family: replicas of shards and offload add to it [1]."""
    found = [
        axes_in_use(part.strategy)
        + np.array([num_unusual(plan_options) for plan_options in part.option_sets])[
            part.option_set_of
        ]
        for part in every.parts
    ]
    return np.concatenate(found)


def _identities(block: PricedBlock, collected: IntArray) -> IntArray:
    """Return whole numbers that name members: family, shards, ZeRO stage, reshard, offload."""
    plan_options = block.plan_options
    fixed = np.ones(len(block.family_rows), dtype=np.int64)
    return np.stack(
        [
            collected[block.family_rows],
            block.dp_shard.astype(np.int64),
            fixed * plan_options.zero_stage,
            fixed * plan_options.reshard_after_forward,
            fixed * list(Offload).index(plan_options.offload),
        ],
        axis=1,
    )


def _found(every: AllFamilies, best: FastestCandidates) -> tuple[Found, ...]:
    """Return the best candidates by their identities; each family is looked up once."""
    if not len(best.times_s):
        return ()
    rows, places = np.unique(best.identities[:, 0], return_inverse=True)
    table = every.named(rows)
    found = []
    for index, place in enumerate(places.tolist()):
        plan_options, whole = table[place]
        _, shards, stage, reshard, offload = best.identities[index].tolist()
        strategy = replace(whole, dp_shard=float(shards), dp_replicate=whole.dp / shards)
        plan_options = replace(
            plan_options,
            zero_stage=stage,
            reshard_after_forward=bool(reshard),
            offload=list(Offload)[offload],
        )
        seconds, size = float(best.times_s[index]), float(best.memory_bytes[index])
        found.append(Found(strategy, plan_options, seconds, size))
    return tuple(found)
