"""Search of the best way to serve over the whole space; if none fits, the nearest one that could.

The space is every split of the devices and every batch, without rows that rules refuse.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from math import prod

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, column, joined, take_rows
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_bytes, format_seconds
from meshwright.search.exhaustive import TIE, Counts
from meshwright.search.intervals import TTFT, surely
from meshwright.serve.launching import refused_rows
from meshwright.serve.passes import ServingProblem, group_counts, passes_of, reserved_bytes
from meshwright.serve.price import ServingPrice, price_serving, with_groups
from meshwright.sharding.axes import first_refusals
from meshwright.sharding.rules import Case
from meshwright.sharding.space import Choices, Grid, degree_columns, divisors
from meshwright.sharding.strategy import (
    AXES,
    DEGREES,
    ContextKind,
    PlanOptions,
    Strategy,
    StrategyColumns,
    StrategyOf,
    row,
    take,
)
from meshwright.spec.system import NetworkLevel
from meshwright.spec.workload import BYTES_OF, Precision

PIPELINE_INSIDE = ("tp", "tatp", "cp", "pp", "dp_shard", "dp_replicate")
CONTEXT_OUTSIDE = ("tp", "tatp", "pp", "cp", "dp_shard", "dp_replicate")
"""Replicas of a dense model never communicate with each other, so they are outermost."""
_DEGREES = ("tp", "cp", "dp", "pp", "ep", "etp")


@dataclass(frozen=True)
class ServingSpace:
    """Problem of serving, and the choices that the user left open."""

    problem: ServingProblem
    choices: Choices
    sizes: tuple[int, ...] = ()
    """Numbers of devices to use; none: the default ones."""


def batch_ladder(most: int) -> list[int]:
    """Return the numbers of sequences that are tried: all up to 16, then eight in each octave."""
    sizes = list(range(1, min(most, 16) + 1))
    step = 2
    while sizes[-1] + step <= most:
        sizes.append(sizes[-1] + step)
        if sizes[-1] == 16 * step:
            step *= 2
    return sizes


def replica_sizes(problem: ServingProblem, most: int) -> tuple[int, ...]:
    """Return the devices that a replica may have: parts of a host, or 1, 2, 3, 4, 6, 8, ... hosts.

    Parameters
    ----------
    most
        Devices that there are for it.
    """
    host = problem.system.domain_size
    hosts = (head << power for head in (1, 3) for power in range(most.bit_length()))
    sizes = {*divisors(host), *(host * number for number in hosts)}
    return tuple(sorted(size for size in sizes if size <= most))


def device_numbers(space: ServingSpace) -> tuple[int, ...]:
    """Return the numbers of devices to use: all, and one or more replicas as far as they fit.

    A larger system offers all replicas of a smaller one: its best is no worse.
    """
    if space.sizes:
        return space.choices.of("num_devices", space.sizes)
    most = space.problem.system.num_alive
    sizes = replica_sizes(space.problem, most)
    numbers = {most, *sizes, *(most // size * size for size in sizes)}
    if {"tp", "pp", "dp"} <= set(space.choices.allowed):  # a split that is stated needs its own
        stated = (space.choices.instead_of(axis, ()) for axis in ("tp", "pp", "dp"))
        numbers |= {used for used in map(prod, product(*stated)) if used <= most}
    return space.choices.of("num_devices", sorted(numbers, reverse=True))


def degree_table(space: ServingSpace) -> StrategyColumns | None:
    """Return every way to split the devices, one sequence in each pass; None: there is none."""
    problem, allowed = space.problem, space.choices.allowed
    fixed = {name: allowed[name] for name in _DEGREES if name in allowed}
    if problem.is_decode:
        fixed.setdefault("cp", (1,))
    if problem.draft is not None:
        # vLLM: speculative decoding is not composable with pipeline parallelism.
        fixed["pp"] = tuple(stages for stages in fixed.get("pp", (1,)) if stages == 1)
    fixed["num_virtual_stages"] = fixed["micro_batch_size"] = (1,)
    blocks = []
    for number in device_numbers(space):
        columns = degree_columns(
            Grid(
                num_devices=number,
                num_layers=problem.model.num_layers,
                global_batch_size=1,
                uses_tatp=False,
                num_experts=problem.num_experts,
                choices=Choices(fixed),
            )
        )
        if len(columns.tp):
            # Replicas do not shard anything: all of them replicate.
            blocks.append(
                replace(columns, dp_replicate=columns.dp_shard, dp_shard=columns.dp_replicate)
            )
    if not blocks:
        return None
    return joined(blocks)


@dataclass(frozen=True)
class Candidates:
    """Ways to serve, not yet priced; one row each."""

    strategy: StrategyColumns
    num_groups: FloatArray
    split_of: IntArray
    """The split of the devices: a row of the table of degrees."""

    def __len__(self) -> int:
        return len(self.split_of)


def with_batches(space: ServingSpace, degrees: StrategyColumns) -> Candidates:
    """Return each row with every batch that is tried."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    rows: list[int] = []
    batches: list[tuple[int, int]] = []
    shares = zip(degrees.dp.tolist(), degrees.pp.tolist(), strict=True)
    for index, (dp, pp) in enumerate(shares):
        key = (int(dp), int(pp))
        if key not in pairs:
            pairs[key] = _batches(space, *key)
        rows += [index] * len(pairs[key])
        batches += pairs[key]
    table = np.array(batches, dtype=float).reshape(-1, 2)
    split_of = np.array(rows, dtype=np.int64)
    strategy = replace(take(degrees, split_of), micro_batch_size=table[:, 1].copy())
    return Candidates(strategy, table[:, 0].copy(), split_of)


