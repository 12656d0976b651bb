"""The fewest workers that take the requests of a rate within limits, and the cheapest system.

Workers are candidates in the order of the least number of devices that the closed form gives them;
for each, the simulation finds the least number of workers whose requests keep the limits. No later
candidate needs fewer devices than its own bound, so that the search ends with the first bound
beyond the best fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from meshwright.audit.laws import gathered, lawful
from meshwright.audit.traffic import FacesOfTime, FleetFacts
from meshwright.base.arrays import FloatArray, known_at, number_at
from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.base.registry import version
from meshwright.base.units import format_number, format_seconds
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.money import step_cost_usd
from meshwright.cost.problem import UNCALIBRATED_NOTE
from meshwright.search.exhaustive import Counts
from meshwright.search.intervals import E2E, TPOT, TTFT, interval_of
from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.passes import ServingProblem, price_requests
from meshwright.serve.price import MILLION, energy_j_of_second
from meshwright.serve.search import (
    ServingSpace,
    legal_splits,
    memory_shortfall,
    replica_sizes,
)
from meshwright.serve.serve import LAUNCHED_NOTE, servers_that_start, serving_problem
from meshwright.serve.traffic.answer import Fleet, Times, TrafficPlan
from meshwright.serve.traffic.arrivals import drawn
from meshwright.serve.traffic.iteration import Worker
from meshwright.serve.traffic.queueing import Replayed, replay
from meshwright.serve.traffic.station import Station, Steady, demand
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import row, stack
from meshwright.spec.arrivals import Arrivals
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.traffic import Traffic
from meshwright.spec.workload import Decode

MOST_LOAD = 0.95
"""Highest share of the saturation at which a fleet is offered: beyond it queues hardly end."""
MOST_STATED_LOAD = 0.99
"""Highest share of the saturation at which a stated number of workers is priced."""
SIMULATED = 2000
"""Requests whose times count in a simulation."""
PROBED = 2000
"""Requests that give the mean lengths and the shared prefixes of traffic that is drawn."""


@dataclass(frozen=True)
class Asked:
    """The question: traffic, limits, and the system that takes it."""

    problem: ServingProblem
    traffic: Traffic
    trace: Arrivals | None
    percentile: float
    workers: int | None = None
    """Number of workers that is stated; None: the fewest."""

    @property
    def most_load(self) -> float:
        """Highest share of the saturation at which workers are priced [1]."""
        return MOST_LOAD if self.workers is None else MOST_STATED_LOAD

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.traffic.longest if self.trace is None else self.trace.longest

    @property
    def limits_s(self) -> tuple[float, float]:
        """Longest predicted TTFT and TPOT whose slow ends keep the limits [s]."""
        first_s, token_s = self.problem.sure_first_token_s, self.problem.sure_latency_s
        return (first_s or np.inf), (token_s or np.inf)

    def of_worker(self, workers: int, seconds: float) -> Arrivals:
        """Return requests of one of some workers: of a trace those of the first one.

        Parameters
        ----------
        seconds
            Time before and after the requests whose times count.
        """
        if self.trace is not None:
            return self.trace.of_worker(0, workers)
        rate = self.traffic.rate_per_s / workers
        return drawn(self.traffic, rate, SIMULATED + ceil(rate * seconds))


@dataclass(frozen=True)
class Option:
    """A kind of worker under the question."""

    asked: Asked
    worker: Worker

    @cached_property
    def station(self) -> Station:
        """The worker under the mean demand."""
        trace, traffic = self.asked.trace, self.asked.traffic
        sample = drawn(traffic, traffic.rate_per_s, PROBED) if trace is None else trace
        return Station(self.worker, demand(sample))

    @cached_property
    def saturation_per_s(self) -> float:
        """Highest rate of one worker [1/s]."""
        return self.station.saturation_per_s()

    def steady(self, workers: int) -> Steady | None:
        """Return the steady state of one of some workers; None: above its saturation."""
        rate = self.asked.traffic.rate_per_s / workers
        if rate > self.asked.most_load * self.saturation_per_s:
            return None
        rated = self.station
        if self.asked.traffic.turns > 1 or self.asked.traffic.num_prefixes > 1:
            # How much comes between two uses of a prefix follows from the rate of a worker.
            rated = Station(self.worker, demand(self.asked.of_worker(workers, 0.0)))
        return rated.steady(rate)

    def keeps(self, workers: int) -> bool:
        """Return whether the mean times of some workers keep the limits."""
        found, (first_s, token_s) = self.steady(workers), self.asked.limits_s
        return found is not None and found.first_s <= first_s and found.step_s <= token_s

    def least(self, most: int) -> int | None:
        """Return the least workers whose mean times keep the limits; None: more than the most."""
        if self.saturation_per_s <= 0.0:
            return None
        rate = self.asked.traffic.rate_per_s
        first = max(ceil(rate / (self.asked.most_load * self.saturation_per_s) - 1e-9), 1)
        return _least(first, most, self.keeps)

    def simulated(self, workers: int) -> Simulated:
        """Return the requests of some workers, played one by one."""
        steady = self.steady(workers)
        assert steady is not None
        warm_s = 2.0 * steady.end_s + self.asked.traffic.turn_interval_s * float(
            self.asked.traffic.turns > 1
        )
        if self.asked.trace is not None:
            parts = [self.asked.trace.of_worker(index, workers) for index in range(workers)]
            return Simulated(
                self, workers, steady, [replay(self.worker, p) for p in parts if len(p)]
            )
        arrivals = self.asked.of_worker(workers, warm_s + steady.end_s)
        whole = replay(self.worker, arrivals)
        return Simulated(self, workers, steady, [whole], warm_s)


@dataclass(frozen=True)
class Simulated:
    """Requests of a fleet as they passed."""

    option: Option
    workers: int
    steady: Steady
    played: Sequence[Replayed]
    warm_s: float = 0.0
    """Time until the worker is in its steady state: requests before it do not count [s]."""

    def _counted(self, name: str) -> FloatArray:
        parts = []
        for played in self.played:
            arrival_s = played.arrivals.arrival_s
            counts = arrival_s >= min(self.warm_s, float(arrival_s[-1]) / 2.0)
            if self.warm_s:  # the last ones have no others behind them
                counts &= arrival_s <= arrival_s[-1] - self.steady.end_s
            values = getattr(played, name, None)
            values = getattr(played.arrivals, name) if values is None else values
            parts.append(values[counts])
        return np.concatenate(parts)

    @cached_property
    def ttft_s(self) -> FloatArray:
        """Times to the first token, with the server's own time for a request [s]."""
        return self._counted("ttft_s") + self._host_s

    @cached_property
    def e2e_s(self) -> FloatArray:
        """Times to the last token [s]."""
        return self._counted("e2e_s") + self._host_s

    @property
    def _host_s(self) -> FloatArray:
        """The server's own time for each request until its first token [s]."""
        constants = self.option.worker.problem.constants
        return np.asarray(host_of_prompt_s(constants, self._counted("prompt_tokens")))

    @cached_property
    def tpot_s(self) -> FloatArray:
        """Times per output token [s]."""
        return self._counted("tpot_s")

    @property
    def num_devices(self) -> int:
        """Devices of all workers."""
        return self.workers * self.option.worker.num_devices

    @property
    def keeps(self) -> bool:
        """Whether the percentile of the question keeps the limits."""
        first_s, token_s = self.option.asked.limits_s
        at = self.option.asked.percentile
        return bool(
            np.percentile(self.ttft_s, at) <= first_s and np.percentile(self.tpot_s, at) <= token_s
        )

    @property
    def goodput(self) -> float:
        """Share of the requests that keep both limits as predicted [1]."""
        problem = self.option.worker.problem
        first_s, token_s = problem.max_first_token_s or np.inf, problem.max_latency_s or np.inf
        return float(np.mean((self.ttft_s <= first_s) & (self.tpot_s <= token_s)))

    def fleet(self) -> Fleet:
        """Return the fleet as data."""
        worker, asked, steady = self.option.worker, self.option.asked, self.steady
        problem, rate = worker.problem, asked.traffic.rate_per_s
        tokens_per_s = rate * self.option.station.demand.answer_tokens
        rent = step_cost_usd(problem.system.chip, MILLION / tokens_per_s, float(self.num_devices))
        energy = _energy_w(self.option, steady) * self.workers * MILLION / tokens_per_s
        hits = self._counted("hit_tokens").sum() / self._counted("prompt_tokens").sum()
        number = sum(len(p.arrivals) for p in self.played)
        return Fleet(
            system=problem.system.name,
            num_workers=self.workers,
            strategy=worker.strategy,
            plan_options=worker.plan_options,
            num_devices=self.num_devices,
            requests_per_s=rate,
            saturation_requests_per_s=self.option.saturation_per_s * self.workers,
            goodput_requests_per_s=rate * self.goodput,
            tokens_per_s=tokens_per_s,
            ttft=self._times(TTFT, self.ttft_s, steady.first_s),
            tpot=self._times(TPOT, self.tpot_s, steady.step_s),
            e2e=self._times(E2E, self.e2e_s, steady.end_s),
            # Little's law of the answers that were simulated
            sequences_in_flight=rate / self.workers * float(np.mean(self.e2e_s - self.ttft_s)),
            cache_tokens=worker.cache_tokens,
            cache_hit_share=float(hits),
            evictions_per_request=sum(p.evictions for p in self.played) / number,
            num_simulated=len(self.ttft_s),
            cost_usd_per_million_tokens=known_at(rent),
            energy_j_per_million_tokens=known_at(energy),
            launches_with=servers_that_start(problem, worker.strategy),
        )

    def _times(self, figure: str, times_s: FloatArray, mean_s: float) -> Times:
        asked = self.option.asked
        p50, p90, p99, at = (
            float(np.percentile(times_s, value)) for value in (50.0, 90.0, 99.0, asked.percentile)
        )
        ends = asked.problem.ends(figure)
        return Times(float(times_s.mean()), p50, p90, p99, at, mean_s, interval_of(at, ends))


