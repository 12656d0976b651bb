"""A plan for the devices that are left after some were lost."""

from __future__ import annotations

from meshwright.base.errors import Fault, SpecError
from meshwright.train.answer import Candidate, Estimate, Plan, Replan
from meshwright.train.exhaustive import Progress
from meshwright.train.plan import plan


def replan(before: Plan, *, without: int, progress: Progress | None = None) -> Replan:
    """Return the plan for the devices that are left after some were lost, and what moves.

    The lost devices are taken from the end. A device that keeps its place in tp, tatp, pp and ep
    keeps its weights and moves only the part of sharded state that grows; otherwise it loads all.
    """
    system = before.system
    if not 0 < without < system.num_alive:
        message = f"{without} lost of {system.num_alive} devices"
        raise SpecError(Fault("--without", message, f"1 to {system.num_alive - 1}"))
    alive = [d for d in range(system.num_devices) if d not in system.dead_devices]
    dead = tuple(sorted({*system.dead_devices, *alive[-without:]}))
    smaller = system.model_copy(update={"dead_devices": dead})
    after = plan(
        before.model, smaller, before.workload, calibration=before.calibration,
        factors=before.factors, progress=progress,
    )  # fmt: skip
    old, new = before.best, after.best
    held = held_bytes(new.estimate)
    stays = all(getattr(old.strategy, n) == getattr(new.strategy, n) for n in _PLACE)
    moved = max(0.0, held - held_bytes(old.estimate)) if stays else held
    return Replan(
        plan=after,
        num_lost=without,
        throughput_fraction=new.estimate.tokens_per_s / old.estimate.tokens_per_s,
        changed=tuple(differences(old, new)),
        moved_bytes_per_device=moved,
    )


_PLACE = ("tp", "tatp", "pp", "num_virtual_stages", "ep", "etp")


def held_bytes(price: Estimate) -> float:
    """Return the bytes of weights and optimizer state on the fullest device and its host."""
    parts = price.memory_parts_bytes
    return parts["weights_bytes"] + parts["optimizer_bytes"] + price.host_bytes_per_device


def differences(old: Candidate, new: Candidate) -> list[str]:
    """Return the degrees and choices in which two candidates differ."""
    pairs = [(vars(old.strategy), vars(new.strategy)), (vars(old.structure), vars(new.structure))]
    return [
        f"{name}: {_shown(before[name])} to {_shown(after[name])}"
        for before, after in pairs
        for name in before
        if before[name] != after[name]
    ]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}"
    return " ".join(value) if isinstance(value, tuple) else str(value)
