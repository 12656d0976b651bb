"""The report of a plan of serving: the numbers of the answer, and what starts it."""

from dataclasses import replace

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page, parts_of, values_of

from meshwright import serve
from meshwright.spec.model import ModelSpec
from meshwright.view.parts import Code, Folded

ASKED = {"on": "8xH100", "batch": 64}


@pytest.fixture(scope="module")
def found():
    return serve("llama3-8b", context="4k", max_latency="30 ms", framework="vllm", **ASKED)


def test_charts_hold_the_numbers_of_the_answer(found) -> None:
    page, price = found.page(), found.best.estimate
    check_page(page)
    shown = charts_of(page)
    times = values_of(shown["Time per output token"])
    assert sum(row["amount"] for row in times) == pytest.approx(1e3 * price.latency_s)
    memory = values_of(shown["Memory of the fullest device"])
    assert sum(row["amount"] for row in memory) * 2**30 == pytest.approx(price.memory_bytes)
    front = shown["Throughput against latency"]
    points = {(row["x"], row["y"]) for row in values_of(front)}
    best = pytest.approx((1e3 * price.latency_s, price.tokens_per_s_per_device))
    assert sum(point == best for point in points) == 1
    assert len(points) in (len(found.front.plans), len(found.front.plans) + 1)
    lines = [layer["encoding"]["x"]["datum"] for layer in front.spec["layer"] if "data" in layer]
    assert lines == [30.0]


def test_a_front_has_a_view_of_its_own(found) -> None:
    page = found.front.page()
    check_page(page)
    most = max(found.front.tokens_per_s_per_device)
    assert page.tiles[0].answer == f"{most:,.1f} tokens/s a device"
    points = values_of(charts_of(page)["Throughput against latency"])
    times_ms = sorted(1e3 * time_s for time_s in found.front.latency_s)
    assert sorted(row["x"] for row in points) == pytest.approx(times_ms)
    assert f"{most:,.1f} tokens/s a device" in repr(found.front)


def test_each_question_is_answered(found) -> None:
    asked = " ".join(tile.question for tile in found.page().tiles)
    for word in ("fit", "fast", "limits", "Why not", "twice the network", "launch", "sure", "cost"):
        assert word in asked


def test_gains_are_those_of_the_answer(found) -> None:
    ours_s = found.best.estimate.latency_s
    gains = {name: 1.0 - time_s / ours_s for name, time_s in found.doubled_latency_s.items()}
    shown = values_of(charts_of(found.page())["TPOT of the same plan on a better system"])
    assert {row["label"]: row["amount"] / 100 for row in shown} == pytest.approx(
        {name: gain for name, gain in gains.items() if gain > 0.002}
    )
    tiles = {tile.question: tile for tile in found.page().tiles}
    most = max(gains, key=gains.get)
    assert f"{most}, {gains[most]:.1%} faster" in tiles["What if it had twice the network?"].note


def test_errors_are_those_of_the_server(found) -> None:
    """The calibration of the catalog has rows of vLLM, which its fit left out in turn."""
    tiles = {tile.question: tile for tile in found.page().tiles}
    assert found.errors["vllm"].rows > 100
    assert tiles["How sure is it?"].answer == f"Median error {found.errors['vllm'].median:.1%}"
    assert "Constants of the cost model" in " ".join(
        part.summary for part in parts_of(found.page()) if isinstance(part, Folded)
    )


def test_a_plan_of_an_earlier_version_has_a_page(found) -> None:
    """Files of earlier versions hold no doubled times, constants and errors."""
    check_page(replace(found, doubled_latency_s={}, constants={}, errors={}).page())


def test_requests_show_both_times() -> None:
    both = serve("llama3-8b", prompt="1k", answer="256", **ASKED)
    page = both.page()
    check_page(page)
    points = values_of(charts_of(page)["Throughput against the time to the first token"])
    assert points[-1]["x"] == 1e3 * both.best.estimate.first_token_s


def test_prompts_have_a_page() -> None:
    page = serve("llama3-8b", on="8xH100", batch=8, prompt="1k").page()
    check_page(page)
    assert "Time to the first token" in charts_of(page)


def test_the_report_has_the_command_of_the_server(tmp_path) -> None:
    path = tmp_path / "serving.html"
    serve("llama3-8b", context="4k", framework="vllm", report=str(path), **ASKED)
    text = path.read_text("utf-8")
    assert "vllm serve" in text
    assert "--tensor-parallel-size" in text


def test_names_are_text(found) -> None:
    model = ModelSpec.model_validate(found.model.model_dump() | {"name": EVIL})
    check_names_are_text(found.page(), replace(found, model=model).page())


def test_files_that_are_given_are_shown(found) -> None:
    page = found.page(launch_files={"vllm.sh": "vllm serve"}, launch_command="export")
    assert Code("vllm serve", "vllm.sh") in list(parts_of(page))


def test_a_plan_without_a_ranking_still_leads_the_others(found) -> None:
    others = found.coverage.num_priced - found.num_too_slow - 1
    tiles = {tile.question: tile.answer for tile in replace(found, runners_up=()).page().tiles}
    assert tiles["Why not another plan?"] == f"It leads {others:,} others"