def _batches(space: ServingSpace, dp: int, pp: int) -> list[tuple[int, int]]:
    """Return (groups, sequences of a group) of one replica, up to its share of the batch.

    In prefill prompts follow each other through all stages, so the number of groups is equal to
    that of stages.
    """
    share = max(space.problem.workload.batch_size // dp, 1)
    ladder, is_decode = batch_ladder(share), space.problem.is_decode
    found = []
    for groups in group_counts(min(pp, share)) if is_decode else [pp]:
        most = -(-share // groups) if is_decode else share
        sizes = sorted({size for size in ladder if size <= most} | {most})
        found += [(groups, s) for s in space.choices.of("micro_batch_size", sizes)]
    return found


def layouts(
    space: ServingSpace, columns: StrategyColumns
) -> Iterator[tuple[PlanOptions, BoolArray]]:
    """Yield the sets of plan options, each with the rows for which it is no other one's double."""
    keeps, problem = space.choices.keeps, space.problem
    for order in (one for one in _orders(problem) if keeps("axis_order", one)):
        for kind in ContextKind:
            for sequence_parallel in (False, True):
                plan_options = PlanOptions(
                    sequence_parallel=sequence_parallel, context_kind=kind, axis_order=order,
                    zero_stage=0,
                    overlap_tensor_parallel=problem.workload.software.async_tensor_parallel,
                )  # fmt: skip
                allowed = keeps("sequence_parallel", sequence_parallel)
                if allowed and keeps("context_kind", kind):
                    yield plan_options, _own_rows(problem, plan_options, columns)


def _orders(problem: ServingProblem) -> tuple[tuple[str, ...], ...]:
    """Return the orders of the axes: experts need tp, cp and dp side by side."""
    if problem.num_experts:
        return (AXES,)
    one_level = len(problem.system.levels) <= 1
    return (PIPELINE_INSIDE,) if one_level else (PIPELINE_INSIDE, CONTEXT_OUTSIDE)


def _own_rows(
    problem: ServingProblem, plan_options: PlanOptions, columns: StrategyColumns
) -> BoolArray:
    """Return the rows for which a set of plan options is a distinct choice.

    Splitting the tokens of a decode step over tp changes next to nothing, and is left out.
    """
    rows = np.ones(len(columns.tp), dtype=bool)
    if plan_options.sequence_parallel:
        rows &= (columns.tp > 1) & (not problem.is_decode)
    if plan_options.context_kind is not ContextKind.RING:
        rows &= columns.cp > 1
    if plan_options.axis_order == CONTEXT_OUTSIDE:
        rows &= (columns.cp > 1) & (columns.pp > 1)
    return rows


@dataclass(frozen=True)
class ServingColumns:
    """Candidates that fit, one row each."""

    strategy: StrategyColumns
    split_of: IntArray
    """The split of the devices, for any batch."""
    option_set_of: IntArray
    """Index into the sets of plan options of the result."""
    num_groups: FloatArray
    latency_s: FloatArray
    first_token_s: FloatArray
    """Mean time to the first token of requests; else 0 [s]."""
    tokens_per_s: FloatArray
    tokens_per_s_per_user: FloatArray
    sequences_in_flight: FloatArray
    memory_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.option_set_of)


def legal_rows(
    space: ServingSpace, plan_options: PlanOptions, columns: StrategyColumns, counts: Counts
) -> IntArray:
    """Return the rows that no rule refuses; others are counted under the first rule they break."""
    chip = space.problem.system.chip
    case = Case(
        space.problem.model, space.problem.workload, plan_options, columns,
        float(chip.tile_rows), float(chip.tile_columns),
    )  # fmt: skip
    left = np.ones(len(columns.tp), dtype=bool)
    for name, rows in first_refusals(case):
        counts.refused[name] += len(rows)
        left[rows] = False
    for name, mask in refused_rows(space.problem, columns):
        broken = left & mask
        if broken.any():
            counts.refused[name] += int(broken.sum())
            left &= ~mask
    return np.flatnonzero(left)


_WHOLE = np.zeros(0, dtype=np.int64)
_NONE = ServingColumns(
    StrategyOf(**dict.fromkeys(DEGREES, np.zeros(0))), _WHOLE, _WHOLE, *[np.zeros(0)] * 7
)
"""Columns of no candidates."""


_ANY_LEVEL = NetworkLevel(name="any", size=1, bandwidth_bytes_per_s=1.0e9, latency_s=0.0)
FACTORS = (2, 4, 8, 16, 32, 64)
"""Factors on the number of devices that are tried."""


def memory_shortfall(space: ServingSpace, counts: Counts) -> str:
    """Return the memory of the leanest candidate, and the changes under which it would fit."""
    capacity = space.problem.system.chip.main_memory.capacity_bytes
    closest = leanest(space)
    if closest is None:
        refused = ", ".join(f"{name} {number}" for name, number in counts.refused.most_common(3))
        if not refused:
            asked = str(space.choices) or "a legal number of them"
            most = f"at most {max(space.sizes)}" if space.sizes else space.problem.system.num_alive
            drafts = " with drafts, which need pp 1" if space.problem.draft else ""
            return f"no split of {most} devices has {asked}{drafts}"
        return f"no candidate is legal; {counts.summary}; refused most often by: {refused}"
    needed, strategy = closest
    server = space.problem.server
    share = "" if server.of_free_memory else (
        f", with the {format_bytes((1.0 - server.memory_fraction) * capacity)} that the server"
        f" leaves free at a share of {server.memory_fraction:g}"
    )  # fmt: skip
    looked = counts.does_not_fit + sum(counts.refused.values())
    text = (
        f"nothing fits: the leanest of {looked:,}, {_degrees_text(strategy)} with one sequence,"
        f" needs {format_bytes(needed)} of {format_bytes(capacity)} on each device{share}"
    )
    share_that_fits = _share_that_fits(space)
    changes = share_that_fits + [
        name for name, problem in _changes(space.problem) if _fits(space, problem)
    ]
    if not changes:
        return f"{text}; not even {FACTORS[-1]} times the devices or lower precision would do"
    # The nearest change of each sort: the widest weights, the fewest devices.
    weights = [change for change in changes if change.startswith("weights")]
    devices = [change for change in changes if change.endswith("devices")]
    others = [change for change in changes if change.startswith("a KV cache")]
    nearest = [*share_that_fits, *weights[:1], *others, *devices[:1]]
    return f"{text}; would fit: {' or '.join(nearest)}"


def legal_splits(
    space: ServingSpace, counts: Counts
) -> Iterator[tuple[PlanOptions, StrategyColumns]]:
    """Yield each set of plan options with its legal splits, one sequence in each pass."""
    degrees = degree_table(space)
    for plan_options, own in () if degrees is None else layouts(space, degrees):
        assert degrees is not None
        columns = take(degrees, np.flatnonzero(own))
        columns = take(columns, legal_rows(space, plan_options, columns, counts))
        if len(columns.tp):
            yield plan_options, columns


def leanest(space: ServingSpace) -> tuple[float, Strategy] | None:
    """Return the least memory of any legal split with one sequence [bytes], and the split."""
    found: tuple[float, Strategy] | None = None
    for plan_options, columns in legal_splits(space, Counts()):
        groups = np.ones(len(columns.tp)) if space.problem.is_decode else columns.pp
        needed = column(price_serving(space.problem, plan_options, columns, groups).memory_bytes)
        index = int(np.argmin(needed))
        if found is None or needed[index] < found[0]:
            found = float(needed[index]), row(columns, index)
    return found


def _fits(space: ServingSpace, problem: ServingProblem) -> bool:
    """Return whether any candidate fits after a change; fixed numbers of devices are dropped."""
    allowed = {k: v for k, v in space.choices.allowed.items() if k not in ("num_devices", "dp")}
    closest = leanest(ServingSpace(problem, replace(space.choices, allowed=allowed)))
    return closest is not None and closest[0] <= problem.system.chip.main_memory.capacity_bytes


MOST_SHARE = 95
"""Largest share of the memory that a server is told to fill [%]: uncounted memory needs the
rest."""


def _share_that_fits(space: ServingSpace) -> list[str]:
    """Return the option with the least share of the memory at which something fits, if any does."""

    def fits(percent: int) -> bool:
        server = space.problem.server.model_copy(update={"memory_fraction": percent / 100})
        return _fits(space, replace(space.problem, server=server))

    larger = range(int(100 * space.problem.server.memory_fraction) + 1, MOST_SHARE + 1)
    least = bisect_left(larger, x=True, key=fits)
    return [f"--memory-share {larger[least] / 100:g}"] if least < len(larger) else []


def _changes(problem: ServingProblem) -> Iterator[tuple[str, ServingProblem]]:
    """Yield changes, the nearest ones first: lower precision, then more devices."""
    precision = problem.workload.precision
    for weight in ("fp8", "fp4"):
        if BYTES_OF[weight] < precision.weight_bytes:
            narrower = {"weight": weight, "weight_format": None}
            yield f"weights in {weight}", _with_precision(problem, narrower)
    if BYTES_OF[precision.kv_cache] > 1.0:
        yield "a KV cache in fp8", _with_precision(problem, {"kv_cache": "fp8"})
    for factor in FACTORS:
        number = problem.system.num_alive * factor
        yield f"{number} devices", _with_devices(problem, factor)


def _with_precision(problem: ServingProblem, update: Mapping[str, object]) -> ServingProblem:
    values = {**problem.workload.precision.model_dump(), **update}
    precision = Precision.model_validate(values)
    return replace(problem, workload=problem.workload.model_copy(update={"precision": precision}))


def _with_devices(problem: ServingProblem, factor: int) -> ServingProblem:
    """Return the problem on a system with its outermost level larger by a factor.

    Only its memory matters, so that a lone device may get any network.
    """
    system = problem.system
    outer = system.levels[-1] if system.levels else _ANY_LEVEL
    levels = (*system.levels[:-1], outer.model_copy(update={"size": outer.size * factor}))
    number = system.num_alive * factor
    update = {"levels": levels, "num_devices": number, "dead_devices": ()}
    return replace(problem, system=system.model_copy(update=update))


def latency_shortfall(
    space: ServingSpace, option_sets: tuple[PlanOptions, ...], columns: ServingColumns,
    in_time: BoolArray, counts: Counts,
) -> str:  # fmt: skip
    """Return the distance of the fastest candidate from the latency, or from the whole batch."""
    if in_time.any():
        most = int(columns.sequences_in_flight[in_time].max())
        return (
            f"no split holds the whole batch of {space.problem.workload.batch_size} sequences"
            f" at once in time; at most {most} are in flight; {counts.summary}"
        )
    problem, name = space.problem, "per output token" if space.problem.is_decode else _FIRST
    stated = [
        (what, limit_s, surely(limit_s, ends) or limit_s, taken_s)
        for what, limit_s, ends, taken_s in (
            (name, problem.max_latency_s, problem.latency_ends, columns.latency_s),
            (_FIRST, problem.max_first_token_s, problem.ends(TTFT),
             columns.first_token_s),
        )
        if limit_s is not None
    ]  # fmt: skip
    # The limits that nothing keeps; where each is kept by something, all of them together.
    missed = [entry for entry in stated if not (entry[3] <= entry[2]).any()] or stated
    texts = []
    for what, limit_s, sure_s, taken_s in missed:
        index = int(np.argmin(taken_s))
        least_s = float(taken_s[index])
        slow = f", up to {format_seconds(least_s * limit_s / sure_s)}" if sure_s < limit_s else ""
        texts.append(
            f"{format_seconds(limit_s)} {what}: the fastest,"
            f" {_degrees_text(row(columns.strategy, index))}, takes {format_seconds(least_s)}{slow}"
        )
    return f"no candidate keeps {', and at once '.join(texts)}; {counts.summary}"


_FIRST = "to the first token"


def _degrees_text(strategy: Strategy) -> str:
    """Return the degrees above one, and tp: ``tp8 pp2``."""
    names = ("tp", "pp", "cp", "dp", "ep", "etp")
    return " ".join(
        f"{name}{getattr(strategy, name):.0f}"
        for name in names
        if name == "tp" or getattr(strategy, name) > 1
    )


BLOCK_ROWS = 32_768
"""Rows that are priced at a time: those that share a pass about fill a cache."""


class ServingObjective(StrEnum):
    """Objective of the search for a serving system."""

    THROUGHPUT = "throughput"
    """Most tokens per second of the whole system, within the latency that is allowed."""
    LATENCY = "latency"
    """Least latency with the whole batch in flight."""


@dataclass(frozen=True)
class ServingResult:
    """The best candidates, the Pareto front, and the coverage of the space."""

    objective: ServingObjective
    option_sets: tuple[PlanOptions, ...]
    fitting: ServingColumns
    """All candidates that fit the memory."""
    ranked: IntArray
    """Rows of ``fitting``, best first: the best batch of each split, among those in time."""
    front: IntArray
    """Rows that no other one beats in tokens/s and in tokens/s of one user, fastest user first."""
    counts: Counts
    num_too_slow: int
    """Candidates that fit but exceed the latency that is allowed."""
    elapsed_s: float

    def candidate(self, index: int) -> tuple[Strategy, PlanOptions, int]:
        """Return strategy, plan options and number of groups of one row of ``fitting``."""
        plan_options = self.option_sets[int(self.fitting.option_set_of[index])]
        return row(self.fitting.strategy, index), plan_options, int(self.fitting.num_groups[index])


def search_serving(
    space: ServingSpace, objective: ServingObjective = ServingObjective.THROUGHPUT, *, top: int = 5
) -> ServingResult:
    """Return the best ways to serve, proven over the whole space.

    Raises
    ------
    InfeasibleError
        When nothing fits the memory or the latency; names the closest candidate and changes that
        help.
    """
    started = time.perf_counter()
    counts = Counts()
    option_sets, fitting = covered(space, counts)
    if not len(fitting):
        raise InfeasibleError(memory_shortfall(space, counts))
    in_time = is_in_time(space, fitting)
    eligible = in_time & (
        is_full(space, fitting) if objective is ServingObjective.LATENCY else True
    )
    if not eligible.any():
        raise InfeasibleError(latency_shortfall(space, option_sets, fitting, in_time, counts))
    return ServingResult(
        objective, option_sets, fitting, ranking(fitting, eligible, objective, top),
        pareto_front(fitting), counts, int((~in_time).sum()), time.perf_counter() - started,
    )  # fmt: skip


def covered(space: ServingSpace, counts: Counts) -> tuple[tuple[PlanOptions, ...], ServingColumns]:
    """Return every candidate that fits, and the sets of plan options that they refer to.

    For each set of plan options the ladder of batches, then the largest batches between its steps.
    """
    degrees = degree_table(space)
    option_sets: list[PlanOptions] = []
    found: list[ServingColumns] = []
    if degrees is None:
        return (), _NONE
    candidates = with_batches(space, degrees)
    for plan_options, own in layouts(space, candidates.strategy):
        if not own.any():
            continue
        mine = take_rows(candidates, np.flatnonzero(own))
        mine = take_rows(mine, legal_rows(space, plan_options, mine.strategy, counts))
        layout = ServingLayout(
            plan_options, len(option_sets), reserved_of(space.problem, plan_options, mine)
        )
        ladder = _priced(space, layout, mine)
        option_sets.append(plan_options)
        found.append(_that_fit(space, ladder, counts))
        if "micro_batch_size" not in space.choices.allowed and len(ladder):
            found.append(_that_fit(space, _largest_batches(space, layout, ladder), counts))
    return tuple(option_sets), joined([_NONE, *found])


@dataclass(frozen=True)
class ServingLayout:
    """A set of plan options, and the values that depend only on it and on the split."""

    plan_options: PlanOptions
    number: int
    """Index among the sets of plan options of the result."""
    reserved: tuple[FloatArray, ...]
    """Bytes for the largest pass of the server, of each stage; entries by the split."""


def reserved_of(
    problem: ServingProblem, plan_options: PlanOptions, candidates: Candidates
) -> tuple[FloatArray, ...]:
    """Return the memory that the server reserves on a device of each stage, by split [bytes]."""
    if not len(candidates):
        return ()
    splits, firsts = np.unique(candidates.split_of, return_index=True)
    size = int(splits[-1]) + 1
    found = []
    for stage in reserved_bytes(problem, plan_options, take(candidates.strategy, firsts)):
        table = np.zeros(size)
        table[splits] = stage
        found.append(table)
    return tuple(found)


def _priced(space: ServingSpace, layout: ServingLayout, candidates: Candidates) -> ServingColumns:
    """Return the columns of each row that ranking needs, priced in blocks."""
    parts = []
    for start in range(0, len(candidates), BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, len(candidates)))
        block = take_rows(candidates, rows)
        price = _block_price(space, layout, block)
        first_s = price.first_token_s
        parts.append(
            ServingColumns(
                price.strategy,
                block.split_of,
                np.full(len(rows), layout.number, dtype=np.int64),
                column(price.num_groups),
                column(price.latency_s),
                column(price.latency_s * 0.0 if first_s is None else first_s),
                column(price.tokens_per_s),
                column(price.tokens_per_s_per_user),
                column(price.sequences_in_flight),
                column(price.memory_bytes),
            )
        )
    return joined([_NONE, *parts])


