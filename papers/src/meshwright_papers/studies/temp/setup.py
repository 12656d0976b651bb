"""The models and the wafer of the evaluation of TEMP, and the points that the paper leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.base.registry import Registry
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import ChipSpec, SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import BestOfRecipe, Comparison
from meshwright.train.question import training
from meshwright.wafer.training import compare

SOURCE = "TEMP (Wang et al. 2025, arXiv 2512.14256)"
PUBLISHED_COLLECTIVE_SHARE = 0.4
"""Share of training that collectives take at most, Fig. 4."""
OURS = "temp"
BASELINES = ("megatron-1", "megatron-3", "fsdp")
HONEST = ("fsdp-prefetch", "zero3-tp", "cycle-ring", "product-stream")
TB = 1e12
NO_HBM_FACTOR = 1e6
"""Memory so fast that it never matters."""
NEVER_SLOW = NO_HBM_FACTOR * TB
"""Rate of a memory that never matters [bytes/s]."""


@dataclass(frozen=True)
class Case:
    """One column of the evaluation: Table II of the paper."""

    name: str
    model: str
    sequence_length: int
    global_batch_size: int = 128


CASES: Registry[Case] = Registry("case of the evaluation")
for _name, _model, _length in (
    ("GPT-3 6.7B", "gpt3-6.7b", 2048), ("Llama2 7B", "llama2-7b", 4096),
    ("Llama3 70B", "llama3-70b", 4096), ("GPT-3 76B", "gpt3-76b", 2048),
    ("GPT-3 175B", "gpt3-175b", 2048), ("OPT 175B", "opt-175b", 4096),
):  # fmt: skip
    CASES.register(_name)(Case(_name, _model, _length))


def model_of(case: Case) -> ModelSpec:
    """Return the model of a case; learned positions are extended where its sequence needs it."""
    spec = load_model(case.model)
    if spec.learned_positions and spec.learned_positions < case.sequence_length:
        spec = spec.model_copy(update={"learned_positions": case.sequence_length})
    return spec


def wafer(*, with_hbm: bool = True) -> SystemSpec:
    """Return the wafer of the evaluation, 32 dies; without the HBM term memory is never slow."""
    system = load_system("wafer-4x8")
    if with_hbm:
        return system
    faster = (system.chip.main_memory.bandwidth_bytes_per_s or 1.0) * NO_HBM_FACTOR
    return system.model_copy(update={"chip": with_memory_rate(system.chip, faster)})


def with_memory_rate(chip: ChipSpec, bytes_per_s: float | None) -> ChipSpec:
    """Return a chip with another rate of main memory; unchanged where that is None."""
    if bytes_per_s is None:
        return chip
    main = chip.main_memory
    memories = tuple(
        memory.model_copy(update={"bandwidth_bytes_per_s": bytes_per_s})
        if memory == main
        else memory
        for memory in chip.memories
    )
    return chip.model_copy(update={"memories": memories})


@dataclass(frozen=True)
class Machine:
    """Rates that Table I states in more than one way, or not at all; ours where None."""

    link_bytes_per_s: float | None = None
    """Bandwidth of one direction of one die-to-die link [bytes/s]."""
    hbm_bytes_per_s: float | None = None
    message_half_bytes: float | None = None
    """Message size that reaches half of the bandwidth of a link [bytes]."""

    @property
    def text(self) -> str:
        """Settings in words."""
        link, hbm, half = self.link_bytes_per_s, self.hbm_bytes_per_s, self.message_half_bytes
        memory = "HBM never slow" if hbm == NEVER_SLOW else f"HBM {(hbm or 0.0) / TB:g} TB/s"
        parts = (
            (hbm, memory),
            (link, f"D2D {(link or 0.0) / TB:g} TB/s"),
            (half, f"messages {(half or 0.0) / 1e6:g} MB"),
        )
        return ", ".join(words for value, words in parts if value is not None) or "as elsewhere"

    def system(self) -> SystemSpec:
        """Return the wafer of 4x8 dies with these rates."""
        system = wafer()
        asked = {
            "bandwidth_bytes_per_s": self.link_bytes_per_s,
            "message_half_bytes": self.message_half_bytes,
        }
        changed = {name: value for name, value in asked.items() if value is not None}
        levels = tuple(level.model_copy(update=changed) for level in system.levels)
        chip = with_memory_rate(system.chip, self.hbm_bytes_per_s)
        return system.model_copy(update={"levels": levels, "chip": chip})


AS_ELSEWHERE = Machine()
Fixed = tuple[tuple[str, tuple[object, ...]], ...]
"""Allowed values by the name of a choice."""
PLAIN: Fixed = (("recompute", ("none",)), ("zero_stage", (0, 3)))
"""Nothing is recomputed; state is replicated, or all of it is sharded (FSDP)."""
NO_PIPELINE: Fixed = (("pp", (1,)),)


@dataclass(frozen=True)
class Setting:
    """One reading of the points that the paper leaves open."""

    name: str
    machine: Machine = AS_ELSEWHERE
    fixed: Fixed = ()
    """Options fixed for all systems."""

    def allowed(self, **more: Sequence[object]) -> dict[str, Sequence[object]]:
        """Return the fixed options, and more, in the format of the planner."""
        return {**dict(self.fixed), **more}


SEARCHED = Setting("all searched")
DESCRIBED = Setting("as described", fixed=(*NO_PIPELINE, *PLAIN))
READINGS = (SEARCHED, DESCRIBED)
"""Both readings of the evaluation: anything not excluded, or only described options."""


def work_of(case: Case, system: SystemSpec) -> Training:
    """Return the training step of a case."""
    return training(
        system, sequence_length=case.sequence_length, global_batch_size=case.global_batch_size
    )


@cache
def compared(
    name: str, recipes: Sequence[str], *, with_hbm: bool = True, reading: Setting = SEARCHED
) -> Comparison:
    """Return the recipes side by side on one case."""
    case, system = CASES[name], wafer(with_hbm=with_hbm)
    return compare(
        model_of(case),
        system,
        work_of(case, system),
        against=(OURS, *recipes),
        allowed=reading.allowed(),
        calibration=UNCALIBRATED,
        prefers_simple=False,
    )


def entries_of(found: Comparison) -> dict[str, BestOfRecipe]:
    """Return the entries by recipe and mapper: ``megatron-3 gmap``."""
    names = {}
    for entry in found.entries:
        is_blind = entry.mapper not in (None, "tmap")
        names[f"{entry.recipe} {entry.mapper}" if is_blind else entry.recipe] = entry
    return names


ASSUMPTIONS = (
    "4x8 dies of Table I, D2D 2 TB/s one way, 12 bytes of state a parameter, global batch 128, "
    "message occupation 4 MB; all searched: pipelines, ZeRO-1 and recomputation open to all; "
    "uncalibrated; contended"
)
