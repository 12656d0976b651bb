"""What would help when layers do not fit: each way with its price, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import stack
from meshwright.spec.chip import DType
from meshwright.spec.workload import BYTES_OF, Training
from meshwright.sram.computed import STRUCTURE
from meshwright.sram.contiguous.rooms import Rooms
from meshwright.sram.cuts import Objective, fewest_stops
from meshwright.sram.ground import Ground
from meshwright.sram.rates import batch_of
from meshwright.sram.row import LayerRow
from meshwright.sram.setting import Setting
from meshwright.sram.solve import Solution, grounds_of, group_choices, solve
from meshwright.sram.spilling import spilled

MOST_SPLIT = 256
"""Devices over which one layer is split at most."""
NARROWER: tuple[DType, ...] = ("int8", "fp4")
"""Types of weights that are proposed, the wider first."""


Progress = Callable[[int, int], None]
"""Hears how many are done, and of how many."""


@dataclass(frozen=True)
class Proposal:
    """One way to make the layers fit."""

    kind: str
    """``devices``, ``split``, ``experts``, ``batch``, ``stream``, ``quantise`` or ``prune``."""
    what: str
    num_stages: int
    num_devices: int
    """Devices that one row of stages needs."""
    latency_s: float | None
    """Of a token, a prompt or a step; None where it is not priced [s]."""
    device_s_per_token: float | None
    """Devices used over tokens per second: what a token costs [device s]."""
    changes_numbers: bool
    """Whether the model computes something else."""

    @property
    def cost(self) -> tuple[bool, float]:
        """What the order goes by: ways that leave the model as it is, then device seconds."""
        unknown = self.device_s_per_token is None
        return self.changes_numbers, inf if unknown else self.device_s_per_token or 0.0


def proposals(
    setting: Setting, objective: Objective, num_groups: int | None, found: Solution | None,
    progress: Progress | None = None,
) -> list[Proposal]:  # fmt: skip
    """Return what would make a model fit, the cheapest first.

    Parameters
    ----------
    found
        The best cut on more devices than there are; None where a layer fits no device.
    progress
        Hears of the ways that are tried.
    """
    ways: list[Callable[[Setting, Objective, int | None], Iterator[Proposal]]] = [
        _splits, _batches, _streams, _narrower, _pruned,
    ]  # fmt: skip
    offers: list[Proposal] = []
    for done, way in enumerate(ways):
        if progress is not None:
            progress(done, len(ways))
        offers += way(setting, objective, num_groups)
    if found is not None:
        offers.append(_offer("devices", "as many devices", setting, found))
    return sorted(offers, key=lambda offer: offer.cost)


def _offer(
    kind: str, what: str, setting: Setting, solution: Solution, *, changes: bool = False
) -> Proposal:
    """Return a solution as a proposal."""
    price = solution.rates
    used = solution.num_stages * setting.tensor_degree
    return Proposal(
        kind, what, solution.num_stages, used,
        price.latency_s if price else None,
        used * solution.replicas / price.tokens_per_s if price else None, changes,
    )  # fmt: skip


def _splits(setting: Setting, objective: Objective, groups: int | None) -> Iterator[Proposal]:
    """Yield the split of each layer that needs the fewest devices: all of it, or its experts."""
    for kind in ("split", "experts") if setting.problem.num_experts else ("split",):
        best: tuple[Setting, Solution] | None = None
        for split in _legal_splits(setting, spreads_experts=kind == "experts"):
            if best and split.tensor_degree > _devices(*best):
                break
            solution = solve(split, objective, groups)
            if solution and (best is None or _devices(split, solution) < _devices(*best)):
                best = split, solution
        if best:
            how = "the experts of each layer spread" if kind == "experts" else "each layer split"
            what = f"{how} over {best[0].tensor_degree} devices"
            yield _offer(kind, what, *best)


def _devices(setting: Setting, solution: Solution) -> int:
    return solution.num_stages * setting.tensor_degree


def _legal_splits(setting: Setting, *, spreads_experts: bool) -> list[Setting]:
    """Return the settings of further devices in a stage that the rules of the axes allow."""
    splits = [
        replace(setting, tensor_degree=degree, expert_degree=degree if spreads_experts else 1)
        for degree in range(setting.tensor_degree + 1, MOST_SPLIT + 1)
    ]
    chip = setting.system.chip
    is_refused = np.zeros(len(splits), dtype=bool)
    for refusal in all_refusals(
        setting.model, setting.workload, stack([split.strategy(1) for split in splits]), STRUCTURE,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        is_refused |= refusal.mask
    return [split for split, refused in zip(splits, is_refused, strict=True) if not refused]


def _batches(setting: Setting, objective: Objective, groups: int | None) -> Iterator[Proposal]:
    """Yield the largest smaller batch that fits the devices there are.

    In training it is the batch of a step, which changes what is learned.
    """
    batch = batch_of(setting.workload)
    largest = largest_batch(setting, batch - 1) if groups is None else 0
    if largest:
        smaller = with_batch(setting, largest)
        solution = solve(smaller, objective)
        if solution is not None:
            changes = isinstance(setting.workload, Training)
            yield _offer("batch", f"a batch of {largest}", smaller, solution, changes=changes)


def largest_batch(setting: Setting, most: int) -> int:
    """Return the largest batch up to ``most`` that fits; 0 where none does. What fits is bisected.

    Larger batches never fit on fewer devices: caches and activations only grow.
    """
    low, high = 0, 1
    while high <= most and _fits(with_batch(setting, high)):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(with_batch(setting, middle)) else (low, middle)
    return low


def with_batch(setting: Setting, batch: int) -> Setting:
    """Return the same with so many sequences in flight, or in a step."""
    field = "global_batch_size" if isinstance(setting.workload, Training) else "batch_size"
    return replace(setting, workload=setting.workload.model_copy(update={field: batch}))


def _fits(setting: Setting) -> bool:
    """Return whether a model fits the devices there are, in groups as small as may be."""
    (ground,) = grounds_of(setting, [group_choices(setting)[-1]])
    stops = fewest_stops(ground)
    return stops is not None and len(stops) <= (ground.most_stages or 0)


def _streams(setting: Setting, objective: Objective, groups: int | None) -> Iterator[Proposal]:
    """Yield the next level of memory that holds the layers; what has room nearer stays there."""
    for level in range(setting.level + 1, len(setting.system.chip.memories)):
        far = replace(setting, level=level, capacity_bytes=None)
        solution = solve(far, objective, groups)
        if solution is None or not solution.has_devices:
            continue
        share, priced = spilled(setting, far, solution)
        name = far.memory.name
        what = f"layers read from {name}, {share:.0%} of their time saved by what stays on the chip"
        yield _offer("stream", what if share else f"layers read from {name}", far, priced)
        return


def _narrower(setting: Setting, objective: Objective, groups: int | None) -> Iterator[Proposal]:
    """Yield narrower weights that fit, the widest of them."""
    work = setting.workload
    if isinstance(work, Training):
        return
    for dtype in NARROWER:
        if BYTES_OF[dtype] < BYTES_OF[work.precision.weight]:
            precision = work.precision.model_copy(update={"weight": dtype})
            changed = work.model_copy(update={"precision": precision})
            narrow = replace(setting, workload=changed)
            solution = solve(narrow, objective, groups)
            if solution is not None and solution.has_devices:
                yield _offer("quantise", f"weights of layers in {dtype}", narrow, solution,
                             changes=True)  # fmt: skip
                return


def _pruned(setting: Setting, objective: Objective, groups: int | None) -> Iterator[Proposal]:
    """Yield the largest share of the weights with which the model fits.

    What it saves is not priced: that depends on how the hardware skips what is gone.
    """
    (ground,) = grounds_of(setting, [groups or group_choices(setting)[-1]])
    offer = pruned(ground.row, ground.rooms, ground.most_stages)
    if offer is not None:
        yield replace(offer, num_devices=offer.num_stages * setting.tensor_degree)


def pruned(row: LayerRow, rooms: Rooms, most_stages: int | None) -> Proposal | None:
    """Return the largest share of the weights that fits, to a part in a thousand; None: none."""

    def stages(thousandths: int) -> int | None:
        weights = row.resident_bytes["weights"] * (thousandths / 1000)
        kept = replace(row, resident_bytes={**row.resident_bytes, "weights": weights})
        stops = fewest_stops(Ground(kept, rooms))
        if stops is None or (most_stages is not None and len(stops) > most_stages):
            return None
        return len(stops)

    low, high = 0, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stages(middle) else (low, middle)
    needed = stages(low) if low else None
    if needed is None:
        return None
    what = f"{low / 10:.3g} % of all weights kept"
    return Proposal("prune", what, needed, needed, None, None, changes_numbers=True)


def row_proposals(row: LayerRow, rooms: Rooms, most_stages: int | None) -> list[Proposal]:
    """Return what would make measured layers fit; nobody knows what it costs.

    Each layer is split evenly, weights or all of it; what its operators allow is not known.
    """
    offers = []
    room = min(rooms.capacity_bytes)
    largest = float((row.loads.resident_bytes + row.loads.transient_bytes).max())
    degree = ceil(largest / room)
    if degree > 1:
        count = len(fewest_stops(Ground(_divided(row, degree), rooms)) or [])
        offers.append(
            Proposal("split", f"each layer split over {degree} devices", count, count * degree,
                     None, None, changes_numbers=False)
        )  # fmt: skip
    offer = pruned(row, rooms, most_stages)
    return offers + ([offer] if offer else [])


def _divided(row: LayerRow, degree: int) -> LayerRow:
    """Return a row of which each of so many devices holds an equal part."""
    return replace(
        row,
        resident_bytes={name: part / degree for name, part in row.resident_bytes.items()},
        transient_bytes={name: part / degree for name, part in row.transient_bytes.items()},
        kept_bytes=row.kept_bytes / degree,
    )
