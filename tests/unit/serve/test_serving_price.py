"""Prices of prefill and decode against numbers derived by hand."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cost.memory import fullest
from meshwright.graph.parameters import kv_cache_bytes
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import (
    SERVING_MEMORY_PARTS,
    SERVING_TIME_PARTS,
    price_serving,
)
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack

GRAPHS = SoftwareStack(cuda_graphs=True)
PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
GIB = 2.0**30


def problem(model, system, workload, **constants):
    """A problem whose constants are those of an ideal device, except where stated."""
    spec = load_system(system)
    ideal = {
        "memory_efficiency": 1.0, "elementwise_efficiency": 1.0, "collective_launch_s": 0.0,
        "launch_s": 0.0, "jitter": 0.0,
    }  # fmt: skip
    calibration = replace(load_calibration(spec.chip.family), **{**ideal, **constants})
    return ServingProblem(load_model(model), spec, workload, calibration)


def priced(question, *, groups=1, **degrees):
    columns = stack([make_strategy(**degrees)])
    return price_serving(question, PLAIN, columns, np.array([float(groups)]))


def decode(**fields):
    return Decode(**{"batch_size": 256, "context_length": 8192, "software": GRAPHS} | fields)


def test_a_decode_step_cannot_be_faster_than_reading_its_weights():
    # Llama 3 70B: 70,553,706,496 parameters. Products read all but the table of the embedding
    # (128,256 x 8,192) and the norms (161 x 8,192): 69,501,714,432 words of 2 bytes over 8 devices
    # of 3.35 TB/s take 5.1867 ms. Activations of one token add less than a thousandth.
    price = priced(problem("llama3-70b", "8xH100", decode()), tp=8)
    floor_s = 69_501_714_432 * 2 / 8 / 3.35e12
    assert floor_s == pytest.approx(5.1867e-3, rel=1e-4)
    assert floor_s <= price.time.matmul_memory_s[0] <= 1.001 * floor_s
    assert price.time.matmul_compute_s[0] == 0.0


def test_narrow_weights_halve_the_floor():
    bf16 = priced(problem("llama3-70b", "8xH100", decode()), tp=8)
    fp8 = priced(problem("llama3-70b", "8xH100", decode(precision=Precision(weight="fp8"))), tp=8)
    # Logits stay in the activation type: 128,256 x 8,192 / 8 words of 2 bytes.
    logits_s = 128_256 * 8_192 * 2 / 8 / 3.35e12
    expected = (bf16.time.matmul_memory_s[0] - logits_s) / 2 + logits_s
    assert fp8.time.matmul_memory_s[0] == pytest.approx(expected, rel=1e-3)


def test_the_cache_of_llama_3_70b_is_327680_bytes_for_each_token():
    # 80 layers x 2 x 8 heads x 128 x 2 bytes = 327,680; an eighth of it on each device of tp 8.
    price = priced(problem("llama3-70b", "8xH100", decode(context_length=1000)), tp=8,
                   micro_batch_size=4)  # fmt: skip
    assert price.memory[0].kv_cache_bytes[0] == 4 * 1000 * 327_680 / 8


def test_reading_the_cache_bounds_attention():
    # 64 sequences x 8,192 tokens x 40,960 bytes at 3.35 TB/s; the new tokens add 1/8,192 of it,
    # queries and results less than that.
    price = priced(problem("llama3-70b", "8xH100", decode()), tp=8, micro_batch_size=64)
    floor_s = 64 * 8192 * 40_960 / 3.35e12
    assert floor_s <= price.time.attention_s[0] <= 1.002 * floor_s


def test_most_sequences_fill_what_the_weights_leave():
    # The server fills 0.9 of 80 GiB; 2 GiB are buffers. An eighth of 70,552,387,584 sharded words
    # and all of 161 x 8,192 norm words of 2 bytes are weights. Of its largest pass, 8,192 tokens,
    # a residual sum reads two words and writes one for each of 8,192 channels, beside the streams
    # that arrive and leave. A sequence of 8,192 tokens takes 335,544,320 bytes: 169.43 of them.
    price = priced(problem("llama3-70b", "8xH100", decode()), tp=8)
    weights = 2 * (70_552_387_584 / 8 + 161 * 8192)
    assert price.memory[0].weights_bytes[0] == weights
    largest_pass = 2 * 8192 * (3 * 8192 + 2 * 8192)
    room = (0.9 * 80 - 2) * GIB - weights - largest_pass
    assert room / 335_544_320 == pytest.approx(169.427, abs=0.001)
    assert price.most_sequences[0] == 169
    assert price.cache_tokens[0] == room // (335_544_320 / 8192) == 1_387_942


def test_a_token_of_decode_returns_to_the_first_stage():
    # A residual stream of 8,192 words of 2 bytes between neighbours on NVLink: 1.9 us, and at 0.8
    # of 450 GB/s 16,384 bytes beside the 262,144 that the start of a message costs: 2.67369 us.
    # Two stages send it forth and back, four stages three times forth and once back. A prompt of
    # one token does not come back.
    send_s = 1.9e-6 + (16_384 + 262_144) / (0.8 * 450e9)
    assert send_s == pytest.approx(2.67369e-6, rel=1e-6)
    for stages in (2, 4):
        tp = 8 // stages
        price = priced(problem("llama3-70b", "8xH100", decode()), tp=tp, pp=stages)
        assert price.time.pp_comm_s[0] == pytest.approx(stages * send_s)
        prompt = Prefill(batch_size=1, prompt_length=1, software=GRAPHS)
        price = priced(problem("llama3-70b", "8xH100", prompt), tp=tp, pp=stages)
        assert price.time.pp_comm_s[0] == pytest.approx((stages - 1) * send_s)


def test_room_counts_all_replicas():
    price = priced(problem("llama3-70b", "8xH100", decode()), tp=4, dp_replicate=2)
    # Half of the devices hold twice the weights and twice the cache: 58 sequences in each half.
    assert price.most_sequences[0] == 116


def test_tp_beyond_the_key_heads_replicates_the_cache():
    # Llama 3 8B has 8 key heads of 128 in 32 layers: one head for each rank from tp 8 on.
    question = problem("llama3-8b", "16xH100", decode())
    eight, sixteen = (priced(question, tp=tp, micro_batch_size=4) for tp in (8, 16))
    one_head = 32 * 2 * 128 * 2 * 8192 * 4
    assert eight.memory[0].kv_cache_bytes[0] == sixteen.memory[0].kv_cache_bytes[0] == one_head
    assert sixteen.memory[0].weights_bytes[0] < eight.memory[0].weights_bytes[0]


@pytest.mark.parametrize(
    "name", ["llama3-8b", "gemma2-27b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2"]
)
def test_the_cache_on_one_device_is_that_of_the_model(name):
    # Grouped heads, windows, experts, latents: the exact count of the graph, by another route.
    for context in (100, 8192):
        price = priced(problem(name, "8xH200", decode(context_length=context)), tp=1)
        expected = kv_cache_bytes(load_model(name), 2.0, float(context))
        assert price.memory[0].kv_cache_bytes[0] == expected


def test_a_tied_table_is_held_once_by_one_device_and_twice_by_a_pipeline():
    # Gemma 2 27B: 27,227,128,320 parameters, of which the table is 256,000 x 4,608.
    question = problem("gemma2-27b", "8xH200", decode())
    alone, halves = (priced(question, tp=1, pp=pp) for pp in (1, 2))
    assert alone.memory[0].weights_bytes[0] == 2 * 27_227_128_320
    both = halves.memory[0].weights_bytes[0] + halves.memory[2].weights_bytes[0]
    assert both == 2 * (27_227_128_320 + 256_000 * 4_608)


def test_decode_groups_share_a_pipeline():
    # Two even stages: two groups take as long as one, and make twice the tokens.
    question = problem("llama3-70b", "8xH100", decode())
    one, two = (priced(question, tp=4, pp=2, micro_batch_size=8, groups=m) for m in (1, 2))
    assert one.time.wait_s[0] == 0.0
    assert two.latency_s[0] == pytest.approx(2 * two.bottleneck_s[0])
    assert two.latency_s[0] == pytest.approx(one.latency_s[0], rel=0.03)
    assert two.sequences_in_flight[0] == 2 * one.sequences_in_flight[0] == 16
    assert two.memory[1].kv_cache_bytes[0] == 0.0
    assert two.memory[0].kv_cache_bytes[0] == 2 * one.memory[0].kv_cache_bytes[0]


def test_no_more_sequences_are_in_flight_than_there_are():
    question = problem("llama3-70b", "8xH100", decode(batch_size=9))
    price = priced(question, tp=4, pp=2, micro_batch_size=5, groups=2)
    assert price.sequences_in_flight[0] == 9
    assert price.memory[0].kv_cache_bytes[0] == 9 * 8192 * 327_680 / 8


def test_prefill_executes_the_flops_of_its_prompt():
    # Each of s tokens visits the products of the layers, the last one alone the logits, and token
    # i scores i keys with 64 heads of 128 in 80 layers: 4 x 64 x 128 x s (s + 1) / 2 FLOP a layer.
    s = 2048
    work = Prefill(batch_size=1, prompt_length=s, software=GRAPHS)
    price = priced(problem("llama3-70b", "8xH100", work), tp=1)
    logits = 128_256 * 8_192
    layers = 69_501_714_432 - logits
    attention = 80 * 4 * 64 * 128 * s * (s + 1) / 2
    assert price.flops[0] == pytest.approx(2 * s * layers + 2 * logits + attention, rel=1e-12)


def test_prefill_passes_all_stages_and_is_paced_by_the_slowest():
    work = Prefill(batch_size=8, prompt_length=2048, software=GRAPHS)
    price = priced(problem("llama3-70b", "8xH100", work), tp=4, pp=2, groups=2, micro_batch_size=2)
    assert price.time.wait_s[0] == 0.0
    assert price.bottleneck_s[0] < price.latency_s[0] < 2 * price.bottleneck_s[0]
    assert price.tokens_per_s[0] == pytest.approx(2 * 2048 / price.bottleneck_s[0])
    assert price.tokens_per_s_per_user[0] == pytest.approx(2048 / price.latency_s[0])


def test_cp_shares_a_long_prompt():
    work = Prefill(batch_size=1, prompt_length=131_072, software=GRAPHS)
    question = problem("llama3-70b", "8xH200", work)
    four = priced(question, tp=4)
    eight = priced(question, tp=4, cp=2)
    assert 0.5 * four.latency_s[0] < eight.latency_s[0] < 0.62 * four.latency_s[0]
    assert eight.memory[0].kv_cache_bytes[0] == four.memory[0].kv_cache_bytes[0] / 2


def test_experts_spread_over_replicas_hold_fewer_weights_and_talk():
    question = problem("mixtral-8x7b", "8xH100", decode(batch_size=64))
    apart = priced(question, dp_replicate=8, micro_batch_size=8)
    spread = priced(question, dp_replicate=8, ep=8, micro_batch_size=8)
    assert apart.time.ep_comm_s[0] == 0.0 < spread.time.ep_comm_s[0]
    # 32 layers x 7 experts of 3 x 4,096 x 14,336 words of 2 bytes lie elsewhere.
    elsewhere = 32 * 7 * 3 * 4096 * 14_336 * 2
    assert apart.memory[0].weights_bytes[0] - spread.memory[0].weights_bytes[0] == elsewhere


def test_eager_launches_bound_small_steps():
    graphs = priced(problem("llama3-8b", "8xH100", decode(), launch_s=5e-6), tp=8)
    eager = priced(
        problem("llama3-8b", "8xH100", decode(software=SoftwareStack()), launch_s=5e-6), tp=8
    )
    # A layer has 4 products, 2 kernels of attention and 6 others (norms, rotary, activation, two
    # additions): 12 x 5 us are more than its work. The step: at least 32 x 60 us = 1.92 ms.
    assert graphs.time.launch_s[0] == 0.0
    busy = sum(
        getattr(eager.time, name)[0]
        for name in ("matmul_memory_s", "matmul_compute_s", "attention_s", "elementwise_s")
    )
    assert busy + eager.time.launch_s[0] == pytest.approx(32 * 60e-6, rel=0.2)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_parts_sum_to_the_whole_exactly(groups):
    question = problem("llama3-70b", "8xH100", decode(), jitter=0.01)
    price = priced(question, tp=2, pp=4, groups=groups, micro_batch_size=3)
    seconds = 0.0
    for name in SERVING_TIME_PARTS:
        seconds = seconds + getattr(price.time, name)[0]
    assert seconds == price.latency_s[0]
    use, _ = fullest(price.memory)
    size = 0.0
    for name in SERVING_MEMORY_PARTS:
        size = size + getattr(use, name)[0]
    assert size == price.memory_bytes[0]
