"""The settings: what the paper leaves open, each declared before anything was priced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.train.compare import compare
from meshwright.train.comparison import Entry
from meshwright.train.question import training
from meshwright_papers.studies.claims import Claim, Verdict
from meshwright_papers.studies.temp.cases import BASELINES, CASES, OURS, Case, entries_of, model_of
from meshwright_papers.studies.temp.machines import AS_ELSEWHERE, NEVER_SLOW, TB, Machine

Fixed = tuple[tuple[str, tuple[object, ...]], ...]
"""Allowed values by the name of a choice."""
PLAIN: Fixed = (("recompute", ("none",)), ("zero_stage", (0, 3)))
"""Nothing is recomputed; state is replicated, or all of it is sharded (FSDP)."""
ONE_SEQUENCE: Fixed = (("micro_batch_size", (1,)),)
NO_OVERLAP: Fixed = (("overlap_data_parallel", (False,)),)


@dataclass(frozen=True)
class Setting:
    """One reading of what the paper leaves open."""

    name: str
    machine: Machine = AS_ELSEWHERE
    fixed: Fixed = ()
    """For all systems alike."""

    def allowed(self, **more: Sequence[object]) -> dict[str, Sequence[object]]:
        """Return what is fixed, and more, as the planner takes it."""
        return {**dict(self.fixed), **more}


USUAL = Setting("as elsewhere")
SIMPLEST = Setting(
    "nothing recomputed, no ZeRO-1, one sequence, no overlap",
    fixed=(*PLAIN, *ONE_SEQUENCE, *NO_OVERLAP),
)
FAST_MEMORY = Setting("HBM never slow", Machine(hbm_bytes_per_s=NEVER_SLOW))
SETTINGS = (
    USUAL,
    Setting("nothing recomputed, no ZeRO-1", fixed=PLAIN),
    Setting("one sequence in a micro-batch", fixed=ONE_SEQUENCE),
    SIMPLEST,
    Setting("HBM 2.4 TB/s", Machine(hbm_bytes_per_s=2.4 * TB)),
    FAST_MEMORY,
    Setting("D2D 1 TB/s one way", Machine(link_bytes_per_s=TB)),
    Setting("messages of 16 MB", Machine(message_half_bytes=16e6)),
    Setting(
        "the simplest with HBM never slow, D2D 0.5 TB/s",
        Machine(hbm_bytes_per_s=NEVER_SLOW, link_bytes_per_s=0.5 * TB),
        SIMPLEST.fixed,
    ),
)
BASELINES_ALONE = f"baselines alone: {SIMPLEST.name}"
"""Ours as elsewhere, over baselines of the simplest setting."""
MODELS = ("GPT-3 6.7B", "Llama3 70B")
Found = Mapping[str, Mapping[str, Entry]]
"""By model, then by system."""


@cache
def entries_under(case: Case, setting: Setting) -> Mapping[str, Entry]:
    """Return the best plan of each system under a setting."""
    system = setting.machine.system()
    work = training(
        system, sequence_length=case.sequence_length, global_batch_size=case.global_batch_size
    )
    return entries_of(
        compare(
            model_of(case),
            system,
            work,
            ours=OURS,
            against=BASELINES,
            allowed=setting.allowed(),
            calibration=UNCALIBRATED,
        )
    )


def found_by_setting() -> dict[str, Found]:
    """Return what each setting leads to, by its name; ours over simpler baselines comes last."""
    cases = [CASES[name] for name in MODELS if name in CASES]
    found = {
        setting.name: {case.name: entries_under(case, setting) for case in cases}
        for setting in SETTINGS
    }
    usual, simplest = found[USUAL.name], found[SIMPLEST.name]
    mixed = {
        case.name: {
            name: (usual if name.startswith(OURS) else simplest)[case.name][name]
            for name in usual[case.name]
        }
        for case in cases
    }
    return {**found, BASELINES_ALONE: mixed}


def claim_under(
    claim: Claim, by_setting: Mapping[str, tuple[float, ...] | None],
    holds: Callable[[tuple[float, ...]], bool], published: Sequence[float],
    text: Callable[[tuple[float, ...]], str],
) -> Claim:  # fmt: skip
    """Return a claim with the settings under which it holds, else with the nearest figure.

    Parameters
    ----------
    by_setting
        Our figures; None where a setting gives none.
    published
        The figures to be near to.
    """
    known = {name: figures for name, figures in by_setting.items() if figures is not None}
    agreeing = [name for name, figures in known.items() if holds(figures)]
    if agreeing:
        ours = "; ".join(f"{text(known[name])} under: {name}" for name in agreeing)
        return _with(claim, ours, Verdict.AGREES, "")
    if not known:
        return _with(claim, "no setting gives a figure", Verdict.DIFFERS, "no setting fits")

    def away(name: str) -> float:
        return max(abs(a - b) for a, b in zip(known[name], published, strict=True))

    nearest = min(known, key=away)
    ours = f"nearest {text(known[nearest])} under: {nearest}"
    return _with(claim, ours, Verdict.DIFFERS, f"under none of {len(by_setting)} settings")


def _with(claim: Claim, ours: str, verdict: Verdict, why: str) -> Claim:
    return Claim(claim.figure, claim.what, claim.published, claim.status, ours, verdict, why)
