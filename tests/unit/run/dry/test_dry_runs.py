"""Dry runs of a small model on fake ranks; numbers worked out by hand.

Hidden 256, 8 heads of 32, 4 of keys, FFN 512, vocabulary 1,024, sequences of 128. A layer has
2 x 256^2 + 2 x 256 x 128 + 3 x 256 x 512 + 2 x 256 = 590,336 parameters, the embedding 262,144, the
head with its norm 262,400: 1,705,216 with two layers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.distributed as dist
from sampled import sampled

import meshwright as mw
from meshwright.base.errors import UnsupportedError
from meshwright.run.dry import program
from meshwright.run.dry.answer import DryRun
from meshwright.run.dry.expected import expected_bytes
from meshwright.run.dry.fakes import FakeTensors
from meshwright.run.dry.kernels import flash_attention, gpu_kernels
from meshwright.run.dry.program import RankProgram
from meshwright.run.dry.run import dry_run
from meshwright.run.dry.verify import verdict
from meshwright.run.model import Chunk
from meshwright.run.step_recorder import StepRecorder
from meshwright.train.answer import Plan

LAYER, EMBEDDING, HEAD = 590_336, 262_144, 262_400
ALL = 2 * LAYER + EMBEDDING + HEAD
TOKENS = 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 1024, "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}  # fmt: skip


@cache
def planned(num_layers: int = 2, **options: object) -> Plan:
    known = {"on": "8xH100", "framework": "fsdp", "mbs": 1, "seq": TOKENS, "zero": 3}
    config = CONFIG | {"num_hidden_layers": num_layers}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        return mw.fit(str(path), **(known | options))


@cache
def ran(num_layers: int = 2, **options: object) -> DryRun:
    return dry_run(planned(num_layers, **options))


def sent(found: DryRun, stage: int = 0) -> dict[tuple[str, str, str], tuple[int, float]]:
    return {(m.kind, m.axis, m.phase): (m.calls, m.sent_bytes)
            for m in found.stages[stage].sent}  # fmt: skip


def held(found: DryRun, stage: int = 0) -> dict[str, float]:
    return {part.category: part.most_bytes for part in found.stages[stage].held}


def test_full_sharding_sends_what_hands_work_out():
    found = sent(ran(dp=8, global_batch=8))
    # Two layers, embedding, head: four units, gathered in BF16 for each pass, summed in FP32.
    assert found == {
        ("all_gather", "dp_shard", "forward"): (4, 2.0 * ALL),
        ("all_gather", "dp_shard", "backward"): (4, 2.0 * ALL),
        ("reduce_scatter", "dp_shard", "backward"): (4, 4.0 * ALL),
    }


def test_full_sharding_holds_what_hands_work_out():
    found = held(ran(dp=8, global_batch=8))
    assert found["weights"] == 4 * ALL / 8
    # Two moments of Adam, and one number for the steps of each of the 20 weights and norms.
    assert found["states"] == 8 * ALL / 8 + 4 * len(list(range(9 * 2 + 3)))
    # Log-probabilities, their gradient, and the gradient of the logits, all in FP32.
    assert found["logits"] == 12 * TOKENS * 1024


def test_weights_that_stay_gathered_are_gathered_once():
    found = ran(dp=8, global_batch=8, reshard="off")
    assert ("all_gather", "dp_shard", "backward") not in sent(found)
    assert held(found)["gathered"] >= 2 * ALL


def test_each_micro_batch_gathers_and_scatters_anew():
    once, three_times = sent(ran(dp=8, global_batch=8)), sent(ran(dp=8, global_batch=24))
    assert three_times == {key: (3 * n, 3 * size) for key, (n, size) in once.items()}


def test_replicas_sum_their_shards():
    found = sent(ran(dp=8, global_batch=8, dp_shard=4))
    assert found["all_reduce", "dp_replicate", "backward"] == (4, 4.0 * ALL / 4)


def test_whole_weights_sum_whole_gradients_once():
    found = ran(dp=8, global_batch=24, zero=0)
    assert sent(found) == {("all_reduce", "dp_shard", "backward"): (1, 4.0 * ALL)}
    assert held(found)["weights"] == 4 * ALL
    # Products read copies of their weights in BF16, which the backward pass needs again.
    assert held(found)["gathered"] == 2 * (ALL - EMBEDDING - 5 * 256)


def test_kept_activations_are_those_of_the_operators():
    found = ran(dp=8, global_batch=8)
    stream, ffn, rows = 2 * TOKENS * 256, 2 * TOKENS * 512, 4 * TOKENS
    # Inputs and outputs of both norms with a number for each row, turned query and key, value,
    # heads with their log-sum-exp, then gate, its activation, up, and the product of both.
    layer = 4 * stream + 2 * rows + stream + 2 * stream / 2 + stream + 8 * rows + 4 * ffn
    # Input and output of the last norm, tokens of 8 bytes, the loss.
    ends = 2 * stream + rows + 8 * TOKENS + 4
    assert held(found)["activations"] == 2 * layer + ends


def test_full_recomputation_keeps_inputs_of_layers():
    found = held(ran(dp=8, global_batch=8, recompute="full"))
    stream = 2 * TOKENS * 256
    assert found["activations"] == pytest.approx(4 * stream, rel=0.02)


@pytest.mark.parametrize("on", ["on", "off"])
def test_tensor_parallelism_sends_what_is_derived(on):
    found = ran(tp=2, dp=4, global_batch=4, sp=on)
    moved = {(m.kind, m.axis, m.phase): m for m in found.stages[0].sent}
    forward = [m for m in moved.values() if m.axis == "tp" and m.phase == "forward"]
    assert forward
    assert all(m.is_equal for m in forward)
    # Five gathers in a forward pass: two of each layer, one of the head; 128 x 256 in BF16.
    if on == "on":
        assert moved["all_gather", "tp", "forward"].sent_bytes == 5 * 2 * TOKENS * 256
        assert moved["reduce_scatter", "tp", "backward"].is_equal
    else:
        assert moved["all_reduce", "tp", "backward"].is_equal


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"pp": 2, "dp": 4, "zero": 2},
            {"pp": 2, "dp": 4, "zero": 2, "schedule": "gpipe"},
            {"pp": 2, "dp": 4, "zero": 2, "schedule": "interleaved", "vpp": 2},
            {"pp": 2, "tp": 2, "dp": 2, "zero": 2},
        ],
        3,
    ),
    ids=["1f1b", "gpipe", "interleaved", "with_tp"],
)
def test_pipelines_send_what_is_derived(options):
    found = ran(num_layers=4, global_batch=4 * options["dp"], **options)
    assert [stage.stage for stage in found.stages] == [0, 1]
    for stage in found.stages:
        of_pipeline = [m for m in stage.sent if m.axis in ("pp", "dp_shard")]
        assert len(of_pipeline) >= 3
        assert all(m.is_equal for m in of_pipeline), of_pipeline


@pytest.mark.parametrize(
    "options",
    [{"cp": 2, "dp": 4, "global_batch": 4}, {"cp": 8, "dp": 1, "seq": 512, "global_batch": 1}],
    ids=["beside_dp", "alone"],
)
def test_a_ring_of_keys_sends_what_is_derived(options):
    found = ran(**options)
    assert all(m.is_equal for m in found.stages[0].sent)
    cp, moved = options["cp"], sent(found)
    # Two layers, keys and values of 128 columns for 64 tokens; sums of gradients are FP32.
    piece, forward = 2 * 2 * 64 * 128, moved["all_to_all", "cp", "forward"]
    assert forward == (2 * (cp - 1), 2.0 * piece * (cp - 1))
    backward = moved["all_to_all", "cp", "backward"]
    assert backward == (2 * (cp - 1) + 2 * cp, 2.0 * piece * (cp - 1) + 4.0 * piece * cp)


def test_the_first_rank_of_a_ring_keeps_its_heads_twice():
    alone, ring = ran(dp=8, seq=64, global_batch=8), ran(cp=2, dp=4, global_batch=4)
    # Its merged heads are FP32 and lie in another order: 2 layers of 64 x 256 in BF16.
    more = held(ring)["activations"] - held(alone)["activations"]
    assert more == pytest.approx(2 * 2 * 64 * 256, abs=1024)


def test_the_first_stage_keeps_more_micro_batches():
    found = ran(num_layers=4, global_batch=16, pp=2, dp=4, zero=2)
    assert held(found, 0)["activations"] > 1.5 * held(found, 1)["activations"]


def test_flops_are_six_for_each_parameter_and_token():
    found = ran(dp=8, global_batch=8)
    flops = found.stages[0].flops
    products, scores = ALL - EMBEDDING - 5 * 256, 2 * 2 * 2 * TOKENS * 256
    assert flops["forward"] == TOKENS * (2 * products + scores)
    # The backward pass of flash attention makes the scores again: 2.5 of its forward pass.
    assert flops["backward"] == TOKENS * (4 * products + 2.5 * scores)


@pytest.mark.parametrize("offload", sampled(["activations", "all", "state"], 2))
def test_offloaded_tensors_are_on_the_host(offload):
    found = ran(dp=8, global_batch=8, offload=offload)
    assert found.stages[0].host_bytes > 0
    on_device = held(found)
    assert (on_device["weights"] == 0) == (offload != "activations")
    assert (on_device["activations"] < 2 * 2 * TOKENS * 256) == (offload != "state")


def test_the_peak_is_that_of_the_tracker_of_pytorch(monkeypatch):
    """``FSDPMemTracker`` knows no modules that are gathered together: each has its own unit."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    class Tracked(RankProgram):
        def _passes(self, chunks, mesh, recorder):
            tokens = torch.zeros(1, self.local_length, dtype=torch.int64)
            optimizer = self._optimizer(chunks[0], {"shards": mesh["dp_shard"]})
            tracker = FSDPMemTracker(chunks[0], optimizer)
            tracker.track_inputs((tokens, chunks[0].places))
            with recorder.without(), tracker:
                logits = chunks[0](tokens)
                loss = self._loss(mesh, logits, tokens)
                del logits
                loss.backward()
            self.peak = max(tracker._peak_mem.values())
            return recorder.counts()

    def units(chunk):
        return [[m] for m in (chunk.embedding, *chunk.layers.values(), chunk.norm, chunk.logits)]

    monkeypatch.setattr(program, "units_of", units)
    plan = planned(dp=8, global_batch=8)
    tracked = Tracked(plan, 0)
    tracked.run()
    assert RankProgram(plan, 0).run().usage.peak_bytes == tracked.peak


