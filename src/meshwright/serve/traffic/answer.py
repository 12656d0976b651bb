"""The answer to a question of traffic as data: the fewest workers that take its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.base.records import Brief, Rows, Scalar, Shown, scalars
from meshwright.base.units import format_seconds
from meshwright.catalog.answer_file import FORMAT, AnswerFile
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.traffic import Traffic
from meshwright.spec.workload import Precision


@dataclass(frozen=True)
class Times(Brief):
    """A time of all requests that were simulated [s]."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    asked_s: float
    """At the percentile of the question [s]."""
    closed_form_s: float
    """Mean of the closed form [s]."""
    interval_s: tuple[float, float] | None = None
    """Interval of ``asked_s`` that holds 80 % of measured times; None: not known [s]."""


@dataclass(frozen=True)
class Fleet(Brief):
    """Equal workers that share the requests of a rate."""

    DERIVED: ClassVar[Mapping[str, str]] = {"plan": "text"}
    system: str
    """Name of the system whose devices it uses."""
    num_workers: int
    strategy: Strategy
    """Split of the devices of one worker."""
    plan_options: PlanOptions
    num_devices: int
    """Devices of all workers."""
    requests_per_s: float
    saturation_requests_per_s: float
    """Highest rate that all workers serve, with queues that no longer end [1/s]."""
    goodput_requests_per_s: float
    """Requests a second that keep both limits, of those that come [1/s]."""
    tokens_per_s: float
    """Throughput in output tokens [tokens/s]."""
    ttft: Times
    tpot: Times
    e2e: Times
    sequences_in_flight: float
    """Mean answers that grow at once on one worker."""
    cache_tokens: int
    """Most tokens that the cache of one worker holds."""
    cache_hit_share: float
    """Share of the tokens of prompts found in the cache [1]."""
    evictions_per_request: float
    """Times that a request gives up its place to others, and starts again."""
    num_simulated: int
    """Requests that were simulated, and whose times count."""
    cost_usd_per_million_tokens: float | None
    energy_j_per_million_tokens: float | None
    launches_with: tuple[str, ...] = ()
    """Servers of the catalog that can start a worker."""

    @property
    def text(self) -> str:
        """The fleet in the field's words: ``3 x (tp2)``."""
        return f"{self.num_workers} x ({self.split})"

    @property
    def split(self) -> str:
        """The split of one worker: ``tp2 ep2``."""
        s = self.strategy
        degrees = [("tp", s.tp), ("ep", s.ep), ("etp", s.etp)]
        parts = [f"{name}{degree:.0f}" for name, degree in degrees if name == "tp" or degree > 1]
        return " ".join(parts)

    @property
    def load(self) -> float:
        """Share of the saturation at which the fleet works [1]."""
        return self.requests_per_s / self.saturation_requests_per_s

    def brief(self) -> str:
        """Return the workers, and the times of requests."""
        return (
            f"{self.text} on {self.num_devices} devices of {self.system}: TTFT "
            f"{format_seconds(self.ttft.asked_s)}, TPOT {format_seconds(self.tpot.asked_s)}"
        )

    def as_row(self) -> dict[str, Scalar]:
        """Return the fleet and its times, by the names of ``--json``."""
        times = {
            f"{name}_{at}": value
            for name, found in (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
            for at, value in scalars(found).items()
        }
        return {"plan": self.text, **scalars(self), **times}


@dataclass(frozen=True)
class TrafficPlan(Shown):
    """The fewest, or cheapest, workers that take the requests of a rate within limits."""

    model: ModelSpec
    system: SystemSpec
    """System of the best fleet."""
    traffic: Traffic
    precision: Precision
    calibration: str
    server: str
    percentile: float
    """Percentile of the requests that keep the limits."""
    max_time_to_first_token_s: float | None
    max_time_per_output_token_s: float | None
    best: Fleet
    others: tuple[Fleet, ...]
    """The best fleets of other workers, or of other systems."""
    longest: int
    """Tokens of the longest request."""
    most_sequences: int
    """Sequences that pass together on a worker at most."""
    most_pass_tokens: int
    """Tokens that pass together on a worker at most."""
    memory_share: float | None = None
    """Share of the memory of a device that the server fills; None: not stated [1]."""
    warnings: tuple[str, ...] = ()
    version: str = ""
    format: int = FORMAT
    command: str = ""

    def rows(self) -> Rows:
        """Return the fleets, the best one first."""
        return [fleet.as_row() for fleet in (self.best, *self.others)]


TRAFFIC_FILE = AnswerFile(TrafficPlan, with_defaults=True, workloads=("traffic",))
