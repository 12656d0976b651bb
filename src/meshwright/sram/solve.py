"""From a question to the best cut: groups of sequences, stages, replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnsupportedError
from meshwright.serve.space import group_counts
from meshwright.spec.workload import Training
from meshwright.sram.computed import computed_rows
from meshwright.sram.contiguous.rooms import Rooms
from meshwright.sram.cuts import Objective, even_stops, fast_cuts, fast_stops, fewest_stops
from meshwright.sram.ground import Ground
from meshwright.sram.line import Line
from meshwright.sram.rates import Rates, StageSeconds, batch_of, rates
from meshwright.sram.row import LayerRow
from meshwright.sram.setting import Setting


@dataclass(frozen=True)
class Solution:
    """One cut of a row, with what it yields."""

    ground: Ground
    stops: tuple[int, ...]
    """Where each stage stops; a stage too small for its next layer is empty."""
    num_groups: int = 1
    group_size: int = 1
    replicas: int = 1
    rates: Rates | None = None
    """None where the seconds of the layers are not known, or nobody said what passes."""

    @property
    def num_stages(self) -> int:
        """Stages that hold a layer."""
        return len(set(self.stops) - {0})

    @property
    def has_devices(self) -> bool:
        """Whether there are devices for all stages."""
        return self.ground.most_stages is None or len(self.stops) <= self.ground.most_stages

    @cached_property
    def stage_seconds(self) -> list[StageSeconds]:
        """What one group takes on each stage that is not empty."""
        return self.ground.stage_seconds(list(self.stops))


def grounds_of(setting: Setting, num_groups: list[int]) -> list[Ground]:
    """Return the row of a model on its devices, for each number of groups."""
    system, batch = setting.system, batch_of(setting.workload)
    sizes = [ceil(batch / groups) for groups in num_groups]
    is_training = isinstance(setting.workload, Training)
    line = Line(system, setting.calibration, setting.tensor_degree)
    chips = {chip.name: chip for chip in (system.chip, *system.other_chips.values())}
    if len(chips) > 1 and is_training:
        raise UnsupportedError("training on several types of chips is not cut into stages")
    kinds = max(line.num_stages, 1) if len(chips) > 1 else 1
    rooms = [_room_bytes(setting, line, stage) for stage in range(kinds)]
    rows = {name: computed_rows(setting.on_chip(chip), sizes, batch)
            for name, chip in chips.items()}  # fmt: skip
    return [
        Ground(
            row=rows[system.chip.name][index],
            rooms=Rooms(tuple(rooms), groups if is_training else 1),
            line=line,
            rows_by_chip={name: entries[index] for name, entries in rows.items()}
            if len(chips) > 1
            else None,
            is_training=is_training,
        )
        for index, groups in enumerate(num_groups)
    ]


def _room_bytes(setting: Setting, line: Line, stage: int) -> float:
    """Return what each device of a stage has room for: that of its smallest chip."""
    return min(setting.on_chip(chip).room_bytes for chip in line.chips_of(stage))


def solve(setting: Setting, objective: Objective, num_groups: int | None = None) -> Solution | None:
    """Return the best cut of a model; None where a layer fits no device.

    Where the number of groups is open, the one is taken that needs the fewest stages, then yields
    most tokens per second, then is smallest (``time``: the one that yields most).
    """
    tried = [num_groups] if num_groups else group_choices(setting)
    found = [
        solution
        for groups, ground in zip(tried, grounds_of(setting, tried), strict=True)
        for solution in _solutions(setting, objective, ground, groups)
    ]
    return min(found, key=lambda s: _rank(s, objective), default=None)


def group_choices(setting: Setting) -> list[int]:
    """Return the numbers of groups worth trying: in training each sequence is one."""
    batch = batch_of(setting.workload)
    if isinstance(setting.workload, Training):
        return [batch]
    stages = max(setting.system.num_alive // setting.tensor_degree, 1)
    return group_counts(min(batch, stages))


def _rank(solution: Solution, objective: Objective) -> tuple[float, ...]:
    """Return what a better solution has less of."""
    speed = solution.rates.tokens_per_s if solution.rates else 0.0
    used = float(solution.num_stages * solution.replicas)
    if objective is Objective.TIME and solution.has_devices:
        return (0.0, -speed, used, solution.num_groups)
    return (float(len(solution.stops)), -speed, used, solution.num_groups)


def _solutions(
    setting: Setting, objective: Objective, ground: Ground, num_groups: int
) -> Iterator[Solution]:
    """Yield the cuts of one row that may be best under an objective."""
    fewest = fewest_stops(ground)
    if fewest is None:
        return
    priced = _Priced(setting, ground, num_groups)
    most = ground.most_stages or 0
    if objective is not Objective.TIME or len(fewest) > most:
        stops = fewest if objective is Objective.COUNT else even_stops(ground, len(fewest))
        yield priced.solution(stops)
        return
    cuts = fast_cuts(ground, most)
    for number in _numbers_of_stages(cuts.slowest_s, most):
        yield priced.solution(fast_stops(ground, cuts, number))


def _numbers_of_stages(slowest_s: FloatArray, most: int) -> list[int]:
    """Return, for each number of replicas that fits, the number of stages that is fastest."""
    best: dict[int, int] = {}
    for number, seconds in enumerate(slowest_s.tolist(), start=1):
        known = best.get(most // number)
        if seconds < inf and (known is None or seconds < slowest_s[known - 1]):
            best[most // number] = number
    return list(best.values())


@dataclass(frozen=True)
class _Priced:
    """What prices a cut of one row."""

    setting: Setting
    ground: Ground
    num_groups: int

    def solution(self, stops: list[int]) -> Solution:
        """Return a cut with its price, on as many replicas as there are devices for."""
        setting, workload = self.setting, self.setting.workload
        group_size = ceil(batch_of(workload) / self.num_groups)
        most = self.ground.most_stages or 0
        is_alone = isinstance(workload, Training) or bool(setting.system.other_chips)
        replicas = 1 if is_alone else max(most // len(stops), 1)
        plain = Solution(self.ground, tuple(stops), self.num_groups, group_size, replicas)
        yielded = rates(
            workload, setting.calibration, plain.stage_seconds, self._parts_s(stops),
            num_groups=self.num_groups, group_devices=setting.tensor_degree, replicas=replicas,
        )  # fmt: skip
        return replace(plain, rates=yielded)

    def _parts_s(self, stops: list[int]) -> Mapping[str, float]:
        """Return the seconds of all layers by part, each on the chip of its stage."""
        parts = dict.fromkeys(self.ground.row.time_parts_s, 0.0)
        for stage, (first, stop) in enumerate(zip([0, *stops], stops, strict=False)):
            for name, column in self.ground.row_of(stage).time_parts_s.items():
                parts[name] += float(column[first:stop].sum())
        return parts


def solve_row(
    row: LayerRow, rooms: Rooms, objective: Objective, line: Line | None
) -> Solution | None:
    """Return the best cut of measured layers; None where one of them fits no device.

    ``time``: the fastest slowest stage on the devices there are, or else on the fewest stages.
    """
    ground = Ground(row, rooms, line)
    fewest = fewest_stops(ground)
    if fewest is None:
        return None
    most = ground.most_stages
    if objective is Objective.COUNT:
        return Solution(ground, tuple(fewest))
    if objective is Objective.BALANCE or (most is not None and len(fewest) > most):
        return Solution(ground, tuple(even_stops(ground, len(fewest))))
    cuts = fast_cuts(ground, most or len(fewest))
    best = int(cuts.slowest_s.argmin()) + 1
    return Solution(ground, tuple(fast_stops(ground, cuts, best)))
