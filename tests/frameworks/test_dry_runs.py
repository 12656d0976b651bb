"""Frameworks themselves on fake ranks and tensors: what they send is what is derived."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("torchtitan")
import meshwright as mw
from meshwright.run.dry.run import dry_run

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_hidden_layers": 4, "vocab_size": 1024, "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_torchtitan_starts_and_sends_what_is_derived(model, recompute):
    plan = mw.fit(model, on="8xH100", framework="torchtitan", tp=2, dp=4, zero=3, mbs=1, seq=128,
                  global_batch=4, recompute=recompute)  # fmt: skip
    found = dry_run(plan)
    assert found.program.startswith("torchtitan 0.3")
    sent = found.stages[0].sent
    assert len(sent) >= 9
    assert all(m.is_equal for m in sent), sent


@pytest.mark.filterwarnings("ignore")
def test_replicas_of_torchtitan_sum_in_each_micro_batch(model):
    plan = mw.fit(model, on="8xH100", framework="torchtitan", dp=8, dp_shard=4, zero=3, mbs=1,
                  seq=128, global_batch=24, recompute="none")  # fmt: skip
    sent = {(m.kind, m.axis): m for m in dry_run(plan).stages[0].sent}
    assert all(m.is_equal for m in sent.values()), sent
    scattered = sent["reduce_scatter", "dp_shard"].sent_bytes
    assert sent["all_reduce", "dp_replicate"].sent_bytes == scattered / 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_pipelines_of_torchtitan_send_what_is_derived(model, schedule):
    plan = mw.fit(model, on="8xH100", framework="torchtitan", tp=2, pp=2, dp=2, zero=2, mbs=1,
                  seq=128, global_batch=8, recompute="none", schedule=schedule,
                  vpp=2 if schedule == "interleaved" else 1)  # fmt: skip
    found = dry_run(plan)
    assert found.program.startswith("torchtitan 0.3")
    assert [len(stage.layers) for stage in found.stages] == [2, 2]
    first = {(m.kind, m.axis, m.phase): m for m in found.stages[0].sent}
    sent = [m for m in first.values() if m.kind != "all_reduce"]
    assert {m.axis for m in sent} == {"tp", "pp", "dp_shard"}
    assert all(m.is_equal for m in sent), sent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("recompute", "phases"), [("none", 2), ("full", 3)])
def test_torchtitan_gathers_keys_as_derived(model, recompute, phases):
    plan = mw.fit(model, on="8xH100", framework="torchtitan", cp=2, dp=4, zero=3, mbs=1, seq=128,
                  global_batch=4, recompute=recompute)  # fmt: skip
    assert "cp=gather" in plan.best.text
    over_cp = [m for m in dry_run(plan).stages[0].sent if m.axis == "cp"]
    assert len(over_cp) == phases
    # Four layers: keys and values of 128 columns for 128 tokens, in BF16.
    assert {m.sent_bytes for m in over_cp} == {4 * 2 * 128 * 128 * 2.0}
    assert all(m.is_equal for m in over_cp)


EXPERTS = CONFIG | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 2,
    "moe_intermediate_size": 128, "num_experts": 16, "num_experts_per_tok": 2, "head_dim": 32,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "degrees",
    [{"dp": 8, "ep": 4}, {"dp": 8, "ep": 8}, {"dp": 4, "tp": 2, "ep": 4}],
)
def test_experts_of_torchtitan_send_what_is_derived(tmp_path, degrees):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EXPERTS))
    plan = mw.fit(str(path), on="8xH100", framework="torchtitan", zero=3, mbs=1, seq=128,
                  global_batch=degrees["dp"], recompute="none", **degrees)  # fmt: skip
    moved = {(m.kind, m.axis, m.phase): m for m in dry_run(plan).stages[0].sent}
    # Two layers: rows go to their experts and come back, 128 / tp tokens for 2 experts in BF16.
    there = moved["all_to_all", "ep", "forward"]
    assert (there.calls, there.sent_bytes) == (4, 4 * 128 / degrees.get("tp", 1) * 2 * 256 * 2.0)
    assert moved["all_to_all", "ep", "backward"].sent_bytes == there.sent_bytes
    of_experts = [m for key, m in moved.items() if key[1] in ("ep", "edp_shard")]
    assert len(of_experts) == (2 if degrees["ep"] == 8 else 5)
    assert all(m.is_equal for m in of_experts)


@pytest.mark.filterwarnings("ignore")
def test_shards_of_experts_that_do_not_divide_them_are_filled_up(tmp_path):
    """Two replicas of two layers: 4 experts over 3 shards of 2 each, 6 of 3 x 128 x 256 numbers."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EXPERTS))
    plan = mw.fit(str(path), on="24xH100", framework="torchtitan", dp=24, dp_shard=12, ep=4, zero=3,
                  mbs=1, seq=128, global_batch=24, recompute="full", offload="state")  # fmt: skip
    found = dry_run(plan).stages[0]
    moved = {(m.kind, m.axis, m.phase): m for m in found.sent}
    of_experts = 2 * 6 * 3 * 128 * 256
    for kind, word in (("all_gather", 2), ("reduce_scatter", 4)):
        over = moved[kind, "edp_shard", "backward"]
        assert over.sent_bytes == over.derived_bytes == word * of_experts
    over = moved["all_reduce", "dp_replicate", "backward"]
    assert over.sent_bytes == pytest.approx(over.derived_bytes, rel=0.01)
    assert over.sent_bytes > 4 * of_experts / 3
    held = {part.category: part for part in found.held}
    assert held["weights"].most_bytes == held["states"].most_bytes == 0
    kept, ends = held["activations"], 3 * 2 * 128 * 256  # around the last norm
    assert 0 < kept.most_bytes < kept.predicted_most_bytes + ends  # no shard of the host


