"""The number of devices that end a run in time: sizes are doubled, then halved in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshwright.base.errors import InfeasibleError, MeshwrightError, SpecError
from meshwright.base.units import format_days
from meshwright.cost.operator import stated_rate
from meshwright.cost.problem import Problem
from meshwright.train.answer import Deadline, Plan, SizeTried
from meshwright.train.search import model_flops

MOST_IN_VAIN = 2
"""Doublings without a gain that end the search."""


def least_device_s(problem: Problem) -> float:
    """Return the least device seconds of a whole run: its FLOPs at the peak.

    Infinite where the tokens of the run are not known.
    """
    work = problem.workload
    steps = math.inf if work.total_tokens is None else work.total_tokens / work.tokens_per_step
    peak = stated_rate(problem.system.chip, work.precision.matmul)
    return steps * float(model_flops(problem)) / peak


@dataclass
class Tries:
    """Plans for numbers of devices, each made once."""

    plan_on: Callable[[int], Plan]
    progress: Callable[[int, int], None] | None = None
    plans: dict[int, Plan | None] = field(default_factory=dict)
    error: MeshwrightError | None = None
    """The reason why the last size has no plan."""

    def run_s(self, num_devices: int) -> float:
        """Return the time of the whole run on a number of devices [s]; infinite: nothing fits."""
        if num_devices not in self.plans:
            self.plans[num_devices] = self._plan(num_devices)
            if self.progress is not None:
                self.progress(len(self.plans), len(self.plans) + 1)
        found = self.plans[num_devices]
        return math.inf if found is None or found.run_s is None else found.run_s

    def slowest_s(self, num_devices: int) -> float:
        """Return the time of the whole run at the slow end of the interval of a step [s]."""
        self.run_s(num_devices)
        found = self.plans[num_devices]
        return math.inf if found is None or found.slowest_run_s is None else found.slowest_run_s

    def _plan(self, num_devices: int) -> Plan | None:
        try:
            found = self.plan_on(num_devices)
        except (InfeasibleError, SpecError) as error:
            self.error = error
            return None
        if found.coverage is not None and not found.coverage.is_complete:
            raise KeyboardInterrupt  # it came during this search
        return found

    @property
    def tried(self) -> tuple[SizeTried, ...]:
        """All sizes that were tried, in order."""
        return tuple(
            SizeTried(number, None if found is None else found.run_s)
            for number, found in sorted(self.plans.items())
        )


def least_in_time(
    sizes: Sequence[int], tries: Tries, within_s: float, *, device_s: float = 0.0
) -> Deadline:
    """Return the plan on the fewest devices that end a run in time, also if steps are slow.

    Numbers of devices are doubled until they are enough; those between them and the last that were
    not are halved. It ends where neither two nor four times the devices of the best one are
    faster: twice the devices may be slower where they need a second host.

    Parameters
    ----------
    sizes
        Numbers of devices that there may be, in order.
    device_s
        Least device seconds of the run: fewer devices are not tried.

    Raises
    ------
    InfeasibleError, SpecError
        No number of devices is enough: with the time of the best one, or the missing plans.
    """
    slow = sum(device_s > size * within_s for size in sizes) - 1
    best_s, in_vain = math.inf, 0
    for enough in (place for place in doubled(sizes) if place > slow):
        run_s = tries.run_s(sizes[enough])
        if tries.slowest_s(sizes[enough]) <= within_s:
            break
        in_vain = in_vain + 1 if best_s < math.inf and run_s >= best_s else 0
        if in_vain == MOST_IN_VAIN:
            raise _too_late(tries, within_s)
        slow, best_s = enough, min(run_s, best_s)
    else:
        raise _too_late(tries, within_s)
    while enough - slow > 1:
        middle = (slow + enough) // 2
        if tries.slowest_s(sizes[middle]) <= within_s:
            enough = middle
        else:
            slow = middle
    found = tries.plans[sizes[enough]]
    assert found is not None
    return Deadline(found, within_s, tries.tried)


def doubled(sizes: Sequence[int]) -> list[int]:
    """Return the places of the first size, of each twice the one before, and of the last."""
    kept = [0]
    for place, size in enumerate(sizes):
        if size >= 2 * sizes[kept[-1]] or size == sizes[-1] > sizes[kept[-1]]:
            kept.append(place)
    return kept


def _too_late(tries: Tries, within_s: float) -> MeshwrightError:
    """Return the error where no number of devices is enough."""
    known = [(tried.run_s, tried.num_devices) for tried in tries.tried if tried.run_s is not None]
    if not known:
        late = InfeasibleError(f"no number of devices does the run within {format_days(within_s)}")
        return tries.error or late
    run_s, num_devices = min(known)
    return InfeasibleError(
        f"no number of devices that was tried ends the run within {format_days(within_s)}: "
        f"{num_devices:,} take {format_days(run_s)}, the least of all; a larger global batch gives "
        "more devices work"
    )
