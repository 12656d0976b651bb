"""Answers as data: the chosen plan, its price, its place on the devices, the plans it beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from meshwright.base.arrays import gap_of
from meshwright.base.records import Brief, Rows, Scalar, Shown, scalars
from meshwright.base.units import format_bytes, format_seconds
from meshwright.catalog.answer_file import FORMAT
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Coverage
from meshwright.sharding.strategy import PlanOptions, Strategy, plan_string
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.measured.factors import PLAN_ERROR, Factors
from meshwright.train.question import make_problem
from meshwright.train.robustness import Change, changes

EXACT = 1e-6
"""Largest relative difference of equal times [1]."""


@dataclass(frozen=True)
class OperatorOption(Brief):
    """One way to split a micro-batch of the whole model over the devices."""

    text: str
    """The plan string."""
    strategy: Strategy
    plan_options: PlanOptions
    axes: tuple[str, ...]
    """Axes of more than one device, innermost first."""
    shapes: Mapping[str, tuple[int, ...]]
    """Block that the members of each axis fill, outermost level first: rows, columns."""


@dataclass(frozen=True)
class OperatorRun(Brief):
    """Layers in a row with one option for the operators of a group."""

    operators: tuple[str, ...]
    first_layer: int | None
    """First layer of the run; None: the embedding or the head."""
    last_layer: int | None
    option: int
    """Number of the option, from 0."""


@dataclass(frozen=True)
class OperatorPlan(Brief):
    """The best options of all operators, with their price and the two proofs."""

    options: tuple[OperatorOption, ...]
    runs: tuple[OperatorRun, ...]
    fidelity: str
    step_time_s: float
    time_parts_s: Mapping[str, float]
    """Parts of a step, with ``reshard_s``: passing tensors from one layout to another."""
    memory_bytes: float
    """Memory of the fullest device [bytes]."""
    closed_form_s: float
    """Step time of the same options without contention [s]."""
    closed_form_bound_s: float
    """Lower bound on the step time of any choice among the options, without contention [s]."""
    lower_bound_s: float
    """Lower bound on the step time of any choice under the same micro-batch and recomputation, over
    all priced ways to lay the options (6,000 at most), with or without contention [s]."""
    num_options: int
    """Number of options for each operator."""
    search_s: float
    assignment: tuple[int, ...] = ()
    """Number of the option of each group in order: embedding, the groups of each layer, head."""
    num_sequences: int = 0
    """Sequences of one micro-batch of all devices."""
    simulated_s: float | None = None
    """Step time of the options, simulated [s]."""

    @property
    def closed_form_gap(self) -> float:
        """Largest distance of the options from the best ones, without contention, as a fraction."""
        return gap_of(self.closed_form_s, self.closed_form_bound_s)

    @property
    def gap(self) -> float:
        """Largest distance of the plan from the best possible one, as a fraction."""
        return gap_of(self.step_time_s, self.lower_bound_s)


@dataclass(frozen=True)
class Estimate(Brief):
    """The price of one strategy; parts sum to their wholes."""

    fidelity: str
    """``closed_form``, ``contended`` or ``simulated``."""
    is_calibrated: bool
    step_time_s: float
    time_parts_s: Mapping[str, float]
    memory_bytes: float
    """Memory of the fullest device, margin included [bytes]."""
    memory_parts_bytes: Mapping[str, float]
    memory_most_bytes: Mapping[str, float]
    """The most of each category of tensors at any moment of a step, on the same device [bytes]."""
    fullest_stage: str
    """``first``, ``middle`` or ``last`` stage of the pipeline."""
    memory_capacity_bytes: float
    host_bytes_per_device: float
    num_devices_used: int
    num_micro_batches: int
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu_causal: float
    """Model FLOPs over the dense peak, with half of the scores under a causal mask."""
    mfu_full: float
    """Model FLOPs with all s^2 scores, over the dense peak."""
    hfu: float
    """Executed FLOPs over the dense peak, recomputation included, causal scores counted half."""
    energy_j: float | None
    cost_usd: float | None
    goodput_fraction: float = 1.0
    """Share of wall time that makes progress between checkpoints, failures and restarts."""
    energy_parts_j: Mapping[str, float] = field(default_factory=dict)
    """Energy of a step by part [J], as far as parts are separable; empty where it is not known."""
    power_w: float | None = None
    """Mean power over a step of all devices in use, with the overhead [W]."""
    tokens_per_j: float | None = None
    """Tokens per joule: throughput for each watt."""
    interval_s: tuple[float, float] | None = None
    """80 % interval of the measured time of such a step, from similar measured rows of sources
    outside the fit; None: the constants were not fitted."""
    ramp_s: float = 0.0
    """Time that the growth of the batch adds to the whole run [s]."""
    host_capacity_bytes_per_device: float | None = None
    """Host memory per device [bytes]; None: not known, or nothing is offloaded."""

    @property
    def device_shortage_bytes(self) -> float:
        """Bytes missing on the fullest device; 0 where everything fits."""
        return max(0.0, self.memory_bytes - self.memory_capacity_bytes)

    @property
    def host_shortage_bytes(self) -> float:
        """Bytes missing on the host of a device; 0 where all that is offloaded fits."""
        if self.host_capacity_bytes_per_device is None:
            return 0.0
        return max(0.0, self.host_bytes_per_device - self.host_capacity_bytes_per_device)

    @property
    def fits(self) -> bool:
        """Whether the fullest device and its host hold the strategy."""
        return self.device_shortage_bytes == self.host_shortage_bytes == 0.0

    @property
    def margin_bytes(self) -> float:
        """Free memory on the fullest device, for uses that no formula covers [bytes]."""
        return self.memory_parts_bytes.get("margin_bytes", 0.0)

    @property
    def is_tight(self) -> bool:
        """Whether only the margin does not fit: without it the device holds everything."""
        lacking = self.device_shortage_bytes
        return not self.host_shortage_bytes and 0.0 < lacking <= self.margin_bytes

    def shortage_in_words(self) -> str:
        """Return the memory that a strategy needs and lacks; empty: it fits."""
        needs = []
        if self.device_shortage_bytes:
            sizes = map(format_bytes, (self.memory_bytes, self.memory_capacity_bytes))
            needs.append(" of ".join(sizes))
        if self.host_shortage_bytes and self.host_capacity_bytes_per_device is not None:
            host = (self.host_bytes_per_device, self.host_capacity_bytes_per_device)
            needs.append(" of ".join(map(format_bytes, host)) + " on the host")
        return "needs " + " and ".join(needs) if needs else ""

    def brief(self) -> str:
        """Return the verdict on memory, and the speed."""
        used, room = format_bytes(self.memory_bytes), format_bytes(self.memory_capacity_bytes)
        return (
            f"{'fits' if self.fits else 'does not fit'}, {used} of {room}; "
            f"{format_seconds(self.step_time_s)} a step, {self.tokens_per_s:,.0f} tokens/s, "
            f"MFU {self.mfu_causal:.1%}"
        )


@dataclass(frozen=True)
class HotLink(Brief):
    """A link with much traffic, and the axes that load it in the backward pass of a micro-batch."""

    source: int
    target: int
    busy_s: float
    by_axis_s: Mapping[str, float]


@dataclass(frozen=True)
class Placement(Brief):
    """Places of the ranks on a grid of devices, and the load of their links."""

    grid_shape: tuple[int, ...]
    """Rows and columns of the grid."""
    axes: tuple[str, ...]
    """Axes of more than one device, innermost first."""
    shapes: Mapping[str, tuple[int, ...]]
    """Rows and columns of the block that the members of each axis fill, in units of inner
    blocks."""
    devices: tuple[int, ...]
    """Device of each rank; ranks count along the innermost axis first."""
    slowdown: Mapping[str, float]
    """Time on shared links over that on unshared links, by axis or group of axes, at least 1."""
    hottest_links: tuple[HotLink, ...]
    routing: str
    """Routing of messages: dimension order, and the number of messages on other routes."""
    closed_form_s: float
    """Step time of the same placement without contention [s]."""
    lower_bound_s: float
    """Lower bound on the step time over the ``num_choices`` ways to lay the axes [s]."""
    num_choices: int
    """Ways to lay the axes in nested blocks, and along covers of a grid with faults."""
    busy_s: Mapping[str, float]
    """Busy time of the busiest device in a step: ``compute``, ``hbm``, ``d2d`` (its links) and
    ``exposed`` (exposed communication) [s]."""
    sequences: tuple[int, ...] = ()
    """Sequences of each data-parallel replica in a step, by the speed of its devices."""
    work_shares: tuple[float, ...] = ()
    """Work of each rank over that of an equal split; empty where all are equal. A rank with 0 is on
    the device of another rank, which holds its weights and forwards its messages."""
    die_power_w: tuple[float, ...] = ()
    """Mean power of each device over a step, without overhead, 0 without work; empty: not known."""
    die_celsius: tuple[float, ...] = ()
    """Temperature of each device in the mean over a step [C]; empty: the system states no
    cooling."""
    lies_in: str = "blocks"
    """``blocks``; on a grid with faults also ``paths`` or ``cycles`` of working neighbours: shapes
    of one row (a cycle: of two) go along each, those of one column from one to the next."""


@dataclass(frozen=True)
class FrameworkPrice(Brief):
    """A plan under one framework of the catalog, in its usual version: its price, or a reason."""

    framework: str
    step_time_s: float | None = None
    """Step time as the framework runs it [s]; None: a rule is against it."""
    memory_bytes: float | None = None
    """Memory of the fullest device there [bytes]; None: a rule is against it."""
    why_not: str = ""
    """Rule against the plan, or the memory that it needs there; empty: the framework starts it."""

    @property
    def launches(self) -> bool:
        """Whether the framework starts the plan."""
        return not self.why_not


@dataclass(frozen=True)
class Candidate(Brief):
    """One way to do the work, priced."""

    DERIVED: ClassVar[Mapping[str, str]] = {"plan": "text", "launches_with": "launches_with"}
    strategy: Strategy
    plan_options: PlanOptions
    estimate: Estimate
    placement: Placement | None = None
    """Placement on a grid; None elsewhere, and where the axes fit no blocks."""
    simulated_s: float | None = None
    """Step time of a simulation in which messages share links [s]; None: not simulated."""
    frameworks: tuple[FrameworkPrice, ...] = ()
    """The plan under each framework that runs on the chips."""

    @property
    def launches_with(self) -> tuple[str, ...]:
        """Frameworks that can start it, and have the memory for it."""
        return tuple(entry.framework for entry in self.frameworks if entry.launches)

    @property
    def text(self) -> str:
        """The plan string."""
        return plan_string(self.strategy, self.plan_options)

    def brief(self) -> str:
        """Return the plan string and the price."""
        return f"{self.text}\n{self.estimate.brief()}"

    def as_row(self) -> dict[str, Scalar]:
        """Return the plan string, the price and the degrees, by the names of ``--json``."""
        price, interval_s = self.estimate, self.estimate.interval_s or (None, None)
        found: dict[str, Scalar] = {
            "plan": self.text, "step_time_s": price.step_time_s, "interval_low_s": interval_s[0],
            "interval_high_s": interval_s[1], "fits": price.fits, **scalars(price),
            **{name: int(degree) for name, degree in vars(self.strategy).items()},
            "simulated_s": self.simulated_s, "launches_with": ", ".join(self.launches_with),
        }  # fmt: skip
        found.pop("interval_s", None)
        return found


@dataclass(frozen=True)
class Trials(Brief):
    """Plans to run for a few steps each, where the model alone cannot decide between them."""

    run: tuple[str, ...]
    """Plan strings, the most informative one first; empty: no trial is worth its steps."""
    best_fraction: Mapping[str, float]
    """Probability, by plan string, that the plan is the fastest of them, before any trial."""
    regret_fractions: tuple[float, ...]
    """Expected loss against the best of them: before any trial, and after each one more."""


@dataclass(frozen=True)
class Robustness(Brief):
    """Sensitivity of the choice to the uncertainty of the calibrated constants."""

    num_draws: int
    best_stays_first_fraction: float
    """Share of the draws in which nothing is faster by more than a tie (1 %)."""
    least_regret: str
    """Plan string of the candidate with the smallest worst loss over the draws."""
    least_regret_fraction: float
    ties: tuple[str, ...] = ()
    """Plan strings that win in at least one draw in twenty."""
    step_time_s: tuple[float, float] | None = None
    """Step time of the best plan over the draws, 5th and 95th percentile [s]."""
    trials: Trials | None = None
    """Leading candidates to run for a few steps."""


@dataclass(frozen=True)
class WhyNot(Brief):
    """The best plan with a feature that the chosen one lacks, and the cost of that feature."""

    question: str
    candidate: Candidate
    slower_by_fraction: float
    because_s: Mapping[str, float]
    """Parts of the step that are longer, by name [s]."""


@dataclass(frozen=True)
class Verified(Brief):
    """A dry run of a plan: whether its program starts and fits, and what it sends."""

    plan: str
    program: str = ""
    """Program that ran, with its version; empty where none did."""
    date: str = ""
    """Day of the dry run, as 2026-11-27."""
    starts: bool | None = None
    """None: no program here can run the plan dry."""
    fits: bool | None = None
    """Whether memory is enough: tensors as executed, all else as priced."""
    peak_bytes: float | None = None
    """The most memory of tensors on the fullest rank, executed [bytes]."""
    priced_bytes: float | None = None
    """Memory of tensors on the same rank by formula [bytes]."""
    num_collectives: int = 0
    """Kinds of collectives of all ranks that ran: operation, axis and phase."""
    num_unequal: int = 0
    """Those whose bytes are not those derived."""
    reason: str = ""
    """Why it was not run, or does not start."""

    @property
    def is_kept(self) -> bool:
        """Whether nothing speaks against the plan."""
        return self.starts is None or bool(self.starts and self.fits)


@dataclass(frozen=True)
class Plan(Shown):
    """The best plan found for a question, with the question and the proof."""

    DERIVED: ClassVar[Mapping[str, str]] = {"proof": "proof"}
    model: ModelSpec
    system: SystemSpec
    workload: Training
    calibration: str
    best: Candidate
    fastest_s: float
    """Step time of the fastest candidate; the best one may be simpler and a little slower."""
    runners_up: tuple[Candidate, ...] = ()
    coverage: Coverage | None = None
    robustness: Robustness | None = None
    why_not: tuple[WhyNot, ...] = ()
    operators: OperatorPlan | None = None
    """The plan with a strategy for each operator, where that was requested."""
    factors: Factors | None = None
    """Factors from measured jobs that scale the constants of each resource."""
    yours: Candidate | None = None
    """The job as its files start it, where the question was read from them."""
    would_fit: tuple[Candidate, ...] = ()
    """The nearest strategies that fit, where this one does not and they were looked for."""
    verified: tuple[Verified, ...] = ()
    """Dry runs of plans in the order of the ranking, where they were asked for; the last one is of
    this plan, unless none started."""
    warnings: tuple[str, ...] = ()
    version: str = ""
    format: int = FORMAT
    command: str = ""

    @property
    def problem(self) -> Problem:
        """The question with its constants, as the cost model prices it."""
        return make_problem(self.model, self.system, self.workload, self.calibration, self.factors)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Step times of the same plan on better systems, the largest gain first."""
        return tuple(changes(self.problem, self.best.strategy, self.best.plan_options))

    @property
    def proof(self) -> str:
        """The reason why this plan leads, and its proof; empty where nothing was searched."""
        cover, ahead = self.coverage, self.best.estimate.step_time_s / self.fastest_s - 1.0
        if cover is None:
            return ""
        least = f"none takes less than {format_seconds(cover.lower_bound_s)}"
        if not cover.is_complete:
            return f"interrupted: the best so far; {least}"
        is_proven = cover.lower_bound_s >= self.fastest_s * (1.0 - EXACT)
        fastest = f"the {'proven ' if is_proven else ''}fastest"
        if ahead <= EXACT:
            text = f"{fastest} of {cover.num_candidates:,} plans"
        elif ahead <= PLAN_ERROR and self.best.simulated_s is None:
            text = (
                f"simplest within {PLAN_ERROR:.0%} of {fastest}, {format_seconds(self.fastest_s)}"
            )
        else:
            starts = any(one.launches for one in self.best.frameworks)
            is_close = self.best.simulated_s is not None and ahead <= PLAN_ERROR
            is_launched = starts and not is_close
            why = "since a framework starts it" if is_launched else "by its simulated step"
            text = f"leads {why}; {fastest} takes {format_seconds(self.fastest_s)}"
        return text if is_proven else f"{text}; {least}"

    @property
    def slowest_run_s(self) -> float | None:
        """Time of the whole run at the slow end of the interval of a step [s]."""
        price = self.best.estimate
        if self.run_s is None or price.interval_s is None:
            return self.run_s
        return self.run_s * price.interval_s[1] / price.step_time_s

    @property
    def run_s(self) -> float | None:
        """Time of the whole run, failures and restarts included; None: its tokens are not known."""
        price, tokens = self.best.estimate, self.workload.total_tokens
        if tokens is None:
            return None
        return (tokens / price.tokens_per_s + price.ramp_s) / price.goodput_fraction

    def rows(self) -> Rows:
        """Return the ranking: this plan, then its runners-up."""
        return [entry.as_row() for entry in (self.best, *self.runners_up)]


