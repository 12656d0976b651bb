"""Switches of the framework that is named: a searched plan has all on that never cost."""

import random
from itertools import product

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.frameworks import framework_names, load_framework
from meshwright.frameworks.registry import export
from meshwright.train.price import candidate
from meshwright.train.question import check_problem, make_problem, stated_strategy, switched_on
from meshwright.train.question import training as training_of
from meshwright.train.writing import TARGETS

pytestmark = pytest.mark.usefixtures("kept_answers")

QUESTION = {"on": "8xH100", "seq": 8192, "global_batch": 64}
SWITCHED = [
    name
    for name in framework_names()
    if load_framework(name).launches.switches.model_dump(exclude_none=True)
]


def test_frameworks_state_their_switches():
    assert SWITCHED == ["accelerate", "megatron", "torchtitan"]


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("name", SWITCHED)
def test_no_strategy_is_slower_or_larger_with_a_switch(name, model):
    """Why they need not multiply the space: the law that ``Switches`` states."""
    draw, compared = random.Random(f"{name} {model}"), 0
    work = training_of("16xH100", global_batch_size=64, sequence_length=4096, framework=name)
    off = make_problem(model, "16xH100", work, "calibrated")
    on = make_problem(model, "16xH100", switched_on(work), "calibrated")
    for _ in range(15):
        asked = {"tp": draw.choice((1, 2, 4)), "pp": draw.choice((1, 2)),
                 "micro_batch_size": draw.choice((1, 2)),
                 "zero_stage": draw.choice((0, 1, 2, 3))}  # fmt: skip
        plans = [stated_strategy(asked, off.model, 16, p.workload.software) for p in (off, on)]
        if any(check_problem(p, *plan) for p, plan in zip((off, on), plans, strict=True)):
            continue
        before, after = (
            candidate(p, *plan).estimate for p, plan in zip((off, on), plans, strict=True)
        )
        compared += 1
        assert after.step_time_s <= before.step_time_s * (1 + 1e-12), (asked, plans)
        assert after.memory_bytes <= before.memory_bytes * (1 + 1e-12), (asked, plans)
    assert compared >= 3


def test_no_stated_switches_are_faster_than_those_of_the_search():
    asked = QUESTION | {"framework": "torchtitan", "fastest": True, "pp": 1, "cp": 1, "zero": 3}
    free = mw.plan("llama3-8b", **asked)
    assert free.workload.software.compiled
    assert free.workload.software.loss == "compiled"
    for parts in product(("compile", ""), ("loss", ""), ("async_tp", "")):
        named = "+".join(filter(None, parts)) or "none"
        if parts[2] and not parts[0]:
            continue  # refused: below
        fixed = mw.plan("llama3-8b", **asked, switches=named)
        assert free.best.estimate.step_time_s <= fixed.best.estimate.step_time_s, named
        assert fixed.workload.software.compiled == bool(parts[0])


def test_overlap_needs_the_compiler_of_torchtitan():
    """Source: pytorch/torchtitan, ``distributed/tensor_parallel.py``, ``maybe_enable_async_tp``."""
    with pytest.raises(SpecError, match="in compiled models only"):
        mw.plan("llama3-8b", **QUESTION, framework="torchtitan", switches="async_tp")
    with pytest.raises(SpecError, match="foo"):
        mw.plan("llama3-8b", **QUESTION, framework="torchtitan", switches="compile+foo")
    plan = mw.estimate("llama3-8b", **QUESTION, framework="torchtitan", tp=8, async_tp=True)
    assert plan.workload.software.compiled


def test_without_a_framework_nothing_is_on():
    software = mw.plan("llama3-8b", **QUESTION, pp=1, cp=1).workload.software
    on = [software.compiled, software.cuda_graphs, software.async_tensor_parallel]
    assert not any(on)


def test_the_screen_says_what_is_on(capsys, monkeypatch):
    from meshwright.cli.main import main

    monkeypatch.setenv("COLUMNS", "100")
    words = ["llama3-70b", "--on", "64xH100", "--seq", "8k", "--global-batch", "512", "--tp", "8"]
    assert main(["plan", *words, "--framework", "megatron"]) == 0
    assert "with megatron==0.19.2, as asked, async TP on" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["none", "compile", "loss", "compile+async_tp"])
def test_stated_switches_come_back_from_the_export(tmp_path, named):
    asked = QUESTION | {"framework": "torchtitan", "switches": named, "tp": 4}
    plan = mw.estimate("llama3-8b", **asked)
    files = [str(path) for path in export(plan, TARGETS["torchtitan"], tmp_path)]
    again = mw.estimate("llama3-8b", from_=files, on="8xH100").best.estimate
    assert again.step_time_s == plan.best.estimate.step_time_s
    assert again.memory_bytes == plan.best.estimate.memory_bytes
