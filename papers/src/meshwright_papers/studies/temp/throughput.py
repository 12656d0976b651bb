"""Figs. 13 and 16: throughput, memory, collectives and ablation, beside six baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.sharding.strategy import Strategy
from meshwright.train.answer import BestOfRecipe, Candidate
from meshwright.train.question import training
from meshwright.wafer.training import estimate
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged,
    judged_gain,
    judged_range,
    read_twice,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp.setup import (
    ASSUMPTIONS,
    BASELINES,
    CASES,
    HONEST,
    OURS,
    READINGS,
    SEARCHED,
    SOURCE,
    Setting,
    compared,
    entries_of,
    model_of,
    wafer,
    work_of,
)

COLLECTIVES = ("tp_comm_s", "cp_comm_s", "dp_comm_s", "pp_comm_s", "tatp_stream_s")
PUBLISHED_CUT = {
    "megatron-1 smap": 38.0, "megatron-1 gmap": 24.0, "megatron-3 smap": 27.0,
    "megatron-3 gmap": 18.0, "fsdp smap": 25.0, "fsdp gmap": 14.0,
}  # fmt: skip
"""Collective time that TEMP saves [%]; as read in the paper."""
PUBLISHED_SPEEDUP = 1.7
PUBLISHED_MEMORY = (0.49, 0.82)
PUBLISHED_APART = 0.1
SHORT_OF_MEMORY = ("GPT-3 76B", "Llama3 70B", "GPT-3 175B", "OPT 175B")


SPEED_CHART = Drawing(
    "How much slower than TEMP are other systems?",
    "Step over that of TEMP on one wafer, read in two ways; TEMP Fig. 13",
    "dots", ("over_temp",), "system", colour="reading", panels="model",
)  # fmt: skip
COLLECTIVE_CHART = Drawing(
    "How much of the time of collectives is left?",
    "Seconds by which communication lengthens a step, ours over theirs, by the HBM; TEMP Fig. 13",
    "dots", ("shown_saved_pct",), "system", colour="reading", panels="hbm", across=2,
    published="published_saved_pct",
)  # fmt: skip
STEP_CHART = Drawing(
    "What do streams bring, and what their placement?",
    "Step on one wafer, read in two ways; TEMP Fig. 16",
    "dots", ("fsdp_smap_s", "streams_smap_s", "temp_s"), "model", panels="reading", across=2,
    measure="step",
)  # fmt: skip


def collective_s(entry: BestOfRecipe) -> float | None:
    """Return the communication of a step that shows [s]."""
    if entry.best is None:
        return None
    parts = entry.best.estimate.time_parts_s
    return sum(parts[name] for name in COLLECTIVES)


def step_s(entry: BestOfRecipe) -> float | None:
    """Return the step time [s]."""
    return None if entry.best is None else entry.best.estimate.step_time_s


def mean_ratio(table: Mapping[str, Mapping[str, BestOfRecipe]], name: str) -> float | None:
    """Return the geometric mean over models of a baseline's step time over ours, where it fits."""
    ratios = [
        theirs / ours
        for entries in table.values()
        if (theirs := step_s(entries[name])) and (ours := step_s(entries[OURS]))
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


@studies.register("temp-throughput")
class Throughput:
    """Six models, seven systems, and the ones that the paper leaves out."""

    title = "TEMP Fig. 13: throughput, memory and collectives against six baselines"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search every recipe on every model."""
        return throughput(with_hbm=True)


@studies.register("temp-throughput-no-hbm")
class ThroughputWithoutHbm:
    """Throughput with memory that is never slow: the part that comes from the HBM term."""

    title = "TEMP Fig. 13 without the HBM term: memory that is never slow"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search every recipe on every model."""
        return throughput(with_hbm=False)


def throughput(*, with_hbm: bool) -> StudyResult:
    """Return the figure with or without the HBM term."""
    read = {reading: found_under(reading, with_hbm=with_hbm) for reading in READINGS}
    table = Table(
        "fig13" if with_hbm else "fig13_no_hbm",
        (
            "model",
            "reading",
            "system",
            "step_s",
            "over_temp",
            "memory_gib",
            "collectives_s",
            "plan",
        ),
        tuple(
            _row(case, reading.name, name, entries)
            for reading, found in read.items()
            for case, entries in found.items()
            for name in entries
        ),
        replace(
            SPEED_CHART, subtitle=SPEED_CHART.subtitle + ("" if with_hbm else "; HBM never slow")
        ),
    )
    claims = read_twice(
        *((*_speed_claims(found), *_memory_claims(found)) for found in read.values())
    )
    assumptions = ASSUMPTIONS if with_hbm else ASSUMPTIONS + "; HBM never slow"
    return StudyResult(
        machine=wafer(),
        lines=tuple(_lines(read, claims)),
        data={"rows": table.records},
        tables=(table,),
        claims=claims,
        assumptions=assumptions,
    )


def found_under(
    reading: Setting, *, with_hbm: bool = True
) -> Mapping[str, Mapping[str, BestOfRecipe]]:
    """Return the entries of each model by system; alternatives that are not published once."""
    recipes = (*BASELINES, *HONEST) if reading == SEARCHED else BASELINES
    return {
        case: entries_of(compared(case, recipes, with_hbm=with_hbm, reading=reading))
        for case in CASES
    }


def _row(
    case: str, reading: str, name: str, entries: Mapping[str, BestOfRecipe]
) -> tuple[object, ...]:
    entry, ours = entries[name], step_s(entries[OURS])
    theirs = step_s(entry)
    if entry.best is None or theirs is None or ours is None:
        why = entry.why_none.partition(".")[0]
        return (case, reading, name, theirs, None, None, None, why)
    price = entry.best.estimate
    memory = price.memory_bytes / 2**30
    return (
        case, reading, name, theirs, theirs / ours, memory, collective_s(entry), entry.best.text
    )  # fmt: skip


def _speed_claims(found: Mapping[str, Mapping[str, BestOfRecipe]]) -> list[Claim]:
    """Return the claims of the paper on speed, beside our figures."""
    means = {name: mean_ratio(found, name) for name in PUBLISHED_CUT}
    known = [value for value in means.values() if value is not None]
    whole = sum(known) / len(known) if known else None
    lost = {name: sum(entries[name].best is None for entries in found.values()) for name in means}
    without = ", ".join(f"{name} {number}" for name, number in lost.items() if number) or "none"
    none = sum(entries[OURS].best is None for entries in found.values())
    why = (
        "where pipelines inside the wafer, recomputation and ZeRO-1 are open to all, the baselines "
        "use them and lose less; the mean is over models that both train: ours has no plan for "
        f"{none} of {len(found)}, of the baselines {without}"
    )
    claims = [
        Claim("Fig. 13", "mean speedup over the six baselines", f"{PUBLISHED_SPEEDUP}x", "seed",
              f"{shown(whole)}x", judged_gain(whole, PUBLISHED_SPEEDUP), why)
    ]  # fmt: skip
    claims += [
        Claim("Fig. 13", f"speedup over {name}", "", "missing", f"{shown(mean)}x",
              Verdict.NOT_PUBLISHED, "")
        for name, mean in means.items()
    ]  # fmt: skip
    return claims


def memory_shares(table: Mapping[str, Mapping[str, BestOfRecipe]]) -> dict[str, float]:
    """Return, by baseline, the mean over models of our memory over its own, where it fits."""
    found: dict[str, list[float]] = {}
    for entries in table.values():
        ours = entries[OURS].best
        for name in PUBLISHED_CUT:
            theirs = entries[name].best
            if ours is not None and theirs is not None:
                share = ours.estimate.memory_bytes / theirs.estimate.memory_bytes
                found.setdefault(name, []).append(share)
    return {name: sum(shares) / len(shares) for name, shares in found.items()}


def _memory_claims(found: Mapping[str, Mapping[str, BestOfRecipe]]) -> list[Claim]:
    """Return the claims of the paper on memory, beside our figures."""
    shares = memory_shares(found)
    low, high = min(shares.values(), default=0.0), max(shares.values(), default=0.0)
    short = [
        case
        for case, entries in found.items()
        if any(entries[name].best is None for name in PUBLISHED_CUT)
    ]
    fitting = [case for case in SHORT_OF_MEMORY if case in found and case not in short]
    others = [case for case in short if case not in SHORT_OF_MEMORY]
    large = memory_shares({case: found[case] for case in found if "175B" in case}).values()
    apart = max((abs(share - 1.0) for share in large), default=None)
    why = (
        "a plan may use all memory that it has: what streams save goes into larger micro-batches, "
        "on both sides"
    )
    close = apart is not None and apart <= PUBLISHED_APART
    return [
        Claim("Fig. 13", "difference of peak memory at 175B, at most", f"{PUBLISHED_APART:.0%}",
              "seed", "no plan of ours fits" if apart is None else f"{apart:.1%}",
              Verdict.AGREES if close else Verdict.DIFFERS, why),
        Claim("Fig. 13", "peak memory over that of the baselines, mean over models",
              "{:.0%} to {:.0%}".format(*PUBLISHED_MEMORY), "seed", f"{low:.0%} to {high:.0%}",
              judged_range(low, high, PUBLISHED_MEMORY), why),
        Claim("Fig. 13", "models for which some baseline is out of memory",
              ", ".join(SHORT_OF_MEMORY), "second-hand", ", ".join(short) or "none",
              Verdict.AGREES if set(short) == set(SHORT_OF_MEMORY) else Verdict.DIFFERS,
              f"every baseline fits for {', '.join(fitting) or 'none of them'}, and not for "
              f"{', '.join(others) or 'no other'}"),
    ]  # fmt: skip


def _lines(
    read: Mapping[Setting, Mapping[str, Mapping[str, BestOfRecipe]]], claims: tuple[Claim, ...]
) -> Iterator[str]:
    """Yield the figure as lines: times over ours, then the claims."""
    yield "step time over that of TEMP (its own in seconds); - where nothing fits"
    for reading, found in read.items():
        yield ""
        yield f"{reading.name:<18}" + "".join(f"{c.replace(' ', '')[-10:]:>12}" for c in found)
        for name in next(iter(found.values())):
            cells = []
            for entries in found.values():
                theirs, ours = step_s(entries[name]), step_s(entries[OURS])
                if theirs is None or ours is None:
                    cells.append("-")
                else:
                    cells.append(f"{ours:.3f} s" if name == OURS else f"{theirs / ours:.3f}")
            yield f"{name:<18}" + "".join(f"{cell:>12}" for cell in cells)
    yield ""
    yield from claim_lines(claims)


KINDS = {"megatron-1": False, "megatron-3": True}
"""Recipes that run the degrees of a plan with streams as tp, and their sequence parallelism."""


@dataclass(frozen=True)
class Communication:
    """Communication of a plan in a step."""

    shown_s: float
    """Exposed communication [s]."""
    links_s: float
    """Busy time of the busiest link, hidden or not [s]."""


def communication(plan: Candidate | None) -> Communication | None:
    """Return the communication of a placed plan; None where it is not known."""
    if plan is None or plan.placement is None:
        return None
    shown_s = sum(s for name, s in plan.estimate.time_parts_s.items() if name.endswith("comm_s"))
    streams_s = plan.estimate.time_parts_s["tatp_stream_s"]
    return Communication(shown_s + streams_s, plan.placement.busy_s["d2d"])


def as_tensor_parallel(strategy: Strategy) -> Strategy:
    """Return the same replicas and groups, with tp where there were streams."""
    return replace(strategy, tp=strategy.tp * strategy.tatp, tatp=1.0)


@cache
def at_equal_degrees(name: str, recipe: str) -> Communication | None:
    """Return the communication of our best degrees under a recipe; None: not allowed.

    Replicas, groups, micro-batch, sharding and recomputation are equal; the placement is ours.
    """
    case, system = CASES[name], wafer()
    ours = entries_of(compared(name, (*BASELINES, *HONEST)))[OURS].best
    if ours is None or ours.strategy.tatp == 1:
        return None
    work = work_of(case, system)
    plan_options = replace(ours.plan_options, sequence_parallel=KINDS[recipe])
    strategy = as_tensor_parallel(ours.strategy)
    try:
        plan = estimate(
            model_of(case), system, work, strategy, plan_options, calibration=UNCALIBRATED
        )
    except (InfeasibleError, SpecError):
        return None
    return communication(plan.best)


@studies.register("temp-collectives")
class Collectives:
    """Exposed collective time, busy time of links, and both at equal degrees."""

    title = "TEMP Fig. 13: the time of collectives, and why it differs"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Read the comparisons of Fig. 13, with and without the time of the main memory."""
        equal = {
            recipe: [_pair(name, recipe) for name in CASES if at_equal_degrees(name, recipe)]
            for recipe in KINDS
        }
        read: dict[Setting, list[Claim]] = {reading: [] for reading in READINGS}
        rows = []
        for reading, with_hbm in product(READINGS, (True, False)):
            found = found_under(reading, with_hbm=with_hbm)
            for name in PUBLISHED_CUT:
                cuts = savings(found, name)
                usual = with_hbm and reading == SEARCHED
                same = saved(equal.get(name.split()[0], [])) if usual else None
                rows.append((name, reading.name, "1 TB/s" if with_hbm else "never slow",
                             PUBLISHED_CUT[name], *cuts, same))  # fmt: skip
                read[reading].append(
                    _saved_claim(name, cuts, least_shown_s(found, name), same, with_hbm=with_hbm)
                )
        claims = read_twice(*read.values())
        names = ("system", "reading", "hbm", "published_saved_pct", "shown_saved_pct",
                 "links_busy_times", "shown_saved_at_equal_degrees_pct")  # fmt: skip
        return StudyResult(
            machine=wafer(),
            lines=tuple(claim_lines(claims)),
            data={"rows": records(names, rows)},
            tables=(Table("fig13_collectives", names, tuple(rows), COLLECTIVE_CHART),),
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; shown: seconds by which communication lengthens a step; "
            "links: seconds for which the busiest link carries something, hidden or not, ours over "
            "theirs; equal degrees: our replicas, groups, micro-batch, sharding and recomputation, "
            "tp in place of streams; means over models",
        )  # fmt: skip


def _pair(name: str, recipe: str) -> tuple[Communication, Communication]:
    """Return the communication of our best plan, and that of its degrees under a recipe."""
    ours = communication(entries_of(compared(name, (*BASELINES, *HONEST)))[OURS].best)
    theirs = at_equal_degrees(name, recipe)
    assert ours is not None
    assert theirs is not None
    return ours, theirs


def savings(
    found: Mapping[str, Mapping[str, BestOfRecipe]], name: str
) -> tuple[float | None, float | None]:
    """Return the exposed communication saved [%], and the factor of the busy time of links."""
    pairs = [
        (ours, theirs)
        for entries in found.values()
        if (ours := communication(entries[OURS].best))
        and (theirs := communication(entries[name].best))
    ]
    logs = [math.log(a.links_s / b.links_s) for a, b in pairs if a.links_s and b.links_s]
    return saved(pairs), math.exp(sum(logs) / len(logs)) if logs else None


def saved(pairs: list[tuple[Communication, Communication]]) -> float | None:
    """Return the mean share of exposed communication saved by the first of each pair [%]."""
    cuts = [1.0 - ours.shown_s / theirs.shown_s for ours, theirs in pairs if theirs.shown_s]
    return 100.0 * sum(cuts) / len(cuts) if cuts else None


def least_shown_s(found: Mapping[str, Mapping[str, BestOfRecipe]], name: str) -> float | None:
    """Return the least communication that a plan of a system shows, over models [s]."""
    sent = [communication(entries[name].best) for entries in found.values()]
    return min((one.shown_s for one in sent if one is not None), default=None)


def _saved_claim(
    name: str,
    cuts: tuple[float | None, float | None],
    least_s: float | None,
    same: float | None,
    *,
    with_hbm: bool,
) -> Claim:
    """Return the claim of the paper on one baseline, beside our figures."""
    published, (cut, links) = PUBLISHED_CUT[name], cuts
    why = "each plan is the fastest as a whole"
    if least_s is not None:
        why += f", and the baseline shows as little as {1e3 * least_s:.3g} ms of a step"
    if links is not None:
        why += f"; in ours the busiest link is busy {links:.2g} times as long, mostly hidden"
    if same is not None:
        why += f"; at equal degrees, streams in place of tp save {same:.0f} % of what shows"
    memory = "" if with_hbm else ", HBM never slow"
    return Claim(
        "Fig. 13", f"collective time saved against {name}{memory}", f"{published:.0f} %", "seed",
        f"{shown(cut)} %", judged(cut, published), why,
    )  # fmt: skip


STEPS = (
    ("tensor streams", "fsdp smap", f"{OURS} smap", 1.21),
    ("placement and routing", f"{OURS} smap", OURS, 1.14),
)
"""Added feature, system without and with it, and the published mean gain."""
WHY = {
    "tensor streams": "the gain is that of the best plan with streams over the best fully sharded "
    "one; part of it comes from micro-batches and tp that the paper's step may not change",
    "placement and routing": "plans placed in the order of device numbers are searched too: the "
    "search finds degrees whose rows are blocks, so little is left for placement to mend",
}


def gain(before: float | None, after: float | None) -> float | None:
    """Return the speedup of the second over the first; None where either has no plan."""
    return before / after if before and after else None


@studies.register("temp-ablation")
class Ablation:
    """FSDP in device order, then streams, then placement and routing that see shared links."""

    title = "TEMP Fig. 16: what streams and what placement bring"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Divide the step times of the comparisons."""
        read = {reading: _steps(found_under(reading)) for reading in READINGS}
        names = ("model", "reading", "fsdp_smap_s", "streams_smap_s", "temp_s", "gain_streams",
                 "gain_placed")  # fmt: skip
        claims = read_twice(*map(_ablation_claims, read.values()))
        rows = [
            (case, reading.name, *rest) for reading, found in read.items() for case, *rest in found
        ]
        lines = [f"{'model':<14}" + "".join(f"{name:>14}" for name in names[1:])]
        for row in rows:
            cells = (shown(value) or "-" for value in row[1:])
            lines.append(f"{row[0]:<14}" + "".join(f"{cell:>14}" for cell in cells))
        lines += [
            "",
            *claim_lines(claims),
        ]
        return StudyResult(
            machine=wafer(),
            lines=tuple(lines),
            data={"rows": records(names, rows)},
            tables=(Table("fig16", names, tuple(rows), STEP_CHART),),
            claims=claims,
            assumptions=ASSUMPTIONS,
        )


def _steps(found: Mapping[str, Mapping[str, BestOfRecipe]]) -> list[tuple[Any, ...]]:
    """Return by model the times of the three systems, and the gain of each step."""
    return [
        (case, *(step_s(entries[name]) for name in ("fsdp smap", f"{OURS} smap", OURS)),
         *(gain(step_s(entries[a]), step_s(entries[b])) for _, a, b, _ in STEPS))
        for case, entries in found.items()
    ]  # fmt: skip


def _ablation_claims(rows: list[tuple[Any, ...]]) -> tuple[Claim, ...]:
    gains = [
        _gain_claim(what, published, [row[4 + number] for row in rows])
        for number, (what, _, _, published) in enumerate(STEPS)
    ]
    return (*gains, *_trend_claims(rows))


def mean_gain(gains: list[float | None]) -> float | None:
    """Return the geometric mean of the gains that are known."""
    known = [value for value in gains if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _gain_claim(what: str, published: float, gains: list[float | None]) -> Claim:
    """Return the mean gain of a step beside the published one."""
    mean = mean_gain(gains)
    return Claim(
        "Fig. 16", f"mean gain of {what}", f"{published}x", "seed", f"{shown(mean)}x",
        judged_gain(mean, published), WHY[what],
    )  # fmt: skip


def _trend_claims(rows: list[tuple[Any, ...]]) -> Iterator[Claim]:
    """Yield the claims of the paper on gains side by side, by model size, and on FSDP."""
    for number, (what, _, _, _) in enumerate(STEPS):
        gains = [row[4 + number] for row in rows if row[4 + number]]
        half = len(gains) // 2
        grows = bool(half) and sum(gains[half:]) / len(gains[half:]) > sum(gains[:half]) / half
        yield Claim(
            "Fig. 16", f"gain of {what} grows with the model", "grows", "seed",
            ", ".join(map(shown, gains)), Verdict.AGREES if grows else Verdict.DIFFERS,
            "the largest models leave less memory to choose from",
        )  # fmt: skip
    streams, placed = (mean_gain([row[4 + number] for row in rows]) for number in (0, 1))
    yield Claim(
        "Fig. 16", "tensor streams bring more than placement and routing", "yes", "seed",
        f"{shown(streams)}x against {shown(placed)}x",
        Verdict.AGREES if streams and placed and streams > placed else Verdict.DIFFERS,
        "nothing is left for streams to bring",
    )  # fmt: skip
    lacking = [row[0] for row in rows if row[1] is None]
    system = wafer()
    room_bytes = system.chip.main_memory.capacity_bytes
    kept = training(system, sequence_length=1, global_batch_size=1).optimizer
    state_bytes = (
        kept.weight_bytes_per_param + kept.gradient_bytes_per_param + kept.state_bytes_per_param
    )
    yield Claim(
        "Fig. 16", "models that FSDP in device order trains", "all", "seed",
        f"all but {', '.join(lacking)}" if lacking else "all",
        Verdict.DIFFERS if lacking else Verdict.AGREES,
        f"{state_bytes:g} bytes a parameter over {system.num_devices} dies, whole layers as they "
        f"are gathered, buffers and a margin exceed the {room_bytes / 1e9:.0f} GB of a die",
    )  # fmt: skip
