"""From a row of requests to a job: a model on chips under a server, prompts and answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.calibration.jobs import Reason, RefusedError, model_of, system_of
from meshwright.calibration.prediction import Prediction, predict
from meshwright.calibration.rows import (
    HardwareFields,
    ModelFields,
    ParallelismFields,
    PrecisionFields,
    Row,
)
from meshwright.calibration.sram import predict_sram
from meshwright.catalog.calibration import load_calibration, load_serving, serving_record
from meshwright.catalog.workloads import load_server
from meshwright.cost.operator import stated_rate
from meshwright.cost.problem import distances_of, throughputs, traits_of
from meshwright.serve.passes import ServingProblem
from meshwright.serve.requests import Requests, Served, Serving
from meshwright.sharding.strategy import PlanOptions, Strategy, make_strategy
from meshwright.spec.calibration import ServingConstantsOf, Spread
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import ChipSpec
from meshwright.spec.workload import Decode, Precision, Server, SoftwareStack

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
LEAST_EXPERT_COLUMNS = 256
"""Of the part of an expert: kernels with block scales take no narrower tiles."""


@dataclass(frozen=True)
class Setting:
    """What rows share that are priced together: all but their requests."""

    serving: Serving
    replicas: float
    """Copies of the model, each with its part of the requests."""


@dataclass(frozen=True)
class ServingJob:
    """A row as it is priced."""

    row: Row
    setting: Setting
    prompt_tokens: float
    answer_tokens: float
    batch: float
    """Requests that start together on one replica; infinity: a queue."""


def server_name_of(row: Row) -> str:
    """Return the server of a row."""
    return row.framework or "generic"


def serving_job(row: Row, calibration: str) -> ServingJob:
    """Return the job of a row: its stated configuration alone, and defaults.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be priced.
    """
    if not row.input_len or not row.output_len:
        raise RefusedError(Reason.LENGTHS, f"{row.input_len} and {row.output_len} tokens")
    model = row.model.model_copy(update={"seq": None, "params_b": None})
    setting = _setting(
        server_name_of(row), row.hardware, model, row.precision, row.parallelism, calibration
    )
    batch = inf if row.batch is None else max(row.batch / setting.replicas, 1.0)
    return ServingJob(row, setting, float(row.input_len), float(row.output_len), batch)


@cache
def _setting(
    server_name: str, hardware: HardwareFields, fields: ModelFields,
    precision: PrecisionFields | None,
    plan: ParallelismFields, calibration: str,
) -> Setting:  # fmt: skip
    """Return what rows of one configuration share."""
    system, server = system_of(hardware), load_server(server_name)
    model = model_of(fields, "fsdp")
    chip = system.chip
    workload = Decode(
        batch_size=1, context_length=1, precision=serving_precision(precision, chip, server),
        software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    problem = ServingProblem(
        model, system, workload, load_calibration(chip.family, calibration),
        constants=load_serving(chip.family, server, calibration),
    )  # fmt: skip
    strategy, replicas = _strategy(plan, system.num_devices, model)
    return Setting(Serving(problem, server, PLAIN, strategy), replicas)


def _strategy(
    plan: ParallelismFields, num_devices: int, model: ModelSpec
) -> tuple[Strategy, float]:
    """Return the degrees of one replica, and the replicas.

    Where no degree is stated, all chips split each layer. Experts lie inside a replica: spread as
    ``ep`` says, the rest of the chips split each of them.
    """
    pp, dp = plan.pp or 1, plan.dp or 1
    tp = plan.tp or max(num_devices // (pp * dp), 1)
    replicas = num_devices / (tp * pp)
    if replicas != int(replicas) or plan.dp not in (None, int(replicas)):
        found = f"tp {tp} x pp {pp} x dp {dp} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    if pp > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} stages of {model.num_layers} layers")
    experts = max((k.experts.num_experts for k in model.layer_kinds if k.experts), default=0)
    ep = min(plan.ep or _experts_spread(model, tp), tp) if experts else 1
    if tp % ep:
        raise RefusedError(Reason.DEGREES, f"ep {ep} does not divide tp {tp}")
    return make_strategy(tp=tp, pp=pp, ep=ep, etp=tp // ep if experts else 1), replicas


def _experts_spread(model: ModelSpec, tp: int) -> int:
    """Return over how many chips of a replica whole experts are spread, where nothing is stated.

    Each expert is split as far as its parts keep a tile of columns; what chips are left hold
    different experts.
    """
    widths = (k.experts.ffn_size for k in model.layer_kinds if k.experts)
    most = max(min(widths) // LEAST_EXPERT_COLUMNS, 1)
    return next(ep for ep in range(1, tp + 1) if tp % ep == 0 and tp // ep <= most)


def serving_precision(stated: PrecisionFields | None, chip: ChipSpec, server: Server) -> Precision:
    """Return the number formats of a served model: 16 bits where nothing is stated.

    Where the chip has no rate for a narrow format, its products run in 16 bits.

    Raises
    ------
    RefusedError
        When the chip has no rate for those either.
    """
    known = stated or PrecisionFields()
    activation = "fp32" if known.activation == "fp32" else chip.word
    try:
        stated_rate(chip, activation)
    except SpecError as error:
        raise RefusedError(Reason.PRECISION, str(error.faults[0])) from error
    has_rate = known.matmul is not None and known.matmul in chip.matmul_flops_per_s
    return Precision(
        matmul=known.matmul if known.matmul and has_rate else activation,
        activation=activation,
        weight=known.weight or activation,
        kv_cache="fp8" if known.weight and server.narrow_cache else activation,
    )


def predict_all(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row, of training or of inference, in the order of the rows."""
    by_kind = {
        kind: iter(method([row for row in rows if _kind(row) == kind], calibration))
        for kind, method in PREDICTING.items()
    }
    return [next(by_kind[_kind(row)]) for row in rows]


