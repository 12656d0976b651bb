"""The report of prefill and decode apart: its numbers, its verdict, its launch files."""

import pytest
from report_pages import charts_of, check_page

from meshwright import serve


@pytest.fixture(scope="module")
def found():
    return serve(
        "llama3-8b", on="8xH100", disaggregated=True, batch=64,
        prompt="2k", answer=256, max_ttft="500ms", max_tpot="40ms", framework="vllm",
    )  # fmt: skip


def test_numbers_are_those_of_the_answer(found):
    page, best = found.page(), found.best
    check_page(page)
    first = charts_of(page)["Time to the first token"].spec["data"]["values"]
    assert sum(row["amount"] for row in first) == pytest.approx(1e3 * best.first_token_s)
    each = charts_of(page)["Memory of a device of decode"].spec["data"]["values"]
    used = best.decode.worker.estimate.memory_bytes
    assert sum(row["amount"] for row in each) * 2**30 == pytest.approx(used)


def test_the_report_names_the_scripts_of_both_kinds(found, tmp_path):
    path = tmp_path / "apart.html"
    serve("llama3-8b", on="8xH100", disaggregated=True, batch=64, prompt="2k", answer=256,
          max_ttft="500ms", framework="vllm", report=str(path))  # fmt: skip
    text = path.read_text("utf-8")
    assert "vllm-prefill.sh" in text
    assert "vllm-decode.sh" in text
