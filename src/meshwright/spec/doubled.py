"""Systems with one resource doubled, to show the gain of a plan from each."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.spec.system import ChipSpec, NetworkLevel, SystemSpec

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
    for index, level in enumerate(system.levels):
        wider = level.model_copy(
            update={"bandwidth_bytes_per_s": level.bandwidth_bytes_per_s * FACTOR}
        )
        levels = (*system.levels[:index], wider, *system.levels[index + 1 :])
        yield of_level(level), system.model_copy(update={"levels": levels})


def of_level(level: NetworkLevel) -> str:
    """Return the name of a doubled network level."""
    return f"twice the {level.name} bandwidth"


def _with_chip(system: SystemSpec, chip: ChipSpec) -> SystemSpec:
    return system.model_copy(update={"chip": chip})
