"""Figs. 17, 18 and section VIII-I: the best mix of strategies, and the three takeaways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.train.answer import Candidate
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    read_twice,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp import wafers
from meshwright_papers.studies.temp.setup import (
    ASSUMPTIONS,
    READINGS,
    SEARCHED,
    SOURCE,
    Case,
    Setting,
    model_of,
    wafer,
    work_of,
)

CLOSE = 0.03
"""Share by which a published mix may be slower than ours and still agree."""
Mix = tuple[int, int, int, int]


MIX_CHART = Drawing(
    "Is the published mix of dp, cp, tp and streams the best one?",
    "How much slower it is than the best one, read in two ways; TEMP Figs. 17 and 18",
    "bars", ("slower_by",), "case", colour="reading", misfit="no plan fits",
)  # fmt: skip
PIPELINE_CHART = Drawing(
    "How many pipeline stages does the best plan of each system have?",
    "On several wafers, read in two ways; TEMP section VIII-I",
    "dots", ("pp",), "system", colour="reading", panels="case", across=2,
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A mix that the paper calls best: (dp, cp, tp, tatp)."""

    figure: str
    case: Case
    mix: Mix


PUBLISHED = tuple(
    Published(figure, Case(f"{model} {length // 1024}K", name, length, batch), mix)
    for figure, model, name, length, batch, mix in (
        ("Fig. 17", "Llama2 7B", "llama2-7b", 2048, 128, (2, 1, 1, 16)),
        ("Fig. 17", "Llama2 7B", "llama2-7b", 16384, 32, (1, 4, 1, 8)),
        ("Fig. 18", "GPT-3 6.7B", "gpt3-6.7b", 2048, 128, (4, 1, 1, 8)),
        ("Fig. 18", "GPT-3 6.7B", "gpt3-6.7b", 16384, 32, (2, 2, 1, 8)),
        ("Fig. 18", "GPT-3 76B", "gpt3-76b", 2048, 128, (2, 2, 1, 8)),
        ("Fig. 18", "GPT-3 76B", "gpt3-76b", 16384, 32, (1, 4, 1, 8)),
        ("Fig. 18", "GPT-3 175B", "gpt3-175b", 2048, 128, (1, 1, 2, 16)),
        ("Fig. 18", "GPT-3 175B", "gpt3-175b", 16384, 32, (1, 2, 2, 8)),
    )
)
NEAR = 0.06
"""Share below which the order of plans follows micro-batch sizes, which the paper leaves open."""


@cache
def best_of(case: Case, mix: Mix | None = None, reading: Setting = SEARCHED) -> Candidate | None:
    """Return the best plan without a pipeline, of one mix or of all; None where none fits."""
    allowed = reading.allowed(pp=[1])
    if mix is not None:
        allowed |= {n: [v] for n, v in zip(("dp", "cp", "tp", "tatp"), mix, strict=True)}
    system = wafer()
    work = work_of(case, system)
    try:
        found = compare(
            model_of(case),
            system,
            work,
            against=(),
            allowed=allowed,
            calibration=UNCALIBRATED,
            prefers_simple=False,
        )
    except InfeasibleError:
        return None
    return found.ours.best


def mix_of(candidate: Candidate | None) -> Mix | None:
    """Return (dp, cp, tp, tatp) of a plan."""
    if candidate is None:
        return None
    strategy = candidate.strategy
    return int(strategy.dp), int(strategy.cp), int(strategy.tp), int(strategy.tatp)