@pytest.mark.filterwarnings("ignore")
def test_torchtitan_keeps_every_second_product(model):
    plan = mw.fit(model, on="8xH100", framework="torchtitan", dp=8, zero=3, mbs=1, seq=2048,
                  global_batch=8, recompute="selective")  # fmt: skip
    held = {part.category: part for part in dry_run(plan).stages[0].held}
    kept = held["activations"]
    ends = 2 * 2 * 2048 * 256  # before the last norm, which the formula counts with the logits
    assert kept.most_bytes == pytest.approx(kept.predicted_bytes + ends, rel=0.005)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "degrees",
    [
        {"dp": 16, "recompute": "selective", "global_batch": 16},
        {"tp": 2, "dp": 8, "recompute": "selective", "global_batch": 8},
        {"pp": 2, "dp": 8, "zero": 2, "recompute": "full", "global_batch": 64},
    ],
)
def test_peaks_of_torchtitan_are_priced(degrees):
    """The loss multiplies by the head: four layers of Llama 3 8B, and a table of 128,256 words."""
    options = {"zero": 3, "mbs": 1, "seq": 4096} | degrees
    plan = mw.fit("llama3-8b", on="16xB200", framework="torchtitan", **options)
    few = plan.model.model_copy(update={"layer_pattern": plan.model.layer_pattern[:4]})
    for stage in dry_run(replace(plan, model=few)).stages:
        assert stage.predicted_bytes == pytest.approx(stage.peak_bytes, rel=0.01)


def held_of(found):
    return {part.category: part for part in found.stages[0].held}