def _block_price(space: ServingSpace, layout: ServingLayout, block: Candidates) -> ServingPrice:
    """Return the price of a block; rows that differ in their groups alone share their pass."""
    size = block.strategy.micro_batch_size.astype(np.int64)
    keys = block.split_of * (size.max() + 1) + size
    _, firsts, shared = np.unique(keys, return_index=True, return_inverse=True)
    passes = passes_of(space.problem, layout.plan_options, take(block.strategy, firsts))
    mine = take_rows(passes, shared.reshape(-1))
    reserved = tuple(stage[block.split_of] for stage in layout.reserved)
    return with_groups(
        space.problem, layout.plan_options, block.strategy, mine, block.num_groups, reserved
    )


def _that_fit(space: ServingSpace, priced: ServingColumns, counts: Counts) -> ServingColumns:
    """Return the priced rows that fit the memory, and count all of them."""
    fits = priced.memory_bytes <= space.problem.system.chip.main_memory.capacity_bytes
    counts.priced += int(fits.sum())
    counts.does_not_fit += int((~fits).sum())
    return take_rows(priced, fits)


def _largest_batches(
    space: ServingSpace, layout: ServingLayout, ladder: ServingColumns
) -> ServingColumns:
    """Return, for each split and number of groups, the largest batch that fits and is in time.

    Memory and latency grow with the batch, so the ladder brackets it and halving finds it. Rows
    that the ladder holds already are left out.
    """
    best, low, high = _brackets(space, ladder)
    start = low
    while (high - low > 1).any():
        middle = np.where(high - low > 1, np.floor((low + high) / 2.0), low)
        tried = replace(best, strategy=replace(best.strategy, micro_batch_size=middle))
        good = _is_good(space, _priced(space, layout, tried))
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    news = np.flatnonzero(low > start)
    found = replace(best, strategy=replace(best.strategy, micro_batch_size=low))
    return _priced(space, layout, take_rows(found, news))


