"""Plans that are written and read back: the same plan at the same price."""

import pytest
from framework_questions import QUESTIONS, starts_at_all
from sampled import sampled

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.frameworks.deployment import served
from meshwright.frameworks.registry import export
from meshwright.train.writing import TARGETS


@pytest.mark.parametrize("question", sampled(QUESTIONS, 1), ids=lambda q: f"{q[0]}-{q[1]}")
@pytest.mark.parametrize("name", TARGETS)
def test_a_plan_comes_back_at_its_price(tmp_path, name, question):
    model, system, tokens, batch, rest = question
    asked = {"on": system, "seq": tokens, "global_batch": batch, "framework": name, **rest}
    if not starts_at_all(name, model, system, rest.get("precision", "bf16")):
        return
    try:
        plan = mw.plan(model, simulated=0, top=1, **asked)
    except InfeasibleError:
        return
    files = [str(path) for path in export(plan, TARGETS[name], tmp_path)]
    # Files start the devices that the plan uses, which may be fewer than there are.
    used = plan.best.estimate.num_devices_used
    on = system if used == plan.system.num_alive else f"{used}x{plan.system.chip.name}"
    beside = {"on": on, "seq": tokens} if name in ("accelerate", "deepspeed") else {"on": on}
    again = mw.estimate(model, from_=files, **beside).best
    assert again.text == plan.best.text
    assert again.estimate.step_time_s == pytest.approx(plan.best.estimate.step_time_s, rel=1e-9)
    assert again.estimate.memory_bytes == pytest.approx(plan.best.estimate.memory_bytes, rel=1e-9)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("server", ["vllm", "sglang", "tensorrt-llm", "tensorrt-llm-pytorch"])
def test_a_command_that_serves_comes_back_at_its_price(tmp_path, server, precision):
    target = server.removesuffix("-pytorch")
    asked = {"on": "8xH100", "batch": 64, "context": 8192}
    plan = mw.serve("llama3.1-8b", framework=server, precision=precision, **asked)
    path = tmp_path / "serve.sh"
    path.write_text(served(plan, target)[f"{target}.sh"])
    beside = {"precision": precision} if target == "tensorrt-llm" else {}  # of its checkpoint
    for again in (
        mw.estimate("llama3.1-8b", from_=[str(path)], on="8xH100", **beside).best,
        mw.estimate(from_=[str(path)], on="8xH100", set=["MODEL=llama3.1-8b"], **beside).best,
    ):
        assert again.text == plan.best.text
        assert again.estimate.latency_s == plan.best.estimate.latency_s
        assert again.estimate.memory_bytes == plan.best.estimate.memory_bytes


@pytest.mark.parametrize(
    "named",
    [
        {"kept_tensors": "query_proj+mlpwi"},
        {"offloaded_tensors": "decoder_layer_input+out_proj", "kept_tensors": "context"},
        {"offloaded_tensors": "mlpwo", "optimizer": "adam-bf16"},
    ],
)
def test_tensors_that_maxtext_keeps_come_back(tmp_path, named):
    plan = mw.estimate("llama3-8b", on="16xTPU-v6e", seq=8192, global_batch=32, zero=3,
                       framework="maxtext", **named)  # fmt: skip
    files = [str(path) for path in export(plan, TARGETS["maxtext"], tmp_path)]
    again = mw.estimate("llama3-8b", from_=files, on="16xTPU-v6e").best
    assert again.text == plan.best.text
    assert again.estimate.memory_bytes == pytest.approx(plan.best.estimate.memory_bytes, rel=1e-9)
