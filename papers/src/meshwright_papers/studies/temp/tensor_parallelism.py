"""Fig. 4: cost of tensor parallelism on a wafer in collectives, idle links and copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.network.simulation.tasks import Timeline, link_utilisation
from meshwright.sharding.strategy import PlanOptions, Strategy, make_strategy
from meshwright.spec.system import SystemSpec
from meshwright.train.answer import Plan
from meshwright.wafer.simulation import simulate
from meshwright.wafer.training import estimate
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged,
    judged_range,
    shown,
    studies,
)
from meshwright_papers.studies.temp.setup import (
    ASSUMPTIONS,
    NEVER_SLOW,
    PUBLISHED_COLLECTIVE_SHARE,
    SOURCE,
    TB,
    Case,
    Machine,
    model_of,
    wafer,
    work_of,
)
from meshwright_papers.studies.temp.throughput import COLLECTIVES

MODELS = (
    Case("Llama3 70B", "llama3-70b", 4096),
    Case("GPT-3 175B", "gpt3-175b", 2048),
)
SHORT_OF_MEMORY = (
    Case("Llama2 70B", "llama2-70b", 4096),
    Case("Bloom 176B", "bloom-176b", 2048),
)
MACHINES = tuple(
    Machine(link_bytes_per_s=link, hbm_bytes_per_s=hbm, message_half_bytes=half)
    for hbm, half, link in product((TB, NEVER_SLOW), (4e6, 16e6), (2 * TB, TB, 0.5 * TB))
)
"""Possible readings of Table I, first the one that we use elsewhere."""
STRATEGY = make_strategy(tp=8, dp_shard=4)
REPLICATED = PlanOptions(sequence_parallel=False, zero_stage=1, overlap_data_parallel=False)
SPLIT = replace(REPLICATED, sequence_parallel=True)
SHARDED = replace(SPLIT, zero_stage=3)
NOT_COUNTED = ("margin_bytes", "buffers_bytes", "gathered_bytes")
PUBLISHED_USE, PUBLISHED_USE_RANGE = 0.55, (0.33, 0.53)
PUBLISHED_GROWTH = {"Llama3 70B": (1.4, "seed"), "GPT-3 175B": (2.1, "second-hand")}
GIB = 2.0**30


TIME_CHART = Drawing(
    "How much of a step do the collectives of tensor parallelism take?",
    "Megatron-1 with tp 8 and dp 4, nothing overlapped; TEMP Fig. 4",
    "bars", ("collective_share",), "machine", colour="model",
)  # fmt: skip
MEMORY_CHART = Drawing(
    "What does a die hold under tensor parallelism?",
    "The fullest die, tp 8 and dp 4, with tokens whole, split, and state sharded; TEMP Fig. 4",
    "bars", ("replicated_gib", "split_gib", "sharded_gib"), "model", measure="memory",
    fits={"replicated_gib": "fits_replicated", "split_gib": "fits_split"},
)  # fmt: skip


@dataclass(frozen=True)
class Time:
    """Time and link use of a step with tensor parallelism."""

    model: str
    machine: Machine
    collective_share: float
    """Share of the collectives in the step."""
    link_use: float
    """Mean load of a directed link over the passes, over its bandwidth."""
    link_use_while_sending: float
    """Mean load of a directed link over the time in which any link sends, over its bandwidth."""


@dataclass(frozen=True)
class Memory:
    """Memory of a die: weights, gradients, optimizer state and activations [bytes]."""

    model: str
    replicated: float
    """Memory where every member of tp holds all activations between blocks [bytes]."""
    split: float
    """Memory where these are split over tp, and nothing else changes [bytes]."""
    sharded: float
    """Memory where states are split over all dies as well [bytes]."""
    fits_replicated: bool
    fits_split: bool
    """Whether the split plan fits, margin and buffers included."""


def estimated(
    case: Case, system: SystemSpec, strategy: Strategy, plan_options: PlanOptions
) -> Plan:
    """Return the price of a strategy on a case."""
    work = work_of(case, system)
    return estimate(model_of(case), system, work, strategy, plan_options, calibration=UNCALIBRATED)


@cache
def time_of(case: Case, machine: Machine) -> Time:
    """Return the shares of a step on a wafer with these rates."""
    plan = estimated(case, machine.system(), STRATEGY, REPLICATED)
    price, played = plan.best.estimate, simulate(plan)
    use = float(link_utilisation(played.step.timeline, played.network).mean())
    return Time(
        case.name,
        machine,
        sum(price.time_parts_s[name] for name in COLLECTIVES) / price.step_time_s,
        use,
        use / sending_fraction(played.step.timeline),
    )


def sending_fraction(timeline: Timeline) -> float:
    """Return the share of a run in which at least one link carries something [1]."""
    num_busy, rates = [], dict[int, float]()
    for link, rate in zip(timeline.link.tolist(), timeline.rate_bytes_per_s.tolist(), strict=True):
        rates[link] = rate
        if not rate:
            del rates[link]
        num_busy.append(len(rates))
    until_s = np.append(timeline.change_s, timeline.makespan_s)
    sending_s = np.diff(until_s)[np.array(num_busy, dtype=np.int64) > 0].sum()
    return float(sending_s / (timeline.makespan_s or 1.0))


@cache
def memory_of(case: Case) -> Memory:
    """Return the memory of a die with and without copies [bytes]."""
    prices = [
        estimated(case, wafer(), STRATEGY, plan_options).best.estimate
        for plan_options in (REPLICATED, SPLIT, SHARDED)
    ]
    replicated, split, sharded = (
        sum(size for name, size in price.memory_parts_bytes.items() if name not in NOT_COUNTED)
        for price in prices
    )
    return Memory(case.name, replicated, split, sharded, prices[0].fits, prices[1].fits)


@studies.register("temp-tensor-parallelism")
class TensorParallelism:
    """Megatron's tensor parallelism over 8 of 32 dies, at the rates that Table I can mean."""

    title = "TEMP Fig. 4: collectives, idle links and copies of tensor parallelism"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Price and simulate a step at each rate, and sum the memory of a die."""
        times = [time_of(case, machine) for case in MODELS for machine in MACHINES]
        held = [memory_of(case) for case in (*MODELS, *SHORT_OF_MEMORY)]
        tables = (_time_table(times), _memory_table(held))
        claims = (*_time_claims(times), *_memory_claims(held))
        lines = [f"{'tp 8, dp 4':<12} {'rates':<44} {'collectives':>11} {'link use':>9} "
                 f"{'sending':>8}"]  # fmt: skip
        lines += [
            f"{t.model:<12} {t.machine.text:<44} {t.collective_share:>11.1%} {t.link_use:>9.1%} "
            f"{t.link_use_while_sending:>8.1%}"
            for t in times
        ]
        return StudyResult(
            machine=wafer(),
            lines=(*lines, "", *claim_lines(claims)),
            data={table.name: table.records for table in tables},
            tables=tables,
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; Megatron-1 with tp 8 and dp 4, one sequence in a "
            "micro-batch, nothing recomputed, nothing overlapped; collectives: exposed seconds of "
            "tp and dp over the step; link use: of all directed links, in a simulation of the "
            "passes; memory: states, activations and working memory of the fullest die, without "
            "buffers and margin, over those of the same step with activations split over tp",
        )


def _time_table(times: list[Time]) -> Table:
    names = ("model", "machine", "collective_share", "d2d_use", "d2d_use_sending")
    rows = tuple(
        (t.model, t.machine.text, t.collective_share, t.link_use, t.link_use_while_sending)
        for t in times
    )
    return Table("fig4_time", names, rows, TIME_CHART)


def _memory_table(held: list[Memory]) -> Table:
    names = ("model", "replicated_gib", "split_gib", "sharded_gib", "growth_activations",
             "growth_states_too", "fits_replicated", "fits_split")  # fmt: skip
    rows = tuple(
        (m.model, m.replicated / GIB, m.split / GIB, m.sharded / GIB, m.replicated / m.split,
         m.replicated / m.sharded, m.fits_replicated, m.fits_split)
        for m in held
    )  # fmt: skip
    return Table("fig4_memory", names, rows, MEMORY_CHART)


def _time_claims(times: list[Time]) -> tuple[Claim, ...]:
    """Return the claims of the paper on time, beside ours under our reading of Table I."""
    usual = [t for t in times if t.machine == MACHINES[0]]
    share, low, use = (
        max(t.collective_share for t in usual),
        min(t.link_use for t in usual),
        max(t.link_use for t in usual),
    )
    nearest = min(times, key=lambda t: abs(t.collective_share - PUBLISHED_COLLECTIVE_SHARE))
    return (
        Claim("Fig. 4b", "collectives in the time of training, at most",
              f"{PUBLISHED_COLLECTIVE_SHARE:.0%}", "seed", f"{share:.1%}",
              judged(share, PUBLISHED_COLLECTIVE_SHARE),
              "one sequence in a micro-batch: a die reads its weights at 1 TB/s for each of them, "
              f"and that is the step; nearest: {nearest.collective_share:.0%} for {nearest.model} "
              f"with {nearest.machine.text}"),
        Claim("Fig. 4b", "use of the links over the step", f"below {PUBLISHED_USE:.0%}", "seed",
              f"{use:.1%}", judged(use, PUBLISHED_USE),
              "far below: links wait while a die reads its memory, one sequence at a time"),
        Claim("Fig. 4b", "range of the use of the links over the step",
              "{:.0%} to {:.0%}".format(*PUBLISHED_USE_RANGE), "second-hand",
              f"{low:.1%} to {use:.1%}", judged_range(low, use, PUBLISHED_USE_RANGE),
              "links are idle while dies compute; while collectives run they are used by "
              f"{min(t.link_use_while_sending for t in usual):.0%} to "
              f"{max(t.link_use_while_sending for t in usual):.0%}; nearest over the step: "
              f"{max(t.link_use for t in times):.0%}"),
    )  # fmt: skip


def _memory_claims(held: list[Memory]) -> list[Claim]:
    """Return the claims of the paper on memory, beside our figures."""
    known = {m.model: m for m in held}
    claims = [
        Claim("Fig. 4c", f"memory growth by copies of activations, {name}", f"{published}x", status,
              f"{shown(known[name].replicated / known[name].split)}x",
              judged(known[name].replicated / known[name].split, published),
              "states stay whole over dp here, whether activations are copied or split; against "
              "states and activations both split it is "
              f"{shown(known[name].replicated / known[name].sharded)}x")
        for name, (published, status) in PUBLISHED_GROWTH.items()
    ]  # fmt: skip
    first = held[0]
    is_so = not first.fits_replicated and first.fits_split
    words = {True: "fits", False: "does not fit"}
    claims.append(
        Claim("Fig. 4c", f"{first.model} fits without the copies, and not with them",
              "does not fit with copies, fits without", "seed",
              f"{words[first.fits_replicated]} with copies, {words[first.fits_split]} without",
              Verdict.AGREES if is_so else Verdict.DIFFERS, "states fill the dies")
    )  # fmt: skip
    short = [case.name for case in SHORT_OF_MEMORY if not known[case.name].fits_replicated]
    claims.append(
        Claim("Fig. 4c", "out of memory with tp 8 and dp 4",
              ", ".join(case.name for case in SHORT_OF_MEMORY), "second-hand",
              ", ".join(short) or "none",
              Verdict.AGREES if len(short) == len(SHORT_OF_MEMORY) else Verdict.DIFFERS,
              "with ZeRO-1 the states of the other fit")
    )  # fmt: skip
    return claims
