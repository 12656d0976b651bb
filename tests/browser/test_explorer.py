"""The explorer in a browser: load, change, search, brush, pin, hover, keep files."""

import math
import time
from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.action_chains import ActionChains

import meshwright as mw
from meshwright.spec.model import ModelSpec
from meshwright.train.plan_file import save

SMALL = {"model": "llama3-8b", "on": "8xH100", "seq": "8k", "global_batch": "64"}
PRICED = {"mode": "estimate", **SMALL, "zero": "3"}
EVIL = '<img src=x onerror="document.title=1"><b>is</b>'


def at(address: str, **state: str) -> str:
    return f"{address}&{urlencode(state)}"


def answer(page) -> str:
    """Return the first tiles as words, once they are there."""
    assert page.state() == "done", page.text("#faults")
    return page.text("#answer")


def test_it_opens_with_an_example_that_is_searched(page, address):
    page.open(address)
    assert "Does it fit?" in answer(page)
    assert page.text("h1") == "llama3-70b on 64xH100"
    page.front()
    assert "token" not in page.does("return location.href")
    assert page.does("return document.cookie") == ""
    page.driver.refresh()
    assert "Does it fit?" in answer(page)
    assert page.complaints() == []


def test_only_the_printed_address_lets_in_and_each_tab_for_itself(page, address):
    page.open(at(address, **PRICED))
    answer(page)
    page.driver.switch_to.new_window("tab")
    try:
        page.open(address.partition("#")[0])
        assert page.state() == "failed"
        assert "open the address that meshwright explore printed" in page.text("#status")
        page.does("location.href = arguments[0]", at(address, **PRICED))
        page.until("document.body.dataset.state === 'done'")
        assert page.text("h1") == "llama3-8b on 8xH100"
    finally:
        page.driver.close()
        page.driver.switch_to.window(page.driver.window_handles[0])


def test_a_change_is_priced_at_once_and_the_address_keeps_it(page, address):
    page.open(at(address, **PRICED))
    before = answer(page)
    page.set("recompute", "full")
    after = answer(page)
    assert before != after
    assert "recompute=full" in after
    kept = page.does("return location.href")
    assert "recompute=full" in kept
    page.open(kept)
    assert answer(page).partition("Warning")[0] == after.partition("Warning")[0]
    assert page.complaints() == []


def test_what_is_not_stated_is_shown_in_its_field(page, address):
    page.open(at(address, **PRICED))
    answer(page)
    assert page.one("#option-dp").get_attribute("placeholder") == "8"


def test_a_fault_names_its_field_and_the_fix(page, address):
    page.open(at(address, **PRICED))
    answer(page)
    page.set("model", "llama3-8bb")
    assert page.state() == "failed"
    assert "llama3-8b" in page.text("#faults")
    page.set("model", "llama3-8b")
    answer(page)
    page.set("tp", "x")
    assert page.state() == "failed"
    assert page.one("#option-tp").get_attribute("aria-invalid") == "true"
    page.set("tp", "2")
    answer(page)
    assert not page.one("#faults").is_displayed()
    assert page.complaints() == []


def test_a_new_question_ends_the_search_before_it(page, address):
    page.open(at(address, mode="search", model="deepseek-v3", on="512xH800", seq="4k",
                 global_batch="1024"))  # fmt: skip
    page.until("document.body.dataset.state === 'busy'")
    page.does("location.hash = arguments[0]", urlencode({**PRICED, "global_batch": "128"}))
    assert "zero3" in answer(page)
    assert page.text("h1") == "llama3-8b on 8xH100"
    time.sleep(0.5)
    assert page.text("h1") == "llama3-8b on 8xH100"
    assert page.complaints() == []


def test_a_search_can_be_stopped_with_the_best_so_far(page, address):
    page.open(at(address, mode="search", model="deepseek-v3", on="4096xH800", seq="4k",
                 global_batch="15360"))  # fmt: skip
    page.until("/plans covered, best \\d/.test(document.getElementById('status').textContent)")
    page.press("#stop")
    assert "interrupted" in answer(page)
    assert not page.one("#stop").is_displayed()
    assert page.complaints() == []


