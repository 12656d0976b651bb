"""The same question at every level of memory, and with smaller and larger batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.sram.cuts import Objective
from meshwright.sram.proposals import Progress, largest_batch, with_batch
from meshwright.sram.rates import batch_of
from meshwright.sram.setting import Setting
from meshwright.sram.solve import Solution, solve

MOST_IN_FLIGHT = 1 << 16
"""Sequences beyond which no batch is tried."""


@dataclass(frozen=True)
class LevelOption:
    """The layers in one level of memory."""

    name: str
    room_bytes: float
    """Of one device."""
    solution: Solution | None
    """None where a layer fits no device."""


def level_options(setting: Setting, objective: Objective, groups: int | None) -> list[LevelOption]:
    """Return the best cut for each level of memory of the chip, near to far."""
    found = []
    for level, memory in enumerate(setting.system.chip.memories):
        there = setting if level == setting.level else _at(setting, level)
        found.append(LevelOption(memory.name, there.room_bytes, solve(there, objective, groups)))
    return found


def _at(setting: Setting, level: int) -> Setting:
    """Return the same at another level, which has its own room."""
    return replace(setting, level=level, capacity_bytes=None)


@dataclass(frozen=True)
class BatchOption:
    """One batch that fits the devices there are."""

    batch: int
    solution: Solution


def batch_options(
    setting: Setting, objective: Objective, progress: Progress | None = None
) -> tuple[list[BatchOption], int]:
    """Return the batches that none beats in tokens per second and in those of one user.

    Powers of two, the batch that was asked for, and the largest one that fits, which is returned
    beside them; larger ones than ``MOST_IN_FLIGHT`` are not looked for.
    """
    largest = largest_batch(setting, MOST_IN_FLIGHT)
    sizes = {1 << power for power in range(largest.bit_length())}
    sizes |= {largest, min(batch_of(setting.workload), largest)}
    kept: list[BatchOption] = []
    best = 0.0
    for done, batch in enumerate(sorted(sizes - {0})):
        if progress is not None:
            progress(done, len(sizes))
        solution = solve(with_batch(setting, batch), objective)
        if solution is None or solution.rates is None or not solution.has_devices:
            continue
        if solution.rates.tokens_per_s > best:
            best = solution.rates.tokens_per_s
            kept = [o for o in kept if _user_rate(o) > _user_rate(BatchOption(batch, solution))]
            kept.append(BatchOption(batch, solution))
    return kept, largest


def _user_rate(option: BatchOption) -> float:
    """Return the tokens per second of one user."""
    price = option.solution.rates
    return 0.0 if price is None else price.tokens_per_s_per_user or 0.0
