"""The report of a plan on a wafer: where it runs, and which links carry most."""

import pytest
from report_pages import charts_of, check_page, values_of

from meshwright.api import beside, plan


@pytest.mark.parametrize(
    "asked",
    [{"on": "wafer-2x4", "global_batch": 8, "mbs": 1, "tp": 1, "recompute": "none"},
     pytest.param({"on": "wafer-4x8", "global_batch": 32, "mbs": 4}, marks=pytest.mark.slow)],
    ids=lambda asked: asked["on"],
)  # fmt: skip
def test_a_plan_on_a_wafer_has_its_map_and_its_links(tmp_path, asked) -> None:
    path = tmp_path / "wafer.html"
    found = plan(
        "gpt2-medium", seq=1024, pp=1, cp=1,
        simulated=1, report=str(path), **asked,
    )  # fmt: skip
    assert "Devices, groups and load of links" in path.read_text("utf-8")
    placement, price = found.best.placement, found.best.estimate
    page = found.page(**beside(found))
    check_page(page)
    assert "Devices, groups and load of links" in charts_of(page)
    assert "where" in {tile.section for tile in page.tiles}
    steps = [row["amount"] for row in values_of(charts_of(page)["Time of a step, by fidelity"])]
    expected_s = [placement.closed_form_s, price.step_time_s, found.best.simulated_s]
    assert steps == pytest.approx([1e3 * step_s for step_s in expected_s])  # an axis in ms
    rows = values_of(charts_of(page)["The hottest links"])
    names = list(dict.fromkeys(row["row"] for row in rows))
    for name, link in zip(names, placement.hottest_links, strict=True):
        parts = [row["amount"] for row in rows if row["row"] == name]
        assert sum(parts) == pytest.approx(1e6 * sum(link.by_axis_s.values()))  # in us


def test_a_plan_off_grids_has_no_map() -> None:
    page = plan("llama3-8b", on="8xH100", seq="8k", global_batch=64, tp=1, pp=1, cp=1).page()
    assert "where" not in {section.key for section in page.sections}
