"""A batch that grows over the first sequences of a run: what it adds to days and money."""

import pytest

import meshwright as mw
from meshwright.frameworks.registry import rendered
from meshwright.spec.workload import BatchRamp

ASKED = {"on": "64xH100", "seq": 4096, "framework": "megatron", "tp": 2, "pp": 4, "mbs": 1}
BATCH, TOKENS = 512, 10e9


def run(**more):
    return mw.estimate("llama3-8b", **ASKED, **({"global_batch": BATCH, "tokens": TOKENS} | more))


def test_each_size_lasts_for_as_many_sequences():
    """By hand: 128, 256 and 384 sequences, 20,000 of each, in steps that were priced alone."""
    plain = run().best.estimate
    grown = run(batch_ramp="128,128,60000").best.estimate
    expected_s = sum(
        20000 / size * run(global_batch=size).best.estimate.step_time_s for size in (128, 256, 384)
    ) - 60000 / BATCH * plain.step_time_s  # fmt: skip
    assert grown.step_time_s == plain.step_time_s
    assert grown.ramp_s == pytest.approx(expected_s, rel=1e-9)
    assert grown.ramp_s > 0


def test_the_whole_run_takes_longer_by_it():
    plain, grown = run(), run(batch_ramp="128,128,60000")
    price = grown.best.estimate
    added_s = grown.run_s - plain.run_s
    assert added_s == pytest.approx(price.ramp_s / price.goodput_fraction, rel=1e-9)


def test_a_ramp_comes_from_a_script_and_goes_into_one(tmp_path):
    plan = run(batch_ramp="128,128,60000")
    (script,) = rendered(plan, "megatron").values()
    assert "--rampup-batch-size 128 128 60000" in script
    assert f"--train-samples {-(-TOKENS // 4096):.0f}" in script
    assert "--train-iters" not in script.partition("torchrun")[2]
    path = tmp_path / "train.sh"
    path.write_text(script, encoding="utf-8")
    again = mw.estimate("llama3-8b", from_=str(path), on="64xH100")
    assert again.workload.batch_ramp == plan.workload.batch_ramp
    assert again.best.estimate.ramp_s == pytest.approx(plan.best.estimate.ramp_s, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [("128,128", "three numbers"), ("128,100,600", "does not reach the batch 512"),
     ("512,16,600", "does not reach the batch 512"), ("0,16,600", "--with batch_ramp")],
)  # fmt: skip
def test_a_ramp_that_misses_the_batch_is_refused(text, message):
    with pytest.raises(mw.MeshwrightError, match=message):
        run(batch_ramp=text)


def test_a_ramp_reaches_the_batch_in_whole_increments():
    ramp = BatchRamp(start=16, increment=24, sequences=1000)
    assert list(ramp.sizes(64)) == [16, 40]
    assert ramp.misses(64) == ""
    assert ramp.misses(80) == "16 + n x 24 does not reach the batch 80"
    assert ramp.misses(16) != ""
    assert ramp.misses(8) != ""
