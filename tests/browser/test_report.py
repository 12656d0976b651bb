"""A report in a browser: it asks for nothing, draws all its charts, and everybody can read it."""

import time

import pytest

import meshwright as mw

MOST_CPU_S = 2.0


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


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("is_dark", [False, True])
def test_everybody_can_read_it_and_it_asks_for_nothing(page, report, width, is_dark):
    page.look(width, is_dark=is_dark)
    page.open(report)
    page.driver.execute_async_script("window.charts.then(() => arguments[0](), arguments[0])")
    charts, drawn = (
        page.does("return document.querySelectorAll(arguments[0]).length", selector)
        for selector in (".chart", ".chart:has(svg, canvas)")
    )
    assert charts == drawn > 4
    assert page.barriers() == []
    assert page.complaints() == []