def test_nothing_is_left_behind():
    ran(dp=8, global_batch=8)
    assert not dist.is_initialized()
    x = torch.ones(2, 4)
    assert torch.nn.functional.rms_norm(x, (4,)).sum() == pytest.approx(8.0, rel=1e-4)


def test_plans_that_no_program_expresses_are_refused_with_all_reasons():
    plan = mw.fit("llama3-8b", on="8xH100", framework="deepspeed", dp=8, zero=2, mbs=1, seq=1024,
                  global_batch=8)  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"deepspeed is not run dry(.|\n)*optimizer"):
        dry_run(plan)


@pytest.mark.parametrize(
    ("framework", "needed"),
    [("megatron", "megatron-core and megatron-bridge"), ("accelerate", "transformers")],
)
def test_a_framework_that_is_not_installed_is_named_with_what_installs_it(
    monkeypatch, framework, needed
):
    plan = mw.fit("llama3-8b", on="8xH100", framework=framework, dp=8, mbs=1, seq=1024,
                  global_batch=8)  # fmt: skip
    monkeypatch.setitem(dry_run.__globals__, "version_of", lambda package: None)
    with pytest.raises(UnsupportedError, match=rf"{needed}; (.|\n)*pip install"):
        dry_run(plan)


@pytest.mark.parametrize(
    ("options", "found"),
    [({"precision": "fp8"}, "fp8 is not built"), ({"zero": 3}, "Megatron-FSDP")],
)
def test_plans_of_megatron_are_refused_before_they_start(options, found):
    plan = mw.fit("llama3-8b", on="8xH100", framework="megatron", dp=8, mbs=1, seq=1024,
                  global_batch=8, **options)  # fmt: skip
    with pytest.raises(UnsupportedError, match=found):
        dry_run(plan)


