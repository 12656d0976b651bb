"""Tensors that PyTorch keeps and others do not: gathered inputs, buffers for messages."""

import meshwright as mw
from meshwright.cost.pipeline import entry_bytes, receive_buffer_bytes
from meshwright.sharding.local_sizes import local_elements
from meshwright.spec.collective import CollectiveKind


def test_gathered_inputs_are_kept_whole_and_gathered_once():
    options = {"tp": 2, "dp": 4, "mbs": 1, "seq": 4096, "global_batch": 4, "zero": 3}
    plan = mw.fit("llama3-8b", on="8xH100", framework="fsdp", recompute="none", **options)
    work = plan.workload
    software = work.software.model_copy(update={"keeps_gathered_inputs": False})
    parts = work.model_copy(update={"software": software})
    halved = mw.fit("llama3-8b", on="8xH100", workload=parts, recompute="none", tp=2, dp=4, mbs=1,
                    zero=3)  # fmt: skip
    kept, less = (p.best.estimate.memory_parts_bytes["activations_bytes"] for p in (plan, halved))
    # Two inputs of each of 32 layers, and that of the head, which waits at the loss: 4,096 tokens x
    # 4,096 x 2 bytes, of which a half more.
    assert kept - less == (32 * 2 + 1) * (4096 * 4096 * 2) / 2
    layer = plan.problem.derived_shardings(plan.best.plan_options)[0]
    gathers = [c for c in layer.calls if c.kind is CollectiveKind.ALL_GATHER and c.axis == "tp"]
    # Two in front of products, and two of the gradients of their outputs.
    assert len(gathers) == 4


def test_pipelines_of_pytorch_hold_weights_and_gradients_whole():
    options = {"pp": 2, "dp": 4, "mbs": 1, "seq": 1024, "global_batch": 32}
    found = [
        mw.fit("llama3-8b", on="8xH100", framework="fsdp", recompute="full", zero=zero, **options)
        for zero in (2, 3)
    ]
    parts = [plan.best.estimate.memory_parts_bytes for plan in found]
    # 16 layers of 218,112,000 parameters, and an end; the norm is in the last stage.
    end = 128_256 * 4096
    params = 16 * 218_112_000 + end
    # Under ZeRO 2 the last stage at the loss; gathered weights stay there from pass to pass.
    assert parts[0]["weights_bytes"] == 4 * (params + 4096) / 4
    assert parts[0]["gathered_bytes"] == 2 * (params + 4096)
    assert parts[0]["gradients_bytes"] == 4 * (params + 4096)
    # Under ZeRO 3 the first stage at the reduction of its embedding: a message, and a shard.
    assert parts[1]["weights_bytes"] == 4 * params / 4
    assert parts[1]["gathered_bytes"] == 2 * (params - end)
    assert parts[1]["gradients_bytes"] == 4 * (params + end) + end


def test_pipelines_of_pytorch_have_buffers_for_the_messages_of_all_micro_batches():
    """Stages of PyTorch receive into tensors of their own, one for each micro-batch of a step."""
    assert receive_buffer_bytes(0.25, 8, 2, 1, 0, 0) == 3.5  # 6 activations, 8 gradients
    assert receive_buffer_bytes(0.25, 8, 4, 1, 1, 0) == 2.0  # the first stage: gradients alone
    assert receive_buffer_bytes(0.25, 8, 1, 1, 0, 1) == 1.75  # the last stage: activations alone
    assert receive_buffer_bytes(1.0, 8, 8, 2, 1, 0) == 16.0  # two chunks, all forward passes first
    options = {"tp": 2, "pp": 2, "mbs": 1, "seq": 4096, "global_batch": 32, "sp": True}
    asked = {"on": "8xH100", "recompute": "none", "schedule": "1f1b", **options}
    plan = mw.fit("llama3-8b", framework="torchtitan", **asked)
    less = mw.fit("llama3-8b", framework="torchtitan", software={"keeps_receive_buffers": False},
                  **asked)  # fmt: skip
    sent = 4096 * 4096 * 2 / 2  # tokens over tp
    found, fewer = (p.best.estimate.memory_parts_bytes["temporary_bytes"] for p in (plan, less))
    # The first stage is the fullest: gradients of 32 / 2 micro-batches.
    assert found - fewer == 16 * sent


