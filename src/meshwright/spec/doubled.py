"""Systems with one resource doubled, to show the gain of a plan from each."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.spec.system import ChipSpec, SystemSpec

FACTOR = 2.0
"""Each resource is doubled in turn."""


def doubled(system: SystemSpec) -> Iterator[tuple[str, SystemSpec]]:
    """Yield the system with one resource doubled, and how to call that."""
    chip = system.chip
    rates = {
        name: {dtype: rate * FACTOR for dtype, rate in getattr(chip, name).items()}
        for name in ("matmul_flops_per_s", "best_matmul_flops_per_s")
    }
    yield "twice the matrix rate", _with_chip(system, chip.model_copy(update=rates))
    memory = chip.main_memory
    if memory.bandwidth_bytes_per_s is not None:
        faster = memory.model_copy(
            update={"bandwidth_bytes_per_s": memory.bandwidth_bytes_per_s * FACTOR}
        )
        memories = (*chip.memories[:-1], faster)
        yield (
            f"twice the {memory.name} bandwidth",
            _with_chip(system, chip.model_copy(update={"memories": memories})),
        )
    for what, names in networks(system).items():
        levels = tuple(
            level.model_copy(update={"bandwidth_bytes_per_s": level.bandwidth_bytes_per_s * FACTOR})
            if level.name in names
            else level
            for level in system.levels
        )
        yield what, system.model_copy(update={"levels": levels})


def networks(system: SystemSpec) -> dict[str, list[str]]:
    """Return the names of the levels that are doubled together, by how to call that.

    Sides of a grid are one network: groups that lie on several of them wait for each.
    """
    of_grid = [level.name for level in system.levels if level.kind in ("mesh", "torus")]
    groups = [of_grid] * bool(of_grid)
    groups += [[level.name] for level in system.levels if level.name not in of_grid]
    return {f"twice the {', '.join(names)} bandwidth": names for names in groups}


def _with_chip(system: SystemSpec, chip: ChipSpec) -> SystemSpec:
    return system.model_copy(update={"chip": chip})
