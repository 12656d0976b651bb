"""Record of one rank in a step: memory by category at every operator, collectives, FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.run.answer import Call


class Category(StrEnum):
    """Parts of the memory of a device in a step, by the purpose of a tensor."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    """Gradients of weights: accumulated, unsharded ones of a layer, and communication buffers."""
    STATES = "states"
    GATHERED = "gathered"
    """Weights gathered from other ranks, and their communication buffers."""
    ACTIVATIONS = "activations"
    """Tensors that a forward pass creates and a backward pass still finds."""
    LOGITS = "logits"
    """Everything as wide as the vocabulary on this rank, gradients included."""
    TEMPORARY = "temporary"
    """All other tensors: gradients of activations and recomputed tensors among them."""
    HOST = "host"
    """Tensors in host memory, which are not part of the peak of a device."""


class StepPart(StrEnum):
    """Part of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Usage:
    """Memory of a device over a step."""

    at_peak_bytes: Mapping[Category, int]
    most_bytes: Mapping[Category, int]
    """Largest memory of each category, each at its own moment [bytes]."""
    peak_phase: StepPart

    @property
    def peak_bytes(self) -> int:
        """Peak of all categories together without the host [bytes]."""
        return sum(self.at_peak_bytes.values())


@dataclass(frozen=True, eq=False)
class Moments:
    """Memory of a device after each operator, before its inputs are freed."""

    held_bytes: IntArray
    """(moments, categories) [bytes]."""
    phases: IntArray
    tasks: IntArray
    """Number of the task of each moment."""

    @property
    def usage(self) -> Usage:
        """The memory at its peak, and the most of each category."""
        on_device = [category is not Category.HOST for category in Category]
        at = int(self.held_bytes[:, on_device].sum(axis=1).argmax())
        peak, most = self.held_bytes[at].tolist(), self.held_bytes.max(axis=0).tolist()
        known = dict(zip(Category, peak, strict=True))
        del known[Category.HOST]
        return Usage(known, dict(zip(Category, most, strict=True)), list(StepPart)[self.phases[at]])


class Counts(NamedTuple):
    """Calls and bytes of collectives by part of the step, and FLOPs."""

    calls: Counter[Call]
    num_bytes: Counter[Call]
    flops: Counter[StepPart]


def summed(weighted: Iterable[tuple[int, Counts]]) -> Counts:
    """Return the sum of counts, each multiplied by a number."""
    totals: tuple[Counter[Any], ...] = (Counter(), Counter(), Counter())
    for times, counts in weighted:
        found: tuple[Counter[Any], ...] = counts
        for total, more in zip(totals, found, strict=True):
            for key, number in more.items():
                total[key] += times * number
    return Counts(*totals)


@dataclass(frozen=True)
class Ran:
    """Memory, messages and FLOPs of one rank in a step."""

    rank: int
    moments: Moments
    counts: Counts

    @property
    def usage(self) -> Usage:
        """Memory at its peak, and the most of each category."""
        return self.moments.usage


Change = tuple[Category, int, StepPart, tuple[int, int]]
"""Category, bytes, phase, and the numbers of the task and of the operator."""


def moments_of(changes: Iterable[Change]) -> Moments:
    """Return the moments between changes of memory: after all tensors that an operator makes."""
    number = {category: at for at, category in enumerate(Category)}
    now = [0] * len(number)
    held, phases, tasks = [], [], []
    place, falls = (-1, 0), False
    for category, num_bytes, phase, at in changes:
        if at != place or (falls and num_bytes > 0):
            held.append(list(now))
            phases.append(list(StepPart).index(phase))
            tasks.append(at[0])
        now[number[category]] += num_bytes
        place, falls = at, num_bytes < 0
        if not falls:
            held[-1] = list(now)
    return Moments(*(np.array(found, dtype=np.int64) for found in (held, phases, tasks)))
