"""Rates of a cut: seconds of its stages, of a pass and of a round, tokens per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.base.arrays import Num, larger
from meshwright.base.records import Brief
from meshwright.base.units import time_told
from meshwright.cost.pipeline import jitter_fraction
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.workload import Decode, Training, Workload


@dataclass(frozen=True)
class StageSeconds(Brief):
    """One group of sequences on one stage."""

    work_s: float
    entry_s: float
    """Time of the sends for its first layer: gradients, in training [s]."""
    exit_s: float
    """Time of the sends to the next stage [s]."""

    @property
    def occupied_s(self) -> float:
        """Time for which the stage serves no other group [s]."""
        return self.work_s + self.entry_s + self.exit_s


@dataclass(frozen=True)
class Rates(Brief):
    """Rates of a pipeline of stages, on all its replicas; parts sum to ``latency_s``."""

    latency_s: float
    """Decode: per output token of a user; prefill: to the first token; training: a step [s]."""
    time_parts_s: Mapping[str, float]
    slowest_stage_s: float
    """Time for which one group occupies the slowest stage [s]."""
    tokens_per_s: float
    """Throughput of the system [tokens/s]."""
    system_time_per_token_s: float
    """1 / ``tokens_per_s``: not the time between two tokens of a user [s]."""
    tokens_per_s_per_user: float | None
    """Throughput of one user [tokens/s]; None in training."""
    sequences_in_flight: float
    is_calibrated: bool
    """Whether constants were fitted to measurements of these chips."""
    fidelity: str = "closed_form"


def rates(
    workload: Workload, calibration: CalibrationOf[float], stages: Sequence[StageSeconds],
    parts_s: Mapping[str, float], *, num_groups: int, group_devices: int, replicas: int,
) -> Rates:  # fmt: skip
    """Return the rates of stages that serve groups of sequences in turn.

    Serving is a closed loop: a sequence that has its token, or a prompt that is done, makes room
    for the next one, so that a round takes max(pass, groups x slowest stage) and sequences in
    flight over that time are the sequences per second (Little's law). A training step lasts
    pass + (groups - 1) x slowest stage: under 1F1B exact for equal stages, and never too little
    where backward takes the same multiple of forward on all of them.

    Parameters
    ----------
    parts_s
        The seconds of one group in all layers, by part; they sum to the work of the stages [s].
    """
    occupied = [stage.occupied_s for stage in stages]
    pass_s, slowest_s = sum(occupied), max(occupied)
    all_s = total_s(workload, pass_s, slowest_s, num_groups)
    name = "other_groups_s" if isinstance(workload, Training) else "wait_s"
    jitter = float(jitter_fraction(group_devices * len(stages), calibration.jitter))
    told = "a step" if isinstance(workload, Training) else "a pass"
    latency_s = time_told(told, all_s * (1.0 + jitter), parts_s)
    sends_s = sum(stage.entry_s + stage.exit_s for stage in stages)
    batch = replicas * batch_of(workload)
    tokens = batch * tokens_of(workload)
    return Rates(
        latency_s=latency_s,
        time_parts_s={
            **parts_s, "pp_comm_s": sends_s, name: all_s - pass_s, "jitter_s": all_s * jitter,
        },
        slowest_stage_s=slowest_s,
        tokens_per_s=tokens / latency_s,
        system_time_per_token_s=latency_s / tokens,
        tokens_per_s_per_user=None if isinstance(workload, Training)
        else tokens_of(workload) / latency_s,
        sequences_in_flight=float(batch),
        is_calibrated=calibration.is_calibrated,
    )  # fmt: skip


def total_s(workload: Workload, pass_s: float, slowest_s: float, num_groups: int) -> float:
    """Return the seconds of a round of all groups, or of a training step."""
    if isinstance(workload, Training):
        return pass_s + (num_groups - 1) * slowest_s
    return float(round_s(pass_s, slowest_s, num_groups))


def round_s(pass_s: Num, slowest_s: Num, num_groups: Num) -> Num:
    """Return the time per output token of each sequence: max(pass, groups x slowest stage) [s].

    It is the largest mean weight of a cycle in the order of events. A cycle that goes a times
    through all stages and b times through all groups covers a + b rounds and weighs at most
    a ``pass_s`` + b ``num_groups`` ``slowest_s``; the two pure cycles reach the larger mean.

    Parameters
    ----------
    pass_s
        All stages one after the other, each with its send [s].
    slowest_s
        For which one group occupies the slowest stage, its send included [s].

    Source: cycle mean of an event graph (Baccelli et al. 1992, Synchronization and Linearity,
    theorem 3.28).
    """
    return larger(pass_s, num_groups * slowest_s)


def batch_of(workload: Workload) -> int:
    """Return the sequences in flight in one pipeline of stages, or those of a step."""
    if isinstance(workload, Training):
        return workload.global_batch_size
    return workload.batch_size


def tokens_of(workload: Workload) -> int:
    """Return the tokens of each sequence that pass in a round."""
    if isinstance(workload, Training):
        return workload.sequence_length
    return 1 if isinstance(workload, Decode) else workload.prompt_length
