"""The answer to a question of serving as data: prefill or decode; to JSON and back.

Field names are stable and carry their unit; unknown values are null, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from meshwright.base.records import Brief, Rows, Scalar, Shown, scalars
from meshwright.base.units import format_bytes, format_seconds
from meshwright.catalog.answer_file import FORMAT, AnswerFile
from meshwright.catalog.calibration import RowsErrorRecord
from meshwright.search.exhaustive import Coverage
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, Prefill

EVERY_ROW = "all rows"
"""Name of the errors of all sources."""


@dataclass(frozen=True)
class ServingEstimate(Brief):
    """Price of one way of serving; parts sum to their wholes."""

    fidelity: str
    is_calibrated: bool
    latency_s: float
    """Prefill: time to the first token of a prompt that does not wait; decode: time per output
    token of one user [s]."""
    time_parts_s: Mapping[str, float]
    """Parts of the time of a pass through all stages; they sum to ``latency_s`` [s]."""
    bottleneck_s: float
    """Time between two passes through the slowest stage [s]."""
    tokens_per_s: float
    """Throughput of the system: prompt tokens (prefill) or output tokens (decode) [tokens/s]."""
    tokens_per_s_per_device: float
    """Throughput over all working devices of the system, idle ones too [tokens/s]."""
    tokens_per_s_per_user: float
    sequences_in_flight: float
    most_sequences: int
    """Most sequences of full length that the cache of all replicas together holds."""
    cache_tokens: int
    """Most tokens that the cache of one replica holds: the number that servers print at start."""
    num_groups: int
    """Groups of sequences in flight in the pipeline of each replica."""
    num_devices_used: int
    memory_bytes: float
    """Memory of the fullest device, margin included [bytes]."""
    memory_parts_bytes: Mapping[str, float]
    fullest_stage: str
    memory_capacity_bytes: float
    energy_j_per_million_tokens: float | None
    cost_usd_per_million_tokens: float | None
    first_token_s: float | None = None
    """With requests: time from the pass that takes up a prompt to its first token [s]."""
    latency_interval_s: tuple[float, float] | None = None
    """Interval of the latency that holds 80 % of measured times; None: not known [s]."""
    first_token_interval_s: tuple[float, float] | None = None
    tokens_per_s_interval: tuple[float, float] | None = None
    """Interval of the throughput that holds 80 % of measured rates; None: not known [tokens/s]."""

    @property
    def fits(self) -> bool:
        """Whether the fullest device has enough memory."""
        return self.memory_bytes <= self.memory_capacity_bytes

    def brief(self) -> str:
        """Return the verdict on the memory, and the speed."""
        used, room = format_bytes(self.memory_bytes), format_bytes(self.memory_capacity_bytes)
        return (
            f"{'fits' if self.fits else 'does not fit'}, {used} of {room}; "
            f"{self.tokens_per_s:,.0f} tokens/s, {format_seconds(self.latency_s)} a pass, "
            f"{self.tokens_per_s_per_user:,.1f} tokens/s for each user"
        )


@dataclass(frozen=True)
class ServingCandidate(Brief):
    """One way of serving, priced."""

    DERIVED: ClassVar[Mapping[str, str]] = {"plan": "text"}
    strategy: Strategy
    plan_options: PlanOptions
    estimate: ServingEstimate
    launches_with: tuple[str, ...] = ()
    """Servers of the catalog that can start it."""

    @property
    def text(self) -> str:
        """The plan string."""
        return serving_string(self.strategy, self.plan_options, self.estimate.num_groups)

    def brief(self) -> str:
        """Return the plan string and the price."""
        return f"{self.text}\n{self.estimate.brief()}"

    def as_row(self) -> dict[str, Scalar]:
        """Return the plan string, the price and the degrees, by the names of ``--json``."""
        price = self.estimate
        return {
            "plan": self.text, "tokens_per_s": price.tokens_per_s, "latency_s": price.latency_s,
            "fits": price.fits, **scalars(price),
            **{name: int(degree) for name, degree in vars(self.strategy).items()},
            "launches_with": ", ".join(self.launches_with),
        }  # fmt: skip


@dataclass(frozen=True)
class ServingFront(Shown):
    """Ways of serving that no other one beats for both the system and one user; equal lengths."""

    plans: tuple[str, ...]
    tokens_per_s_per_user: tuple[float, ...]
    tokens_per_s_per_device: tuple[float, ...]
    """Throughput over all working devices of the system, idle ones too [tokens/s]."""
    latency_s: tuple[float, ...]
    sequences_in_flight: tuple[float, ...]
    first_token_s: tuple[float, ...] = ()
    """With requests: mean time to the first token [s]; else empty."""

    def rows(self) -> Rows:
        """Return the plans."""
        columns = {name: values for name, values in vars(self).items() if values}
        names = ["plan" if name == "plans" else name for name in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class ServingPlan(Shown):
    """The best way of serving found for a question, with the question and the proof."""

    model: ModelSpec
    system: SystemSpec
    workload: Prefill | Decode
    calibration: str
    server: str
    """Name of the server that runs the passes."""
    objective: str
    """``throughput`` within the allowed latency, or ``latency`` with the whole batch."""
    best: ServingCandidate
    runners_up: tuple[ServingCandidate, ...]
    front: ServingFront | None
    coverage: Coverage | None
    num_too_slow: int
    """Candidates that fit but exceed the allowed latency."""
    warnings: tuple[str, ...] = ()
    version: str = ""
    format: int = FORMAT
    command: str = ""
    memory_share: float | None = None
    """Share of the memory of a device that the server fills; None: not stated [1]."""
    doubled_latency_s: Mapping[str, float] = field(default_factory=dict)
    """Latency of the same plan with twice each resource of the system [s]."""
    constants: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Constants of the cost model: each with the least and the greatest plausible value."""
    errors: Mapping[str, RowsErrorRecord] = field(default_factory=dict)
    """Errors of the calibration for ``EVERY_ROW``, and by measured figure and by server, each left
    out of the fit; empty: there are no rows of serving."""

    def rows(self) -> Rows:
        """Return the ranking: this plan, then its runners-up."""
        return [entry.as_row() for entry in (self.best, *self.runners_up)]

    @property
    def requests_per_s(self) -> float | None:
        """Requests that end per second on the system; None: not of whole requests [1/s]."""
        work = self.workload
        if not isinstance(work, Decode) or work.prompt_length is None:
            return None
        return self.best.estimate.tokens_per_s / work.answer_length

    @property
    def is_decode(self) -> bool:
        """Whether tokens are made one by one."""
        return isinstance(self.workload, Decode)