def test_brushing_the_pareto_chart_lists_the_plans_behind_it(page, address):
    page.open(at(address, mode="search", **SMALL))
    answer(page)
    page.front()
    everything = len(page.does("return document.querySelectorAll('#front-plans tbody tr')"))
    page.drag("#front-chart .drawn svg", (0.12, 0.3), (0.5, 0.8))
    page.until("!/^(\\d+) of \\1 /.test(document.getElementById('brushed').textContent)")
    inside = page.does("return document.querySelectorAll('#front-plans tbody tr').length")
    assert 0 < inside < everything
    page.press("#front-plans tbody tr:first-child button")
    chosen = page.text("#front-plans tbody tr:first-child td")
    assert chosen in answer(page)
    assert page.does("return document.forms.question.elements.mode.value") == "estimate"
    assert page.complaints() == []


def test_two_pinned_plans_stand_side_by_side_and_in_the_address(page, address):
    page.open(at(address, **PRICED))
    answer(page)
    page.press("#pin")
    page.set("recompute", "full")
    answer(page)
    page.press("#pin")
    page.until("document.querySelectorAll('#beside .chart svg').length === 2")
    assert "recompute=full" in page.text("#beside table")
    page.open(page.does("return location.href"))
    page.until("document.querySelectorAll('#beside .chart svg').length === 2")
    page.press("#pinned li:first-child button:last-child")
    page.until("!document.querySelector('#beside table')")
    assert page.does("return document.querySelectorAll('#pinned li').length") == 1
    assert page.complaints() == []


def test_the_mouse_over_a_link_tells_what_it_carries(page, address):
    page.open(at(address, mode="estimate", model="llama3-8b", on="wafer-4x4", seq="4k",
                 global_batch="64", tp="4", dp="4"))  # fmt: skip
    answer(page)
    page.until("document.querySelector('#map .mark-symbol.role-mark path')")
    busy = page.does(
        "return [...document.querySelectorAll('#map .mark-symbol.role-mark path')].at(-1)"
    )
    ActionChains(page.driver).move_to_element(page.reach(busy)).perform()
    page.until(
        "/^\\d+ to \\d+: .*tp/.test(document.getElementById('vg-tooltip-element')?.textContent)"
    )
    assert page.complaints() == []