def test_a_tied_table_stays_one_under_tp():
    path_options = {"tp": 2, "dp": 4, "global_batch": 4}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
        plan = mw.fit(str(path), on="8xH100", framework="fsdp", mbs=1, seq=TOKENS, zero=3,
                      **path_options)  # fmt: skip
    # Norms are whole on both ranks of tp; the table, split in two, counts once.
    norms, found = 5 * 256, dry_run(plan)
    assert all(m.is_equal for m in found.stages[0].sent)
    assert held(found)["weights"] == 4 * ((ALL - EMBEDDING - norms) / 2 + norms) / 4


def test_key_heads_that_ranks_would_share_are_refused():
    plan = planned(tp=8, dp=1, zero=0, global_batch=1)
    with pytest.raises(UnsupportedError, match="tp 8 splits 4 key heads, and PyTorch shares none"):
        dry_run(plan)


def test_a_view_leads_with_the_answer():
    page = ran(dp=8, global_batch=8).page()
    assert [tile.label for tile in page.tiles] == ["starts", "memory", "sent"]
    assert page.tiles[2].answer.startswith("3 of 3 kinds")


def test_flash_attention_with_narrow_values_makes_no_scores():
    """Latent attention: keys 192 wide, values 128."""
    with gpu_kernels(), FakeTensors():
        narrow = {"requires_grad": True, "dtype": torch.bfloat16}
        query, key, value = (torch.zeros(1, 4, 4096, n, **narrow) for n in (192, 192, 128))
        with StepRecorder({}) as recorder:
            made = flash_attention(query, key, value)
            made.sum().backward()
    assert made.shape == (1, 4, 4096, 128)
    assert [t.grad.shape for t in (query, key, value)] == [t.shape for t in (query, key, value)]
    kept = 4 * 4096 * (2 * 128 + 4)
    assert recorder.moments().usage.most_bytes["activations"] <= kept
    assert recorder.moments().usage.peak_bytes < 4 * 4096 * 4096


