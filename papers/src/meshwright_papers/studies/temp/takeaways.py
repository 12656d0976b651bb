"""Section VIII-I: what the paper takes away from its own figures, read off ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshwright_papers.studies.claims import Claim, Table, Verdict, claim_lines
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp import strategies, wafers
from meshwright_papers.studies.temp.cases import ASSUMPTIONS, SOURCE
from meshwright_papers.studies.temp.strategies import Mix, best_of, mix_of

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
"""Of takeaway 2: which cases, what it says, and how a mix (dp, cp, tp, tatp) shows it."""
WHY_MIX = (
    "with micro-batches searched and tp with sequence parallelism inside a block, tp is as good a "
    "partner of streams as dp and cp, whatever the length"
)


def mixes() -> dict[tuple[str, int], Mix | None]:
    """Return our best mix by model and sequence length; None where nothing fits."""
    asked = (published.case for published in strategies.PUBLISHED)
    return {(case.model, case.sequence_length): mix_of(best_of(case)) for case in asked}


@studies.register("temp-takeaways")
class Takeaways:
    """The degree of streams, their partners, and pipelines over several wafers."""

    title = "TEMP section VIII-I: the three takeaways"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Read the searches of Figs. 17, 18 and 19 again."""
        best = mixes()
        pipelines = list(pipeline_rows())
        claims = (
            _degree_claim(best),
            *(_mix_claim(best, *group) for group in GROUPS),
            *_wafer_claims(pipelines),
        )
        names = ("case", "system", "pp", "tatp")
        return StudyResult(
            lines=tuple(claim_lines(claims)),
            data={"rows": [dict(zip(names, row, strict=True)) for row in pipelines]},
            tables=(Table("takeaways_wafers", names, tuple(pipelines), ("case", "system"), "pp"),),
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; mixes of temp-strategies and plans of temp-wafers, small "
            "models are 6.7B and 7B, large ones 76B and 175B, long sequences have 16K tokens",
        )


def _verdict(holds: Iterable[bool]) -> Verdict:
    found = list(holds)
    return Verdict.AGREES if found and all(found) else Verdict.DIFFERS


def _degree_claim(best: dict[tuple[str, int], Mix | None]) -> Claim:
    """Return whether every best mix has 8 or 16 members in a stream."""
    degrees = [mix[3] for mix in best.values() if mix is not None]
    return Claim(
        "Takeaway 1", "degree of tatp in the best mix of every model and length",
        "{} to {}".format(*SWEET), "seed", ", ".join(map(str, degrees)),
        _verdict(SWEET[0] <= degree <= SWEET[1] for degree in degrees),
        "with enough tokens in a micro-batch a block of 2x2 hides its links as well, and leaves "
        "room for tp or more replicas",
    )  # fmt: skip


def _mix_claim(
    best: dict[tuple[str, int], Mix | None], group: str, is_small: bool, is_long: bool,
    published: str, test: Test,
) -> Claim:  # fmt: skip
    """Return whether the best mixes of one group are what the paper prefers there."""
    found = [
        mix
        for (model, length), mix in best.items()
        if (model in SMALL) == is_small and (length >= LONG) == is_long and mix is not None
    ]
    return Claim(
        "Takeaway 2", f"best mix of {group}", published, "seed",
        ", ".join(map(str, found)) or "no case has a plan", _verdict(map(test, found)), WHY_MIX,
    )  # fmt: skip


def pipeline_rows() -> Iterable[tuple[str, str, int | None, int | None]]:
    """Yield the degrees of pp and tatp of each plan over several wafers."""
    for setup in wafers.SETUPS:
        for entry in wafers.compared_on(setup).entries:
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
              "blocks of 2x2 beside tp, as on one wafer"),
    )  # fmt: skip
