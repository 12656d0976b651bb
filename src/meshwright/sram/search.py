"""From a problem to the best cut: groups of sequences, stages, replicas, under each objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import ceil

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnsupportedError
from meshwright.cost.pipeline import jitter_fraction
from meshwright.serve.passes import group_counts
from meshwright.spec.workload import Training
from meshwright.sram.contiguous import (
    LayerLoads,
    LayerTimes,
    Speed,
    StageCapacities,
    StageRuns,
    balanced_stops,
    fastest_cut,
    greedy_stops,
    least_stages,
)
from meshwright.sram.price import Rates, StageSeconds, batch_of, rates, total_s
from meshwright.sram.question import LayerSequence, PartitionProblem, StageDevices, layers_of_model


@dataclass(frozen=True)
class CutProblem:
    """Layers to cut, and the devices of the stages."""

    layers: LayerSequence
    stage_capacities: StageCapacities
    """Room of the stages, in the order in which they are filled."""
    devices: StageDevices | None = None
    """Devices of the stages; None: as many as are needed, with unknown links."""
    layers_by_chip: Mapping[str, LayerSequence] = field(default_factory=dict)
    """Layers with their seconds on each type of chip, where these depend on it."""
    is_training: bool = False
    """Stages are filled from the last layer to the first, and gradients are sent back."""

    @property
    def most_stages(self) -> int | None:
        """Stages for which there are devices; None: as many as are needed."""
        return None if self.devices is None else self.devices.num_stages

    def replicas(self, num_stages: int) -> int:
        """Return the number of pipelines that fit the devices.

        One in training, and on chips of several types.
        """
        if self.devices is None or self.is_training or self.devices.system.other_chips:
            return 1
        return max(self.devices.num_stages // num_stages, 1)

    def layers_of(self, stage: int) -> LayerSequence:
        """Return the layers with the seconds of the slowest chip of a stage."""
        if self.devices is None:
            return self.layers
        chips = self.devices.chips_of(stage)
        candidates = [self.layers_by_chip.get(chip.name, self.layers) for chip in chips]
        return max(candidates, key=lambda layers: float(layers.layer_s.sum()))

    def times_of(self, stage: int) -> LayerTimes:
        """Return the seconds of every run on a stage, as the search for a cut needs them.

        In training the number of stages is open while they are counted from the end, so every
        send is charged the slowest link between stages.
        """
        joint = self._worst_level if self.is_training else self._level(stage, stage + 1)
        back = self._level(stage, 0) if stage else None
        layers = self.layers_of(stage)
        key = (id(layers), joint, back)
        if key not in self._times:
            exit_s = self._sends_s[joint].copy()
            exit_s[-1] = self._sends_s[back][-1]
            entry_s = 0.0 * exit_s
            if self.is_training:
                entry_s = np.concatenate(([0.0], exit_s[:-1]))
            self._times[key] = LayerTimes(layers.layer_s, entry_s, exit_s)
        return self._times[key]

    def stage_seconds(self, stops: list[int]) -> list[StageSeconds]:
        """Return the seconds of one group on each stage of a cut; empty stages are skipped."""
        runs = list(pairwise([0, *stops]))
        filled = [stage for stage, (first, stop) in enumerate(runs) if stop > first]
        found = []
        for place, stage in enumerate(filled):
            first, stop = runs[stage]
            before = filled[place - 1] if place else None
            after = filled[place + 1] if place + 1 < len(filled) else None
            target = after if after is not None else (filled[0] if place else None)
            entry_s, exit_s = (self._sends_s[self._level(stage, n)] for n in (before, target))
            found.append(
                StageSeconds(
                    work_s=float(self.layers_of(stage).layer_s[first:stop].sum()),
                    entry_s=float(entry_s[first - 1]) if self.is_training else 0.0,
                    exit_s=float(exit_s[stop - 1]),
                )
            )
        return found

    @cached_property
    def _sends_s(self) -> dict[int | None, FloatArray]:
        """Time to send the output of each layer, by level of the network [s]."""
        sent, devices = self.layers.output_bytes, self.devices
        found: dict[int | None, FloatArray] = {None: 0.0 * sent}
        if devices is not None:
            levels = range(len(devices.system.levels))
            found |= {level: devices.send_s(level, sent) for level in levels}
        return found

    def _level(self, stage: int, other: int | None) -> int | None:
        if self.devices is None or other is None:
            return None
        return self.devices.level_between(stage, other)

    @property
    def _worst_level(self) -> int | None:
        """The slowest level between neighbours, over all devices."""
        count = self.most_stages or 1
        levels = {self._level(stage, stage + 1) for stage in range(max(count - 1, 0))}
        return max((lv for lv in levels if lv is not None),
                   key=lambda lv: float(self._sends_s[lv].max()), default=None)  # fmt: skip

    @cached_property
    def _times(self) -> dict[tuple[int, int | None, int | None], LayerTimes]:
        return {}


MOST_PLACES = 50_000_000
"""Layers times stages beyond which the table of the fastest cuts is not made."""


class CutObjective(StrEnum):
    """Objective of the search for a cut."""

    COUNT = "count"
    """Fewest stages, each as full as possible."""
    BALANCE = "balance"
    """Fewest stages, and among those cuts the fullest stage as empty as possible."""
    TIME = "time"
    """Most tokens per second, over all numbers of stages and replicas that the devices allow."""


def fewest_stops(cut_problem: CutProblem) -> list[int] | None:
    """Return the greedy cut, on any number of stages; None where a layer fits nowhere."""
    stops = greedy_stops(_loads(cut_problem), cut_problem.stage_capacities)
    return _forward(cut_problem, stops) if stops[-1] == len(cut_problem.layers.names) else None


def even_stops(cut_problem: CutProblem, num_stages: int) -> list[int]:
    """Return the cut on a number of stages, which is enough, with the least full fullest stage."""
    stops = balanced_stops(_loads(cut_problem), cut_problem.stage_capacities, num_stages)
    assert stops is not None
    return _forward(cut_problem, stops)


def fastest_stops(cut_problem: CutProblem, most_stages: int, speed: Speed) -> list[int]:
    """Return the fastest cut on at most this number of stages, which is enough to fit.

    Raises
    ------
    UnsupportedError
        The table of cuts would have too many places.
    """
    count = len(cut_problem.layers.names)
    if count * min(most_stages, count) > MOST_PLACES:
        raise UnsupportedError(
            f"{count:,} layers on {most_stages:,} stages are too many for the objective time; "
            "count and balance have no such limit"
        )
    if cut_problem.is_training:
        times = [cut_problem.times_of(0).reversed()]
    else:
        times = [cut_problem.times_of(stage) for stage in range(min(most_stages, count))]
    runs = StageRuns(_loads(cut_problem), cut_problem.stage_capacities, times, most_stages)
    stops = fastest_cut(runs, speed)
    assert stops is not None
    return _forward(cut_problem, stops)


def bound(cut_problem: CutProblem) -> int:
    """Return the stages below which no cut fits: all bytes over all room."""
    return least_stages(_loads(cut_problem), cut_problem.stage_capacities)


def weights_bound(cut_problem: CutProblem) -> int:
    """Return a lower bound of the stages from the weights alone."""
    weights = cut_problem.layers.resident_bytes["weights"]
    zero = np.zeros(len(weights))
    return least_stages(LayerLoads(weights, zero, zero), cut_problem.stage_capacities)


def _loads(cut_problem: CutProblem) -> LayerLoads:
    """Return the loads in the order in which stages are filled."""
    loads = cut_problem.layers.loads
    return loads.reversed() if cut_problem.is_training else loads


def _forward(cut_problem: CutProblem, stops: list[int]) -> list[int]:
    """Return stops from the first layer on."""
    if not cut_problem.is_training:
        return stops
    count = len(cut_problem.layers.names)
    return [*(count - stop for stop in reversed(stops[:-1])), count]


@dataclass(frozen=True)
class Solution:
    """One cut, with its rates."""

    cut_problem: CutProblem
    stops: tuple[int, ...]
    """Stop of each stage; a stage too small for its next layer is empty."""
    num_groups: int = 1
    group_size: int = 1
    replicas: int = 1
    rates: Rates | None = None
    """Rates; None where the seconds of the layers are not known, or no workload is stated."""

    @property
    def num_stages(self) -> int:
        """Stages that hold a layer."""
        return len(set(self.stops) - {0})

    @property
    def has_devices(self) -> bool:
        """Whether there are devices for all stages."""
        return (
            self.cut_problem.most_stages is None or len(self.stops) <= self.cut_problem.most_stages
        )

    @cached_property
    def stage_seconds(self) -> list[StageSeconds]:
        """Time of one group on each stage that is not empty."""
        return self.cut_problem.stage_seconds(list(self.stops))


def cut_problems_of(problem: PartitionProblem, num_groups: list[int]) -> list[CutProblem]:
    """Return the layers of a model on its devices, for each number of groups."""
    system, batch = problem.system, batch_of(problem.workload)
    sizes = [ceil(batch / groups) for groups in num_groups]
    is_training = isinstance(problem.workload, Training)
    devices = StageDevices(system, problem.calibration, problem.tensor_degree)
    chips = {chip.name: chip for chip in (system.chip, *system.other_chips.values())}
    if len(chips) > 1 and is_training:
        raise UnsupportedError("training on several types of chips is not cut into stages")
    rooms_bytes = devices.rooms_bytes(lambda chip: problem.on_chip(chip).room_bytes)
    layers = {name: layers_of_model(problem.on_chip(chip), sizes, batch)
            for name, chip in chips.items()}  # fmt: skip
    return [
        CutProblem(
            layers=layers[system.chip.name][index],
            stage_capacities=StageCapacities(rooms_bytes, groups if is_training else 1),
            devices=devices,
            layers_by_chip={name: entries[index] for name, entries in layers.items()},
            is_training=is_training,
        )
        for index, groups in enumerate(num_groups)
    ]


def solve(
    problem: PartitionProblem, objective: CutObjective, num_groups: int | None = None
) -> Solution | None:
    """Return the best cut of a model; None where a layer fits no device.

    Where the number of groups is open, the one is taken that needs the fewest stages, then yields
    most tokens per second, then is smallest (``time``: the one that yields most).
    """
    tried = [num_groups] if num_groups else group_choices(problem)
    found = [
        solution
        for groups, cut_problem in zip(tried, cut_problems_of(problem, tried), strict=True)
        if (solution := _solution(problem, objective, cut_problem, groups))
    ]

    def rank(solution: Solution) -> tuple[float, ...]:
        speed = solution.rates.tokens_per_s if solution.rates else 0.0
        used = float(solution.num_stages * solution.replicas)
        is_fastest = objective is CutObjective.TIME and solution.has_devices
        stages = 0.0 if is_fastest else float(len(solution.stops))
        return stages, -speed, used, solution.num_groups

    return min(found, key=rank, default=None)


def group_choices(problem: PartitionProblem) -> list[int]:
    """Return the numbers of groups to try: in training each sequence is one."""
    batch = batch_of(problem.workload)
    if isinstance(problem.workload, Training):
        return [batch]
    stages = max(problem.system.num_alive // problem.tensor_degree, 1)
    return group_counts(min(batch, stages))


def _solution(
    problem: PartitionProblem, objective: CutObjective, cut_problem: CutProblem, num_groups: int
) -> Solution | None:
    """Return the best cut of a model into stages; None where a layer fits no device."""

    def speed(number: int, pass_s: float, slowest_s: float) -> float:
        seconds = total_s(problem.workload, pass_s, slowest_s, num_groups)
        late = jitter_fraction(problem.tensor_degree * number, problem.calibration.jitter)
        return cut_problem.replicas(number) / (seconds * (1.0 + float(late)))

    stops = _best_stops(cut_problem, objective, speed)
    return None if stops is None else _priced(problem, cut_problem, num_groups, stops)


def _best_stops(cut_problem: CutProblem, objective: CutObjective, speed: Speed) -> list[int] | None:
    """Return the best cut under an objective; None where a layer fits no device."""
    stops = fewest_stops(cut_problem)
    if stops is None or objective is CutObjective.COUNT:
        return stops
    most = len(stops) if cut_problem.most_stages is None else cut_problem.most_stages
    if objective is CutObjective.BALANCE or len(stops) > most:
        return even_stops(cut_problem, len(stops))
    return fastest_stops(cut_problem, most, speed)


def _priced(
    problem: PartitionProblem, cut_problem: CutProblem, num_groups: int, stops: list[int]
) -> Solution:
    """Return a cut with its price, on all the replicas that the devices hold."""
    workload = problem.workload
    group_size = ceil(batch_of(workload) / num_groups)
    replicas = cut_problem.replicas(len(stops))
    plain = Solution(cut_problem, tuple(stops), num_groups, group_size, replicas)
    # Seconds of all layers by part, each on the chip of its stage.
    parts_s = dict.fromkeys(cut_problem.layers.time_parts_s, 0.0)
    for stage, (first, stop) in enumerate(zip([0, *stops], stops, strict=False)):
        for name, column in cut_problem.layers_of(stage).time_parts_s.items():
            parts_s[name] += float(column[first:stop].sum())
    yielded = rates(
        workload, problem.calibration, plain.stage_seconds, parts_s,
        num_groups=num_groups, group_devices=problem.tensor_degree, replicas=replicas,
    )  # fmt: skip
    return replace(plain, rates=yielded)


def solve_measured(cut_problem: CutProblem, objective: CutObjective) -> Solution | None:
    """Return the best cut of measured layers; None where one of them fits no device.

    ``time``: most passes per second of all replicas on the devices there are, each with groups
    enough to keep its slowest stage busy; without devices, on the fewest stages.
    """

    def speed(number: int, _: float, slowest_s: float) -> float:
        return cut_problem.replicas(number) / slowest_s

    stops = _best_stops(cut_problem, objective, speed)
    if stops is None:
        return None
    return Solution(cut_problem, tuple(stops), replicas=cut_problem.replicas(len(stops)))
