"""A plan launches with a framework that has the memory for it; each one has its own price."""

import json

import pytest
from sampled import sampled

import meshwright as mw
from meshwright.cli.main import main
from meshwright.cost.problem import Problem
from meshwright.frameworks.registry import memory_warning, rendered
from meshwright.train.price import plan_under
from meshwright.train.question import under
from meshwright.view.media import text_of

QUESTION = {"on": "64xH100", "seq": 8192, "global_batch": 128}
STAGES = {"tp": 2, "pp": 8, "cp": 4, "zero": 1, "sp": "on", "recompute": "none"}
GIB = 2.0**30


@pytest.fixture(scope="module")
def plan():
    """Llama 3 70B in eight stages, 128 micro-batches: Megatron holds it, PyTorch does not."""
    return mw.estimate("llama3-70b", **QUESTION, **STAGES)


def under_name(plan, name):
    return next(entry for entry in plan.best.frameworks if entry.framework == name)


def needed_gib(plan):
    """Return the memory that fsdp needs, as screens show it."""
    return f"{under_name(plan, 'fsdp').memory_bytes / GIB:.1f}"


def needed(plan):
    return f"needs {needed_gib(plan)} GiB of 80.0 GiB"


def test_receive_buffers_of_pytorch_count_where_pytorch_would_start_it(plan):
    """By hand: 128 micro-batches x 8192/(2 x 4) tokens x 8192 words of 2 bytes are 2 GiB a side.

    Middle stages receive on both sides; the first one, which is the fullest, on one.
    """
    fsdp = mw.estimate("llama3-70b", framework="fsdp", **QUESTION, **STAGES).best.estimate
    buffers = 128 * 8192 / (2 * 4) * 8192 * 2
    assert buffers == 2 * GIB
    assert fsdp.memory_bytes - plan.best.estimate.memory_bytes > buffers
    entry = under_name(plan, "fsdp")
    assert (entry.step_time_s, entry.memory_bytes) == (fsdp.step_time_s, fsdp.memory_bytes)
    assert not fsdp.fits
    assert entry.why_not == needed(plan)
    assert not entry.launches
    assert "fsdp" not in plan.best.launches_with
    assert "megatron" in plan.best.launches_with


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("llama3-70b", {}),
        ("llama3-70b", {"dp": 64, "zero": 3}),
        ("mixtral-8x7b", {"ep": 8, "pp": 4}),
    ],
)
def test_parts_that_frameworks_share_are_those_of_each(monkeypatch, model, strategy):
    """A layer, a network or a link that is priced once equals the one that each prices alone."""
    shared = mw.estimate(model, **QUESTION, **(strategy or STAGES)).best
    monkeypatch.setattr(Problem, "sharing", lambda problem: problem)
    assert mw.estimate(model, **QUESTION, **(strategy or STAGES)).best == shared
    assert sum(entry.step_time_s is not None for entry in shared.frameworks) > 2


def test_rules_come_before_prices(plan):
    entry = under_name(plan, "llm-foundry")
    assert entry.why_not == "llm-foundry has no tensor parallelism: tp 2 [launch-tp]"
    assert entry.step_time_s is entry.memory_bytes is None


def test_the_screen_says_both(plan, capsys):
    said = " ".join(text_of(plan.page()).split())
    assert "launches with megatron-bridge" in said
    assert f"not with fsdp ({needed(plan)})" in said
    assert "llm-foundry" not in said


def test_an_export_tells_what_it_needs(plan, tmp_path, capsys):
    """The files have the price of their framework, and a warning where the device is too small."""
    file = tmp_path / "plan.json"
    mw.estimate("llama3-70b", out=str(file), **QUESTION, **STAGES)
    for target, is_large in (("torch", True), ("megatron", False)):
        out = str(tmp_path / target)
        assert main(["export", str(file), target, "--out", out, "--json"]) == 0
        printed = capsys.readouterr()
        warning = json.loads(printed.out)["warning"]
        assert (f"does not fit under fsdp==2.13, {needed(plan)}" in warning) == is_large
        assert (warning in printed.err) == is_large or not warning
    assert memory_warning(plan, "megatron") == ""
    (script,) = rendered(plan, "torch").values()
    assert f"{needed_gib(plan)} GiB on the fullest device" in script
    assert f"# warning: does not fit, {needed(plan)}" in script


def test_what_is_stated_stays_and_what_is_usual_changes(plan):
    """FSDP keeps 16 bytes a parameter, unless another optimizer is stated."""
    assert plan.workload.optimizer.name == "megatron-adam"
    assert plan_under(plan, "fsdp").workload.optimizer.name == "fsdp-mixed"
    stated = mw.estimate("llama3-70b", optimizer="megatron-adam", **QUESTION, **STAGES)
    assert plan_under(stated, "fsdp").workload.optimizer.name == "megatron-adam"
    assert plan_under(stated, "fsdp").workload.software.eager
    shorter = mw.estimate("llama3-70b", gradient_dtype="bf16", **QUESTION, **STAGES)
    preset = under(shorter.problem, "fsdp").workload.optimizer
    assert preset.name == "fsdp-mixed, bf16 gradients"
    assert preset.gradient_bytes_per_param == 2


def test_a_plan_that_was_asked_for_a_framework_stays_as_it_is():
    found = mw.estimate("llama3-70b", framework="fsdp", **QUESTION, **STAGES)
    assert plan_under(found, "fsdp") is found
    entry = under_name(found, "fsdp")
    assert (entry.step_time_s, entry.memory_bytes) == (
        found.best.estimate.step_time_s, found.best.estimate.memory_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("model", sampled(["llama3-8b", "llama3-70b"], 1))
def test_what_leads_has_the_memory_of_each_framework_that_it_names(model):
    found = mw.plan(model, on="8xH200", seq=4096, global_batch=16)
    assert found.best.launches_with
    for entry in (found.best, *found.runners_up):
        for one in entry.frameworks:
            assert not one.launches or one.memory_bytes <= entry.estimate.memory_capacity_bytes


def test_weights_that_sum_whole_gradients_are_searched():
    """ZeRO 1 of Megatron-DeepSpeed in BF16 needs all-reduces beside the other collectives."""
    found = mw.plan("llama3.2-1b", on="8xH100", seq=2048, global_batch=64, zero=1, cp=1,
                    framework="megatron-deepspeed")  # fmt: skip
    priced = mw.estimate("llama3.2-1b", on="8xH100", seq=2048, global_batch=64,
                         framework="megatron-deepspeed", zero=1, cp=1,
                         tp=int(found.best.strategy.tp), pp=int(found.best.strategy.pp),
                         mbs=int(found.best.strategy.micro_batch_size))  # fmt: skip
    assert found.best.strategy.dp > 1
    assert found.fastest_s <= priced.best.estimate.step_time_s * (1 + 1e-9)
