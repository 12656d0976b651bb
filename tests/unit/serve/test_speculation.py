"""Speculative decoding: what a step yields, what it costs, and what has to be stated."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import meshwright
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.frameworks.deployment import served
from meshwright.serve.passes import ServingProblem, prediction_layer, tokens_per_step
from meshwright.serve.price import SERVING_TIME_PARTS, price_serving
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.workload import Decode, SoftwareStack, Speculation
from meshwright.view.terminal import text_of

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
RECORDED = SoftwareStack(cuda_graphs=True)
DRAFT = "llama3-8b"


def speculation(tokens=4, acceptance=0.7, draft=DRAFT):
    model = load_model(draft) if draft else None
    return Speculation(draft=model, drafted_tokens=tokens, acceptance=acceptance)


def priced(model="llama3-70b", size=16, **fields):
    work = Decode(**{"batch_size": 64, "context_length": 4096, "software": RECORDED} | fields)
    system = load_system("8xH200" if "deepseek" in model else "8xH100")
    problem = ServingProblem(load_model(model), system, work, load_calibration(system.chip.family))
    split = make_strategy(tp=8, ep=8 if "deepseek" in model else 1, micro_batch_size=size)
    return price_serving(problem, PLAIN, stack([split]), np.ones(1))


def test_tokens_of_a_step_by_hand():
    assert tokens_per_step(0.5, 2) == 1.75
    assert tokens_per_step(1.0, 4) == 5.0


@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_the_sum_is_that_of_leviathan(acceptance, drafted):
    closed = (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)
    assert tokens_per_step(acceptance, drafted) == pytest.approx(closed, rel=1e-9)


def test_tokens_of_a_step_are_those_of_a_trial():
    draw, steps, yielded = random.Random(1), 40_000, 0
    for _ in range(steps):
        accepted = 0
        while accepted < 3 and draw.random() < 0.6:
            accepted += 1
        yielded += accepted + 1
    assert tokens_per_step(0.6, 3) == pytest.approx(yielded / steps, rel=0.01)


def test_a_step_is_a_check_of_all_tokens_and_passes_of_the_draft():
    """k passes of the draft alone, and the host once: what is left is the check."""
    found, plain, alone = priced(speculation=speculation(tokens=4)), priced(), priced(model=DRAFT)
    yielded = tokens_per_step(0.7, 4)
    draft_s = 4.0 * (alone.latency_s - alone.time.jitter_s - alone.time.host_s)
    assert found.time.draft_s * yielded == pytest.approx(draft_s, rel=1e-9)
    check_s = found.latency_s * yielded - draft_s
    assert plain.latency_s < check_s < 2.0 * plain.latency_s


def test_parts_sum_and_littles_law_holds():
    found = priced(speculation=speculation())
    parts = sum(getattr(found.time, name)[0] for name in SERVING_TIME_PARTS)
    assert parts == pytest.approx(found.latency_s[0], rel=1e-12)
    assert found.tokens_per_s * found.latency_s == pytest.approx(found.sequences_in_flight)


def test_a_check_of_few_sequences_costs_hardly_more_than_a_token():
    """Weights are read once for all tokens: with every draft accepted a step yields five."""
    found = priced(size=1, speculation=speculation(acceptance=1.0))
    rest_s = found.latency_s[0] - found.time.draft_s[0]
    assert 5.0 * rest_s == pytest.approx(priced(size=1).latency_s[0], rel=0.05)


@pytest.mark.parametrize("acceptance", [0.3, 0.6])
def test_a_higher_acceptance_is_faster(acceptance):
    slow, fast = (
        priced(speculation=speculation(acceptance=share))
        for share in (acceptance, acceptance + 0.3)
    )
    ratio = tokens_per_step(acceptance + 0.3, 4) / tokens_per_step(acceptance, 4)
    assert slow.latency_s[0] / fast.latency_s[0] == pytest.approx(ratio)


def test_the_draft_takes_memory():
    """Its weights split over tp, and its cache: 128 KiB a token of 4,096, over eight devices."""
    with_draft, plain = priced(speculation=speculation()), priced()
    (mine,), (other,) = with_draft.memory[:1], plain.memory[:1]
    weights = mine.weights_bytes[0] - other.weights_bytes[0]
    assert weights == pytest.approx(2 * 8.03e9 / 8, rel=0.01)
    cache = mine.kv_cache_bytes[0] - other.kv_cache_bytes[0]
    assert cache == 16 * 4096 * 128 * 1024 / 8


def test_a_prediction_layer_is_one_layer_and_shares_its_tables():
    model = load_model("deepseek-v3")
    layer = prediction_layer(model)
    assert layer.num_layers == 1
    assert layer.layer_kinds[0] == model.layer_kinds[model.layer_pattern[-1]]
    precision = {"precision": {"weight": "fp8", "matmul": "fp8"}}
    found = priced("deepseek-v3", speculation=speculation(1, 0.8, None), **precision)
    plain = priced("deepseek-v3", **precision)
    more = found.memory[0].weights_bytes[0] - plain.memory[0].weights_bytes[0]
    experts = 256 * 3 * 7168 * 2048 / 8
    assert experts < more < 1.1 * experts


def test_requests_are_answered_in_fewer_steps():
    fields = {"prompt_length": 2048, "context_length": 2560}
    plain, found = priced(**fields), priced(**fields, speculation=speculation())
    assert found.latency_s[0] < plain.latency_s[0]
    # The draft takes the prompt as well.
    assert found.first_token_s[0] > plain.first_token_s[0]


ASKED = {"model": "llama3-70b", "on": "8xH100", "batch": 16, "context": "4k"}
DRAFTS = {"speculative_model": DRAFT, "speculative_tokens": 4, "acceptance": 0.7}


def test_the_screen_repeats_what_was_stated():
    found = meshwright.serve(**ASKED, **DRAFTS)
    text = " ".join(text_of(found.page()).split())
    assert "4 tokens a step by llama3-8b, 70% accepted as stated: 2.77 tokens a step" in text
    assert found.best.strategy.pp == 1
    with pytest.raises(meshwright.MeshwrightError, match="drafts are not written"):
        served(found, "vllm")


def test_a_prediction_layer_is_written_for_vllm():
    found = meshwright.serve(
        **{**ASKED, "model": "deepseek-v3", "on": "8xH200"}, speculative_model="mtp",
        speculative_tokens=1, acceptance=0.8, framework="vllm",
    )  # fmt: skip
    assert '"method": "mtp", "num_speculative_tokens": 1' in served(found, "vllm")["vllm.sh"]
    with pytest.raises(meshwright.MeshwrightError, match="drafts are not written"):
        served(found, "sglang")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acceptance": None}, "--acceptance: is needed"),
        ({"speculative_tokens": None}, "--speculative-tokens: is needed"),
        ({"context": 4, "speculative_tokens": 4}, "4 tokens are all of the answer"),
        ({"acceptance": 1.2}, "--acceptance: found 1.2"),
        ({"speculative_model": "mtp"}, "llama3-70b has no layer of multi-token prediction"),
        ({"context": None, "prompt": "1k"},
         "--acceptance: applies only to decode"),
    ],
)  # fmt: skip
def test_nothing_is_taken_for_granted(options, message):
    with pytest.raises(SpecError, match=message):
        meshwright.serve(**{**ASKED, **DRAFTS, **options})


def test_pipelines_have_no_drafts():
    with pytest.raises(InfeasibleError, match="pp 2 with drafts, which need pp 1"):
        meshwright.serve(**ASKED, **DRAFTS, pp=2)


def test_drafts_are_not_priced_on_workers_of_their_own():
    with pytest.raises(ValidationError, match="drafts are not priced"):
        Decode(
            batch_size=1, prompt_length=8, context_length=16, disaggregated=True,
            speculation=speculation(),
        )  # fmt: skip