def test_a_compiled_plan_is_compared_with_the_price_of_the_program_that_runs():
    """A compiler would keep no gates; the verdict takes the price, and the error of the run."""
    plan = planned(dp=8, global_batch=8)
    eager = {"compiled": False, "eager": True}
    prices = [
        replace(plan, workload=plan.workload.model_copy(update={
            "software": plan.workload.software.model_copy(update=change)
        }))
        for change in (eager, {"compiled": True, "eager": False})
    ]  # fmt: skip
    kept = [expected_bytes(each, 0)["activations"].most_bytes for each in prices]
    assert kept[0] > 1.05 * kept[1]
    found = dry_run(prices[1])
    (stage,) = found.stages
    assert [part.predicted_most_bytes for part in stage.held] == [
        part.predicted_most_bytes for part in dry_run(prices[0]).stages[0].held
    ]
    assert "the plan is priced compiled" in found.notes[1]
    assert "note" in [tile.label for tile in found.page().tiles]
    told = verdict(prices[1])
    assert (told.peak_bytes, told.priced_bytes) == (stage.peak_bytes, stage.predicted_bytes)


@pytest.mark.slow
def test_seventy_billion_parameters_on_sixty_four_ranks():
    plan = mw.fit("llama3-70b", on="64xH100", framework="fsdp", dp=64, zero=3, recompute="full",
                  mbs=1, seq=4096, global_batch=64)  # fmt: skip
    stage = dry_run(plan).stages[0]
    assert all(m.is_equal for m in stage.sent)
    params = sum(w.numel() for w in _weights(plan))
    assert held(dry_run(plan))["weights"] == pytest.approx(4 * params / 64, rel=1e-3)


def _weights(plan):
    with torch.device("meta"):
        return list(Chunk(plan.model, range(plan.model.num_layers)).parameters())


@pytest.mark.parametrize("pp", [1, 2])
def test_tensors_split_over_tp_alone_are_updated_together(pp):
    # Norms are DTensors as split weights are; AdamW multiplies all in one call.
    found = ran(2, tp=2, pp=pp, dp=1, zero=0, sp="off", global_batch=pp)
    for stage in found.stages:
        weights = next(part for part in stage.held if part.category == "weights")
        assert weights.most_bytes == weights.predicted_bytes > 0.0
        assert not [one for one in stage.sent if one.phase == "optimizer"]


@pytest.mark.parametrize(
    ("axes", "zero"),
    [
        pytest.param({"pp": 2, "cp": 2, "dp": 1}, 0, id="pp_cp-0"),
        pytest.param({"pp": 2, "cp": 2, "dp": 1}, 1, id="pp_cp-1", marks=pytest.mark.slow),
        pytest.param({"dp": 4, "sp": "on"}, 0, id="dp_sp-0", marks=pytest.mark.slow),
        pytest.param({"dp": 4, "sp": "on"}, 1, id="dp_sp-1"),
    ],
)
def test_replicas_beside_tp_send_and_hold_what_is_derived(zero, axes):
    # DistributedDataParallel takes the local parts of DTensors.
    for stage in ran(4, tp=2, zero=zero, global_batch=8, **axes).stages:
        assert all(one.is_equal for one in stage.sent)
        assert stage.peak_bytes == pytest.approx(stage.predicted_bytes, rel=0.03)


@pytest.mark.parametrize("offload", sampled(["all", "state", "activations"], 1))
def test_offload_beside_tp_and_pp_holds_what_is_derived(offload):
    found = ran(4, tp=2, pp=2, dp=2, sp="on", global_batch=8, offload=offload)
    for stage in found.stages:
        assert all(one.is_equal for one in stage.sent)
        assert stage.peak_bytes == pytest.approx(stage.predicted_bytes, rel=0.03)
