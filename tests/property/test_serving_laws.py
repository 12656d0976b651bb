"""Laws of serving that hold whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.serve.operators import hit_fraction
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import SERVING_TIME_PARTS, price_serving
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack

SYSTEM = load_system("16xH100")
CONSTANTS = load_calibration("hopper")
PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
NAMES = ("llama3-8b", "mixtral-8x7b", "gemma2-9b", "deepseek-v2-lite", "nemotron-h-8b")
MODELS = {name: load_model(name) for name in NAMES}
degrees = st.sampled_from([(1, 1, 1), (2, 1, 1), (4, 2, 1), (8, 1, 2), (2, 4, 2), (1, 2, 8)])
batches = st.integers(1, 200)
quick = settings(max_examples=15)


def priced(model, work, split, batch, groups=1):
    tp, pp, dp = split
    question = ServingProblem(MODELS[model], SYSTEM, work, CONSTANTS)
    rows = stack([make_strategy(tp=tp, pp=pp, dp_replicate=dp, micro_batch_size=batch)])
    return price_serving(question, PLAIN, rows, np.array([float(groups)]))


def decode(context, **more):
    return Decode(batch_size=4096, context_length=context, software=SoftwareStack(cuda_graphs=True),
                  **more)  # fmt: skip


@quick
@given(st.sampled_from(NAMES), degrees, batches, st.integers(1, 60_000), st.integers(1, 4))
def test_little(model, split, batch, context, groups):
    price = priced(model, decode(context), split, batch, min(groups, split[1]))
    flying = price.tokens_per_s * price.latency_s
    assert flying[0] == pytest.approx(price.sequences_in_flight[0], rel=1e-12)
    assert price.sequences_in_flight[0] == batch * min(groups, split[1]) * split[2]


@quick
@given(st.sampled_from(NAMES), degrees, batches, st.integers(1, 60_000), st.integers(1, 60_000))
def test_longer_contexts_are_slower_and_larger(model, split, batch, context, more):
    short = priced(model, decode(context), split, batch)
    long = priced(model, decode(context + more), split, batch)
    assert long.latency_s[0] >= short.latency_s[0]
    assert long.memory_bytes[0] >= short.memory_bytes[0]
    assert long.most_sequences[0] <= short.most_sequences[0]


@quick
@given(st.sampled_from(NAMES), degrees, batches, batches)
def test_larger_batches_are_slower_and_larger(model, split, batch, more):
    small, large = (priced(model, decode(4096), split, b) for b in (batch, batch + more))
    assert large.latency_s[0] >= small.latency_s[0]
    assert large.memory_bytes[0] > small.memory_bytes[0]
    assert large.tokens_per_s_per_user[0] <= small.tokens_per_s_per_user[0]


@quick
@given(st.sampled_from(NAMES), degrees, batches)
def test_narrower_words_are_never_slower(model, split, batch):
    wide = priced(model, decode(4096), split, batch)
    narrow = Precision(weight="fp8", kv_cache="fp8")
    slim = priced(model, decode(4096, precision=narrow), split, batch)
    assert slim.latency_s[0] <= wide.latency_s[0]
    assert slim.memory_bytes[0] < wide.memory_bytes[0]


@quick
@given(st.sampled_from(NAMES), degrees, st.integers(1, 8), st.integers(128, 8192))
def test_no_part_is_negative_and_prefill_is_paced(model, split, batch, length):
    work = Prefill(batch_size=4096, prompt_length=length)
    price = priced(model, work, split, batch, split[1])
    assert all(getattr(price.time, name)[0] >= 0 for name in SERVING_TIME_PARTS)
    assert price.bottleneck_s[0] <= price.latency_s[0] * (1 + 1e-12)
    prompts_per_s = price.tokens_per_s[0] / length
    assert prompts_per_s == pytest.approx(batch * split[2] / price.bottleneck_s[0])


@quick
@given(st.floats(0.001, 1.0), st.lists(st.floats(1.0, 1e4), min_size=1, max_size=8))
def test_hit_experts_grow_with_tokens(probability, tokens):
    hits = hit_fraction(probability, np.array(sorted(tokens)))
    assert (np.diff(hits) >= 0).all()
    assert (hits <= 1.0).all()
    assert (hits >= probability * (1 - 1e-12)).all()
