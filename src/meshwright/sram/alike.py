"""Stages that are alike, as one row of a table, a chart or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.sram.answer import PartitionStage


@dataclass(frozen=True)
class Alike:
    """A run of stages with equally many layers of equal bytes and seconds."""

    first: int
    last: int
    stages: tuple[PartitionStage, ...]

    @property
    def numbers(self) -> str:
        """The stages as a reader counts them: ``3`` or ``3-9``."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def devices(self) -> str:
        """Devices of all stages of the run."""
        numbers = [device for stage in self.stages for device in stage.devices]
        if not numbers:
            return ""
        return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"

    def layers(self, most: int) -> str:
        """Return the first to the last layer and the number of each, cut to ``most`` letters."""
        first, last = self.stages[0].first_layer, self.stages[-1].last_layer
        each = f" ({self.stages[0].num_layers} each)" if len(self.stages) > 1 else ""
        kind, _, number = last.rpartition(" ")
        is_numbered = kind and first.startswith(f"{kind} ")
        text = first if first == last else f"{first} - {number if is_numbered else last}"
        room = most - len(each)
        return (text if len(text) <= room else text[: room - 3] + "...") + each


def runs_of_alike(stages: Sequence[PartitionStage]) -> list[Alike]:
    """Return the stages in runs of equal ones."""

    def content(numbered: tuple[int, PartitionStage]) -> tuple[object, ...]:
        stage = numbered[1]
        parts = (*stage.load_parts_bytes.items(), *stage.reserved_parts_bytes.items())
        return (stage.num_layers, parts, stage.room_bytes, stage.work_s, stage.send_s)

    found = []
    for _, group in groupby(enumerate(stages), content):
        members = list(group)
        found.append(Alike(members[0][0], members[-1][0], tuple(stage for _, stage in members)))
    return found
