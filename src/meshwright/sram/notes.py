"""What a reader should know beside the numbers of a partition."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.spec.workload import Training
from meshwright.sram.setting import CACHE_FRACTION, CACHES, Setting
from meshwright.sram.solve import Solution
from meshwright.train.answer import UNCALIBRATED_NOTE


def notes_of(setting: Setting, solution: Solution | None) -> Iterator[str]:
    """Yield what is assumed, left out, or left idle."""
    system, memory = setting.system, setting.memory
    if not setting.calibration.is_calibrated:
        yield UNCALIBRATED_NOTE
    if memory.name in CACHES and setting.capacity_bytes is None:
        yield (
            f"{memory.name} is a cache: {CACHE_FRACTION:.0%} of it is taken as what software can "
            "hold resident (assumed, range 50 to 75 %)"
        )
    if any(level.data_parallel_only for level in system.levels):
        yield (f"the network of {system.name} is built for data parallelism; sends between stages "
               "are priced on it all the same")  # fmt: skip
    if setting.model.tied_embeddings:
        yield "embedding and head share a table; each end of the row holds a copy of it"
    if solution is None:
        return
    if isinstance(setting.workload, Training) and solution.has_devices:
        yield "one row of stages; the update, and gradients of further replicas, are not priced"
    idle = system.num_alive - len(solution.stops) * setting.tensor_degree * solution.replicas
    if solution.has_devices and idle:
        yield f"{idle} of {system.num_alive} devices stay idle"