def _energy_w(option: Option, steady: Steady) -> float:
    """Return the power of one worker in its steady state [W]; NaN: not known."""
    worker, asked = option.worker, option.station.demand
    answers = max(steady.in_flight, 1.0)
    columns = replace(stack([worker.strategy]), micro_batch_size=np.array([answers]))
    shape = replace(
        worker.problem.shape, new_tokens=1.0, past_tokens=asked.context_tokens, kept_tokens=0.0
    )
    new = max(asked.prompt_tokens - steady.hit_tokens, 1.0)
    request = np.array([new]), np.array([asked.answer_tokens])
    made = price_requests(worker.problem, worker.plan_options, columns, *request, shape)
    passes_per_s = steady.rate_per_s * option.station.later_tokens / answers
    whole = made.mean(steady.rate_per_s / passes_per_s).whole
    busy_s = whole.matmul_compute_s + whole.matmul_memory_s + whole.attention_s
    return number_at(
        energy_j_of_second(
            worker.problem, columns, passes_per_s, busy_s + whole.elementwise_s, whole
        )
    )


def _least(first: int, most: int, keeps: Callable[[int], bool]) -> int | None:
    """Return the least number that keeps a rule, if larger ones keep it too; None: beyond."""
    if first > most:
        return None
    low, high = first - 1, first
    while not keeps(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def options_of(asked: Asked, choices: Choices) -> Iterator[Option]:
    """Yield every kind of worker that fits: a legal split of a part of the devices.

    Raises
    ------
    InfeasibleError
        None fits; states the memory of the leanest one.
    """
    problem = asked.problem
    allowed = {**dict(choices.allowed), "pp": (1,), "dp": (1,), "micro_batch_size": (1,)}
    sizes = replica_sizes(problem, problem.system.num_alive)
    space = ServingSpace(problem, Choices(allowed), sizes)
    counts, found = Counts(), False
    for plan_options, columns in legal_splits(space, counts):
        for index in range(len(columns.tp)):
            worker = Worker(problem, plan_options, row(columns, index), asked.longest)
            counts.priced += 1
            if worker.cache_tokens >= asked.longest:
                found = True
                yield Option(asked, worker)
    if not found:
        raise InfeasibleError(memory_shortfall(space, counts))


def fewest(asked: Asked, choices: Choices) -> list[Simulated]:
    """Return the best fleet of each kind of worker that may be the best one, best first."""
    workers, alive = asked.workers, asked.problem.system.num_alive
    bounds = []
    options = list(options_of(asked, choices))
    for option in options:
        most = alive // option.worker.num_devices
        if workers is not None:
            least = workers if workers <= most and option.steady(workers) else None
        else:
            least = option.least(most)
        if least is not None:
            steady = option.steady(least)
            assert steady is not None
            bounds.append((least * option.worker.num_devices, steady.end_s, least, option))
    found: list[Simulated] = []
    fewest_devices = alive
    for devices, _, least, option in sorted(bounds, key=lambda entry: entry[:2]):
        if devices > fewest_devices:
            break
        tried: dict[int, Simulated] = {}

        def keeps(
            number: int, option: Option = option, tried: dict[int, Simulated] = tried
        ) -> bool:
            tried[number] = option.simulated(number)
            return tried[number].keeps

        most = fewest_devices // option.worker.num_devices
        number = _least(least, most, keeps) if workers is None else least
        if number is not None:
            done = tried.get(number) or option.simulated(number)
            found.append(done)
            fewest_devices = min(fewest_devices, done.num_devices)
    if not found:
        raise InfeasibleError(_shortfall(asked, options))
    return sorted(found, key=lambda done: (done.num_devices, float(done.e2e_s.mean())))


def _shortfall(asked: Asked, options: Sequence[Option]) -> str:
    """Return the rate that the devices serve, or the times that they reach."""
    workers, alive, rate = asked.workers, asked.problem.system.num_alive, asked.traffic.rate_per_s

    def number_of(option: Option) -> int:
        most = alive // option.worker.num_devices
        return most if workers is None else min(workers, most)

    best = max(options, key=lambda option: option.saturation_per_s * number_of(option))
    served = asked.most_load * best.saturation_per_s * number_of(best)
    name = asked.problem.system.name
    if served < rate:
        return (
            f"{format_number(rate)} requests/s are more than {name} serves: at most "
            f"{format_number(served)} requests/s, with {number_of(best)} x tp"
            f"{best.worker.strategy.tp:.0f} ({asked.most_load:.0%} of the saturation)"
        )
    first_s, token_s = asked.limits_s
    states = [
        (option, steady) for option in options
        if number_of(option) and (steady := option.steady(number_of(option))) is not None
    ]  # fmt: skip
    option, steady = min(states, key=lambda e: max(e[1].first_s / first_s, e[1].step_s / token_s))
    return (
        f"no workers on {name} keep the limits at {format_number(rate)} requests/s for "
        f"{asked.percentile:g} % of the requests; the nearest, {number_of(option)} x tp"
        f"{option.worker.strategy.tp:.0f}, has a mean TTFT of {format_seconds(steady.first_s)} and "
        f"a mean TPOT of {format_seconds(steady.step_s)}; limits hold at the slow end of their "
        f"intervals, {format_seconds(first_s)} and {format_seconds(token_s)}"
    )


def serve_traffic(
    model: ModelSpec | str,
    systems: Sequence[SystemSpec | str],
    workload: Decode,
    traffic: Traffic,
    *,
    trace: Arrivals | None = None,
    percentile: float = 95.0,
    allowed: Mapping[str, Sequence[object]] | None = None,
    server: str = "generic",
    calibration: str = DEFAULT,
    command: str = "",
    memory_share: float | None = None,
    server_options: Mapping[str, int] | None = None,
) -> TrafficPlan:
    """Return the fewest devices that take the requests of a rate; of systems, the cheapest one.

    Parameters
    ----------
    workload
        Prompt and answer, with limits of TTFT and TPOT.
    trace
        Requests one by one, in place of those drawn from ``traffic``.
    percentile
        Percentile of the requests that keep the limits.
    server_options
        Fields of the server in place of its defaults.

    Raises
    ------
    InfeasibleError
        No system takes the rate within the limits; states the rate that it takes.
    """
    choices = {name: tuple(values) for name, values in (allowed or {}).items()}
    if any(stages != 1 for stages in choices.pop("pp", (1,))):
        raise SpecError(Fault("--pp", "workers under traffic have one stage", "1"))
    workers = choices.pop("dp", (None,))[0]
    found: list[tuple[Asked, list[Simulated]]] = []
    refused: list[InfeasibleError] = []
    for system in systems:
        problem = serving_problem(model, system, workload, server, calibration, memory_share)
        runs = problem.server.model_copy(update=dict(server_options or {}))
        asked = Asked(replace(problem, server=runs), traffic, trace, percentile, workers)  # type: ignore[arg-type]
        try:
            found.append((asked, fewest(asked, Choices(choices))))
        except InfeasibleError as error:
            refused.append(error)
    if not found:
        raise refused[0] if len(refused) == 1 else InfeasibleError("; ".join(map(str, refused)))
    ranked = sorted(found, key=lambda entry: _usd_per_s(entry[1][0]))
    asked, leading = ranked[0]
    others = [done for _, fleets in ranked[1:] for done in fleets[:1]] + leading[1:]
    best = leading[0].fleet()
    problem = asked.problem
    plan = TrafficPlan(
        model=problem.model, system=problem.system, traffic=traffic,
        precision=problem.workload.precision, calibration=calibration, server=problem.server.name,
        percentile=percentile, max_time_to_first_token_s=problem.max_first_token_s,
        max_time_per_output_token_s=problem.max_latency_s, best=best,
        others=tuple(done.fleet() for done in others[:4]), longest=asked.longest,
        most_sequences=problem.server.most_sequences,
        most_pass_tokens=problem.server.most_pass_tokens, memory_share=memory_share,
        warnings=tuple(_warnings(asked, leading[0], refused)), version=version(), command=command,
    )  # fmt: skip
    return lawful(plan, [facts_of(plan, problem)])


def facts_of(plan: TrafficPlan, problem: ServingProblem) -> FleetFacts:
    """Return the facts of the best fleet of a plan."""
    best = plan.best
    assert isinstance(problem.workload, Decode)
    return gathered(
        FleetFacts, best, plan,
        answer=best.text, system=problem.system, workload=problem.workload,
        degrees=vars(best.strategy), choices=vars(best.plan_options),
        times={name: gathered_faces(getattr(best, name)) for name in ("ttft", "tpot", "e2e")},
    )  # fmt: skip


def gathered_faces(time: Times) -> FacesOfTime:
    """Return percentiles and means of a time."""
    return FacesOfTime(*(getattr(time, name) for name in FacesOfTime._fields))


def _usd_per_s(done: Simulated) -> tuple[float, int]:
    """Return the rent of a fleet, with an unknown one last, then its devices."""
    chip = done.option.worker.problem.system.chip
    usd = known_at(step_cost_usd(chip, 1.0, float(done.num_devices)))
    return (np.inf if usd is None else usd), done.num_devices


def _warnings(asked: Asked, best: Simulated, refused: Sequence[Exception]) -> Iterator[str]:
    """Yield the notes for the reader beside the numbers."""
    if not asked.problem.calibration.is_calibrated:
        yield UNCALIBRATED_NOTE
    if asked.trace is None:
        yield "requests come at random, to any worker; prefixes go to the worker that holds them"
    if not asked.problem.workload.software.cuda_graphs:
        yield LAUNCHED_NOTE
    load = asked.traffic.rate_per_s / (best.option.saturation_per_s * best.workers)
    if load > 0.8:
        yield f"at {load:.0%} of the saturation a small error of the rate changes queues a lot"
    for error in refused:
        yield f"left out: {error}"
