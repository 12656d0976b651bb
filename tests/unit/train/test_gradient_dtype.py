"""The type of gradients: its bytes in memory and on the wire, and its option in files."""

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.workloads import load_optimizer

ASKED = {"on": "8xH100", "seq": 4096, "global_batch": 64, "tp": 2}


def test_the_preset_is_that_of_two_bytes():
    """30 bytes of traffic less the two that the update no longer reads."""
    narrow = load_optimizer("megatron-adam").with_gradients("bf16")
    assert narrow.gradient_bytes_per_param == narrow.reduced_gradient_bytes_per_param == 2.0
    assert narrow.step_traffic_bytes_per_param == 28.0
    assert narrow.state_bytes_per_param == 12.0
    wide = narrow.with_gradients("fp32")
    assert wide.step_traffic_bytes_per_param == 30.0
    assert wide.with_gradients("fp32") is wide


def test_gradients_take_half_of_the_memory_and_a_step_is_as_with_the_preset():
    wide, narrow = (mw.estimate("llama3-8b", **ASKED, gradient_dtype=t) for t in ("fp32", "bf16"))
    held = [plan.best.estimate.memory_parts_bytes["gradients_bytes"] for plan in (wide, narrow)]
    assert held[0] == pytest.approx(2 * held[1])
    # 8,030,261,248 parameters over tp 2, at four bytes
    assert held[0] == pytest.approx(8_030_261_248 / 2 * 4, rel=1e-3)
    preset = mw.estimate("llama3-8b", **ASKED, optimizer="megatron-adam-bf16-gradients")
    assert narrow.best.estimate.step_time_s == preset.best.estimate.step_time_s
    assert narrow.best.estimate.step_time_s < wide.best.estimate.step_time_s


def test_megatron_is_told_and_its_file_read_back(tmp_path):
    plan = mw.estimate("llama3-8b", **ASKED, framework="megatron", gradient_dtype="bf16")
    script = mw.export(plan, "megatron", print=True)["pretrain_gpt.sh"]
    assert "--grad-reduce-in-bf16" in script
    (tmp_path / "megatron.sh").write_text(script)
    again = mw.estimate(str(tmp_path / "megatron.sh"), on="8xH100")
    assert again.workload.optimizer.gradient_bytes_per_param == 2.0
    assert again.best.estimate.memory_bytes == plan.best.estimate.memory_bytes


def test_adapters_have_gradients_of_their_own():
    with pytest.raises(SpecError, match="gradient_dtype: adapters trains adapters only"):
        mw.estimate("llama3-8b", **ASKED, optimizer="adapters", gradient_dtype="bf16")