def _brackets(
    space: ServingSpace, ladder: ServingColumns
) -> tuple[Candidates, FloatArray, FloatArray]:
    """Return the last good row of each split, its batch, and the next batch, which is not good."""
    order = np.lexsort((ladder.strategy.micro_batch_size, ladder.num_groups, ladder.split_of))
    good, sizes = _is_good(space, ladder)[order], ladder.strategy.micro_batch_size[order]
    split, groups = ladder.split_of[order], ladder.num_groups[order]
    goes_on = (split[1:] == split[:-1]) & (groups[1:] == groups[:-1])
    stops = np.flatnonzero(good[:-1] & ~good[1:] & goes_on)
    rows = order[stops]
    best = Candidates(take(ladder.strategy, rows), groups[stops], split[stops])
    return best, sizes[stops], sizes[stops + 1]


def _is_good(space: ServingSpace, priced: ServingColumns) -> BoolArray:
    """Return whether rows fit the memory and keep the latency."""
    capacity = space.problem.system.chip.main_memory.capacity_bytes
    return (priced.memory_bytes <= capacity) & is_in_time(space, priced)


def is_in_time(space: ServingSpace, priced: ServingColumns) -> BoolArray:
    """Return whether rows keep the latencies that are allowed, at the slow end of each."""
    problem = space.problem
    limits = ((problem.sure_latency_s, priced.latency_s),
              (problem.sure_first_token_s, priced.first_token_s))  # fmt: skip
    found = np.ones(len(priced), dtype=bool)
    for limit_s, taken_s in limits:
        found &= taken_s <= (np.inf if limit_s is None else limit_s)
    return found


