"""A graph on one chip of a group: how its kernels are split, and how they are fused there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.catalog.chips import load_chip
from meshwright.dataflow.dfmodel.accelerators import accelerator_named
from meshwright.dataflow.fusion.bound import bound_s
from meshwright.dataflow.fusion.choosing import Candidate, KnownOrders, best_of, shared_orders
from meshwright.dataflow.fusion.fusion import fuse
from meshwright.dataflow.fusion.machine import grid_of
from meshwright.dataflow.fusion.problem import FusionProblem, Share, fusion_problem
from meshwright.dataflow.fusion.rules import RULES
from meshwright.dataflow.fusion_answer import FusionAnswer, FusionQuestion, Target
from meshwright.dataflow.refining import refined
from meshwright.dataflow.splitting import Split, Splits, splits_for
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.sharding.space import divisors

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
    splits: Splits

    def problem(self, split: Split) -> FusionProblem:
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
