"""From a published figure of a machine that serves from SRAM to its price: one user's token.

Layers are cut into the fewest stages; one sequence goes round them. If the plan is not stated, each
layer has the split that answers fastest, on the number of chips that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import SpecError
from meshwright.calibration.prediction import Prediction, refused_or
from meshwright.calibration.rows import Reason, RefusedError, Row
from meshwright.catalog.calibration import SRAM, load_calibration, load_sram, sram_part
from meshwright.catalog.systems import load_system
from meshwright.spec.calibration import SramConstants
from meshwright.spec.workload import Decode, SoftwareStack
from meshwright.sram.partition import check_degrees
from meshwright.sram.question import PartitionProblem
from meshwright.sram.search import CutObjective, solve

CONTEXT = 2048
"""Tokens of a sequence where a row does not state them; reading their cache is less than a
hundredth of a token's time."""
MOST_SPLIT = 32
"""Chips over which a layer is split at most where the split is not stated."""
UNIT_S = 1e-6


@dataclass(frozen=True)
class SramJob:
    """A row as it is priced.

    The time of a token is affine in the time of a sum over the cores of a chip, on each plan.
    """

    row: Row
    family: str
    problems: tuple[PartitionProblem, ...]
    """Problem of each split of the layers."""
    terms: FloatArray
    """For each plan: time of a token where sums are free [s], and its slope over the time of a
    sum."""

    @property
    def server(self) -> str:
        """Software that drafts tokens; empty where none does."""
        return (self.row.framework or "") if self.row.drafts_tokens else ""

    def tokens_per_s(self, reduction_s: float, tokens_per_pass: float) -> float:
        """Return the tokens of one user on the fastest plan [tokens/s]."""
        return tokens_per_pass / float((self.terms[:, 0] + self.terms[:, 1] * reduction_s).min())


def sram_job(row: Row, calibration: str) -> SramJob:
    """Return the job of a row.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be priced.
    """
    row.check()
    problems, terms = [], []
    for problem in _problems(row, calibration):
        plain_s, slower_s = token_s(problem, 0.0), token_s(problem, UNIT_S)
        if plain_s is not None and slower_s is not None:
            problems.append(problem)
            terms.append((plain_s, (slower_s - plain_s) / UNIT_S))
    if not terms:
        raise RefusedError(Reason.SYSTEM, f"the layers do not fit the SRAM of {row.system.chip}")
    return SramJob(row, problems[0].system.chip.family, tuple(problems), np.array(terms))


def _problems(row: Row, calibration: str) -> Iterator[PartitionProblem]:
    """Yield the question for each split of the layers that the rules of the axes allow."""
    system, model, stated = row.system.spec(), row.model.spec(), row.strategy.stated
    workload = Decode(
        batch_size=1,
        context_length=(row.prompt_tokens or 0) + (row.answer_tokens or 0) or CONTEXT,
        precision=row.precision.precision(system.chip),
        software=SoftwareStack(cuda_graphs=True),
    )
    if system.chip.memories[0].name != SRAM:
        raise RefusedError(Reason.SYSTEM, f"{system.chip.name} holds no layers in SRAM")
    splits = [1 << power for power in range(MOST_SPLIT.bit_length())]
    for tp in [stated["tp"]] if "tp" in stated else splits:
        problem = PartitionProblem(
            model=model, system=system, workload=workload,
            calibration=load_calibration(system.chip.family, calibration), tensor_degree=tp,
        )  # fmt: skip
        try:
            check_degrees(problem)
            yield _on_enough(problem) if row.system.at_least else problem
        except SpecError:
            continue


def _on_enough(problem: PartitionProblem) -> PartitionProblem:
    """Return the problem on the number of chips that the fewest stages need."""
    found = solve(problem, CutObjective.COUNT, 1)
    needed = len(found.stops) * problem.tensor_degree if found else problem.tensor_degree
    return replace(problem, system=load_system(f"{needed}x{problem.system.chip.name}"))


def token_s(problem: PartitionProblem, reduction_s: float) -> float | None:
    """Return the time of one user's token for that of a sum over the cores [s]; None: no room."""
    found = solve(replace(problem, sram=SramConstants(reduction_s)), CutObjective.COUNT, 1)
    if found is None or found.rates is None or not found.has_devices:
        return None
    return found.rates.latency_s


def predict_sram(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each figure, or the reason for which there is none."""
    part = sram_part(calibration)

    def predicted(row: Row) -> Prediction:
        job = sram_job(row, calibration)
        drafted = part.servers.get(job.server) if part else None
        return Prediction(
            row,
            predicted_tokens_per_s=job.tokens_per_s(
                load_sram(job.problems[0].system.chip, calibration).reduction_s,
                drafted.tokens_per_pass if drafted else 1.0,
            ),
            measured_tokens_per_s=row.measured.tokens_per_s_per_user,
            has_room=True,
        )

    return [refused_or(predicted, row) for row in rows]