def test_files_can_be_kept(page, address, downloads):
    page.open(at(address, **PRICED))
    answer(page)
    page.set("framework", "fsdp")
    answer(page)
    for button, name in (("json", "plan.json"), ("report", "plan.html"), ("export", "torch.zip")):
        page.press(f"#{button}")
        end = time.monotonic() + 60
        while not (downloads / name).exists():
            assert time.monotonic() < end, f"{name}: {page.text('#faults')}"
            time.sleep(0.05)
    assert mw.load(downloads / "plan.json").best.text in answer(page)
    assert (downloads / "plan.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert page.complaints() == []


def test_a_plan_is_run_dry_and_the_line_goes_with_the_plan(page, address):
    page.open(at(address, **PRICED, framework="fsdp"))
    answer(page)
    page.press("#verify")
    page.until("document.getElementById('verify').disabled === false")
    told = page.text("#verified")
    assert told.startswith("started in a dry run of PyTorch 2.") or "meshwright[run]" in told
    page.set("mbs", "2")
    answer(page)
    assert page.text("#verified") == ""


def test_names_are_words_whatever_they_look_like(page, explore, tmp_path):
    plan = mw.estimate(**SMALL, zero=3)
    model = ModelSpec.model_validate(plan.model.model_dump() | {"name": EVIL})
    save(type(plan)(**{**vars(plan), "model": model}), tmp_path / "plan.json")
    page.open(explore(str(tmp_path / "plan.json")))
    answer(page)
    assert page.text("h1") == f"{EVIL} on 8xH100"
    page.press("#pin")
    page.set("recompute", "full")
    answer(page)
    page.press("#pin")
    page.until("document.querySelectorAll('#beside .chart svg').length === 2")
    assert EVIL in page.text("#pinned")
    assert EVIL in page.text("#beside table")
    page.set("model", "<img src=x>")
    assert page.state() == "failed"
    assert "<img src=x>" in page.text("#faults")
    assert page.does("return document.querySelectorAll('img, b').length") == 0
    assert page.complaints() == []


CHANGES = [
    *(("tp", value) for value in ("2", "4", "2", "1")),
    *(("mbs", value) for value in ("2", "4", "1")),
    *(("recompute", value) for value in ("selective", "full", "none")),
    *(("zero", value) for value in ("1", "2", "3")),
    *(("seq", value) for value in ("4k", "16k", "8k")),
    *(("global_batch", value) for value in ("128", "256", "64")),
    *(("pp", value) for value in ("2", "4", "1")),
    *(("precision", value) for value in ("fp8", "bf16")),
    *(("offload", value) for value in ("optimizer", "none")),
    *(("on", value) for value in ("16xH100", "64xH200", "8xH100")),
    *(("model", value) for value in ("qwen2.5-7b", "mistral-7b", "llama3-8b")),
    ("dropout", "on"),
    ("dropout", "off"),
    ("rent", "2.5 USD/h"),
]


def test_forty_interactions_without_a_fault(page, address, pytestconfig, capsys):
    page.open(at(address, **PRICED))
    answer(page)
    page.does("performance.clearMeasures(); performance.clearResourceTimings()")
    done = 0
    for name, value in CHANGES:
        page.set(name, value)
        answer(page)
        done += 1
    times = page.does("return performance.getEntriesByName('estimate').map((e) => e.duration)")
    spent = page.does(
        "return performance.getEntriesByType('resource')"
        ".filter((e) => e.name.endsWith('/api/estimate'))"
        ".map((e) => Object.fromEntries(e.serverTiming.map((t) => [t.name, t.duration])))"
    )
    for step in ("#pin", "#edit"):
        page.press(step)
        done += 1
    page.press("input[value=search]")
    answer(page)
    page.front()
    page.press("#front-plans tbody tr:last-child button")
    answer(page)
    page.press("#pin")
    page.until("document.querySelectorAll('#beside .chart svg').length === 2")
    done += 3
    assert done >= 40
    assert page.complaints() == []
    assert len(times) >= len(CHANGES)
    cpu = p95([entry["cpu"] for entry in spent])
    with capsys.disabled():
        pytestconfig.pluginmanager.get_plugin("terminalreporter").write_line(
            f"\n{done} interactions; p95 of an estimate: {cpu:.0f} ms of CPU, "
            f"{p95([entry['total'] for entry in spent]):.0f} ms in the server, "
            f"{p95(times):.0f} ms until drawn"
        )


def p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (400, True)])
def test_everybody_can_read_and_reach_it(page, address, width, is_dark):
    page.look(width, is_dark=is_dark)
    page.open(at(address, mode="search", **SMALL, pin=urlencode({**SMALL, "zero": "3"})))
    answer(page)
    page.front()
    assert page.barriers() == []
    overflow = page.does("return document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0
    page.set("tp", "x")
    assert page.state() == "failed"
    assert page.barriers() == []


def test_a_map_can_be_read_and_reached(page, address):
    page.open(at(address, mode="estimate", model="llama3-8b", on="wafer-4x4", seq="4k",
                 global_batch="64", tp="4", dp="4"))  # fmt: skip
    answer(page)
    page.until("document.querySelector('#map .mark-symbol.role-mark path')")
    assert page.barriers() == []


def test_a_place_on_the_page_is_no_question(page, address):
    page.open(at(address, **PRICED))
    answer(page)
    page.does("location.hash = 'result'")
    page.until("location.hash.includes('zero=3')")
    assert "zero3" in answer(page)