def is_full(space: ServingSpace, columns: ServingColumns) -> BoolArray:
    """Return the rows with replicas that hold their whole share of the batch at once."""
    batch = space.problem.workload.batch_size
    held = columns.strategy.micro_batch_size * (
        columns.num_groups if space.problem.is_decode else 1.0
    )
    full: BoolArray = held >= np.floor(batch / columns.strategy.dp)
    return full


def ranking(
    columns: ServingColumns, eligible: BoolArray, objective: ServingObjective, top: int
) -> IntArray:
    """Return the best row of each split of the devices, best first.

    Within a tie (see ``TIE``) of the best one, fewer devices win, then the other measure.
    """
    rows = np.flatnonzero(eligible)
    wants_rate = objective is ServingObjective.THROUGHPUT
    measures = (-columns.tokens_per_s[rows], columns.latency_s[rows])
    first, second = measures if wants_rate else measures[::-1]
    devices, memory = columns.strategy.num_devices[rows], columns.memory_bytes[rows]
    best = first.min()
    is_tie = first <= (best * (1.0 - TIE) if wants_rate else best * (1.0 + TIE))
    order = np.lexsort((memory, second, devices * is_tie, np.where(is_tie, best, first), ~is_tie))
    splits = (
        columns.split_of[rows] * (1 + columns.option_set_of.max()) + columns.option_set_of[rows]
    )
    _, firsts = np.unique(splits[order], return_index=True)
    return rows[order[np.sort(firsts)[:top]]]


def pareto_front(columns: ServingColumns) -> IntArray:
    """Return the rows that no other row beats in tokens/s of the system and of one user.

    Every row counts over all devices of the system, so devices that stay idle are a loss.
    """
    order = np.lexsort(
        (columns.memory_bytes, -columns.tokens_per_s, -columns.tokens_per_s_per_user)
    )
    rates = columns.tokens_per_s[order]
    before = np.maximum.accumulate(np.append(-np.inf, rates[:-1]))
    return order[rates > before]
