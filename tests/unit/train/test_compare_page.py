"""The report of a comparison: the numbers of its recipes, as they are."""

from dataclasses import replace

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page, values_of

from meshwright import compare
from meshwright.spec.model import ModelSpec


@pytest.fixture(scope="module")
def found():
    return compare(
        "llama3-8b", on="8xH100", seq="8k", global_batch=64, against="megatron-1,fsdp"
    )  # fmt: skip


def test_bars_are_the_steps_of_the_recipes(found) -> None:
    page = found.page()
    check_page(page)
    times = charts_of(page)["Time of a step, by recipe"]
    for entry in found.entries:
        parts = [row["amount"] for row in values_of(times) if row["row"] == entry.recipe]
        assert sum(parts) == pytest.approx(entry.best.estimate.step_time_s)
    lines = [layer["encoding"]["x"]["datum"] for layer in times.spec["layer"] if "data" in layer]
    assert lines == [found.ours.best.estimate.step_time_s]
    spans = values_of(charts_of(page)["Intervals of the recipes"])
    ends = {row["label"]: (row["low"], row["high"]) for row in spans}
    assert ends == {entry.recipe: entry.best.estimate.interval_s for entry in found.entries}


def test_a_recipe_without_a_plan_says_why(found) -> None:
    ours, *others = found.entries
    none = replace(others[0], best=None, why_none="over memory by 3 GiB")
    page = replace(found, entries=(ours, none, *others[1:])).page()
    check_page(page)
    assert "over memory by 3 GiB" in str(page.sections)
    lost = replace(found, entries=(replace(ours, best=None, why_none="nothing fits"), *others))
    check_page(lost.page())


def test_names_are_text(found) -> None:
    model = ModelSpec.model_validate(found.model.model_dump() | {"name": EVIL})
    check_names_are_text(found.page(), replace(found, model=model).page())
