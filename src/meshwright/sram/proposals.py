"""Changes that make layers fit, each with its price; other levels and batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np

from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import stack
from meshwright.spec.system import DType
from meshwright.spec.workload import BYTES_OF, Training
from meshwright.sram.answer import PartitionBatch, PartitionLevel, Proposal
from meshwright.sram.contiguous import most_worth
from meshwright.sram.price import batch_of, rates
from meshwright.sram.question import PLAN_OPTIONS, PartitionProblem
from meshwright.sram.search import (
    CutObjective,
    CutProblem,
    Solution,
    cut_problems_of,
    fewest_stops,
    group_choices,
    solve,
)


def spilled(
    near: PartitionProblem, far: PartitionProblem, solution: Solution
) -> tuple[float, Solution]:
    """Return a cut of the far memory with as much as possible held in the near one.

    On each stage the layers that save most seconds in sum stay there: an exact knapsack. The room
    of the near memory is lessened by the largest transient of the stage.

    Returns
    -------
    tuple
        The share of the seconds of all layers that is saved, and the cut with its new price.
    """
    (cut_problem,) = cut_problems_of(near, [solution.num_groups])
    far_s, near_s = solution.cut_problem.layers.layer_s, cut_problem.layers.layer_s
    saved_s = np.maximum(far_s - near_s, 0.0)
    loads = cut_problem.layers.loads
    sizes = loads.resident_bytes + loads.kept_bytes
    capacity_bytes = cut_problem.stage_capacities.capacity_bytes[0]
    stages, total_saved_s = [], 0.0
    runs = [run for run in pairwise([0, *solution.stops]) if run[0] < run[1]]
    for (first, stop), seconds in zip(runs, solution.stage_seconds, strict=True):
        room = capacity_bytes - float(loads.transient_bytes[first:stop].max())
        worth_s, _ = most_worth(sizes[first:stop].tolist(), saved_s[first:stop].tolist(), room)
        total_saved_s += worth_s
        stages.append(replace(seconds, work_s=seconds.work_s - worth_s))
    parts = {"layers_s": sum(stage.work_s for stage in stages)}
    yielded = rates(
        far.workload, far.calibration, stages, parts, num_groups=solution.num_groups,
        group_devices=far.tensor_degree, replicas=solution.replicas,
    )  # fmt: skip
    return total_saved_s / float(far_s.sum()), replace(solution, rates=yielded)


MOST_SPLIT = 256
"""Most devices over which one layer is split."""
NARROWER: tuple[DType, ...] = ("int8", "fp4")
"""Types of weights that are proposed, the wider first."""


Progress = Callable[[int, int], None]
"""Function called with the number done, and the number of all."""


def proposals(
    problem: PartitionProblem, objective: CutObjective, num_groups: int | None,
    found: Solution | None, progress: Progress | None = None,
) -> list[Proposal]:  # fmt: skip
    """Return the changes that make a model fit, the cheapest first.

    Parameters
    ----------
    found
        The best cut on more devices than there are; None where a layer fits no device.
    progress
        Called with the changes that are tried.
    """
    changes: list[Callable[[PartitionProblem, CutObjective, int | None], Iterator[Proposal]]] = [
        _splits, _batches, _streams, _narrower, _pruned,
    ]  # fmt: skip
    offers: list[Proposal] = []
    for done, change in enumerate(changes):
        if progress is not None:
            progress(done, len(changes))
        offers += change(problem, objective, num_groups)
    if found is not None:
        offers.append(_offer("devices", "as many devices", problem, found))
    return sorted(offers, key=lambda offer: offer.cost)


def _offer(
    kind: str, what: str, problem: PartitionProblem, solution: Solution, *, changes: bool = False
) -> Proposal:
    """Return a solution as a proposal."""
    price = solution.rates
    used = solution.num_stages * problem.tensor_degree
    return Proposal(
        kind, what, solution.num_stages, used,
        price.latency_s if price else None,
        used * solution.replicas / price.tokens_per_s if price else None, changes,
    )  # fmt: skip


def _splits(
    problem: PartitionProblem, objective: CutObjective, groups: int | None
) -> Iterator[Proposal]:
    """Yield the split of each layer that needs the fewest devices: all of it, or its experts."""
    for kind in ("split", "experts") if problem.priced_problem.num_experts else ("split",):
        best: tuple[PartitionProblem, Solution] | None = None
        for split in _legal_splits(problem, spreads_experts=kind == "experts"):
            if best and split.tensor_degree > _devices(*best):
                break
            solution = solve(split, objective, groups)
            if solution and (best is None or _devices(split, solution) < _devices(*best)):
                best = split, solution
        if best:
            how = "the experts of each layer spread" if kind == "experts" else "each layer split"
            what = f"{how} over {best[0].tensor_degree} devices"
            yield _offer(kind, what, *best)


def _devices(problem: PartitionProblem, solution: Solution) -> int:
    return solution.num_stages * problem.tensor_degree


def _legal_splits(problem: PartitionProblem, *, spreads_experts: bool) -> list[PartitionProblem]:
    """Return the settings of further devices in a stage that the rules of the axes allow."""
    splits = [
        replace(problem, tensor_degree=degree, expert_degree=degree if spreads_experts else 1)
        for degree in range(problem.tensor_degree + 1, MOST_SPLIT + 1)
    ]
    chip = problem.system.chip
    is_refused = np.zeros(len(splits), dtype=bool)
    for refusal in all_refusals(
        problem.model, problem.workload, stack([split.strategy(1) for split in splits]),
        PLAN_OPTIONS,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        is_refused |= refusal.mask
    return [split for split, refused in zip(splits, is_refused, strict=True) if not refused]


def _batches(
    problem: PartitionProblem, objective: CutObjective, groups: int | None
) -> Iterator[Proposal]:
    """Yield the largest smaller batch that fits the devices there are.

    In training it is the batch of a step, which changes the result of training.
    """
    batch = batch_of(problem.workload)
    largest = largest_batch(problem, batch - 1) if groups is None else 0
    if largest:
        smaller = with_batch(problem, largest)
        solution = solve(smaller, objective)
        if solution is not None:
            changes = isinstance(problem.workload, Training)
            yield _offer("batch", f"a batch of {largest}", smaller, solution, changes=changes)


def largest_batch(problem: PartitionProblem, most: int) -> int:
    """Return the largest batch up to ``most`` that fits; 0 where none does. The limit is bisected.

    Larger batches never fit on fewer devices: caches and activations only grow.
    """

    def fits(batch: int) -> bool:
        """Return whether a batch fits the devices there are, in groups as small as may be."""
        tried = with_batch(problem, batch)
        (cut_problem,) = cut_problems_of(tried, [group_choices(tried)[-1]])
        stops = fewest_stops(cut_problem)
        return stops is not None and len(stops) <= (cut_problem.most_stages or 0)

    reach = 1
    while reach <= most and fits(reach):
        reach *= 2
    return bisect_left(range(most + 1), True, reach // 2 + 1, min(reach, most + 1),
                       key=lambda batch: not fits(batch)) - 1  # fmt: skip


def with_batch(problem: PartitionProblem, batch: int) -> PartitionProblem:
    """Return the problem with another number of sequences in flight, or in a step."""
    field = "global_batch_size" if isinstance(problem.workload, Training) else "batch_size"
    return replace(problem, workload=problem.workload.model_copy(update={field: batch}))


def _streams(
    problem: PartitionProblem, objective: CutObjective, groups: int | None
) -> Iterator[Proposal]:
    """Yield the next level of memory that holds the layers; layers with room nearer stay there."""
    for level in range(problem.level + 1, len(problem.system.chip.memories)):
        far = replace(problem, level=level, capacity_bytes=None)
        solution = solve(far, objective, groups)
        if solution is None or not solution.has_devices:
            continue
        share, priced = spilled(problem, far, solution)
        name = far.memory.name
        what = f"layers read from {name}, {share:.0%} of their time saved by layers on the chip"
        yield _offer("stream", what if share else f"layers read from {name}", far, priced)
        return


def _narrower(
    problem: PartitionProblem, objective: CutObjective, groups: int | None
) -> Iterator[Proposal]:
    """Yield narrower weights that fit, the widest of them."""
    work = problem.workload
    if isinstance(work, Training):
        return
    for dtype in NARROWER:
        if BYTES_OF[dtype] < work.precision.weight_bytes:
            narrower = {"weight": dtype, "weight_format": None}
            precision = work.precision.model_copy(update=narrower)
            changed = work.model_copy(update={"precision": precision})
            narrow = replace(problem, workload=changed)
            solution = solve(narrow, objective, groups)
            if solution is not None and solution.has_devices:
                yield _offer("quantise", f"weights of layers in {dtype}", narrow, solution,
                             changes=True)  # fmt: skip
                return


def _pruned(
    problem: PartitionProblem, objective: CutObjective, groups: int | None
) -> Iterator[Proposal]:
    """Yield the largest share of the weights with which the model fits.

    The time saved is not priced: it depends on how the hardware skips pruned weights.
    """
    (cut_problem,) = cut_problems_of(problem, [groups or group_choices(problem)[-1]])
    for offer in pruned(cut_problem):
        yield replace(offer, num_devices=offer.num_stages * problem.tensor_degree)


def pruned(cut_problem: CutProblem) -> Iterator[Proposal]:
    """Yield the largest share of the weights that fits, to a part in a thousand, if any does."""
    layers, most = cut_problem.layers, cut_problem.most_stages
    most = len(layers.names) if most is None else most

    def stages(thousandths: int) -> int:
        weights = layers.resident_bytes["weights"] * (thousandths / 1000)
        kept = replace(layers, resident_bytes={**layers.resident_bytes, "weights": weights})
        stops = fewest_stops(replace(cut_problem, layers=kept))
        return most + 1 if stops is None else len(stops)

    kept = bisect_right(range(1000), most, 1, key=stages) - 1
    if kept:
        what, needed = f"{kept / 10:.3g} % of all weights kept", stages(kept)
        yield Proposal("prune", what, needed, needed, None, None, changes_numbers=True)


def measured_proposals(cut_problem: CutProblem) -> Iterator[Proposal]:
    """Yield the changes that make measured layers fit; their cost is not known.

    Each layer is split evenly, weights or all of it; the limits of its operators are not known.
    """
    layers = cut_problem.layers
    held_bytes = layers.loads.resident_bytes + layers.loads.transient_bytes
    degree = ceil(float(held_bytes.max()) / min(cut_problem.stage_capacities.capacity_bytes))
    if degree > 1:
        divided = replace(
            layers,
            resident_bytes={name: part / degree for name, part in layers.resident_bytes.items()},
            transient_bytes={name: part / degree for name, part in layers.transient_bytes.items()},
            kept_bytes=layers.kept_bytes / degree,
        )
        count = len(fewest_stops(replace(cut_problem, layers=divided)) or [])
        what = f"each layer split over {degree} devices"
        yield Proposal("split", what, count, count * degree, None, None, changes_numbers=False)
    yield from pruned(cut_problem)


MOST_IN_FLIGHT = 1 << 16
"""Sequences beyond which no batch is tried."""


def level_options(
    problem: PartitionProblem, objective: CutObjective, groups: int | None
) -> tuple[PartitionLevel, ...]:
    """Return the best cut for each level of memory of the chip, near to far."""
    found = []
    for level, memory in enumerate(problem.system.chip.memories):
        is_own = level == problem.level
        there = problem if is_own else replace(problem, level=level, capacity_bytes=None)
        known = solve(there, objective, groups)
        price = known.rates if known else None
        found.append(
            PartitionLevel(
                memory.name, there.room_bytes,
                known.num_stages if known else None,
                _devices(problem, known) if known else None,
                price.latency_s if price else None,
                price.tokens_per_s if price else None,
            )
        )  # fmt: skip
    return tuple(found)


def batch_options(
    problem: PartitionProblem, objective: CutObjective, progress: Progress | None = None
) -> tuple[tuple[PartitionBatch, ...], int]:
    """Return the batches that none beats in tokens per second and in those of one user.

    Powers of two, the batch that was asked for, and the largest one that fits, which is returned
    too; larger ones than ``MOST_IN_FLIGHT`` are not looked for.
    """
    largest = largest_batch(problem, MOST_IN_FLIGHT)
    sizes = {1 << power for power in range(largest.bit_length())}
    sizes |= {largest, min(batch_of(problem.workload), largest)}
    kept: list[tuple[float, PartitionBatch]] = []
    best = 0.0
    for done, batch in enumerate(sorted(sizes - {0})):
        if progress is not None:
            progress(done, len(sizes))
        solution = solve(with_batch(problem, batch), objective)
        if solution is None or solution.rates is None or not solution.has_devices:
            continue
        price = solution.rates
        if price.tokens_per_s > best:
            best, user = price.tokens_per_s, price.tokens_per_s_per_user or 0.0
            option = PartitionBatch(
                batch, solution.num_groups, solution.num_stages, solution.replicas,
                price.latency_s, price.tokens_per_s,
            )  # fmt: skip
            kept = [*(entry for entry in kept if entry[0] > user), (user, option)]
    return tuple(option for _, option in kept), largest