@pytest.mark.filterwarnings("ignore")
def test_accelerate_sends_what_is_derived_and_keeps_its_head(model):
    plan = mw.fit(model, on="16xH100", framework="accelerate", dp=16, dp_shard=8, zero=3, mbs=1,
                  seq=128, global_batch=16, recompute="none")  # fmt: skip
    found = dry_run(plan)
    assert found.program.startswith("accelerate 1.15.0 with transformers 5.23.0 on PyTorch 2.13")
    moved = {(m.kind, m.axis, m.phase): m for m in found.stages[0].sent}
    assert len(moved) == 4
    assert all(m.is_equal for m in moved.values())
    gathers = (moved["all_gather", "dp_shard", phase] for phase in ("forward", "backward"))
    forward, backward = (m.sent_bytes for m in gathers)
    assert forward - backward == 2 * (1024 * 256 + 256)  # the head
    held = held_of(found)
    assert held["weights"].most_bytes == held["weights"].predicted_bytes
    kept = held["activations"]
    ends = 3 * 2 * 128 * 256  # around the last norm
    assert kept.most_bytes == pytest.approx(kept.predicted_most_bytes + ends, rel=0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("waits", [False, True])
def test_accelerate_accumulates_gradients_as_priced(model, waits):
    stated = {"software": {"sums_in_last_pass": True}} if waits else {}
    plan = mw.estimate(model, on="8xH100", framework="accelerate", dp=8, zero=3, mbs=1, seq=128,
                       global_batch=24, recompute="full", **stated)  # fmt: skip
    found = dry_run(plan)
    moved = {(m.kind, m.axis, m.phase): m for m in found.stages[0].sent}
    count = plan.model.num_layers * (256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 512 + 512)
    count += 2 * 1024 * 256 + 256
    scattered = moved["reduce_scatter", "dp_shard", "backward"]
    # In BF16: after each of three micro-batches, as exported, or whole once.
    assert scattered.sent_bytes == 2 * count * (1 if waits else 3)
    assert scattered.is_equal
    gradients = held_of(found)["gradients"]
    assert (gradients.most_bytes > 2 * count) is waits
    assert (gradients.predicted_most_bytes > 2 * count) is waits


@pytest.mark.filterwarnings("ignore")
def test_replicas_of_accelerate_sum_in_fp32(model):
    plan = mw.fit(model, on="8xH100", framework="accelerate", dp=8, zero=0, mbs=1, seq=128,
                  global_batch=16, recompute="full")  # fmt: skip
    found = dry_run(plan)
    sums = next(m for m in found.stages[0].sent if m.kind == "all_reduce")
    layer = 256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 512 + 512
    assert sums.sent_bytes == 4 * (plan.model.num_layers * layer + 2 * 1024 * 256 + 256)
    assert sums.is_equal


def test_accelerate_leaves_tensors_whole(model):
    plan = mw.fit(model, on="8xH100", framework="accelerate", tp=2, dp=4, zero=3, mbs=1, seq=128,
                  global_batch=8)  # fmt: skip
    with pytest.raises(mw.MeshwrightError, match="leaves whole"):
        dry_run(plan)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "split", [{"dp": 4, "recompute": "full"}, {"dp": 2, "pp": 2, "recompute": "none"}]
)
def test_megatron_sends_what_is_derived(model, split):
    plan = mw.fit(model, on="8xH100", framework="megatron", tp=2, mbs=1, seq=128, global_batch=8,
                  **split)  # fmt: skip
    found = dry_run(plan)
    assert found.program.startswith("megatron-core 0.19")
    assert "without Transformer Engine" in found.notes[1]
    for stage in found.stages:
        sent = [m for m in stage.sent if m.kind != "all_reduce"]
        assert len(sent) >= 6
        assert all(m.is_equal for m in sent), sent
        held = {part.category: part for part in stage.held}
        weights, gradients = held["weights"], held["gradients"]
        assert weights.most_bytes == pytest.approx(weights.predicted_bytes, rel=1e-3)
        # Without Transformer Engine a BF16 gradient of a table lies beside the sum for a while.
        table = 2 * CONFIG["vocab_size"] // 2 * CONFIG["hidden_size"]
        extra = gradients.most_bytes - gradients.predicted_bytes
        assert min(abs(extra), abs(extra - table)) <= 1e-3 * gradients.predicted_bytes
        assert held["states"].most_bytes == pytest.approx(held["states"].predicted_bytes, rel=0.01)