def serving_string(strategy: Strategy, plan_options: PlanOptions, num_groups: int) -> str:
    """Return a way of serving in the field's words: ``tp8 pp2 dp4, sp, batch 4 x 2 x 90``.

    The batch is written as replicas times groups in the pipeline times sequences of a group.
    """
    parts = [f"tp{strategy.tp:.0f}", f"pp{strategy.pp:.0f}"]
    if strategy.cp > 1:
        parts.append(f"cp{strategy.cp:.0f}")
    parts.append(f"dp{strategy.dp:.0f}")
    if strategy.ep > 1 or strategy.etp > 1:
        parts.append(f"ep{strategy.ep:.0f}")
    if strategy.etp > 1:
        parts.append(f"etp{strategy.etp:.0f}")
    words = [" ".join(parts)]
    if plan_options.sequence_parallel and strategy.tp > 1:
        words.append("sp")
    if strategy.cp > 1:
        words.append(f"cp={plan_options.context_kind}")
    words.append(f"batch {strategy.dp:.0f} x {num_groups} x {strategy.micro_batch_size:.0f}")
    return ", ".join(words)


@dataclass(frozen=True)
class WorkerPool(Brief):
    """All workers of one kind, prefill or decode."""

    number: int
    worker: ServingCandidate
    """One of the workers; its rates are its own, over its own devices."""
    busy_share: float
    """Share of its highest request rate at which the pool works [1]."""


