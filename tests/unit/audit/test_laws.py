"""Each law: an answer of today keeps it, and the same answer with one number changed breaks it."""

from dataclasses import replace
from functools import cache
from math import nan
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.audit.graphs import LAWS as OF_GRAPHS
from meshwright.audit.graphs import OF_FUSIONS, OF_PARTITIONS
from meshwright.audit.laws import Inequality, equal, lawful, violations
from meshwright.audit.machine import link_bytes_per_s, memory_bytes_per_s, peak_flops_per_s
from meshwright.audit.serving import LAWS as OF_SERVING
from meshwright.audit.serving import OF_DEPLOYMENTS
from meshwright.audit.traffic import LAWS as OF_TRAFFIC
from meshwright.audit.training import LAWS as OF_TRAINING
from meshwright.audit.work import ModelWork
from meshwright.base.errors import UnlawfulError
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cli.main import exit_status
from meshwright.dataflow import search as graph_search
from meshwright.dataflow.fusion import fuse as fusion_search
from meshwright.dataflow.fusion.answer import FusedPartition
from meshwright.serve.serve import facts_of as serving_facts
from meshwright.serve.traffic import fleet as traffic_search
from meshwright.sram import partition as stage_search
from meshwright.train.price import facts_of as training_facts

STEP = {"seq": 4096, "global_batch": 64, "dp_overlap": "off"}


@cache
def trained(**strategy):
    """Return the facts of a strategy of an 8B model on eight GPUs."""
    plan = mw.estimate("llama3-8b", on="8xH100", **(STEP | strategy))
    return next(training_facts(plan))


@cache
def served(**asked):
    """Return the facts of the best way to serve an 8B model."""
    return next(serving_facts(mw.serve("llama3-8b", on="8xH100", top=1, **asked)))