@dataclass(frozen=True)
class Fit(Plan):
    """A strategy of which the memory was asked: a plan without its place on the network."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "plan": "best.text",
        "fits": "best.estimate.fits",
        "memory_bytes": "best.estimate.memory_bytes",
        "memory_capacity_bytes": "best.estimate.memory_capacity_bytes",
        "memory_parts_bytes": "best.estimate.memory_parts_bytes",
        "fullest_stage": "best.estimate.fullest_stage",
        "host_bytes_per_device": "best.estimate.host_bytes_per_device",
        "host_capacity_bytes_per_device": "best.estimate.host_capacity_bytes_per_device",
        "frameworks": "best.frameworks",
        "would_fit": "would_fit",
    }


@dataclass(frozen=True)
class BrokenRule(Brief):
    """A rule that a strategy breaks."""

    rule: str
    message: str
    fix: str
    """Nearest legal change."""


@dataclass(frozen=True)
class Check(Shown):
    """Whether a strategy is legal."""

    DERIVED: ClassVar[Mapping[str, str]] = {"is_legal": "is_legal"}
    plan: str
    faults: tuple[BrokenRule, ...]

    @property
    def is_legal(self) -> bool:
        """Whether the strategy breaks no rule."""
        return not self.faults

    def rows(self) -> Rows:
        """Return the broken rules."""
        return [scalars(fault) for fault in self.faults]


@dataclass(frozen=True)
class SizeTried(Brief):
    """The time and the cost of a whole run on a number of devices."""

    num_devices: int
    run_s: float | None
    """Time of the whole run [s]; None: no plan fits."""


@dataclass(frozen=True)
class Deadline(Shown):
    """A plan for a run with a time limit, and the other numbers of devices that were tried."""

    DERIVED: ClassVar[Mapping[str, str]] = {"run_s": "run_s", "is_in_time": "is_in_time"}
    plan: Plan
    within_s: float
    tried: tuple[SizeTried, ...]

    @property
    def run_s(self) -> float:
        """Time of the whole run under the plan."""
        assert self.plan.run_s is not None
        return self.plan.run_s

    @property
    def is_in_time(self) -> bool:
        """Whether the run ends in time at the slow end of its interval."""
        assert self.plan.slowest_run_s is not None
        return self.plan.slowest_run_s <= self.within_s

    def rows(self) -> Rows:
        """Return the numbers of devices that were tried, with the time of the whole run."""
        return [scalars(one) for one in self.tried]


@dataclass(frozen=True)
class Replan(Shown):
    """A plan after devices were lost, and the cost of the change."""

    plan: Plan
    num_lost: int
    throughput_fraction: float
    """Tokens per second of the new plan over those of the old one."""
    changed: tuple[str, ...]
    """Degrees and choices that differ, as ``name: old to new``."""
    moved_bytes_per_device: float
    """Most weights and optimizer state that a device still has to load [bytes]."""

    def rows(self) -> Rows:
        """Return the ranking of the new plan."""
        return self.plan.rows()


@dataclass(frozen=True)
class Front(Shown):
    """Plans that no other one beats in time, memory, energy and money at once."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"front": "candidates", "left_out": "left_out"}
    model: ModelSpec
    system: SystemSpec
    workload: Training
    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...]
    """Names of those of the four that are not known."""
    version: str = ""
    command: str = ""

    def rows(self) -> Rows:
        """Return the plans, the fastest first."""
        return [entry.as_row() for entry in self.candidates]