@dataclass(frozen=True)
class Deployment(Brief):
    """Workers of prefill beside workers of decode, and the times and rates of requests."""

    DERIVED: ClassVar[Mapping[str, str]] = {"plan": "text"}
    prefill: WorkerPool
    decode: WorkerPool
    requests_per_s: float
    tokens_per_s: float
    """Throughput of the system in output tokens [tokens/s]."""
    tokens_per_s_per_device: float
    """Throughput over all working devices of the system, idle ones too [tokens/s]."""
    sequences_in_flight: float
    """Sequences being decoded at once."""
    num_devices_used: int
    first_token_s: float
    """Mean time from sending a request until its cache is at its decode worker [s]."""
    first_token_parts_s: Mapping[str, float]
    """Parts of the time to the first token; they sum to ``first_token_s`` [s]."""
    latency_s: float
    """Time per output token of one user [s]."""
    cost_usd_per_million_tokens: float | None
    latency_interval_s: tuple[float, float] | None = None
    """Interval of the latency that holds 80 % of measured times; None: not known [s]."""
    first_token_interval_s: tuple[float, float] | None = None
    tokens_per_s_interval: tuple[float, float] | None = None
    """Interval of the throughput that holds 80 % of measured rates; None: not known [tokens/s]."""

    @property
    def text(self) -> str:
        """The deployment in the field's words: ``3P`` and ``5D`` with the split of each."""
        pools = (("P", self.prefill), ("D", self.decode))
        return " + ".join(f"{pool.number}{name} ({pool.worker.text})" for name, pool in pools)

    def brief(self) -> str:
        """Return the workers, and their rates."""
        return (
            f"{self.text}\n{self.tokens_per_s:,.0f} tokens/s, TTFT "
            f"{format_seconds(self.first_token_s)}, TPOT {format_seconds(self.latency_s)}"
        )

    def as_row(self) -> dict[str, Scalar]:
        """Return the plan string, the workers and the price, by the names of ``--json``."""
        workers: dict[str, Scalar] = {}
        for name, pool in (("prefill", self.prefill), ("decode", self.decode)):
            workers |= {f"num_{name}_workers": pool.number, f"{name}_plan": pool.worker.text,
                        f"{name}_busy_share": pool.busy_share}  # fmt: skip
        return scalars(self) | workers


@dataclass(frozen=True)
class DisaggregatedPlan(Shown):
    """The best deployment with prefill and decode apart, beside the best one that mixes them."""

    model: ModelSpec
    system: SystemSpec
    workload: Decode
    calibration: str
    server: str
    best: Deployment
    runners_up: tuple[Deployment, ...]
    """Best deployments of other sizes of workers."""
    aggregated: ServingCandidate | None
    """The best deployment with workers that do both, within the same limits; None: there is
    none."""
    prefill_coverage: Coverage
    decode_coverage: Coverage
    warnings: tuple[str, ...] = ()
    version: str = ""
    format: int = FORMAT
    command: str = ""
    memory_share: float | None = None
    """Share of the memory of a device that the server fills; None: not stated [1]."""

    def rows(self) -> Rows:
        """Return the deployments: this one, then those of other sizes of workers."""
        return [entry.as_row() for entry in (self.best, *self.runners_up)]

    @property
    def speedup(self) -> float | None:
        """Tokens/s over those of the best aggregated deployment; None: none keeps the limits."""
        if self.aggregated is None:
            return None
        return self.best.tokens_per_s / self.aggregated.estimate.tokens_per_s


SERVING_FILE = AnswerFile(ServingPlan, with_defaults=True, workloads=("prefill", "decode"))
DISAGGREGATED_FILE = AnswerFile(DisaggregatedPlan, with_defaults=True, workloads=("decode",))
