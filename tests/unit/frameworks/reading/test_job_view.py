"""The view of a job: its question, each statement once, what has to be stated beside the files."""

from pathlib import Path

import pytest
from report_pages import check_page

from meshwright.catalog.answer_file import plain_data
from meshwright.frameworks.reading.files import read_job
from meshwright.view.terminal import text_of

FOLDER = Path(__file__).parents[3] / "data" / "jobs"


@pytest.fixture(params=["megatron_llama3_70b.sh", "ds_zero3_auto.json", "kserve_two_nodes.yaml"])
def job(request):
    return read_job([str(FOLDER / request.param)])


def test_every_statement_is_in_the_page_once(job):
    page = job.page()
    check_page(page)
    rows = {section.key: section.parts[0].rows for section in page.sections
            if section.key in ("read", "ignored")}  # fmt: skip
    assert rows.get("read", []) == [(str(one), one.place) for one in job.read]
    assert rows.get("ignored", []) == [(str(one), one.place) for one in job.ignored]
    text = text_of(page)
    assert len(text.splitlines()) <= 24
    assert all(option.path in text for option in job.missing)


def test_data_hold_the_same_by_the_names_of_json(job):
    data = plain_data(job)
    assert set(data) == {"framework", "kind", "model", "devices", "options", "read", "ignored",
                         "missing", "notes"}  # fmt: skip
    assert data["devices"] == {"hosts": job.devices.num_hosts, "all": job.devices.count,
                               "chip": job.devices.chip}  # fmt: skip
    assert [entry["option"] for entry in data["missing"]] == [one.path for one in job.missing]
    assert len(data["read"]) == len(job.read) == len(job.rows()) - len(job.ignored)
    assert "model" not in data["options"]