@studies.register("temp-strategies")
class Strategies:
    """The best mix of dp, cp, tp and tatp, and the cost of the published one."""

    title = "TEMP Figs. 17 and 18: the best mix of dp, cp, tp and tensor streams"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search each case twice: freely, and with the published mix."""
        rows = []
        read: dict[Setting, list[Claim]] = {reading: [] for reading in READINGS}
        for reading, entry in product(READINGS, PUBLISHED):
            ours = best_of(entry.case, reading=reading)
            theirs = best_of(entry.case, entry.mix, reading)
            slower = None
            if ours is not None and theirs is not None:
                slower = theirs.estimate.step_time_s / ours.estimate.step_time_s - 1.0
            rows.append((entry.case.name, reading.name, str(entry.mix), str(mix_of(ours)),
                         ours and ours.estimate.step_time_s,
                         theirs and theirs.estimate.step_time_s, slower))  # fmt: skip
            read[reading].append(_claim(entry, ours, slower))
        names = ("case", "reading", "published_mix", "best_mix", "best_s", "published_mix_s",
                 "slower_by")  # fmt: skip
        lines = [f"{'(dp, cp, tp, tatp)':<18} {'reading':<13} {'published':<14} {'ours':<14} "
                 f"{'ours s':>8} {'published s':>12} {'slower':>8}"]  # fmt: skip
        lines += [
            f"{row[0]:<18} {row[1]:<13} {row[2]:<14} {row[3]:<14} {shown(row[4]) or '-':>8} "
            f"{shown(row[5]) or '-':>12} {shown(row[6]) or '-':>8}"
            for row in rows
        ]
        return StudyResult(
            machine=wafer(),
            lines=tuple(lines),
            data={"rows": records(names, rows)},
            tables=(Table("fig17_18", names, tuple(rows), MIX_CHART),),
            claims=read_twice(*read.values()),
            assumptions=ASSUMPTIONS + "; batch 32 for sequences of 16K",
        )


def _claim(entry: Published, ours: Candidate | None, slower: float | None) -> Claim:
    """Return whether the published mix is best, or as good as the best one."""
    agrees = slower is not None and slower <= CLOSE
    cost = "nothing of it fits" if slower is None else f"the published one is {slower:.1%} slower"
    return Claim(
        entry.figure, f"best mix for {entry.case.name}", str(entry.mix), "seed",
        f"{mix_of(ours)}; {cost}", Verdict.AGREES if agrees else Verdict.DIFFERS,
        "" if agrees else _why(entry.mix, mix_of(ours), slower),
    )  # fmt: skip


def _why(published: Mix, ours: Mix | None, slower: float | None) -> str:
    """Return why another mix is faster than the published one."""
    if ours is None or slower is None:
        return "state, activations, buffers and a margin exceed the 72 GB of a die"
    if slower <= NEAR:
        return (
            "both come close: micro-batches are searched, and of mixes with streams of 8 or 16 the "
            "order follows their size, which the paper leaves open: see temp-settings-mixes"
        )
    return (
        f"tp {ours[2]} beside a stream of {ours[3]} moves less than a stream of {published[3]}: "
        "all weights of a layer pass a die in every micro-batch, and tp divides them"
    )


SWEET = (8, 16)
LONG = 16384
SMALL = ("llama2-7b", "gpt3-6.7b")
"""Models of up to 70B; the others have more."""
Test = Callable[[Mix], bool]
GROUPS: tuple[tuple[str, bool, bool, str, Test], ...] = (
    ("small models, short sequences", True, False, "dp with tatp",
     lambda mix: mix[0] > 1 and mix[3] > 1 and mix[1] == mix[2] == 1),
    ("small models, long sequences", True, True, "mostly tatp",
     lambda mix: mix[3] > 1 and mix[3] == max(mix)),
    ("large models, short sequences", False, False, "tatp with tp",
     lambda mix: mix[3] > 1 and mix[2] > 1),
    ("large models, long sequences", False, True, "tatp with sp or cp",
     lambda mix: mix[3] > 1 and mix[1] > 1),
)  # fmt: skip
"""Takeaway 2: cases, statement, and the test of a mix (dp, cp, tp, tatp) for it."""
WHY_MIX = (
    "with micro-batches searched and tp with sequence parallelism inside a block, tp is as good a "
    "partner of streams as dp and cp, whatever the length"
)


def mixes(reading: Setting) -> dict[tuple[str, int], Mix | None]:
    """Return our best mix by model and sequence length; None where nothing fits."""
    asked = (published.case for published in PUBLISHED)
    return {
        (case.model, case.sequence_length): mix_of(best_of(case, reading=reading)) for case in asked
    }


@studies.register("temp-takeaways")
class Takeaways:
    """The degree of streams, their partners, and pipelines over several wafers."""

    title = "TEMP section VIII-I: the three takeaways"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Read the searches of Figs. 17, 18 and 19 again."""
        read = {reading: list(pipeline_rows(reading)) for reading in READINGS}
        claims = read_twice(
            *(
                (
                    _degree_claim(mixes(reading)),
                    *(_mix_claim(mixes(reading), *group) for group in GROUPS),
                    *_wafer_claims(pipelines),
                )
                for reading, pipelines in read.items()
            )
        )
        pipelines = [
            (case, reading.name, *rest) for reading, rows in read.items() for case, *rest in rows
        ]
        names = ("case", "reading", "system", "pp", "tatp")
        return StudyResult(
            machine=wafer(),
            lines=tuple(claim_lines(claims)),
            data={"rows": records(names, pipelines)},
            tables=(Table("takeaways_wafers", names, tuple(pipelines), PIPELINE_CHART),),
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; mixes of temp-strategies and plans of temp-wafers, small "
            "models are 6.7B and 7B, large ones 76B and 175B, long sequences have 16K tokens",
        )


