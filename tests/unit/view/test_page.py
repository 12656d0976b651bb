"""Reports: one file, nothing from outside, every text escaped, parts drawn once."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import EVIL, Seen, charts_of, check_names_are_text, check_page, values_of

from meshwright import plan
from meshwright.base.errors import SpecError
from meshwright.spec.model import ModelSpec
from meshwright.view import charts
from meshwright.view.drawn import drawn_page
from meshwright.view.html import card_of, html_of, write_page
from meshwright.view.parts import (
    Chart,
    Code,
    Folded,
    Page,
    Player,
    Section,
    Step,
    Table,
    Text,
    Tile,
)

MOST_BYTES = 1.5e6


def everywhere(text: str) -> Page:
    """A page that shows one text in each place."""
    table = Table((text, text + ">"), [(text, text)], text)
    chart = Chart(text, text, charts.bars([text], [1.0], [text], text), table)
    player = Player(text, text, text, {text: text}, [Step(text, text, text)])
    parts = [Text(text), Code(text, text), table, chart, player, Folded(text, [Text(text), chart])]
    tile = Tile(text, text, text, "one", "good")
    return Page(text, text, [tile], [Section("one", text, parts)], [text], text, text)


@pytest.fixture(scope="module")
def found():
    return plan("llama3-8b", on="8xH100", seq="8k", global_batch=64, framework="megatron")


def test_text_of_inputs_never_becomes_markup() -> None:
    plain, evil = (Seen(html_of(everywhere(text))) for text in ("plain", EVIL))
    assert evil.tags == plain.tags
    assert [name for name, _ in evil.attributes] == [name for name, _ in plain.attributes]
    assert EVIL in "".join(evil.words)


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).map(
        lambda text: text + "x"
    )
)
def test_any_text_is_shown_as_it_is(text: str) -> None:
    seen = Seen(card_of(everywhere(text)))
    assert text in "".join(seen.words)
    assert seen.tags == Seen(card_of(everywhere("plain"))).tags


def test_a_model_called_like_markup_is_a_name(found) -> None:
    model = ModelSpec.model_validate(found.model.model_dump() | {"name": EVIL})
    check_names_are_text(found.page(), replace(found, model=model).page())


def test_nothing_comes_from_outside(found) -> None:
    text = html_of(found.page())
    seen = Seen(text)
    assert any("default-src 'none'" in (value or "") for _, value in seen.attributes)
    loaded = [v for name, v in seen.attributes if name in ("src", "srcset", "action", "background")]
    assert all((value or "").startswith("data:") for value in loaded)
    assert not {"link", "iframe", "object"} & set(seen.tags)
    assert len(text.encode()) <= MOST_BYTES


def test_each_question_is_answered_and_leads_to_its_section(found) -> None:
    page = found.page()
    check_page(page)
    asked = " ".join(tile.question for tile in drawn_page(page).tiles)
    for word in ("fit", "fast", "limits", "Why not", "twice the network", "launch", "sure", "cost"):
        assert word in asked


def test_charts_hold_the_numbers_of_the_answer(found) -> None:
    price = found.best.estimate
    shown = charts_of(found.page())
    times = values_of(shown["Time of a step"])
    assert sum(row["amount"] for row in times) == pytest.approx(price.step_time_s)
    memory = values_of(shown["Memory of the fullest device"])
    assert sum(row["amount"] for row in memory) * 2**30 == pytest.approx(price.memory_bytes)


def test_data_of_charts_is_json_inside_of_the_page(found) -> None:
    text = html_of(found.page())
    blocks = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert len(blocks) > 4
    assert all(json.loads(block)["width"] == "container" for block in blocks)


def test_a_report_is_written_with_the_answer(tmp_path) -> None:
    path = tmp_path / "plan.html"
    asked = {"on": "8xH100", "seq": "8k", "global_batch": 64}
    plan("llama3-8b", report=str(path), **asked)
    assert "<!DOCTYPE html>" in path.read_text("utf-8")
    with pytest.raises(SpecError, match="report"):
        plan("llama3-8b", report=str(path), **asked)
    with pytest.raises(SpecError, match=r"does not end in \.html"):
        plan("llama3-8b", report=str(tmp_path / "plan.txt"), **asked)


def test_a_page_without_charts_carries_no_script(tmp_path) -> None:
    page = Page("title", "asked", [], [Section("one", "One", [Text("words")])])
    assert "<script" not in html_of(page)
    write_page(page, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 20_000


@pytest.mark.parametrize(("name", "says"), [("page.txt", "does not end in .html (page.html)"),
                                            ("none/page.html", "there is no folder")])  # fmt: skip
def test_a_report_goes_where_reports_go(name, says, tmp_path):
    with pytest.raises(SpecError) as caught:
        write_page(Page("a", "b", (), ()), tmp_path / name)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_no_network_whatever_it_is_called() -> None:
    asked = {"seq": "1k", "global_batch": 8, "precision": "bf16"}
    for on in ("1xL4", "8xL4"):
        answer = plan("gpt2-medium", on=on, **asked)
        tile = next(t for t in answer.page().page_tiles if "network" in t.question)
        names = {f"twice the {level.name} bandwidth" for level in answer.system.levels}
        assert tile.answer.partition(":")[0] in names | {"Less than 0.2 % faster", "It has none"}


def test_one_plan_asked_for_is_not_the_only_one_that_fits(found) -> None:
    alone = replace(found, runners_up=())
    tile = next(t for t in alone.page().tiles if t.question == "Why this plan?")
    assert f"of {found.coverage.num_candidates:,} plans" in tile.answer or "simplest" in tile.answer


def test_the_bound_is_told_with_the_reason_why_a_slower_plan_leads(found) -> None:
    best = found.best
    fast = best.estimate.step_time_s / 1.04
    slower = replace(found, coverage=replace(found.coverage, lower_bound_s=fast))
    (space,) = (s for s in slower.page().sections if s.key == "space")
    assert "the plan is 4.0% behind that: simpler plans lead" in space.parts[0].text
