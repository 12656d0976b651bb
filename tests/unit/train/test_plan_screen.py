"""The screen of a plan: what is said when the winner is not the very fastest."""

from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest

from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.train.question import training
from meshwright.train.words import bound_in_words, difference, robustness_in_words
from meshwright.view.media import draw, text_of
from meshwright.view.parts import Page, Tile, Whole
from meshwright.wafer.training import estimate
from meshwright.wafer.training import plan as plan_training


@pytest.fixture(scope="module")
def plan():
    workload = training("8xH100", sequence_length=1024, global_batch_size=64)
    return plan_training("gpt2-medium", "8xH100", workload)


def proof(plan, *, behind, is_complete=True):
    """Return the proof of a plan that is ``behind`` its bound by this fraction."""
    bound_s = plan.best.estimate.step_time_s / (1.0 + behind)
    coverage = replace(plan.coverage, lower_bound_s=bound_s, is_complete=is_complete)
    return bound_in_words(plan, coverage)


def test_a_tie_says_why_memory_decided(plan):
    assert "the plan is 0.7% behind that" in proof(plan, behind=0.007)


def test_the_fastest_plan_says_nothing_of_ties(plan):
    assert "behind that" not in proof(plan, behind=0.0)


def test_an_interrupted_search_gives_its_gap_instead(plan):
    assert "behind that" not in proof(plan, behind=0.3, is_complete=False)


def test_an_interrupted_search_says_so(plan):
    coverage = replace(plan.coverage, lower_bound_s=0.05, is_complete=False)
    stopped = replace(plan, coverage=coverage)
    assert stopped.proof == "interrupted: the best so far; none takes less than 50 ms"
    assert stopped.proof in text_of(stopped.page())


def test_a_plan_says_where_four_of_five_measurements_lie(plan):
    low_s, high_s = plan.best.estimate.interval_s
    assert low_s < plan.best.estimate.step_time_s < high_s
    assert " a step (80 %: " in text_of(plan.page())
    assert all(entry.estimate.interval_s is not None for entry in plan.runners_up)
    assert all(len(line) <= 100 for line in text_of(plan.page(), detail=True).splitlines())


def test_constants_that_were_not_fitted_give_no_interval(plan):
    work = plan.workload
    other = plan_training("gpt2-medium", "8xH100", work, calibration="uncalibrated")
    assert other.best.estimate.interval_s is None
    assert "80 %" not in text_of(other.page())
    low_s, high_s = other.robustness.step_time_s
    assert 0.9 * low_s < other.best.estimate.step_time_s < high_s
    assert "in 90 % of them plan 1 takes" in robustness_in_words(other, other.robustness)


def test_plans_that_other_criteria_choose_are_named_in_one_sentence(plan):
    robust = replace(plan.robustness, ties=(plan.best.text, "tp8 dp1"),
                     least_regret=plan.runners_up[1].text)  # fmt: skip
    text = robustness_in_words(plan, robust)
    assert "plan 3 loses least in the worst draw" in text
    assert "tp8 dp1 wins in some draws" in text
    alone = replace(robust, ties=(plan.best.text,), least_regret=plan.best.text)
    text = robustness_in_words(plan, alone)
    assert "worst draw" not in text
    assert "in some draws" not in text


@pytest.mark.parametrize("width", [40, 80, 100, 160, 400])
def test_a_screen_has_at_most_24_lines_of_the_width_of_the_terminal(plan, width):
    many = replace(plan, warnings=("a warning of many words " * 12,) * 3)
    text = text_of(many.page(), after="meshwright plan " + "--tp 2 " * 20, width=width)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= min(max(width, 80), 160)
    assert not any(line.endswith(" ") for line in text.splitlines())
    for label in ("FITS", "cost", "plan", "memory", "time", "instead", "warning", "next"):
        assert f"\n{label} " in text
    assert "(2 more with --detail)" in " ".join(text.split())


def test_small_bars_are_joined_before_a_row_is_left_out():
    """Bars of 94 and 4 % stay; those of 1 and 0.9 % are joined with what is left."""
    times = {"compute": 94.0, "TP": 4.0, "jitter": 1.0, "PP": 0.9, "head": 0.2}
    for more, is_joined, is_launched in ((0, False, True), (2, True, True), (3, True, False)):
        tiles = [Tile("", "said", label="fixed")] * (17 + more)
        tiles += [Tile("", "with megatron", label="launches", spare=2),
                  Tile("", "", label="time", part=Whole("Time", times, "s"))]  # fmt: skip
        lines = text_of(Page("title", "question", tiles), width=80).splitlines()
        assert len(lines) <= 24
        assert any("jitter" in line for line in lines) is not is_joined
        assert any("launches" in line for line in lines) is is_launched
        assert any("other" in line for line in lines)


def test_the_screen_recommends_one_plan(plan):
    text = text_of(plan.page())
    assert text.count("\nplan ") == 1
    assert plan.best.text in text
    assert "regret" not in text
    assert "probability" not in text


def test_colour_is_for_terminals_that_want_it(plan, monkeypatch):
    class Terminal(StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for variable, is_coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        for name, value in variable.items():
            monkeypatch.setenv(name, value)
        file = Terminal()
        draw(plan.page(), file=file)
        assert ("\x1b[1;32m" in file.getvalue()) is is_coloured


def test_a_plain_output_gets_plain_bars(plan):
    class Ascii(StringIO):
        encoding = "ascii"

    file = Ascii()
    draw(plan.page(), file=file)
    assert file.getvalue().isascii()


def test_a_family_never_measured_says_how_much_wider_its_interval_is():
    work = training("wafer-4x8", sequence_length=1024, global_batch_size=64)
    found = estimate("gpt2-medium", "wafer-4x8", work, make_strategy(dp_shard=32),
                        PlanOptions(sequence_parallel=False))  # fmt: skip
    assert any("times as far" in note for note in found.warnings)
    price = found.best.estimate
    hopper = estimate("gpt2-medium", "8xH100", work, make_strategy(dp_shard=8),
                         PlanOptions(sequence_parallel=False)).best.estimate  # fmt: skip
    assert price.step_time_s / price.interval_s[0] > hopper.step_time_s / hopper.interval_s[0]


def test_another_plan_says_what_it_adds_to_the_leader():
    leader = SimpleNamespace(text="dp8, zero3, no-reshard, sp")
    assert difference(leader, SimpleNamespace(text="dp8, zero2")) == "zero2, reshard, no sp"
