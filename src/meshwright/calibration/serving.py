"""From a row of requests to a job: a model on chips under a server, prompts and answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from math import inf
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, Num
from meshwright.base.cluster import HERE, Cluster, every_answer
from meshwright.calibration.prediction import Prediction, predict, refused_or
from meshwright.calibration.rows import (
    Fields,
    ModelFields,
    PrecisionFields,
    Reason,
    RefusedError,
    Row,
    SystemFields,
)
from meshwright.calibration.sram import predict_sram
from meshwright.calibration.traffic import predict_traffic
from meshwright.catalog.calibration import load_calibration, load_serving
from meshwright.catalog.workloads import load_server
from meshwright.search.intervals import E2E, THROUGHPUT, TPOT, TTFT, rates_of
from meshwright.serve.passes import ServingProblem
from meshwright.serve.requests import EqualRequests, Served, Serving
from meshwright.serve.serve import certainty_under
from meshwright.sharding.strategy import PlanOptions, Strategy, make_strategy
from meshwright.spec.calibration import ServingConstantsOf
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import Decode, SoftwareStack

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)


@dataclass(frozen=True)
class Setting:
    """Setting of rows that are priced together: everything but their requests."""

    serving: Serving
    replicas: float
    """Copies of the model, each with an equal share of the requests."""


@dataclass(frozen=True)
class ServingJob:
    """One figure of a row as it is priced."""

    row: Row
    setting: Setting
    prompt_tokens: float
    answer_tokens: float
    batch: float
    """Requests that start together on one replica, or clients of it; infinity: a queue."""
    figure: str
    """Measured figure, as :func:`_measured` names it."""
    measured_tokens_per_s: float

    @property
    def figure_told(self) -> str:
        """The figure as answers name it: a throughput, or one of the times under load."""
        return {"next": TPOT, "first": TTFT}.get(self.figure, THROUGHPUT)

    @property
    def is_closed_loop(self) -> bool:
        """Whether clients send one request after another."""
        return bool(self.row.closed_loop)

    @property
    def are_equal(self) -> bool:
        """Whether all requests have the same length."""
        return self.row.shortest_share is None


def server_name_of(row: Row) -> str:
    """Return the server of a row."""
    return row.framework or "generic"


def serving_jobs(row: Row, calibration: str) -> list[ServingJob]:
    """Return a job for each figure that a row states: its question, and defaults.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be priced.
    """
    row.check()
    figures = _measured(row)
    answer = row.answer_tokens or (1 if [name for name, _ in figures] == ["prompts"] else 0)
    if not row.prompt_tokens or not answer:
        raise RefusedError(Reason.LENGTHS, f"{row.prompt_tokens} and {row.answer_tokens} tokens")
    setting = _setting(
        server_name_of(row), row.system, row.model, row.precision, row.strategy, calibration
    )
    batch = inf if row.batch is None else max(row.batch / setting.replicas, 1.0)
    mean = (1.0 + (row.shortest_share or 1.0)) / 2.0
    return [
        ServingJob(row, setting, mean * row.prompt_tokens, mean * answer, batch, *figure)
        for figure in figures
    ]


@cache
def _setting(
    server_name: str, on: SystemFields, asked: ModelFields, precision: PrecisionFields,
    degrees: Fields, calibration: str,
) -> Setting:  # fmt: skip
    """Return the setting that rows of one configuration share."""
    system, model, server = on.spec(), asked.spec(), load_server(server_name)
    workload = Decode(
        batch_size=1, context_length=1, precision=precision.precision(system.chip),
        software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    family = system.chip.family
    problem = ServingProblem(
        model, system, workload, load_calibration(family, calibration),
        constants=load_serving(family, server, calibration), server=server,
        certainty=certainty_under(calibration),
    )  # fmt: skip
    strategy, replicas = _strategy(degrees.stated, system.num_devices, model)
    return Setting(Serving(problem, server, PLAIN, strategy), replicas)


def _strategy(
    stated: Mapping[str, Any], num_devices: int, model: ModelSpec
) -> tuple[Strategy, float]:
    """Return the degrees of one replica, and the replicas.

    Where no degree is stated, all chips split each layer; chips that do not hold different experts
    split each of them.
    """
    pp = stated.get("pp", 1)
    tp = stated.get("tp", max(num_devices // pp, 1))
    joined, ep = stated.get("dp_replicate", 1), stated.get("ep", 1)
    replicas = num_devices / (tp * pp)
    if replicas != int(replicas) or (tp * joined) % ep or replicas % joined:
        found = f"tp {tp} x pp {pp} x dp {joined} with ep {ep} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    if pp > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} stages of {model.num_layers} layers")
    if not model.has_experts:
        return make_strategy(tp=tp, pp=pp), replicas
    etp = stated.get("etp", tp * joined // ep)
    return make_strategy(tp=tp, pp=pp, dp_replicate=joined, ep=ep, etp=etp), replicas


def predict_all(
    rows: Sequence[Row], calibration: str, cluster: Cluster = HERE
) -> list[Prediction]:  # fmt: skip
    """Return the prediction of each row, of training or of inference, in the order of the rows.

    Rows of one kind, system and model go to one worker: they are priced together.
    """
    parts: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        parts[_kind(row), row.system, row.model].append(place)
    asked = [tuple(rows[place] for place in part) for part in parts.values()]
    found = every_answer(cluster, partial(_predict_part, calibration), asked)
    places = chain.from_iterable(parts.values())
    ordered = dict(zip(places, chain.from_iterable(found), strict=True))
    return [ordered[place] for place in range(len(rows))]


def _predict_part(calibration: str, rows: Sequence[Row]) -> list[Prediction]:
    """Return the predictions of rows of one kind."""
    return PREDICTING[_kind(rows[0])](rows, calibration)


def _kind(row: Row) -> tuple[bool, bool, bool]:
    return row.is_serving, row.is_one_user, row.has_rate


def predict_served(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row of requests, or the reason for which there is none.

    Of clients it has the measured ``times``, as rates so that errors have the sign of the others:
    prompt tokens a second until the first token, answer tokens a second of whole requests.
    """
    found = [refused_or(lambda row: serving_jobs(row, calibration), row) for row in rows]
    jobs = [job for entry in found if not isinstance(entry, Prediction) for job in entry]
    answers: dict[int, Prediction] = {}
    for column in columns_of(jobs):
        for job, prediction in zip(column.jobs, column.predictions(), strict=True):
            answers[id(job)] = prediction
    return [
        entry if isinstance(entry, Prediction) else _with_times(entry, answers) for entry in found
    ]


