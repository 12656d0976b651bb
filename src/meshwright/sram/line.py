"""The devices on which stages lie one after the other, and the seconds between neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any

from meshwright.base.arrays import FloatArray
from meshwright.collectives.group import make_group
from meshwright.collectives.selection import affine_candidates
from meshwright.cost.network import level_efficiencies
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.chip import ChipSpec
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import SystemSpec


@dataclass(frozen=True)
class Line:
    """Working devices in their order; each stage has the next ``group_size`` of them."""

    system: SystemSpec
    calibration: CalibrationOf[float]
    group_size: int = 1

    @cached_property
    def _alive(self) -> Sequence[int]:
        dead, every = set(self.system.dead_devices), range(self.system.num_devices)
        return [device for device in every if device not in dead] if dead else every

    @property
    def num_stages(self) -> int:
        """Stages for which there are devices."""
        return len(self._alive) // self.group_size

    def devices_of(self, stage: int) -> tuple[int, ...]:
        """Return the devices of a stage; stages beyond the system have numbers beyond it."""
        first, alive = stage * self.group_size, self._alive
        beyond = self.system.num_devices - len(alive)
        places = range(first, first + self.group_size)
        return tuple(alive[at] if at < len(alive) else beyond + at for at in places)

    def chips_of(self, stage: int) -> tuple[ChipSpec, ...]:
        """Return the distinct types of chips of a stage."""
        own = [self.system.other_chips.get(d, self.system.chip) for d in self.devices_of(stage)]
        return tuple({chip.name: chip for chip in own}.values())

    def level_between(self, first: int, second: int) -> int | None:
        """Return the innermost level of the network that joins two stages; None without any."""
        ends = self.devices_of(first)[0], self.devices_of(second)[0]
        sizes = accumulate((level.size for level in self.system.levels), mul)
        inside = [i for i, size in enumerate(sizes) if ends[0] // size == ends[1] // size]
        outermost = len(self.system.levels) - 1
        return inside[0] if inside else (outermost if outermost >= 0 else None)

    def send_s(self, level: int | None, num_bytes: FloatArray) -> FloatArray:
        """Return the seconds of messages between two neighbours that a level joins [s].

        Nothing is sent where there are no bytes. Every device of a group sends what it holds, the
        whole message.
        """
        if level is None:
            return 0.0 * num_bytes
        fixed_s, slope = self._forms[level]
        seconds: FloatArray = (num_bytes > 0) * (fixed_s + slope * num_bytes)
        return seconds

    @cached_property
    def _forms(self) -> list[tuple[float, float]]:
        """Seconds of a message and of each of its bytes, by level."""
        factors = level_efficiencies(self.system, self.calibration)
        found = []
        for level, factor in zip(self.system.levels, factors, strict=True):
            group: Any = make_group([level], 1.0, 2.0, [factor])
            _, fixed_s, slope = affine_candidates(CollectiveKind.SEND, group)[0]
            found.append((self.calibration.collective_launch_s + float(fixed_s), float(slope)))
        return found