def heard(module, name, ask):
    """Return what a room says to its laws while it answers."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, lambda *given: said.extend(given) or given[0])
        ask()
    return said


@cache
def planned_graph():
    """Return the facts of a trained graph on two groups of GPUs."""
    asked = {"seq": 1024, "passes": 8, "training": True, "tp": 2, "pp": 1}
    found = heard(
        graph_search, "lawful",
        lambda: mw.map("llama3.2-1b", on="4xH100", **asked),
    )  # fmt: skip
    return next(found[1])


@cache
def fused_graph():
    """Return the facts of a fused layer."""
    return next(heard(fusion_search, "lawful", lambda: mw.fuse("gpt3-175b-layer", on="SN10"))[1])


@cache
def fleet():
    """Return the facts of workers that take requests at a rate."""
    asked = {"rate": 2, "prompt": 512, "answer": 128, "dp": 1, "tp": 1, "cuda_graphs": True}
    found = heard(
        traffic_search, "lawful", lambda: mw.serve("llama3-8b", on="1xH100", **asked)
    )  # fmt: skip
    return found[1][0]


@cache
def cut_model():
    """Return the facts of a model in stages."""
    found = heard(
        stage_search, "lawful",
        lambda: mw.partition("llama3-8b", on="16xH100", level="hbm", batch=4, seq=512),
    )  # fmt: skip
    return next(found[1])


def scaled(field, factor):
    """Return a change of one number."""
    return lambda facts: replace(facts, **{field: factor * getattr(facts, field)})


def part(field, name, number):
    """Return a change of one part."""
    return lambda facts: replace(facts, **{field: {**getattr(facts, field), name: number}})


TRAINING = {
    "time_is_whole": ({"dp": 8}, scaled("step_time_s", 2.0)),
    "time_is_positive": ({"dp": 8}, part("time_parts_s", "offload_s", -1.0)),
    "memory_is_whole": ({"dp": 8}, scaled("memory_bytes", 0.9)),
    "interval_holds_step": ({"dp": 8}, lambda f: replace(f, interval_s=(0.0, 0.1))),
    "tokens_are_made": ({"dp": 8}, scaled("tokens_per_s", 2.0)),
    "batch_is_whole": ({"dp": 8}, lambda f: replace(f, num_micro_batches=1)),
    "devices_are_counted": ({"dp": 8}, scaled("num_devices_used", 2)),
    "devices_are_there": ({"dp": 8}, scaled("num_devices_used", 2)),
    "device_holds": ({"tp": 8}, scaled("memory_bytes", 10.0)),
    "host_holds": (
        {"dp": 8, "offload": "optimizer", "recompute": "full"},
        lambda f: replace(f, host_bytes_per_device=1e15),
    ),
    "weights_lie_somewhere": ({"dp": 8}, part("memory_most_bytes", "weights_bytes", 1e9)),
    "gradients_lie_somewhere": ({"dp": 8}, part("memory_most_bytes", "gradients_bytes", 1e9)),
    "state_lies_somewhere": ({"dp": 8}, part("memory_most_bytes", "states_bytes", 1e9)),
    "host_has_its_share": (
        {"dp": 8, "zero": 3, "offload": "state"}, lambda f: replace(f, host_bytes_per_device=1e9)
    ),
    "gathered_weights_stay": (
        {"dp": 8, "zero": 3, "reshard": "off"},
        part("memory_most_bytes", "gathered_bytes", 1e9),
    ),
    "inputs_are_kept": ({"dp": 8}, part("memory_most_bytes", "activations_bytes", 1e8)),
    "product_inputs_are_kept": ({"dp": 8}, part("memory_most_bytes", "activations_bytes", 2e9)),
    "work_is_done": ({"dp": 8}, part("time_parts_s", "compute_s", 1.0)),
    "recomputation_is_done": (
        {"dp": 8, "recompute": "full"}, part("time_parts_s", "recompute_s", 0.1)
    ),
    "weights_are_read": ({"dp": 8}, lambda f: replace(f, step_time_s=0.01)),
    "utilization_is_true": ({"dp": 8}, scaled("mfu", 0.5)),
    "recomputation_counts": ({"dp": 8}, scaled("hfu", 0.5)),
    "pipeline_fills": ({"pp": 4, "tp": 2, "dp": 1}, part("time_parts_s", "bubble_s", 0.0)),
    "state_is_updated": ({"dp": 8}, part("time_parts_s", "optimizer_s", 0.001)),
    "host_is_fed": ({"dp": 8, "offload": "optimizer"}, lambda f: replace(f, step_time_s=0.001)),
    "host_updates_state": (
        {"dp": 8, "offload": "optimizer"}, part("time_parts_s", "offload_s", 0.0)
    ),
    "links_carry_step": ({"dp": 8, "zero": 3}, lambda f: replace(f, step_time_s=0.01)),
    "replicas_are_synchronised": ({"dp": 8, "zero": 0}, part("time_parts_s", "dp_comm_s", 0.0)),
    "tensors_are_summed": ({"tp": 8}, part("time_parts_s", "tp_comm_s", 0.0)),
    "stages_are_joined": ({"pp": 4, "tp": 2, "dp": 1}, part("time_parts_s", "pp_comm_s", 0.0)),
    "energy_is_whole": ({"dp": 8}, scaled("energy_j", 2.0)),
    "idle_power_is_drawn": ({"dp": 8}, part("energy_parts_j", "idle_j", 0.0)),
    "peak_power_is_kept": ({"dp": 8}, scaled("energy_j", 2.0)),
    "money_is_rent": ({"dp": 8}, scaled("cost_usd", 0.5)),
}  # fmt: skip
DECODE = {"batch": 64, "context": 4096}
PREFILL = {"batch": 8, "prompt": 4096}
REQUESTS = {"batch": 256, "prompt": 4096, "answer": 256}
SERVING = {
    "time_is_whole": (DECODE, scaled("latency_s", 2.0)),
    "time_is_positive": (DECODE, part("time_parts_s", "wait_s", -1.0)),
    "memory_is_whole": (DECODE, scaled("memory_bytes", 0.9)),
    "devices_are_counted": (DECODE, scaled("num_devices_used", 2)),
    "sequences_flow": (DECODE, scaled("sequences_in_flight", 2.0)),
    "device_holds": (DECODE, scaled("memory_bytes", 10.0)),
    "sequences_have_room": (DECODE, lambda f: replace(f, most_sequences=1)),
    "weights_lie_somewhere": (DECODE, part("memory_parts_bytes", "weights_bytes", 1e6)),
    "cache_lies_somewhere": (DECODE, part("memory_parts_bytes", "kv_cache_bytes", 1e6)),
    "weights_are_read": (DECODE, scaled("latency_s", 0.01)),
    "pass_is_done": (PREFILL, scaled("latency_s", 0.1)),
    "tokens_are_done": (PREFILL, scaled("tokens_per_s", 5.0)),
    "first_token_waits": (REQUESTS, lambda f: replace(f, first_token_s=1e-4)),
    "users_wait": (DECODE, scaled("tokens_per_s_per_user", 2.0)),
    "tensors_are_summed": (DECODE | {"tp": 8, "dp": 1}, part("time_parts_s", "tp_comm_s", 0.0)),
    "stages_are_joined": (PREFILL | {"pp": 2, "tp": 1}, part("time_parts_s", "pp_comm_s", 0.0)),
    "idle_power_is_drawn": (DECODE, scaled("energy_j_per_million_tokens", 0.01)),
    "peak_power_is_kept": (DECODE, scaled("energy_j_per_million_tokens", 10.0)),
    "money_is_rent": (DECODE, scaled("cost_usd_per_million_tokens", 0.5)),
}
SPLIT = REQUESTS | {"disaggregated": True, "max_ttft": "5s"}
DEPLOYMENTS = {
    "first_token_is_whole": scaled("first_token_s", 2.0),
    "workers_are_counted": scaled("num_devices_used", 2),
    "answers_are_whole": scaled("tokens_per_s", 2.0),
    "prompts_pass": scaled("requests_per_s", 10.0),
    "answers_grow": scaled("sequences_in_flight", 100.0),
    "requests_are_done": scaled("requests_per_s", 10.0),
    "caches_move": scaled("requests_per_s", 1e5),
    "workers_are_rented": scaled("cost_usd_per_million_tokens", 0.5),
}
GRAPHS = {
    "passes_are_made": lambda f: replace(f, num_passes=1),
    "repetitions_are_held": lambda f: replace(f, repeats=2 * f.layers * f.pp),
    "devices_are_there": scaled("dp", 8),
    "work_is_done": scaled("step_s", 0.01),
    "stage_is_done": scaled("stage_s", 0.01),
    "kernels_take_time": lambda f: replace(
        f, kernels=tuple(replace(kernel, time_s=0.0) for kernel in f.kernels)
    ),
    "weights_lie_somewhere": lambda f: replace(f, held_bytes=1e6),
    "device_holds": lambda f: replace(f, held_bytes=1e15),
    "gradients_are_summed": part("parts_s", "gradient_sums_s", 0.0),
    "state_is_updated": part("parts_s", "update_s", 0.0),
    "bound_is_below": scaled("lower_bound_s", 10.0),
}
FUSIONS = {
    "fusion_is_whole": scaled("time_s", 2.0),
    "chips_work": scaled("time_s", 0.01),
    "tensors_pass_dram": lambda f: replace(f, dram_bytes_per_s=1e3),
    "partitions_are_launched": lambda f: replace(f, launch_s=1e3),
    "a_pass_takes_its_partitions": scaled("latency_s", 0.01),
    "ends_are_moved": scaled("ends_bytes", 1e6),
    "weights_are_loaded": scaled("weight_bytes", 1e6),
    "partitions_fit": lambda f: replace(f, num_cores=1),
    "dram_holds": lambda f: replace(f, dram_bytes=1.0),
    "fusion_bound_is_below": scaled("bound_s", 2.0),
}
PARTITIONS = {
    "stages_have_devices": scaled("num_devices_used", 2),
    "stages_fit": lambda f: replace(
        f, stages=tuple(replace(stage, room_bytes=1.0) for stage in f.stages)
    ),
    "layers_lie_somewhere": lambda f: replace(
        f, stages=tuple(replace(stage, weights_bytes=1.0) for stage in f.stages)
    ),
    "cut_is_whole": scaled("latency_s", 2.0),
    "tokens_are_done": scaled("tokens_per_s", 1e6),
}


def times(**changed):
    """Return a change of one time of requests."""
    return lambda facts: replace(
        facts,
        times={
            name: time._replace(**changed) if name == "tpot" else time
            for name, time in facts.times.items()
        },
    )


TRAFFIC = {
    "percentiles_ascend": times(p50_s=1.0),
    "requests_are_served": scaled("saturation_requests_per_s", 0.01),
    "good_ones_are_some": scaled("goodput_requests_per_s", 1.1),
    "answers_flow": scaled("sequences_in_flight", 2.0),
    "workers_are_counted": scaled("num_devices", 2),
    "tokens_are_done": scaled("tokens_per_s", 1e4),
    "faces_agree": times(closed_form_s=1.0),
    "money_is_rent": scaled("cost_usd_per_million_tokens", 0.5),
}


def check(facts, law, change):
    """Assert that facts break no law, and that a change of them breaks this one."""
    assert violations([facts]) == []
    assert law in {found.law for found in violations([change(facts)])}


@pytest.mark.parametrize("law", TRAINING)
def test_training(law):
    strategy, change = TRAINING[law]
    check(trained(**strategy), law, change)


def test_tokens_reach_experts():
    plan = mw.estimate("qwen3-30b-a3b", on="8xH100", ep=8, dp=8, **STEP)
    facts = next(training_facts(plan))
    check(facts, "tokens_reach_experts", part("time_parts_s", "ep_comm_s", 0.0))


@pytest.mark.parametrize("law", SERVING)
def test_serving(law):
    asked, change = SERVING[law]
    check(served(**asked), law, change)


@pytest.mark.parametrize("law", DEPLOYMENTS)
def test_prefill_apart_from_decode(law):
    check(served(**SPLIT), law, DEPLOYMENTS[law])


@pytest.mark.parametrize("law", TRAFFIC)
def test_requests_at_a_rate(law):
    check(fleet(), law, TRAFFIC[law])


@pytest.mark.parametrize("law", GRAPHS)
def test_graphs(law):
    check(planned_graph(), law, GRAPHS[law])


@pytest.mark.parametrize("law", FUSIONS)
def test_fusions(law):
    check(fused_graph(), law, FUSIONS[law])


@pytest.mark.parametrize("law", PARTITIONS)
def test_stages(law):
    check(cut_model(), law, PARTITIONS[law])


def test_each_law_is_tried():
    assert set(OF_TRAINING.known) == {*TRAINING, "tokens_reach_experts"}
    assert set(OF_SERVING.known) == set(SERVING)
    assert set(OF_DEPLOYMENTS.known) == set(DEPLOYMENTS)
    assert set(OF_TRAFFIC.known) == set(TRAFFIC)
    assert set(OF_GRAPHS.known) == set(GRAPHS)
    assert set(OF_FUSIONS.known) == set(FUSIONS)
    assert set(OF_PARTITIONS.known) == set(PARTITIONS)


def test_an_inequality_holds_up_to_rounding_and_never_of_what_is_no_number():
    assert Inequality(1.0, 1.0 - 1e-9, "s").holds
    assert not Inequality(1.0, 0.999, "s").holds
    assert not Inequality(nan, 1.0, "s").holds
    assert not Inequality(1.0, nan, "s").holds
    assert equal(2.0, 2.0, "1").holds
    assert not equal(2.0, 2.1, "1").holds


def test_an_answer_that_breaks_a_law_is_not_given_and_ends_with_3():
    facts = replace(trained(dp=8), tokens_per_s=1.0)
    with pytest.raises(UnlawfulError, match="tokens per second times the step") as raised:
        lawful("an answer", [facts])
    assert exit_status(raised.value) == 3
    assert len(raised.value.broken) == 1


def test_a_price_without_a_launch_breaks_a_law(monkeypatch):
    """Kernels of nanoseconds on a GPU, as they were priced once, are found and not given."""
    path = Path(__file__).parents[2] / "cases" / "dataflow" / "passing.yaml"
    assert mw.fuse(str(path), on="H100").time_s == pytest.approx(5e-6 / 64)
    monkeypatch.setattr(FusedPartition, "time_s", property(lambda self: self.busy_s + self.fill_s))
    with pytest.raises(UnlawfulError, match="takes at least its launch") as raised:
        mw.fuse(str(path), on="H100")
    assert len(raised.value.broken) == 2  # a pass that is alone, and a stream


def test_gathered_weights_that_stay_are_all_of_the_stage_wherever_weights_rest():
    # 8 B parameters in 16 bits, tables apart: 32 x 218,103,808 x 2 bytes = 13.0 GiB.
    facts = trained(dp=8, zero=3, reshard="off")
    found = OF_TRAINING.known["gathered_weights_stay"].states(facts)
    assert found is not None
    assert found.small == 32 * 218_103_808 * 2.0


def test_counts_of_a_dense_model():
    # A layer of hidden size 4096: q and o 4096 x 4096 each, k and v 4096 x 1024 each, and three
    # matrices of 4096 x 14336; 32 of them, and two tables of 128256 x 4096.
    work = ModelWork(load_model("llama3-8b"))
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert layer == 218_103_808
    assert work.layer_flops == 2.0 * 32 * layer
    assert work.num_tables * work.table_params == 2 * 128256 * 4096
    # Scores: 2 x 32 heads x (128 + 128) for each of 4096 / 2 tokens before, in 32 layers.
    assert work.score_flops(4096.0) == 32 * 2.0 * 32 * 256 * 2048
    # Keys and values of 8 heads of 128: 2048 elements a token and layer; on 8 ranks an eighth.
    assert work.cache_elements(1000.0) == 32 * 2048 * 1000.0
    assert work.cache_elements(1000.0, tp=8.0) == 32 * 256 * 1000.0
    assert work.cache_elements(1000.0, tp=16.0) == 32 * 256 * 1000.0


def test_counts_of_experts_windows_and_latent_attention():
    experts = ModelWork(load_model("mixtral-8x7b")).layers[0]
    assert experts.expert_params == 8 * 3 * 4096 * 14336
    assert experts.routed_share == 0.25
    local = ModelWork(load_model("gemma3-4b")).layers[0]
    # A window of 1024 in 4096 tokens: 1024 - 1024^2 / (2 x 4096).
    assert local.attended(4096.0) == 896.0
    assert local.attended(512.0) == 256.0
    latent = ModelWork(load_model("deepseek-v3")).layers[0]
    assert latent.cache_elements == 512 + 64
    assert latent.cache_heads == 1.0


def test_rates_of_a_machine_are_the_best_that_it_states():
    system = load_system("16xH100")
    chip = system.chip
    assert memory_bytes_per_s(system) == chip.main_memory.bandwidth_bytes_per_s
    best = chip.best_matmul_flops_per_s.get("bf16", chip.matmul_flops_per_s["bf16"])
    assert peak_flops_per_s(system, "bf16") == best
    each = [level.bandwidth_bytes_per_s * level.links_per_device for level in system.levels]
    assert link_bytes_per_s(system) == sum(each)
    assert link_bytes_per_s(system, outside_of=1) == sum(each[1:])
    torus = load_system("tpu-v5e-4x4")
    assert link_bytes_per_s(torus) == sum(
        2.0 * level.bandwidth_bytes_per_s * level.links_per_device for level in torus.levels
    )