def _with_times(jobs: Sequence[ServingJob], answers: Mapping[int, Prediction]) -> Prediction:
    """Return the prediction of the first figure of a row, with all times of clients."""
    first, times = answers[id(jobs[0])], {}
    if first.row.closed_loop:
        times = {job.figure_told: answers[id(job)] for job in jobs}
    if times.keys() == {TPOT, TTFT}:
        step, prompt = times[TPOT], times[TTFT]
        predicted, measured = (
            float(end_to_end_rate(first.row, getattr(step, name), getattr(prompt, name)))
            for name in ("predicted_tokens_per_s", "measured_tokens_per_s")
        )
        ends = jobs[0].setting.serving.problem.ends(E2E)
        times[E2E] = replace(
            step, predicted_tokens_per_s=predicted, measured_tokens_per_s=measured,
            interval=rates_of(predicted, ends),
        )  # fmt: skip
    return replace(first, times=times)


def end_to_end_rate(row: Row, steps_per_s: Num, prompt_tokens_per_s: Num) -> Num:
    """Return the answer tokens a second of whole requests of one client."""
    answer = float(row.answer_tokens or 1)
    first_s = float(row.prompt_tokens or 0) / prompt_tokens_per_s
    return answer / (first_s + (answer - 1.0) / steps_per_s)


PREDICTING = {
    (False, False, False): predict, (True, False, False): predict_served,
    (True, True, False): predict_sram, (True, False, True): predict_traffic,
}  # fmt: skip
"""Functions that predict rows: by whether they are of serving, of one user, and at a rate."""