@dataclass(frozen=True)
class BestOfRecipe(Brief):
    """The best plan of one recipe, or the reason why it has none."""

    recipe: str
    title: str
    source: str
    mapper: str | None
    """Placer of the plan on a grid; None where there is nothing to place."""
    best: Candidate | None
    lower_bound_s: float | None
    """Lower bound on the step time of the recipe [s]: without contention, or as placed."""
    why_none: str
    search_s: float
    """Wall-clock time of search and placement [s]."""
    speedup_of_ours: float | None = None
    """Step time of this entry over that of ours; None where either has none."""

    @property
    def name(self) -> str:
        """The recipe with its placer."""
        return f"{self.recipe}, {self.mapper}" if self.mapper else self.recipe

    def brief(self) -> str:
        """Return the recipe and its best plan, or the reason why it has none."""
        return f"{self.recipe}: {self.why_none if self.best is None else self.best.brief()}"


@dataclass(frozen=True)
class Comparison(Shown):
    """The best plan of each recipe for one question; ours comes first."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "model": "model.name", "system": "system.name", "entries": "entries",
    }  # fmt: skip
    model: ModelSpec
    system: SystemSpec
    workload: Training
    entries: tuple[BestOfRecipe, ...]
    command: str = ""
    version: str = ""

    def rows(self) -> Rows:
        """Return the best plan of each recipe, ours first, or the reason why it has none."""
        return [
            {"recipe": entry.recipe, "mapper": entry.mapper,
             "speedup_of_ours": entry.speedup_of_ours, "why_none": entry.why_none or None,
             **({} if entry.best is None else entry.best.as_row()), "title": entry.title}
            for entry in self.entries
        ]  # fmt: skip

    @property
    def ours(self) -> BestOfRecipe:
        """The plan with every choice free."""
        return self.entries[0]


@dataclass(frozen=True)
class Explanation(Shown):
    """The reasons for a plan."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "plan": "plan.best.text", "limits": "shares", "would_change": "plan.changes",
        "why_not": "why_not", "not_possible": "not_possible", "trials": "trials",
    }  # fmt: skip
    plan: Plan
    shares: Mapping[str, float]
    """Share of each part in the step."""
    why_not: tuple[WhyNot, ...]
    """The best plan with each feature that this one lacks, and each runner-up."""
    not_possible: Mapping[str, str]
    """Features that no legal plan that fits has, with the reason."""

    @property
    def trials(self) -> Trials | None:
        """Trials under other constants: the plans to run, and how often each wins."""
        return None if self.plan.robustness is None else self.plan.robustness.trials

    def rows(self) -> Rows:
        """Return the gains of single changes: the step time with twice of each resource."""
        return [scalars(change) for change in self.plan.changes]
