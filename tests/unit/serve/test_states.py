"""Serving with recurrent layers: a state of constant size in place of a cache that grows."""

import numpy as np
import pytest

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import price_serving
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.workload import Decode, Prefill

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
STATES = 64 * (4 * 80 * 64 * 128 + 2 * 3 * (5120 + 2 * 128))
"""Of Mamba 2 2.7B: states of 80 heads in FP32, three inputs of the convolution [bytes]."""


def priced(model, work, batch=1, **degrees):
    question = ServingProblem(
        load_model(model), load_system("8xH100"), work, load_calibration("hopper")
    )
    rows = stack([make_strategy(micro_batch_size=batch, **degrees)])
    return price_serving(question, PLAIN, rows, np.array([1.0]))


def decode(context, batch=8):
    return Decode(batch_size=batch, context_length=context)


def test_a_state_is_as_large_and_as_fast_whatever_the_context():
    short, long = (priced("mamba2-2.7b", decode(n), batch=8) for n in (1_000, 1_000_000))
    assert short.memory[0].kv_cache_bytes[0] == long.memory[0].kv_cache_bytes[0] == 8 * STATES
    assert short.latency_s[0] == long.latency_s[0]


def test_only_the_attention_of_a_hybrid_keeps_more_for_a_longer_context():
    # Nemotron-H 8B: keys and values of 4 layers, 8 heads of 128 each, two bytes.
    short, long = (priced("nemotron-h-8b", decode(n)) for n in (1_000, 3_000))
    more = long.memory[0].kv_cache_bytes[0] - short.memory[0].kv_cache_bytes[0]
    assert more == 2_000 * 4 * 2 * 8 * 128 * 2


def test_a_token_reads_and_writes_each_state():
    one, nine = (priced("mamba2-2.7b", decode(100, 9), batch=n) for n in (1, 9))
    more = nine.traffic_bytes[0] - one.traffic_bytes[0]
    assert 8 * 2 * STATES < more < 8 * 2 * STATES * 1.1


def test_tensor_parallelism_splits_states_by_heads_and_groups():
    whole, split = (priced("mamba-codestral-7b", decode(100), tp=tp) for tp in (1, 8))
    held = [price.memory[0].kv_cache_bytes[0] for price in (whole, split)]
    assert held[0] == pytest.approx(8 * held[1])


def test_a_single_group_is_held_by_every_rank():
    whole, split = (priced("mamba2-2.7b", decode(100), tp=tp) for tp in (1, 8))
    held = [price.memory[0].kv_cache_bytes[0] for price in (whole, split)]
    of_group = 64 * 2 * 3 * 2 * 128
    assert 8 * held[1] - held[0] == 7 * of_group


def test_prompts_leave_a_state_and_split_it_over_context_parallelism():
    work = Prefill(batch_size=1, prompt_length=8192)
    whole, split = (priced("mamba2-2.7b", work, cp=cp) for cp in (1, 4))
    assert whole.memory[0].kv_cache_bytes[0] == STATES
    assert split.memory[0].kv_cache_bytes[0] == STATES / 4
    assert split.time.cp_comm_s[0] > whole.time.cp_comm_s[0] == 0.0