def _kind(row: Row) -> tuple[bool, bool]:
    return row.is_serving, row.is_one_user


def predict_served(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row of requests, or the reason for which there is none."""
    record = serving_record(calibration)
    spread = record.spread if record else None
    jobs = [_job_or_refusal(row, calibration) for row in rows]
    answers: dict[int, Prediction] = {}
    for column in columns_of([entry for entry in jobs if not isinstance(entry, Prediction)]):
        for job, prediction in zip(column.jobs, column.predictions(spread), strict=True):
            answers[id(job.row)] = prediction
    return [e if isinstance(e, Prediction) else answers[id(e.row)] for e in jobs]


def _job_or_refusal(row: Row, calibration: str) -> ServingJob | Prediction:
    """Return the job of a row, or its refusal."""
    try:
        _measured(row)
        return serving_job(row, calibration)
    except RefusedError as error:
        return Prediction(row, refused=error.reason, detail=error.detail)
    except MeshwrightError as error:
        return Prediction(row, refused=Reason.PLAN, detail=str(error).splitlines()[0])


PREDICTING = {
    (False, False): predict, (True, False): predict_served, (True, True): predict_sram,
}  # fmt: skip
"""How rows are predicted: by whether they are of serving, and of one user."""


@dataclass(frozen=True)
class Column:
    """Questions that are priced together: one setting, all batches or all queues."""

    setting: Setting
    jobs: tuple[ServingJob, ...]

    def served(self, constants: ServingConstantsOf[Any] | None = None) -> Served:
        """Return the price of the column, under other constants where they are given.

        Parameters
        ----------
        constants
            Numbers, or columns of draws: the price then holds all jobs under the first draw,
            then all under the second, and so on.
        """
        serving, draws = self.setting.serving, 1
        if constants is not None:
            draws = max(np.size(value) for value in vars(constants).values())
            columns = {
                name: np.repeat(np.broadcast_to(value, draws), len(self.jobs))
                for name, value in vars(constants).items()
            }
            problem = serving.problem.with_constants(ServingConstantsOf(**columns))
            serving = replace(serving, problem=problem)
        return serving.served(
            Requests(
                np.tile([job.prompt_tokens for job in self.jobs], draws),
                np.tile([job.answer_tokens for job in self.jobs], draws),
                np.tile([job.batch for job in self.jobs], draws),
            )
        )

    def tokens_per_s(self, served: Served) -> FloatArray:
        """Return the throughput of each job as its source defines it [tokens/s].

        Of each draw in turn, where constants were drawn.
        """
        draws = np.size(served.step_s) // len(self.jobs)
        prompt = np.tile([job.prompt_tokens for job in self.jobs], draws)
        answer = np.tile([job.answer_tokens for job in self.jobs], draws)
        kinds = np.tile([_measured(job.row)[0] for job in self.jobs], draws)
        prompts_s = np.where(served.prompt_s > 0, served.prompt_s, np.nan)
        rates = {
            "total": served.requests_per_s * (prompt + answer),
            "output": served.requests_per_s * answer,
            "prompts": served.at_once * prompt / prompts_s,
            "steps": served.at_once / served.step_s,
        }
        found = np.select([kinds == kind for kind in rates], list(rates.values()))
        return np.asarray(found * self.setting.replicas, dtype=float)

    def measured(self) -> FloatArray:
        """Return what was measured, in the same terms [tokens/s]."""
        return np.array([_measured(job.row)[1] for job in self.jobs])

    def predictions(self, spread: Spread | None) -> list[Prediction]:
        """Return the predictions of the column, with intervals where their spread is known."""
        served, problem = self.served(), self.setting.serving.problem
        ends = None
        if spread is not None:
            traits = traits_of(problem, is_seen=problem.calibration.is_calibrated)
            ends = distances_of(spread, traits)
        rooms = np.broadcast_to(served.room, len(self.jobs))
        numbers = zip(self.jobs, self.tokens_per_s(served), self.measured(), rooms, strict=True)
        return [
            Prediction(
                job.row,
                predicted_tokens_per_s=float(predicted),
                measured_tokens_per_s=float(measured),
                has_room=bool(room >= 1.0),
                interval=ends and throughputs(float(predicted), ends),
            )
            for job, predicted, measured, room in numbers
        ]


def columns_of(jobs: Sequence[ServingJob]) -> list[Column]:
    """Return jobs by what they share."""
    found: dict[tuple[int, bool], list[ServingJob]] = defaultdict(list)
    for job in jobs:
        found[id(job.setting), np.isinf(job.batch)].append(job)
    return [Column(equal[0].setting, tuple(equal)) for equal in found.values()]


def _measured(row: Row) -> tuple[str, float]:
    """Return which throughput a row states, and how much [tokens/s].

    ``total`` counts prompts and answers, ``output`` answers alone; ``prompts`` and ``steps`` are
    those of one phase.

    Raises
    ------
    RefusedError
        When it states none.
    """
    found, batch = row.measured, row.batch or 0
    prompt, answer = row.input_len or 0, row.output_len or 0
    if found.total_tokens_per_s:
        return "total", found.total_tokens_per_s
    if found.output_tokens_per_s:
        return "output", found.output_tokens_per_s
    if found.output_tokens_per_s_per_chip and row.hardware.chips:
        return "output", found.output_tokens_per_s_per_chip * row.hardware.chips
    if found.latency_s and batch:
        return "total", (prompt + answer) * batch / found.latency_s
    if found.tpot_ms and batch:
        return "steps", 1e3 * batch / found.tpot_ms
    if found.ttft_ms and batch:
        return "prompts", 1e3 * batch * prompt / found.ttft_ms
    raise RefusedError(Reason.MEASURED, "no throughput, and no time of a batch")
