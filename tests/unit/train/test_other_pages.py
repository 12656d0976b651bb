"""Reports of a front, of a plan after a loss and of a run that is to end in time."""

from dataclasses import replace

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page, values_of

from meshwright.api import plan
from meshwright.spec.model import ModelSpec
from meshwright.train.plan_file import save

ASKED = {"on": "8xH100", "seq": "8k", "global_batch": 64}


@pytest.fixture(scope="module")
def front():
    return plan("llama3-8b", pareto=True, **ASKED)


@pytest.mark.slow
def test_charts_of_a_front_weigh_its_plans(front) -> None:
    page = front.page()
    check_page(page)
    prices = [entry.estimate for entry in front.candidates]
    unit = 1e6 if max(price.energy_j for price in prices) >= 1e6 else 1e3
    amounts = {"memory": [price.memory_bytes / 2**30 for price in prices],
               "energy": [price.energy_j / unit for price in prices],
               "money": [price.cost_usd for price in prices]}  # fmt: skip
    for name, expected in amounts.items():
        rows = values_of(charts_of(page)[f"Time against {name}"])
        points = {row["label"]: (row["x"], row["y"]) for row in rows}
        assert points == {
            entry.text: (entry.estimate.step_time_s, pytest.approx(amount))
            for entry, amount in zip(front.candidates, expected, strict=True)
        }


@pytest.mark.slow
def test_what_is_not_known_is_not_drawn(front) -> None:
    free = [
        replace(entry, estimate=replace(entry.estimate, cost_usd=None))
        for entry in front.candidates
    ]
    page = replace(front, candidates=tuple(free), left_out=("cost_usd",)).page()
    check_page(page)
    assert "Time against money" not in charts_of(page)


@pytest.mark.slow
def test_names_in_a_front_are_text(front) -> None:
    model = ModelSpec.model_validate(front.model.model_dump() | {"name": EVIL})
    check_names_are_text(front.page(), replace(front, model=model).page())


@pytest.mark.slow
def test_a_loss_leads_the_report_of_the_new_plan(tmp_path) -> None:
    path = tmp_path / "plan.json"
    save(plan("llama3-8b", **ASKED), path)
    found = plan(from_=[str(path)], without=4)
    page = found.page()
    check_page(page)
    assert page.sections[0].key == "loss"
    assert f"{found.throughput_fraction:.1%}" in page.tiles[0].answer
    assert len(page.tiles) == len(found.plan.page().tiles) + 1


def test_a_deadline_shows_the_runs_that_were_tried() -> None:
    found = plan(
        "llama3-8b", on="H100", seq="8k", global_batch=64, tokens="20B", within="4d",
        tp=1, pp=1, cp=1,
    )  # fmt: skip
    page = found.page()
    check_page(page)
    chart = charts_of(page)["The whole run, by number of devices"]
    days = {row["label"]: row["amount"] for row in values_of(chart)}
    assert days == {
        f"{one.num_devices:,} devices": pytest.approx(one.run_s / 86400)
        for one in found.tried
        if one.run_s is not None
    }
    lines = [layer["encoding"]["x"]["datum"] for layer in chart.spec["layer"] if "data" in layer]
    assert lines == [4.0]
    assert page.tiles[0].label == "IN TIME"
    assert page.tiles[0].mood == "good"
