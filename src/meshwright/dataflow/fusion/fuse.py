"""A graph on one chip of a group: how its kernels are split, and how they are fused there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.catalog.chips import load_chip
from meshwright.dataflow.dfmodel_rules import accelerator_named
from meshwright.dataflow.fusion.answer import Fusion, FusionAnswer, FusionQuestion, Target
from meshwright.dataflow.fusion.cores import CoreGrid, grid_of
from meshwright.dataflow.fusion.price import bound_s
from meshwright.dataflow.fusion.problem import RULES, FusionProblem, Share, fusion_problem
from meshwright.dataflow.fusion.search import Candidate, KnownOrders, best_of, fuse, shared_orders
from meshwright.dataflow.fusion.splits import (
    LINKS_ONLY,
    GraphSplit,
    Ring,
    SplitCandidates,
    splits_for,
)
from meshwright.dataflow.sharding import SplitChoices
from meshwright.dataflow.stages import StagePrice, StageTime, StageWork
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.sharding.space import divisors
from meshwright.spec.chip import ChipSpec

LEAST_TILE = 16
"""The smallest tile that is tried where none is given."""


def target_named(name: str, rules: str, link_bytes_per_s: float | None = None) -> Target:
    """Return a chip of the catalog or a file; under the rules of DFModel, one of its inputs."""
    if rules == "dfmodel":
        found = accelerator_named(name)
        return Target(name, found.grid, link_bytes_per_s or found.link_bytes_per_s)
    chip = load_chip(name)
    return Target(chip.name, grid_of(chip), link_bytes_per_s)


def fuse_graph(
    question: FusionQuestion,
    *,
    chips: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FusionAnswer:
    """Return the best partitions, over all tiles where none is given.

    Parameters
    ----------
    question
        What is fused, and where.
    chips
        Chips that tp and pp together take; every division is tried, and those of the question do
        not count. None: those of the question.
    progress
        Hears how many tiles and divisions are done, and of how many.

    Raises
    ------
    SpecError
        With all faults of the question.
    InfeasibleError
        When nothing fits; says what is too large.
    """
    entries = [question] if chips is None else _divisions(question, chips)
    for entry in entries:
        _check(entry)
    grounds = [
        _Ground(entry, tile, splits)
        for entry in entries
        for splits in [splits_for(entry)]
        for tile in _tiles(entry)
    ]
    tried = [(ground, split) for ground in grounds for split in ground.splits.likely]
    candidates = [
        Candidate(ground.problem(split), float(ground.question.repeats)) for ground, split in tried
    ]
    choice = best_of(candidates, progress)
    ground, split = tried[choice.number]
    ring, gap = ground.splits.ring, ground.splits.gap
    if ring is not None:
        split, fusion = refined(ring, split, choice.fusion, ground.problem)
        seconds = fusion.time_s * ground.question.repeats
        least_s = min(choice.bound_s, seconds)
        choice = replace(choice, fusion=fusion, weighted_s=seconds, bound_s=least_s)
        gap = seconds / _least_s(grounds, seconds) - 1.0
    return FusionAnswer(ground.question, ground.tile, split.dims, gap, choice)


def _least_s(grounds: Sequence[_Ground], known_s: float) -> float:
    """Return weighted seconds that no split of any ground undercuts, up to those that are known."""
    known: KnownOrders = {}
    least = known_s
    for ground in grounds:
        relaxed, weight = ground.relaxed, float(ground.question.repeats)
        bound = max(ground.splits.least_s, bound_s(relaxed))
        if weight * bound < known_s:
            try:
                bound = max(bound, fuse(relaxed, shared_orders(relaxed, known)).bound_s)
            except InfeasibleError:
                continue
        least = min(least, weight * bound)
    return least


@dataclass(frozen=True)
class _Ground:
    """One question with one tile: what is fused for each way to split its kernels."""

    question: FusionQuestion
    tile: int
    splits: SplitCandidates

    def problem(self, split: GraphSplit) -> FusionProblem:
        """Return the problem of one chip where kernels are split in some way."""
        return self._problem(splits=split.dims, network_s=split.network_s)

    @property
    def relaxed(self) -> FusionProblem:
        """The problem of which all those are tighter ones."""
        ring = self.splits.ring
        return self._problem(open_splits=ring.open_dims if ring else {})

    def _problem(self, **split: Any) -> FusionProblem:
        asked = self.question
        share = Share(
            tp=asked.tp,
            tile=self.tile,
            repeats=float(asked.repeats),
            send_s=_send_s(asked),
            micro_batches=() if asked.micro_batch is None else (asked.micro_batch,),
            runs_by_kernel=asked.runs_by_kernel,
            **split,
        )
        return fusion_problem(asked.graph, asked.target.grid, share, RULES[asked.rules])


def _divisions(question: FusionQuestion, chips: int) -> list[FusionQuestion]:
    """Return the question for every tp and pp that make up so many chips."""
    divided = [(tp, chips // tp) for tp in divisors(chips)]
    return [replace(question, tp=tp, pp=pp) for tp, pp in divided if pp <= question.graph.repeats]


def problem_of(question: FusionQuestion, tile: int) -> FusionProblem:
    """Return the problem of one chip for one tile, its kernels split as is likely best."""
    _check(question)
    ground = _Ground(question, tile, splits_for(question))
    return ground.problem(ground.splits.likely[0])


def _check(question: FusionQuestion) -> None:
    """Refuse what cannot be fused."""
    graph, faults = question.graph, []
    length = graph.sizes[graph.tiled]
    if question.tile is not None and question.tile > length:
        message = f"{question.tile} is longer than {graph.tiled}"
        faults.append(Fault("--tile", message, f"at most {length}"))
    if question.pp > graph.repeats:
        message = f"{question.pp} stages, but {graph.name} stands {graph.repeats} times in a row"
        faults.append(Fault("--pp", message, f"at most {graph.repeats}"))
    if max(question.tp, question.pp) > 1 and question.target.link_bytes_per_s is None:
        message = "is needed where several chips share the work"
        faults.append(Fault("--link", message, "such as 25GB/s, one direction of one link"))
    if faults:
        raise SpecError(faults)


def _tiles(question: FusionQuestion) -> list[int]:
    """Return the tiles that are tried: the given one, or all that are likely."""
    return tiles_of(question.graph) if question.tile is None else [question.tile]


def tiles_of(graph: DataflowGraph) -> list[int]:
    """Return powers of two and the whole length."""
    length = graph.sizes[graph.tiled]
    powers = [1 << power for power in range(length.bit_length())]
    return sorted({size for size in powers if LEAST_TILE <= size < length} | {length})


def _send_s(question: FusionQuestion) -> float:
    """Return the seconds in which the largest tensor between repetitions reaches the next stage."""
    link, graph = question.target.link_bytes_per_s, question.graph
    if question.pp == 1 or link is None:
        return 0.0
    handed = [
        graph.tensor_bytes(kernel)
        for kernel in graph.kernels
        if kernel.name in graph.outputs and kernel.phase is not Phase.WEIGHT_GRADIENT
    ]
    return max(handed, default=0.0) / link


MOST_STEPS = 20_000
"""Between ideals of the graph: fusion of larger ones takes too long to be done for each kernel."""


def refined(
    ring: Ring, split: GraphSplit, fusion: Fusion, problem_of: Callable[[GraphSplit], FusionProblem]
) -> tuple[GraphSplit, Fusion]:
    """Return a split, and its fusion, that no other way of a single kernel makes faster.

    Parameters
    ----------
    split, fusion
        Where the search starts; of a large graph they are returned as they are.
    problem_of
        What is fused for a split.
    """
    if fusion.counts.num_steps > MOST_STEPS:
        return split, fusion
    known: KnownOrders = {}
    is_better = True
    while is_better:
        is_better = False
        for other in list(_neighbours(ring, split)):
            found = _faster(problem_of(other), fusion.time_s, known)
            if found is not None:
                split, fusion, is_better = other, found, True
                break
    return split, fusion


def _faster(problem: FusionProblem, enough_s: float, known: KnownOrders) -> Fusion | None:
    """Return the fusion of a problem where it takes less than is known."""
    if bound_s(problem) >= enough_s:
        return None
    try:
        found = fuse(problem, shared_orders(problem, known))
    except InfeasibleError:
        return None
    return found if found.time_s < enough_s else None


def _neighbours(ring: Ring, split: GraphSplit) -> Iterator[GraphSplit]:
    """Yield the splits in which one kernel is split in another way."""
    tables = ring.tables(LINKS_ONLY, splits_weights=ring.trains)
    network, kernels = SplitChoices(tables), ring.graph.kernels
    ways = [
        next(n for n, way in enumerate(listed) if way.dim == split.dims[kernel.name])
        for kernel, listed in zip(kernels, tables.splits, strict=True)
    ]
    for number, (kernel, listed) in enumerate(zip(kernels, tables.splits, strict=True)):
        for way, other in enumerate(listed):
            if other.dim != split.dims[kernel.name]:
                changed = [*ways[:number], way, *ways[number + 1 :]]
                yield GraphSplit(
                    {**split.dims, kernel.name: other.dim}, network.costs_by_kernel(changed)
                )


def fused_stage_time(chip: ChipSpec) -> StageTime | None:
    """Return the price of a stage by fusion; None for a chip that states no array.

    The bound holds for all ways to split the kernels: each of them takes its least cores, DRAM
    and setup over its ways.
    """
    if chip.array_rows is None:
        return None
    grid = grid_of(chip)
    bounds: dict[tuple[int, int, int, int], float] = {}

    def price(work: StageWork) -> StagePrice | None:
        key = (id(work.graph), work.tp, work.layers, work.num_passes)
        if key not in bounds:
            bounds[key] = work.layers * _stage_bound_s(work, grid)
        split: dict[str, Any] = {"splits": work.sharding.dims, "network_s": work.network_s}
        problems = [
            fusion_problem(work.graph, grid, _share(work, tile, **split))
            for tile in tiles_of(work.graph)
        ]
        useful = [one for one in problems if work.layers * bound_s(one) < work.most_s]
        if not useful:
            return StagePrice(inf, bounds[key])
        try:
            choice = best_of(map(Candidate, useful))
        except InfeasibleError:
            return None
        return StagePrice(work.layers * choice.fusion.time_s, bounds[key])

    return price


def _stage_bound_s(work: StageWork, grid: CoreGrid) -> float:
    """Return seconds of one repetition that no way to split its kernels undercuts."""
    return min(
        bound_s(fusion_problem(work.graph, grid, _share(work, tile, open_splits=_ways(work))))
        for tile in tiles_of(work.graph)
    )


def _ways(work: StageWork) -> Mapping[str, tuple[str | None, ...]]:
    """Return the dims over which each kernel may be split."""
    dims = [tuple(dict.fromkeys(way.dim for way in ways)) for ways in work.network.splits]
    return dict(zip((kernel.name for kernel in work.graph.kernels), dims, strict=True))


def _share(work: StageWork, tile: int, **split: Any) -> Share:
    return Share(
        tp=work.tp,
        tile=tile,
        repeats=float(work.layers),
        micro_batches=_micro_batches(work.num_passes),
        **split,
    )


def _micro_batches(num_passes: int) -> tuple[int, ...]:
    """Return powers of two up to all passes, and all passes."""
    return tuple(sorted({*(1 << n for n in range(num_passes.bit_length())), num_passes}))
