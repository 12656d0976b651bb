"""Reports in a browser: they ask for nothing, draw all charts, and everybody can read them."""

import time

import pytest
from sampled import sampled

import meshwright as mw

MOST_CPU_S = 2.0
SMALL = {"on": "8xH100", "seq": "8k", "global_batch": 64}
ANSWERS = {
    "front": lambda path: mw.plan("llama3-8b", **SMALL, pareto=True, report=path),
    "comparison": lambda path: mw.compare("llama3-8b", **SMALL, report=path),
    "explanation": lambda path: mw.explain("llama3-8b", **SMALL, zero=3, report=path),
    "serving": lambda path: mw.plan(
        "llama3-8b", on="8xH100", context="4k", batch=64, report=path
    ),
    "grid": lambda path: mw.estimate(
        "llama3-8b", on="wafer-4x4", seq="4k", global_batch=64, tp=4, dp=4, report=path
    ),
    "partition": lambda path: mw.partition(
        "llama3-8b", on="64xGroq-LPU", seq="2k", report=path
    ),
    "fusion": lambda path: mw.fuse("llama3-8b", on="SN10", tokens="2k", report=path),
}  # fmt: skip


def check(page, address: str) -> int:
    """Return the number of charts of a report that anybody can read."""
    page.open(address)
    page.driver.execute_async_script(
        "Promise.resolve(window.charts).then(() => arguments[0](), arguments[0])"
    )
    charts, drawn = (
        page.does("return document.querySelectorAll(arguments[0]).length", selector)
        for selector in (".chart", ".chart:has(svg, canvas)")
    )
    assert charts == drawn
    assert page.barriers() == []
    assert page.complaints() == []
    return charts


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return the address of the report of a plan for 512 GPUs."""
    found = mw.plan("llama3-70b", on="512xH100", seq="8k", global_batch=1024, framework="megatron")
    path = tmp_path_factory.mktemp("report") / "plan.html"
    found.report(path)
    started = time.process_time()
    found.report(path, force=True)
    assert time.process_time() - started <= MOST_CPU_S
    return path.as_uri()


@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (400, True)])
def test_a_plan_for_512_devices(page, report, width, is_dark):
    page.look(width, is_dark=is_dark)
    assert check(page, report) > 4


@pytest.mark.parametrize("kind", sampled(ANSWERS, 1))
def test_every_kind_of_answer(page, kind, tmp_path):
    path = tmp_path / "report.html"
    ANSWERS[kind](str(path))
    check(page, path.as_uri())
