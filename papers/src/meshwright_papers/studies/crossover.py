"""Where a fourth and a fifth axis begin to pay: growing numbers of devices, growing models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.catalog.models import load_model
from meshwright.train.answer import Candidate
from meshwright.train.question import training
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.textbook_grids import TextbookSetting, ranked_grids

TOKENS = 2.0**22
"""Tokens of a step: four million, a power of two."""
DEVICES = (8, 64, 512, 4096)
CHIP = "H100"
AXES = ("dp", "pp", "tp", "cp", "ep")
NO_CONTEXT: dict[str, Sequence[object]] = {"cp": [1]}
NO_EXPERTS: dict[str, Sequence[object]] = {"ep": [1], "etp": [1]}
SPACES: dict[str, dict[str, Sequence[object]]] = {
    "dp": {"pp": [1], "tp": [1], **NO_CONTEXT, **NO_EXPERTS},
    "dp pp tp": {**NO_CONTEXT, **NO_EXPERTS},
    "with cp": NO_EXPERTS,
    "with ep": NO_CONTEXT,
    "with cp ep": {},
}
"""Fixed options of each space; its own axes are free."""
BOOK = TextbookSetting()
BOOK_DEVICES = (64, 256, 1024, 4096)
BOOK_PARAMS = (7e9, 70e9, 200e9, 1e12)


CHART = Drawing(
    "From how many devices do context and expert parallelism pay?",
    "Step of the best plan that may use them, over that of the best of dp, pp and tp alone",
    "lines", ("with_cp_ep_s", "with_cp_s", "with_ep_s"), "devices", panels="model", across=2,
    over="dp_pp_tp_s", measure="step, over dp, pp and tp alone",
)  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """A model and its sequence length."""

    model: str
    sequence_length: int

    @property
    def label(self) -> str:
        """Model and length in words."""
        return f"{self.model} {self.sequence_length // 1024}K"

    @property
    def has_experts(self) -> bool:
        """Whether an axis of experts means anything."""
        return any(kind.experts for kind in load_model(self.model).layer_kinds)


SETUPS = (
    Setup("llama3.1-8b", 8192),
    Setup("llama3.1-405b", 8192),
    Setup("llama3.1-70b", 131072),
    Setup("qwen3-235b-a22b", 8192),
)


@cache
def best_in(setup: Setup, num_devices: int, space: str) -> Candidate | None:
    """Return the fastest plan of a space, in closed form; None where nothing fits."""
    if not setup.has_experts and "ep" in space.split():
        return best_in(setup, num_devices, "with cp" if "cp" in space else "dp pp tp")
    system = f"{num_devices}x{CHIP}"
    work = training(
        system,
        sequence_length=setup.sequence_length,
        global_batch_size=int(TOKENS / setup.sequence_length),
    )
    found = compare(
        setup.model,
        system,
        work,
        against=(),
        allowed=SPACES[space],
        calibration=UNCALIBRATED,
        prefers_simple=False,
    )
    return found.ours.best


def axes_of(plan: Candidate | None) -> tuple[str, ...]:
    """Return the axes of more than one device of a plan."""
    if plan is None:
        return ()
    return tuple(axis for axis in AXES if getattr(plan.strategy, axis) > 1)


@studies.register("crossover")
class Crossover:
    """The fastest plan of one, three, four and five axes, by devices and model."""

    title = "where 3D, 4D and 5D parallelism pay, by the number of devices and the model"
    source = "section 16.9, https://scalablebook.apartsin.com"

    @staticmethod
    def run() -> StudyResult:
        """Search five spaces for each model and number of devices."""
        rows = []
        for setup in SETUPS:
            for number in DEVICES:
                plans = [best_in(setup, number, space) for space in SPACES]
                best = plans[-1]
                rows.append((setup.label, number, *(p and p.estimate.step_time_s for p in plans),
                             len(axes_of(best)) or None, best.text if best else ""))  # fmt: skip
        names = ("model", "devices", *(f"{space.replace(' ', '_')}_s" for space in SPACES), "axes",
                 "plan")  # fmt: skip
        claims = (*_device_claims(), _model_claim(), _book_claim())
        head = "".join(f"{space:>12}" for space in SPACES)
        lines = [f"{'step [s]':<22}{'devices':>8}{head}{'axes':>6}"]
        lines += [
            f"{row[0]:<22}{row[1]:>8}" + "".join(f"{shown(v) or '-':>12}" for v in row[2:7])
            + f"{shown(row[7]) or '-':>6}"
            for row in rows
        ]  # fmt: skip
        return StudyResult(
            lines=(*lines, "", *claim_lines(claims)),
            data={"rows": records(names, rows)},
            tables=(Table("crossover", names, tuple(rows), CHART),),
            claims=claims,
            assumptions=f"{CHIP} in hosts of eight, {TOKENS:.0f} tokens a step, all other choices "
            "free; closed form, uncalibrated; axes: those of more than one device in the fastest "
            "plan of all",
        )


def _device_claims() -> list[Claim]:
    """Return whether more devices bring more axes into the fastest plan, by model."""
    claims = []
    for setup in SETUPS:
        found = [axes_of(best_in(setup, number, "with cp ep")) for number in DEVICES]
        counts = [len(axes) for axes in found if axes]
        grows = counts == sorted(counts) and counts[-1] > counts[0]
        claims.append(
            Claim("section 16.9", f"more devices, more axes in the fastest plan: {setup.label}",
                  "more", "seed",
                  "; ".join(f"{number}: {' '.join(axes)}"
                            for number, axes in zip(DEVICES, found, strict=True) if axes),
                  Verdict.AGREES if grows else Verdict.DIFFERS,
                  "an axis is taken for what it sends and what it saves of memory, not for the "
                  "number of devices alone")
        )  # fmt: skip
    return claims


def _model_claim() -> Claim:
    """Return whether a larger model brings more axes, on the same number of devices."""
    small, large = SETUPS[:2]
    pairs = [
        (number, *(len(axes_of(best_in(setup, number, "with cp ep"))) for setup in (small, large)))
        for number in DEVICES
    ]
    known = [(number, a, b) for number, a, b in pairs if a and b]
    return Claim(
        "section 16.9", f"a larger model, more axes: {small.model} and {large.model}", "more",
        "seed", "; ".join(f"{number}: {a} and {b}" for number, a, b in known),
        Verdict.AGREES if all(b > a for _, a, b in known) else Verdict.DIFFERS,
        "on enough devices the small model needs as many axes as the large one",
    )  # fmt: skip


def _book_claim() -> Claim:
    """Return whether the book's own formulas ever choose three axes, as its text expects."""
    settings = [
        replace(BOOK, num_devices=number, num_params=params)
        for number in BOOK_DEVICES
        for params in BOOK_PARAMS
    ]
    ranked = [(setting, ranked_grids(setting)) for setting in settings]
    won = [
        f"{setting.num_devices} devices, {setting.num_params / 1e9:.0f}e9 parameters"
        for setting, grids in ranked
        if grids and min(grids[0].grid) > 1
    ]
    fitting = sum(bool(grids) for _, grids in ranked)
    return Claim(
        "section 16.9", "by its own program, more devices or a larger model make three axes win",
        "the balance shifts", "seed", f"{len(won)} of {fitting} settings that fit"
        + (f": {won[0]} first" if won else ""),
        Verdict.AGREES if won else Verdict.DIFFERS,
        "the program sums 16 bytes a parameter over dp on the slowest fabric, and charges tp and "
        "pp once, whatever the batch",
    )  # fmt: skip
