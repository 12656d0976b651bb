"""Laws of requests at a rate: their flow, their work, and both faces of their times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from meshwright.audit.laws import Inequality, Laws, equal
from meshwright.audit.machine import peak_flops_per_s, rent_is_paid
from meshwright.audit.work import ModelFacts
from meshwright.spec.traffic import Traffic
from meshwright.spec.workload import Decode

LAWS: Laws[FleetFacts] = Laws()
MILLION = 1.0e6
CALM = 0.4
"""Share of the saturation up to which both faces are held together."""
APART = {"tpot": 0.15, "e2e": 0.15, "ttft": 0.30}
"""Relative distance of the means of both faces up to that share, by time."""
ENOUGH = 200
"""Requests from which the mean of a simulation is settled."""


class FacesOfTime(NamedTuple):
    """A time of requests: percentiles and mean of the simulation, mean of the closed form [s]."""

    p50_s: float
    p90_s: float
    p99_s: float
    mean_s: float
    closed_form_s: float


@dataclass(frozen=True)
class FleetFacts(ModelFacts):
    """Workers that share the requests of a rate."""

    laws: ClassVar[Laws[FleetFacts]] = LAWS

    workload: Decode
    traffic: Traffic
    times: Mapping[str, FacesOfTime]
    num_workers: int
    num_devices: int
    num_simulated: int
    requests_per_s: float
    saturation_requests_per_s: float
    goodput_requests_per_s: float
    tokens_per_s: float
    sequences_in_flight: float
    cache_hit_share: float
    cost_usd_per_million_tokens: float | None

    @property
    def is_calm(self) -> bool:
        """Whether both faces describe the same requests: equal, at random, no common tokens."""
        asked = self.traffic
        is_plain = asked.arrivals == "poisson" and not (asked.trace or asked.length_spread)
        is_alone = not asked.shared_prefix and asked.turns == 1
        is_slow = self.requests_per_s <= CALM * self.saturation_requests_per_s
        return is_plain and is_alone and is_slow and self.num_simulated >= ENOUGH


law = LAWS.law


@law("of any time, more requests stay within a longer one")
def percentiles_ascend(facts: FleetFacts) -> Inequality:
    falls = [
        (small, large)
        for time in facts.times.values()
        for small, large in ((time.p50_s, time.p90_s), (time.p90_s, time.p99_s))
    ]
    return Inequality(*max(falls, key=lambda pair: pair[0] - pair[1]), "s")


@law("requests come no faster than the workers serve them")
def requests_are_served(facts: FleetFacts) -> Inequality:
    return Inequality(facts.requests_per_s, facts.saturation_requests_per_s, "1")


@law("requests within both limits are some of those that come")
def good_ones_are_some(facts: FleetFacts) -> Inequality:
    return Inequality(facts.goodput_requests_per_s, facts.requests_per_s, "1")


@law("answers in flight equal the rate times the time from first to last token")
def answers_flow(facts: FleetFacts) -> Inequality:
    """Return both counts; source: Little 1961."""
    grow_s = facts.times["e2e"].mean_s - facts.times["ttft"].mean_s
    in_flight = facts.sequences_in_flight * facts.num_workers
    return equal(facts.requests_per_s * grow_s, in_flight, "1")


@law("workers are on devices of their own")
def workers_are_counted(facts: FleetFacts) -> Inequality:
    return equal(facts.degree("tp", "pp") * facts.num_workers, float(facts.num_devices), "1")


@law("tokens of prompts and answers take their FLOPs at the peak of the devices")
def tokens_are_done(facts: FleetFacts) -> Inequality:
    """Return both counts: busy seconds in one second; tokens found in the cache are left out."""
    types = facts.workload.precision
    token_s = facts.work.layer_flops / peak_flops_per_s(facts.system, types.matmul)
    tokens_per_s = facts.tokens_per_s
    if not facts.traffic.trace:
        new = (1.0 - facts.cache_hit_share) * facts.traffic.prompt_length
        tokens_per_s += facts.requests_per_s * new
    return Inequality(tokens_per_s * token_s, float(facts.num_devices), "s")


@law("closed form and simulation of calm traffic agree")
def faces_agree(facts: FleetFacts) -> Inequality | None:
    """Return the largest distance of both means, over the one that is allowed."""
    if not facts.is_calm:
        return None
    apart = [
        abs(time.closed_form_s / time.mean_s - 1.0) / APART[name]
        for name, time in facts.times.items()
    ]
    return Inequality(max(apart), 1.0, "1")


@law("the cost equals devices times rent times time")
def money_is_rent(facts: FleetFacts) -> Inequality | None:
    device_s = MILLION / facts.tokens_per_s * facts.num_devices
    return rent_is_paid(facts.system, facts.cost_usd_per_million_tokens, device_s)