def _kept_bytes(plan):
    (layer, *_), strategy = plan.problem.graph.layers, plan.best.strategy
    sizes = plan.problem.bound_sizes(layer, strategy.micro_batch_size)
    saved = plan.problem.derived_shardings(plan.best.plan_options)[0].saved
    found = {}
    for one in saved:
        elements = local_elements(one.tensor, one.split, sizes, strategy)
        found[one.tensor.name] = (one.word_bytes or 2.0) * elements
    return found


def test_keys_gathered_over_cp_are_kept_whole():
    plan = mw.fit("llama3-8b", on="8xH100", framework="torchtitan", recompute="none", cp=4, dp=2,
                  mbs=1, seq=8192, global_batch=2, zero=3)  # fmt: skip
    assert plan.best.plan_options.context_kind == "gather"
    kept = _kept_bytes(plan)
    # 8,192 tokens x 1,024 in BF16; queries are those of 2,048 tokens.
    assert kept["attention.value"] == kept["attention.rotary.key"] == 8192 * 1024 * 2
    assert kept["attention.rotary.query"] == 2048 * 4096 * 2


def test_rows_that_experts_return_are_kept_in_fp32():
    plan = mw.fit("qwen3-30b-a3b", on="8xH100", framework="torchtitan", recompute="none", dp=8,
                  ep=8, mbs=1, seq=4096, global_batch=8, zero=3)  # fmt: skip
    (rows,) = [n for name, n in _kept_bytes(plan).items() if name.endswith(".fp32")]
    # 4,096 tokens for 8 experts each, 2,048 wide.
    assert rows == 4096 * 8 * 2048 * 4


def test_sums_of_key_gradients_travel_in_fp32():
    plan = mw.fit("llama3-8b", on="8xH100", framework="fsdp", recompute="none", cp=4, dp=2,
                  mbs=1, seq=8192, global_batch=2, zero=3)  # fmt: skip
    layer = plan.problem.derived_shardings(plan.best.plan_options)[0]
    words = {call.kind: call.tensor.word_bytes for call in layer.calls if call.axis == "cp"}
    assert words == {CollectiveKind.ALL_GATHER: None, CollectiveKind.REDUCE_SCATTER: 4.0}


def test_a_layer_ends_beside_its_entry():
    """0.25 GB of the stream twice, 0.5 GB of it whole three and a half times."""
    assert entry_bytes(0.25, 2.0, 0.5) == 2.25


def test_replicas_of_pytorch_keep_narrow_copies_and_gradients_beside_their_buckets():
    """Llama 3 8B, two micro-batches: 2 bytes of all weights but the table, 4 of all gradients.

    Other software that sums whole gradients has no such buckets.
    """
    asked = {"on": "64xH200", "recompute": "full", "dp": 64, "mbs": 1, "zero": 1}
    sizes = {"seq": 1024, "global_batch": 128, "framework": "fsdp"}
    plan = mw.fit("llama3-8b", **asked, **sizes)
    work = plan.workload
    software = work.software.model_copy(update={"autocasts_whole_weights": False})
    other = mw.fit("llama3-8b", workload=work.model_copy(update={"software": software}), **asked)
    held, less = (p.best.estimate.memory_parts_bytes for p in (plan, other))
    params, table = 8_030_261_248, 128_256 * 4_096
    assert held["gradients_bytes"] - less["gradients_bytes"] == 4 * params
    assert held["gathered_bytes"] - less["gathered_bytes"] == 2 * (params - table)


def test_a_ring_of_pytorch_keeps_its_output_beside_the_copy_behind_it():
    """32 layers of 4,096 / 2 tokens x 4,096 heads x 2 bytes."""
    options = {"cp": 2, "dp": 4, "mbs": 1, "seq": 4096, "global_batch": 4, "zero": 3}
    asked = {"on": "8xH100", "recompute": "none", "framework": "fsdp", **options}
    found, fewer = (
        mw.fit("llama3-8b", software={"wide_key_gradients": merges}, **asked)
        for merges in (True, False)
    )
    kept, less = (p.best.estimate.memory_parts_bytes["activations_bytes"] for p in (found, fewer))
    assert kept - less == 32 * 2048 * 4096 * 2


def test_autocast_copies_the_adapters_of_frozen_weights_alone():
    """By hand: 20,971,520 FP32 adapters of rank 8 have copies of 2 bytes; frozen weights, none."""
    asked = {"on": "8xH100", "seq": 4096, "global_batch": 64, "optimizer": "adapters"}
    found = mw.estimate("llama3-8b", dp=8, zero=0, framework="accelerate", lora_rank=8, **asked)
    assert 0 < found.best.estimate.memory_most_bytes["gathered_bytes"] <= 2 * 20_971_520