@dataclass(frozen=True)
class Column:
    """Questions priced together: one setting, all batches, queues or closed loops."""

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
        asked = [(job.prompt_tokens, job.answer_tokens, job.batch) for job in self.jobs]
        if constants is not None:
            draws = max(np.size(value) for value in vars(constants).values())
            columns = {
                name: np.repeat(np.broadcast_to(value, draws), len(set(asked)))
                for name, value in vars(constants).items()
            }
            problem = serving.problem.with_constants(ServingConstantsOf(**columns))
            serving = replace(serving, problem=problem)
        values, places = np.unique(np.array(asked, dtype=float), axis=0, return_inverse=True)
        prompts, answers, batches = (np.tile(column, draws) for column in values.T)
        found = serving.served(
            EqualRequests(
                prompts,
                answers,
                batches,
                is_closed_loop=self.jobs[0].is_closed_loop,
                are_equal=self.jobs[0].are_equal,
            )
        )
        firsts = len(values) * np.arange(draws)[:, None]
        places = (firsts + places.reshape(-1)).reshape(-1)
        return Served(**{name: np.take(value, places) for name, value in vars(found).items()})

    def tokens_per_s(self, served: Served) -> FloatArray:
        """Return the throughput of each job as its source defines it [tokens/s].

        Of each draw in turn, where constants were drawn.
        """
        draws = np.size(served.step_s) // len(self.jobs)
        prompt = np.tile([job.prompt_tokens for job in self.jobs], draws)
        answer = np.tile([job.answer_tokens for job in self.jobs], draws)
        kinds = np.tile([job.figure for job in self.jobs], draws)
        prompts_s = np.where(served.prompt_s > 0, served.prompt_s, np.nan)
        rates = {
            "total": served.requests_per_s * (prompt + answer),
            "output": served.requests_per_s * answer,
            "prompts": served.at_once * prompt / prompts_s,
            "steps": served.at_once / served.step_s,
            "first": prompt / prompts_s / self.setting.replicas,
            "next": 1.0 / served.step_s / self.setting.replicas,
        }
        found = np.select([kinds == kind for kind in rates], list(rates.values()))
        return np.asarray(found * self.setting.replicas, dtype=float)

    def measured(self) -> FloatArray:
        """Return the measured throughput of each job, as its source defines it [tokens/s]."""
        return np.array([job.measured_tokens_per_s for job in self.jobs])

    def predictions(self) -> list[Prediction]:
        """Return the predictions of the column, with intervals where their spread is known."""
        served, problem = self.served(), self.setting.serving.problem
        rooms = np.broadcast_to(served.room, len(self.jobs))
        numbers = zip(self.jobs, self.tokens_per_s(served), self.measured(), rooms, strict=True)
        return [
            Prediction(
                job.row,
                predicted_tokens_per_s=float(predicted),
                measured_tokens_per_s=float(measured),
                has_room=bool(room >= 1.0),
                interval=rates_of(float(predicted), problem.ends(job.figure_told)),
            )
            for job, predicted, measured, room in numbers
        ]


def columns_of(jobs: Sequence[ServingJob]) -> list[Column]:
    """Return jobs grouped by setting and kind."""
    found: dict[tuple[int, float, bool, bool], list[ServingJob]] = defaultdict(list)
    for job in jobs:
        load = float(np.isinf(job.batch)), job.is_closed_loop, job.are_equal
        found[id(job.setting), *load].append(job)
    return [Column(equal[0].setting, tuple(equal)) for equal in found.values()]


def _measured(row: Row) -> list[tuple[str, float]]:
    """Return the kind and the value of each throughput that a row states [tokens/s].

    ``total`` counts prompts and answers, ``output`` answers alone; ``prompts`` and ``steps`` are
    those of one phase of a batch. Of clients ``next`` and ``first`` are those of one request, by
    its time per output token and its time to the first one.

    Raises
    ------
    RefusedError
        When it states none.
    """
    found, batch = row.measured, row.batch or 0
    prompt, answer = row.prompt_tokens or 0, row.answer_tokens or 0
    if found.total_tokens_per_s:
        return [("total", found.total_tokens_per_s)]
    if found.output_tokens_per_s:
        return [("output", found.output_tokens_per_s)]
    if found.latency_s and batch:
        return [("total", (prompt + answer) * batch / found.latency_s)]
    if row.closed_loop and batch and (found.tpot_ms or found.ttft_ms):
        times = [("next", 1.0, found.tpot_ms), ("first", prompt, found.ttft_ms)]
        return [(name, 1e3 * tokens / time_ms) for name, tokens, time_ms in times if time_ms]
    if found.tpot_ms and batch:
        return [("steps", 1e3 * batch / found.tpot_ms)]
    if found.ttft_ms and batch:
        return [("prompts", 1e3 * batch * prompt / found.ttft_ms)]
    raise RefusedError(Reason.MEASURED, "no throughput, and no time of a batch")