def _verdict(holds: Iterable[bool]) -> Verdict:
    found = list(holds)
    return Verdict.AGREES if found and all(found) else Verdict.DIFFERS


def _usual(degrees: list[int]) -> str:
    """Return the most frequent degree, the first of equals, as text."""
    return str(max(degrees, key=degrees.count, default="no"))


def _degree_claim(best: dict[tuple[str, int], Mix | None]) -> Claim:
    """Return whether every best mix has 8 or 16 members in a stream."""
    degrees = [mix[3] for mix in best.values() if mix is not None]
    return Claim(
        "Takeaway 1", "degree of tatp in the best mix of every model and length",
        "{} to {}".format(*SWEET), "seed", ", ".join(map(str, degrees)),
        _verdict(SWEET[0] <= degree <= SWEET[1] for degree in degrees),
        f"with enough tokens in a micro-batch a stream of {_usual(degrees)} hides its links as "
        "well, and leaves room for tp or more replicas",
    )  # fmt: skip


def _mix_claim(
    best: dict[tuple[str, int], Mix | None], group: str, is_small: bool, is_long: bool,
    published: str, test: Test,
) -> Claim:  # fmt: skip
    """Return whether the best mixes of one group are those that the paper prefers."""
    found = [
        mix
        for (model, length), mix in best.items()
        if (model in SMALL) == is_small and (length >= LONG) == is_long and mix is not None
    ]
    return Claim(
        "Takeaway 2", f"best mix of {group}", published, "seed",
        ", ".join(map(str, found)) or "no case has a plan", _verdict(map(test, found)), WHY_MIX,
    )  # fmt: skip


def pipeline_rows(reading: Setting) -> Iterable[tuple[str, str, int | None, int | None]]:
    """Yield the degrees of pp and tatp of each plan over several wafers."""
    for setup in wafers.SETUPS:
        for entry in wafers.compared_on(setup, reading).entries:
            plan = entry.best
            yield (setup.label, wafers.system_name(entry),
                   None if plan is None else int(plan.strategy.pp),
                   None if plan is None else int(plan.strategy.tatp))  # fmt: skip


def _wafer_claims(rows: list[tuple[str, str, int | None, int | None]]) -> tuple[Claim, ...]:
    """Return whether streams shorten the pipeline, and how many members they have."""
    cases = list(dict.fromkeys(row[0] for row in rows))
    found = []
    for case in cases:
        mine = [row for row in rows if row[0] == case]
        ours, theirs = mine[0][2], [pp for _, name, pp, _ in mine if name.startswith("megatron")]
        known = [pp for pp in theirs if pp is not None]
        if ours is not None and known:
            found.append((case, ours, min(known), mine[0][3] or 1))
    degrees = [tatp for *_, tatp in found]
    return (
        Claim("Takeaway 3", "streams shorten the pipeline over several wafers",
              "yes; the degrees are not known", "seed",
              ", ".join(f"{case}: pp {ours} against {least}" for case, ours, least, _ in found),
              _verdict(ours < least for _, ours, least, _ in found),
              "schedules without bubbles make longer pipelines cheap, for streams as for others"),
        Claim("Takeaway 3", "degree of tatp over several wafers", "8 or 16", "seed",
              ", ".join(map(str, degrees)), _verdict(degree in SWEET for degree in degrees),
              f"streams of {_usual(degrees)} beside tp, as on one wafer"),
    )  # fmt: skip
