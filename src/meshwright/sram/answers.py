"""From a cut to the answer as data: what each device loads, sets aside and sends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.sram.answer import PartitionBatch, PartitionLevel, PartitionProof, PartitionStage
from meshwright.sram.cuts import bound, fewest_stops, weights_bound
from meshwright.sram.ground import Ground
from meshwright.sram.options import BatchOption, LevelOption
from meshwright.sram.solve import Solution

LOADED = ("weights", "optimizer")
"""Parts that come from outside; the others are only set aside."""


def stages_of(solution: Solution) -> tuple[PartitionStage, ...]:
    """Return the deployment of each stage that is not empty."""
    ground, row = solution.ground, solution.ground.row
    runs = list(pairwise([0, *solution.stops]))
    filled = [stage for stage, (first, stop) in enumerate(runs) if stop > first]
    capacities, kept = _rooms(ground, len(runs))
    found = []
    for place, stage in enumerate(filled):
        first, stop = runs[stage]
        parts = row.parts_bytes(first, stop, kept[stage])
        loaded = {name: size for name, size in parts.items() if name in LOADED}
        is_last = place + 1 == len(filled)
        seconds = solution.stage_seconds[place]
        found.append(
            PartitionStage(
                devices=ground.line.devices_of(stage) if ground.line else (),
                first_layer=row.names[first],
                last_layer=row.names[stop - 1],
                num_layers=stop - first,
                load_parts_bytes=loaded,
                reserved_parts_bytes={n: s for n, s in parts.items() if n not in LOADED},
                room_bytes=capacities[stage],
                sent_bytes=0.0 if is_last and not place else float(row.output_bytes[stop - 1]),
                work_s=seconds.work_s if row.has_times else None,
                send_s=seconds.entry_s + seconds.exit_s if ground.line else None,
                load_s=_load_s(ground, sum(loaded.values())),
            )
        )
    return tuple(found)


def _rooms(ground: Ground, num_stages: int) -> tuple[list[float], list[int]]:
    """Return the room of each stage, and the micro-batches that it keeps, first stage first."""
    capacities = ground.rooms.capacities(num_stages).tolist()
    kept = ground.rooms.in_flight(num_stages).tolist()
    return (capacities[::-1], kept[::-1]) if ground.is_training else (capacities, kept)


def _load_s(ground: Ground, num_bytes: float) -> float | None:
    """Return the seconds in which the host fills a device."""
    host = ground.line.system.host if ground.line else None
    return None if host is None else num_bytes / host.bandwidth_bytes_per_s


def proof_of(ground: Ground) -> PartitionProof:
    """Return the bounds of a row."""
    fewest = fewest_stops(ground)
    filled = None if fewest is None else len(set(fewest) - {0})
    return PartitionProof(filled, bound(ground), weights_bound(ground))


def levels_of(options: Sequence[LevelOption], degree: int) -> tuple[PartitionLevel, ...]:
    """Return the levels of memory, near to far."""
    found = []
    for option in options:
        known, price = option.solution, option.solution and option.solution.rates
        found.append(
            PartitionLevel(
                option.name, option.room_bytes,
                known.num_stages if known else None,
                known.num_stages * degree if known else None,
                price.latency_s if price else None,
                price.tokens_per_s if price else None,
            )
        )  # fmt: skip
    return tuple(found)


def batches_of(options: Sequence[BatchOption]) -> tuple[PartitionBatch, ...]:
    """Return the batches that none beats."""
    return tuple(
        PartitionBatch(o.batch, o.solution.num_groups, o.solution.num_stages, o.solution.replicas,
                       o.solution.rates.latency_s, o.solution.rates.tokens_per_s)
        for o in options
        if o.solution.rates is not None
    )  # fmt: skip
