"""The peak of the formulas, which is that of one moment, beside executed steps."""

from dataclasses import replace

import pytest

import meshwright as mw

pytest.importorskip("torch")

from meshwright.run.dry.run import run_stage

BATCH = {"mbs": 1, "seq": 2048}
DP = BATCH | {"dp": 16, "zero": 3, "global_batch": 16}
PP = BATCH | {"pp": 2, "dp": 8, "global_batch": 32}


@pytest.mark.parametrize(
    ("model", "options", "stage"),
    [
        ("llama3-70b", DP | {"recompute": "full", "global_batch": 32}, 0),
        ("llama3-8b", BATCH | {"tp": 4, "dp": 4, "zero": 3, "global_batch": 4}, 0),
        ("llama3-8b", PP | {"zero": 3, "schedule": "1f1b"}, 1),
        pytest.param("llama3-8b", DP, 0, marks=pytest.mark.slow),
        pytest.param("llama3-8b", DP | {"reshard": "off"}, 0, marks=pytest.mark.slow),
        pytest.param("llama3-8b", PP | {"tp": 2, "dp": 4, "zero": 2, "schedule": "1f1b"}, 0,
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_an_executed_step(model, options, stage):
    plan = mw.fit(model, on="16xB200", framework="fsdp", **options)
    few = plan.model.model_copy(update={"layer_pattern": plan.model.layer_pattern[:4]})
    ran = run_stage(replace(plan, model=few), stage)
    assert ran.predicted_bytes == pytest.approx(ran.peak_bytes, rel=0.02)
