"""Plan files of serving of earlier versions are read as the same plan."""

import pytest

import meshwright as mw
from meshwright.serve.answer import DISAGGREGATED_FILE, SERVING_FILE

LLAMA = {"model": "llama3.2-1b", "on": "2xH100"}


@pytest.mark.parametrize(
    ("file", "asked"),
    [
        (SERVING_FILE, {"batch": 4, "context": 1024}),
        (
            DISAGGREGATED_FILE,
            {"disaggregated": True, "batch": 4, "prompt": 512, "answer": 64, "max_ttft": 2},
        ),
    ],
)
def test_a_structure_of_a_worker_is_its_plan_options(file, asked):
    plan = mw.serve(**LLAMA | asked)
    text = file.to_json(plan)
    older = text.replace('"plan_options"', '"structure"')
    assert older != text
    assert file.from_json(older) == file.from_json(text)
