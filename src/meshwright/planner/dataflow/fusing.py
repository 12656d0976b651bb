"""A graph on one chip of a group: how its kernels are split, and how they are fused there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshwright.base.errors import Fault, SpecError
from meshwright.baselines.dfmodel.accelerators import accelerator_named
from meshwright.baselines.dfmodel.sharding import peer_tables
from meshwright.catalog.chips import load_chip
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel
from meshwright.graph.op import Phase
from meshwright.onchip.fusion.choosing import Candidate, best_of
from meshwright.onchip.fusion.machine import grid_of
from meshwright.onchip.fusion.problem import FusionProblem, Share, fusion_problem
from meshwright.onchip.fusion.rules import RULES
from meshwright.plans.fusion import FusionAnswer, FusionQuestion, Target
from meshwright.pricing.dataflow.tables import SplitTables
from meshwright.pricing.dataflow.volume import ring_bytes, volume_tables, weights_split
from meshwright.search.dataflow.sharding import Sharding, choose_sharding
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.dataflow.splits import KernelSplit, splits_of
from meshwright.strategy.space import divisors

LINKS = 2
"""Of a chip in a ring: both are used at once."""
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
    tried = [
        (entry, split, tile)
        for entry in ([question] if chips is None else _divisions(question, chips))
        for split in [_split(entry)]
        for tile in _tiles(entry)
    ]
    candidates = [
        Candidate(_problem(entry, split, tile), float(entry.repeats))
        for entry, split, tile in tried
    ]
    choice = best_of(candidates, progress)
    chosen, split, tile = tried[choice.number]
    return FusionAnswer(chosen, tile, split.dims, split.gap, choice)


def _divisions(question: FusionQuestion, chips: int) -> list[FusionQuestion]:
    """Return the question for every tp and pp that make up so many chips."""
    divided = [(tp, chips // tp) for tp in divisors(chips)]
    return [replace(question, tp=tp, pp=pp) for tp, pp in divided if pp <= question.graph.repeats]


def problem_of(question: FusionQuestion, tile: int) -> FusionProblem:
    """Return the problem of one chip for one tile."""
    return _problem(question, _split(question), tile)


@dataclass(frozen=True)
class _Split:
    """How kernels are split, and the network that each one causes for a sequence."""

    dims: Mapping[str, str | None]
    network_s: Mapping[str, float]
    gap: float


def _problem(question: FusionQuestion, split: _Split, tile: int) -> FusionProblem:
    share = Share(
        tp=question.tp,
        splits=split.dims,
        network_s=split.network_s,
        tile=tile,
        repeats=float(question.repeats),
        send_s=_send_s(question),
        micro_batches=() if question.micro_batch is None else (question.micro_batch,),
        runs_by_kernel=question.runs_by_kernel,
    )
    return fusion_problem(question.graph, question.target.grid, share, RULES[question.rules])


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


def _split(question: FusionQuestion) -> _Split:
    """Return the split of fewest bytes, once the question is found right."""
    _check(question)
    graph, degree, link = question.graph, question.tp, question.target.link_bytes_per_s
    if degree == 1 or link is None:
        return _Split({}, {}, 0.0)
    is_peer = question.rules == "dfmodel"
    tables = peer_tables(graph, degree) if is_peer else _tables(graph, degree)
    sharding = choose_sharding(tables)
    if sharding is None:
        raise SpecError(Fault("--tp", f"{graph.name} cannot be split over {degree} chips"))
    sent: dict[str, float] = defaultdict(float)
    for kind, name, num_bytes in _collectives(sharding, is_peer=is_peer):
        sent[name] += ring_bytes(kind, num_bytes, degree) / (LINKS * link)
    return _Split(sharding.dims, sent, sharding.gap)


def _tables(graph: DataflowGraph, degree: int) -> SplitTables:
    """Return ways to split kernels in which weights are split, and their gradients like them.

    Dims shorter than the group are not split; where that leaves none, every chip does all of it.
    """

    def ways(kernel: Kernel) -> tuple[KernelSplit, ...]:
        found = weights_split(kernel) if kernel.weights else splits_of(kernel)
        if kernel.phase is Phase.WEIGHT_GRADIENT:
            found = tuple(split for split in found if not split.writes.is_partial)
        wide = tuple(s for s in found if s.dim is None or graph.sizes[s.dim] >= degree)
        return wide or splits_of(kernel)[:1]

    return volume_tables(graph, degree, splits=ways)


def _collectives(sharding: Sharding, *, is_peer: bool) -> list[tuple[CollectiveKind, str, float]]:
    """Return the collectives of a sharding: kind, the kernel that causes it, and bytes."""
    graph, degree = sharding.tables.graph, sharding.tables.degree
    found = []
    for placed in sharding.changes:
        kind = placed.change.kind
        if kind is not None:
            is_exchange = kind is CollectiveKind.ALL_TO_ALL
            num_bytes = placed.num_bytes / degree if is_exchange else placed.num_bytes
            found.append((kind, placed.producer, num_bytes))
    if is_peer:
        for kernel, costs, way in zip(
            graph.kernels, sharding.tables.costs, sharding.ways, strict=True
        ):
            if costs[way] > 0:
                found.append((CollectiveKind.ALL_REDUCE, kernel.name, float(costs[way])))
    return found


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
