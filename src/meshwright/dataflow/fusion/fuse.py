"""A graph on the chips of a group: the splits of its kernels, and their fusion on each chip.

Splits that are likely good are fused for each tile; the best one is then changed kernel by kernel
for as long as its fusion gets faster. Stages of a pipeline are priced by fusion in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from meshwright.audit.laws import lawful
from meshwright.base.arrays import FloatArray, gap_of
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_seconds
from meshwright.dataflow.audited import fusion_facts
from meshwright.dataflow.branches import OpenDims
from meshwright.dataflow.fusion.answer import (
    Fusion,
    FusionAnswer,
    FusionChoice,
    FusionCounts,
    Objective,
    OtherObjective,
    PlacedPartition,
)
from meshwright.dataflow.fusion.cores import CoreGrid, grid_of
from meshwright.dataflow.fusion.places import placed
from meshwright.dataflow.fusion.price import bound_s
from meshwright.dataflow.fusion.problem import (
    OWN,
    DeviceShare,
    FusionProblem,
    Rules,
    fusion_problem,
    in_their_tiles,
)
from meshwright.dataflow.fusion.question import (
    FusionQuestion,
    check_question,
    tiles_of,
    tilings,
)
from meshwright.dataflow.fusion.search import (
    KnownLattices,
    WeightedProblem,
    best_of,
    evaluate,
    fuse,
    orders_of,
)
from meshwright.dataflow.fusion.splits import (
    LINKS_ONLY,
    ChipRing,
    GraphSplit,
    SplitCandidates,
    cores_s,
    splits_for,
)
from meshwright.dataflow.price import SplitTimes
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.dataflow.stages import StagePrice, StageTime, StageWork
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.sharding.space import divisors
from meshwright.spec.workload import BYTES_OF
from meshwright.topology.wafer import host_link

MOST_STEPS = 20_000
"""Most steps between ideals of a graph whose fusion is repeated for each kernel."""


def fuse_graph(
    question: FusionQuestion,
    *,
    chips: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    time_limit_s: float = inf,
) -> FusionAnswer:
    """Return the best partitions, over all tiles of all dims that may pass so where none is given.

    A tile that is given, and the rules of a study, are of the dim that the graph states.

    Parameters
    ----------
    question
        Graph, chips and limits of the fusion.
    chips
        Chips that tp and pp together take; every division is tried, and those of the question do
        not count. None: those of the question.
    progress
        Called with the number of tiles and divisions that are done, and of all.
    time_limit_s
        Time after which the best answer so far is returned with its gap; an interrupt does so too.

    Raises
    ------
    SpecError
        With all faults of the question.
    InfeasibleError
        When nothing fits; names the part that is too large.
    """
    entries, until_s = [question], monotonic() + time_limit_s
    if chips is not None:
        divided = [(tp, chips // tp) for tp in divisors(chips)]
        repeats = question.graph.repeats
        entries = [replace(question, tp=tp, pp=pp) for tp, pp in divided if pp <= repeats]
    for entry in entries:
        check_question(entry)
    cases = [
        _Case(entry, splits, keeps)
        for entry in entries
        for splits in [splits_for(entry)]
        for keeps in _may_keep(entry)
    ]
    tried = [
        (case, split, problem)
        for case in cases
        for split in case.splits.likely
        for problem in case.problems(split)
    ]
    known: KnownLattices = {}
    choice = best_of(
        [WeightedProblem(problem, case.weight) for case, _, problem in tried],
        progress, until_s, known,
    )  # fmt: skip
    case, split, _ = tried[choice.number]
    same_share = [problem for one, way, problem in tried if one is case and way is split]
    ring, gap = case.splits.ring, case.splits.gap
    if ring is not None:
        split, fusion = _refined(ring, split, choice.fusion, case.problems, until_s)
        if split is not tried[choice.number][1]:
            same_share = case.problems(split)
        seconds = fusion.time_s * case.weight
        least_s = min(choice.bound_s, seconds)
        choice = replace(choice, fusion=fusion, weighted_s=seconds, bound_s=least_s)
        gap = gap_of(seconds, _least_s(cases, seconds, until_s))
    asked, fusion = case.question, choice.fusion
    graph, grid, chips = asked.graph, asked.target.grid, asked.tp * asked.pp
    other = _under_other(asked, choice, same_share, known, until_s)
    alone, stream = fusion, other.fusion
    if asked.objective == "throughput":
        alone, stream = stream, alone
    longest = max(fusion.partitions, key=lambda part: part.time_s)
    rate = 1.0 / (stream.time_s * asked.repeats)
    places = placed(fusion)
    answer = FusionAnswer(
        graph=graph.name, chip=asked.target.name, rate_of=asked.target.dtype,
        kernel_by_kernel=asked.runs_by_kernel, tp=asked.tp, pp=asked.pp,
        tile=longest.tile, tiled=longest.tiled,
        tiled_dims=tuple(dict.fromkeys(tile.tiled for tile in fusion.problem.tiles)),
        pass_name="sequence" if graph.tiled == "tokens" and "batch" not in graph.sizes else "pass",
        num_kernels=len(graph.kernels), repeats=asked.repeats, micro_batch=fusion.micro_batch,
        objective=asked.objective, num_passes=asked.num_passes,
        latency_s=graph.repeats * alone.time_s,
        weights_s=graph.repeats * alone.parts_s["exposed_setup_s"],
        time_s=fusion.time_s, parts_s=fusion.parts_s, bound_s=choice.bound_s / case.weight,
        gap=gap_of(choice.weighted_s, choice.bound_s), sharding_gap=gap,
        sequences_per_s=rate, compute_share=graph.flops * rate / (chips * grid.flops_per_s),
        num_cores=grid.num_cores, sram_capacity_bytes=grid.sram_bytes,
        resident_bytes=fusion.problem.resident_bytes, far_bytes=fusion.far_bytes,
        dram_capacity_bytes=grid.dram_bytes if grid.outside else 0.0,
        held_bytes=fusion.held_bytes, splits=split.dims,
        counts=FusionCounts(
            **vars(fusion.counts), tiles_fused=choice.num_fused, tiles_pruned=choice.num_pruned,
            tiles_refused=len(choice.refused),
        ),
        refused=choice.refused, partitions=fusion.partitions, places=places,
        other=OtherObjective(
            objective=_other_than(asked.objective), time_s=other.weighted_s,
            bound_s=other.bound_s, gap=gap_of(other.weighted_s, other.bound_s),
            micro_batch=other.fusion.micro_batch, partitions=other.fusion.partitions,
        ),
        warnings=tuple(_warnings(asked, places)),
    )  # fmt: skip
    return lawful(answer, fusion_facts(asked, alone, stream))


def _other_than(objective: Objective) -> Objective:
    return "latency" if objective == "throughput" else "throughput"


def _under_other(
    asked: FusionQuestion,
    choice: FusionChoice,
    problems: Sequence[FusionProblem],
    known: KnownLattices,
    until_s: float,
) -> FusionChoice:
    """Return the best fusion of the same share of the chips under the other objective.

    It has partitions and tiles of its own; those of ``choice``, where these are faster or where the
    search for them was cut short.
    """
    objective, fusion = _other_than(asked.objective), choice.fusion
    for_latency, send_s = objective == "latency", _send_s(asked, objective)
    kept = evaluate(
        fusion.problem.under(for_latency, send_s),
        fusion.problem.sets_of([k.name for k in part.kernels] for part in fusion.partitions),
        [(part.tiled, part.tile) for part in fusion.partitions],
    )
    listed = [problem.under(for_latency, send_s) for problem in problems]
    least_s = min(kept.time_s, *map(bound_s, listed))
    same = replace(choice, fusion=kept, weighted_s=kept.time_s, bound_s=least_s)
    if choice.was_cut:
        return same
    try:
        found = best_of(map(WeightedProblem, listed), None, until_s, known)
    except (InfeasibleError, KeyboardInterrupt):
        return same
    bound = min(found.bound_s, kept.time_s)
    return found if found.weighted_s < kept.time_s else replace(same, bound_s=bound)


def _may_keep(question: FusionQuestion) -> tuple[bool, ...]:
    """Return whether weights may stay in the SRAM: where the share of a chip is no larger."""
    graph, grid = question.graph, question.target.grid
    if question.rules is not OWN or not grid.outside:
        return (False,)
    weights = {weight.name: weight for kernel in graph.kernels for weight in kernel.weights}
    held = question.repeats * sum(map(graph.tensor_bytes, weights.values())) / question.tp
    return (False, True) if held <= grid.sram_bytes else (False,)


def _warnings(asked: FusionQuestion, places: Sequence[PlacedPartition]) -> Iterator[str]:
    """Yield the mismatch of numbers and rates, and partitions that wait for their own cores."""
    slow = [number for number, place in enumerate(places, start=1) if place.exposed_s > 0.0]
    if slow:
        which = "partition " if len(slow) == 1 else "partitions "
        yield (
            f"tensors between the cores of {which}{', '.join(map(str, slow))} take longer than the "
            f"rest: {format_seconds(sum(place.exposed_s for place in places))} more a pass than is "
            "priced"
        )
    target, width = asked.target, asked.graph.widest_product_bytes
    if BYTES_OF[target.dtype] != width:
        yield (
            f"products are priced at its rate of {target.dtype}: {target.name} states none for "
            f"products of {width:g}-byte numbers (--precision)"
        )


def problem_of(question: FusionQuestion, tile: int) -> FusionProblem:
    """Return the problem of one chip for one tile, under the first of the likely splits."""
    check_question(question)
    case = _Case(replace(question, tile=tile), splits_for(question))
    return case.problems(case.splits.likely[0])[0]


@dataclass(frozen=True)
class _Case:
    """One question: its problems for each split of the kernels."""

    question: FusionQuestion
    splits: SplitCandidates
    keeps_weights: bool = False

    @property
    def weight(self) -> float:
        """Repetitions of the graph that count: on one chip, or all for the latency."""
        asked = self.question
        return float(asked.graph.repeats if asked.objective == "latency" else asked.repeats)

    def problems(self, split: GraphSplit) -> list[FusionProblem]:
        """Return the problems of one chip where kernels are split in some way."""
        return self._problems(replace(self._share, splits=split.dims, network_s=split.network_s))

    @property
    def relaxed(self) -> list[FusionProblem]:
        """Problems that relax those of all splits."""
        ring = self.splits.ring
        return self._problems(replace(self._share, open_splits=ring.open_dims if ring else {}))

    @property
    def _share(self) -> DeviceShare:
        asked = self.question
        return DeviceShare(
            tp=asked.tp,
            repeats=float(asked.repeats),
            send_s=_send_s(asked, asked.objective),
            micro_batches=() if asked.micro_batch is None else (asked.micro_batch,),
            runs_by_kernel=asked.runs_by_kernel,
            keeps_weights=self.keeps_weights,
            for_latency=asked.objective == "latency",
            num_passes=asked.num_passes,
            num_stages=asked.pp,
        )

    def _problems(self, share: DeviceShare) -> list[FusionProblem]:
        asked = self.question
        if asked.rules.has_one_tile:
            tiles = tiles_of(asked.graph) if asked.tile is None else [asked.tile]
            tried = [(asked.graph, tile) for tile in tiles]
        else:
            tried = tilings(asked.graph, asked.tile)
        return _in_tiles(tried, asked.target.grid, share, asked.rules)


def _in_tiles(
    tried: Sequence[tuple[DataflowGraph, int]], grid: CoreGrid, share: DeviceShare, rules: Rules
) -> list[FusionProblem]:
    """Return problems whose partitions have one of some tiles each, or one tile as rules say."""
    problems = [
        fusion_problem(graph, grid, replace(share, tile=tile), rules) for graph, tile in tried
    ]
    return problems if rules.has_one_tile else in_their_tiles(problems)


def _least_s(cases: Sequence[_Case], known_s: float, until_s: float) -> float:
    """Return weighted seconds that no split of any case undercuts, up to those that are known.

    They are those of closed form for cases that come after the time ``until_s``.
    """
    known: KnownLattices = {}
    least = known_s
    for case, relaxed in [(one, problem) for one in cases for problem in one.relaxed]:
        bound = max(case.splits.least_s, bound_s(relaxed))
        if case.weight * bound < known_s and monotonic() < until_s:
            orders = None
            try:
                orders = orders_of(relaxed, known)
                bound = max(bound, fuse(relaxed, orders).bound_s)
            except InfeasibleError:
                if orders is None or orders.fewer is None:
                    continue
                bound = max(bound, orders.least_s)
        least = min(least, case.weight * bound)
    return least


def _send_s(question: FusionQuestion, objective: Objective) -> float:
    """Return the seconds in which the largest tensor between repetitions reaches the next stage.

    For the latency those of all stages, spread over the repetitions.
    """
    link, graph = question.target.link_bytes_per_s, question.graph
    if question.pp == 1 or link is None:
        return 0.0
    handed = [
        graph.tensor_bytes(kernel)
        for kernel in graph.kernels
        if kernel.name in graph.outputs and kernel.phase is not Phase.WEIGHT_GRADIENT
    ]
    often = (question.pp - 1) / graph.repeats if objective == "latency" else 1.0
    return often * max(handed, default=0.0) / link


def _refined(
    ring: ChipRing,
    split: GraphSplit,
    fusion: Fusion,
    problems: Callable[[GraphSplit], list[FusionProblem]],
    until_s: float,
) -> tuple[GraphSplit, Fusion]:
    """Return a split, and its fusion, that no other split of a single kernel makes faster.

    Parameters
    ----------
    split, fusion
        Where the search starts; of a large graph they are returned as they are.
    problems
        Function from a split to its fusion problems.
    """
    if fusion.counts.num_steps > MOST_STEPS:
        return split, fusion
    known: KnownLattices = {}
    is_better = True
    while is_better:
        is_better = False
        for other, asked in ((n, p) for n in _neighbours(ring, split) for p in problems(n)):
            if bound_s(asked) >= fusion.time_s or monotonic() >= until_s:
                continue
            try:
                found = fuse(asked, orders_of(asked, known))
            except InfeasibleError:
                continue
            if found.time_s < fusion.time_s:
                split, fusion, is_better = other, found, True
                break
    return split, fusion


def _neighbours(ring: ChipRing, split: GraphSplit) -> Iterator[GraphSplit]:
    """Yield the splits in which one kernel is split in another way."""
    network = ring.tables(LINKS_ONLY, splits_weights=ring.graph.trains)
    names = [kernel.name for kernel in ring.graph.kernels]
    ways = [
        next(n for n, one in enumerate(listed) if one.dim == split.dims[name])
        for name, listed in zip(names, network.splits, strict=True)
    ]
    for number, (name, listed) in enumerate(zip(names, network.splits, strict=True)):
        for way, other in enumerate(listed):
            if other.dim != split.dims[name]:
                changed = [*ways[:number], way, *ways[number + 1 :]]
                yield GraphSplit({**split.dims, name: other.dim}, network.costs_by_kernel(changed))


def _least_fused_s(
    relaxed: Sequence[FusionProblem], lattices: KnownLattices, known_s: float = inf
) -> float:
    """Return seconds that no fusion of some problems undercuts.

    Small graphs are fused for it where closed form is below the seconds of a known answer.
    """
    least_s = inf
    for problem in sorted(relaxed, key=bound_s):
        bound = bound_s(problem)
        if bound >= least_s:
            break
        if bound >= known_s:
            least_s = bound
            break
        try:
            orders = orders_of(problem, lattices)
            if orders.lattice is not None and len(orders.lattice.source) <= MOST_STEPS:
                bound = fuse(problem, orders).bound_s
        except InfeasibleError:
            continue
        least_s = min(least_s, bound)
    return least_s if least_s < inf else min(map(bound_s, relaxed))


def fused_stage_time(system: CalibratedSystem) -> StageTime | None:
    """Return the price of a pipeline stage by fusion; None for a chip that states no array.

    Its kernels are fused, and tiles flow through them. The bound holds for all ways to split the
    kernels: each of them takes its least cores, DRAM and setup over its splits.
    """
    chip = system.spec.chip
    if chip.array_rows is None:
        return None
    grid = grid_of(chip, float(system.calibration.launch_s), host=host_link(system.spec))
    bounds: dict[tuple[int, int, int, int], float] = {}
    known: dict[tuple[object, ...], StagePrice | None] = {}
    lattices: KnownLattices = {}

    def problems(work: StageWork, split: DeviceShare) -> list[FusionProblem]:
        """Return the problem of each tile; micro-batches are powers of two, and all passes."""
        passes = work.num_passes
        sizes = sorted({*(1 << n for n in range(passes.bit_length())), passes})
        share = replace(split, tp=work.tp, repeats=float(work.layers), micro_batches=tuple(sizes))
        return _in_tiles(tilings(work.graph), grid, share, OWN)

    def price(work: StageWork) -> StagePrice | None:
        """Return the price of a stage; a stage that was priced before is looked up."""
        split = DeviceShare(splits=work.sharding.dims, network_s=work.network_s)
        ways = (tuple(split.splits.items()), tuple(split.network_s.items()))
        asked = (id(work.graph), work.tp, work.layers, work.num_passes, work.most_s, ways)
        if asked not in known:
            known[asked] = priced(work, split)
        return known[asked]

    def priced(work: StageWork, split: DeviceShare) -> StagePrice | None:
        key = (id(work.graph), work.tp, work.layers, work.num_passes)
        if key not in bounds:
            bounds[key] = bound_of(work, work.network.open_dims, inf)
        useful = [p for p in problems(work, split) if work.layers * bound_s(p) < work.most_s]
        if not useful:
            return StagePrice(inf, bounds[key])
        try:
            choice = best_of(map(WeightedProblem, useful))
        except InfeasibleError:
            return None
        return StagePrice(work.layers * choice.fusion.time_s, bounds[key])

    def bound_of(work: StageWork, open_dims: OpenDims, known_s: float) -> float:
        relaxed = problems(work, DeviceShare(open_splits=open_dims))
        return work.layers * _least_fused_s(relaxed, lattices, known_s / work.layers)

    def compute_s(seconds: SplitTimes) -> list[FloatArray]:
        return cores_s(seconds.graph, grid, seconds.degree, seconds.splits)

    return StageTime(price, bound_of, compute_s)
