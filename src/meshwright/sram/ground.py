"""A row of layers, and the stages that its runs may fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.sram.contiguous.bottleneck import StageTimes
from meshwright.sram.contiguous.rooms import Rooms
from meshwright.sram.line import Line
from meshwright.sram.rates import StageSeconds
from meshwright.sram.row import LayerRow


@dataclass(frozen=True)
class Ground:
    """What is cut, and where the stages lie."""

    row: LayerRow
    rooms: Rooms
    """In the order in which the stages are filled."""
    line: Line | None = None
    """None: as many devices as are needed, and nobody knows the links between them."""
    rows_by_chip: Mapping[str, LayerRow] | None = None
    """Rows with the seconds of each type of chip, where there are several."""
    is_training: bool = False
    """Stages are filled from the last layer to the first, and gradients are sent back."""

    @property
    def most_stages(self) -> int | None:
        """Stages for which there are devices; None: as many as are needed."""
        return None if self.line is None else self.line.num_stages

    def row_of(self, stage: int) -> LayerRow:
        """Return the row with the seconds of the slowest chip of a stage."""
        if self.rows_by_chip is None or self.line is None:
            return self.row
        rows = [self.rows_by_chip[chip.name] for chip in self.line.chips_of(stage)]
        return max(rows, key=lambda row: float(row.layer_s.sum()))

    def times_of(self, stage: int) -> StageTimes:
        """Return the seconds of every run on a stage, as the search for a cut needs them.

        In training the number of stages is open while they are counted from the end, so every
        send is charged the slowest link between stages.
        """
        joint = self._worst_level if self.is_training else self._level(stage, stage + 1)
        back = self._level(stage, 0) if stage else None
        key = (id(self.row_of(stage)), joint, back)
        if key not in self._times:
            self._times[key] = self._make_times(self.row_of(stage), joint, back)
        return self._times[key]

    def stage_seconds(self, stops: list[int]) -> list[StageSeconds]:
        """Return what one group takes on each stage of a cut; empty stages are passed over."""
        runs = list(pairwise([0, *stops]))
        filled = [stage for stage, (first, stop) in enumerate(runs) if stop > first]
        found = []
        for place, stage in enumerate(filled):
            first, stop = runs[stage]
            before = filled[place - 1] if place else None
            after = filled[place + 1] if place + 1 < len(filled) else None
            work_s = float(self.row_of(stage).layer_s[first:stop].sum())
            entry_s = self._one_send_s(stage, before, first - 1) if self.is_training else 0.0
            target = after if after is not None else (filled[0] if place else None)
            found.append(StageSeconds(work_s, entry_s, self._one_send_s(stage, target, stop - 1)))
        return found

    def _one_send_s(self, stage: int, other: int | None, layer: int) -> float:
        """Return the seconds in which the output of a layer passes between two stages [s]."""
        if other is None or self.line is None:
            return 0.0
        sent = self.row.output_bytes[[layer]]
        return float(self.line.send_s(self._level(stage, other), sent)[0])

    def _make_times(self, row: LayerRow, joint: int | None, back: int | None) -> StageTimes:
        exit_s = self._sends_s(joint)
        exit_s[-1] = self._sends_s(back)[-1]
        entry_s = 0.0 * exit_s
        if self.is_training:
            entry_s = np.concatenate(([0.0], exit_s[:-1]))
        return StageTimes(row.layer_s, entry_s, exit_s)

    def _sends_s(self, level: int | None) -> FloatArray:
        sent = self.row.output_bytes
        return 0.0 * sent if self.line is None else self.line.send_s(level, sent)

    def _level(self, first: int, second: int) -> int | None:
        return None if self.line is None else self.line.level_between(first, second)

    @property
    def _worst_level(self) -> int | None:
        """The slowest level between neighbours, over all devices."""
        count = self.most_stages or 1
        levels = {self._level(stage, stage + 1) for stage in range(max(count - 1, 0))}
        return max((lv for lv in levels if lv is not None),
                   key=lambda lv: float(self._sends_s(lv).max()), default=None)  # fmt: skip

    @cached_property
    def _times(self) -> dict[tuple[int, int | None, int | None], StageTimes]:
        return {}
