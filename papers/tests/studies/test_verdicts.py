"""How claims are judged: figures, gains, ranges, two readings, and the count of all verdicts."""

import pytest

from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Verdict,
    claims_markdown,
    document,
    judged,
    judged_gain,
    judged_range,
    read_twice,
    study_markdown,
)
from meshwright_papers.studies.temp.setup import wafer


@pytest.mark.parametrize(
    ("ours", "published", "agrees"),
    [(46.0, 40.0, True), (46.1, 40.0, False), (34.0, 40.0, True), (33.9, 40.0, False)],
)
def test_a_figure_agrees_within_15_percent(ours, published, agrees):
    assert (judged(ours, published) is Verdict.AGREES) == agrees


@pytest.mark.parametrize(
    ("ours", "published", "agrees"),
    [
        (1.06, 1.12, True),  # half of the gain is left
        (1.05, 1.12, False),  # 6 % below, and less than half of the gain
        (1.95, 1.7, True),
        (2.0, 1.7, False),  # within half of the gain, but 18 % above
    ],
)
def test_a_gain_agrees_as_a_figure_and_in_what_it_has_over_nothing(ours, published, agrees):
    assert (judged_gain(ours, published) is Verdict.AGREES) == agrees


def test_power_below_all_of_it_is_a_gain_as_well():
    assert judged_gain(93.0, 88.6, 100.0) is Verdict.AGREES
    assert judged_gain(95.0, 88.6, 100.0) is Verdict.DIFFERS


def test_a_range_is_not_widened():
    assert judged_range(1.2, 1.6, (1.2, 1.6)) is Verdict.AGREES
    assert judged_range(1.19, 1.6, (1.2, 1.6)) is Verdict.DIFFERS
    assert judged_range(1.3, 1.61, (1.2, 1.6)) is Verdict.DIFFERS


def claim(what, ours, verdict, why=""):
    return Claim("Fig. 0", what, "1.7x", "seed", ours, verdict, why)


def test_both_readings_stand_in_one_row_with_the_reasons_of_those_that_differ():
    searched = [claim("a", "1.4x", Verdict.DIFFERS, "pipelines"), claim("b", "2", Verdict.AGREES)]
    described = [claim("a", "1.66x", Verdict.AGREES, "none"),
                 claim("b", "3", Verdict.DIFFERS, "other")]  # fmt: skip
    first, second = read_twice(searched, described)
    assert (first.ours, first.described, first.why) == ("1.4x", "1.66x", "pipelines")
    assert (first.verdict, first.described_verdict) == (Verdict.DIFFERS, Verdict.AGREES)
    assert second.why == "as described: other"
    head, _, row, other = claims_markdown((first, second))
    assert head.count("verdict") == 2
    assert "| 1.4x | differs | 1.66x | agrees | pipelines |" in row
    assert "| 2 | agrees | 3 | differs | as described: other |" in other
    with pytest.raises(ValueError, match="is not"):
        read_twice(searched, described[::-1])


def test_the_document_counts_each_verdict_and_both_readings():
    claims = (
        *read_twice([claim("a", "1", Verdict.DIFFERS, "x")], [claim("a", "2", Verdict.AGREES)]),
        claim("b", "", Verdict.NOT_REBUILT, "not public"),
        claim("c", "1.6x under: d", Verdict.UNDER_A_SETTING),
    )
    pairs = [(claim.verdict, claim.described_verdict) for claim in claims]
    text = document(["\n".join(claims_markdown(claims))], pairs)
    assert "0 agrees, 1 agrees under a setting, 1 differs, 1 not rebuilt, 0 not published." in text
    assert "Of the 1 read twice: all searched 0 agrees" in text
    assert "As described 1 agrees, 0 agrees under a setting, 0 differs" in text
    assert "| not rebuilt | " in text


def test_every_assumed_value_of_the_die_is_told_with_its_range_and_reason():
    text = study_markdown("s", "title", "source", StudyResult((), {}, machine=wafer()))
    line = next(line for line in text.splitlines() if line.startswith("Assumed of wafer-4x8"))
    die = wafer().chip
    places = [path for path, origin in die.provenance.items() if origin.kind == "assumed"]
    assert len(places) >= 8
    for path in places:
        assert path.partition("[")[0] in line
        assert die.provenance[path].note in line
    assert "num_cores 110 (assumed, 27 to 440: " in line
    assert "noc_rate 256 GB/s (assumed, 100 GB/s to 512 GB/s: " in line
    assert "levels[columns].bandwidth 2 TB/s (assumed, 1 TB/s to 4 TB/s: " in line
