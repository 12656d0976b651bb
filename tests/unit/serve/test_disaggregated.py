"""Prefill and decode on workers of their own: waits, transfer, the search, what is printed."""

import json

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
from meshwright.serve.answer import DISAGGREGATED_FILE
from meshwright.serve.answer_files import load_serving
from meshwright.serve.disaggregated import (
    PLAIN,
    cache_path,
    prompts_of,
    queue_s,
    rates_within,
    search_disaggregated,
)
from meshwright.serve.passes import ServingProblem, price_passes
from meshwright.serve.price import price_serving
from meshwright.serve.search import replica_sizes
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import make_strategy, stack
from meshwright.spec.workload import Decode, SoftwareStack
from meshwright.view.terminal import text_of

RECORDED = SoftwareStack(cuda_graphs=True)
LIMITS = {"max_time_to_first_token_s": 0.4, "max_time_per_output_token_s": 0.03}


def requests(prompt=4096, answer=512, batch=64, **more):
    return Decode(
        batch_size=batch, prompt_length=prompt, context_length=prompt + answer, software=RECORDED,
        disaggregated=True, **LIMITS | more,
    )  # fmt: skip


def problem(system="8xH100", model="llama3-8b", work=None):
    spec = load_system(system)
    constants = load_calibration(spec.chip.family)
    return ServingProblem(load_model(model), spec, work or requests(), constants)


def simulated_wait_s(load, prompts, passes=300_000, seed=0):
    """Mean wait of prompts that come at random, of which each pass of a second takes so many.

    A pass starts when its last prompt is there and the pass before has ended: over all passes
    before it, the latest of (that one's last prompt + the passes since).
    """
    draw = np.random.default_rng(seed)
    comes_s = np.cumsum(draw.exponential(1.0 / (load * prompts), passes * prompts))
    comes_s = comes_s.reshape(passes, prompts)
    turns_s = np.arange(float(passes))
    starts_s = np.maximum.accumulate(comes_s[:, -1] - turns_s) + turns_s
    return float((starts_s[:, None] - comes_s).mean())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_the_wait_of_single_prompts_is_that_of_a_simulation(load):
    assert queue_s(load, 1.0, 1.0) == pytest.approx(simulated_wait_s(load, 1), rel=0.04)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
@pytest.mark.parametrize("prompts", [2, 4, 16])
def test_the_wait_of_several_prompts_is_hardly_shorter_than_simulated(load, prompts):
    ratio = queue_s(load * prompts, 1.0, float(prompts)) / simulated_wait_s(load, prompts)
    assert 0.99 < ratio < 1.2


def test_half_a_load_waits_for_half_a_pass():
    """M/D/1 at a load of one half: rho / (2 (1 - rho)) = 1/2 of a pass."""
    assert queue_s(0.5, 1.0, 1.0) == 0.5


@given(
    st.floats(1e-3, 1e2), st.floats(1e-3, 1e2), st.integers(1, 64), st.floats(0.01, 0.99)
)  # fmt: skip
def test_within_both_rates_the_wait_is_kept_and_outside_it_is_not(wait_s, period_s, prompts, share):
    low, high = (float(rate) for rate in rates_within(wait_s, period_s, float(prompts)))
    if high == 0.0:
        rates = np.linspace(1e-3, 0.999, 500) * prompts / period_s
        assert (queue_s(rates, period_s, float(prompts)) > wait_s * (1.0 - 1e-9)).all()
        return
    assert high < prompts / period_s
    inside = low + share * (high - low)
    assert queue_s(inside, period_s, prompts) <= wait_s * (1.0 + 1e-6)
    beyond = high + share * (prompts / period_s - high)
    assert queue_s(beyond, period_s, prompts) >= wait_s * (1.0 - 1e-6)
    if prompts > 1:
        assert queue_s(share * low, period_s, prompts) >= wait_s * (1.0 - 1e-6)


def test_sizes_of_workers_by_hand():
    assert replica_sizes(problem("8xH100"), 7) == (1, 2, 4)
    assert replica_sizes(problem("64xH100"), 63) == (1, 2, 4, 8, 16, 24, 32, 48)


def test_a_cache_crosses_the_slowest_level_that_joins_workers():
    """One host: NVLink, 450 GB/s. Several: one port of 50 GB/s a device."""
    inside, outside = cache_path(problem("8xH100")), cache_path(problem("16xH100"))
    assert 1.0 / inside.s_per_byte == pytest.approx(0.8 * 450e9, rel=0.2)
    assert 1.0 / outside.s_per_byte == pytest.approx(0.85 * 50e9, rel=0.2)
    assert 0.0 < inside.start_s < outside.start_s < 1e-4


def test_caches_cross_a_grid_along_its_columns():
    """On 4 x 8 dies 8 links join two rows, each 0.95 of 2 TB/s, of which a shift by two rows has
    half: 3 of 24 senders share each, and 8 x 0.95e12 / 64e6 caches of 64 MB cross in a second."""
    grid, hosts = cache_path(problem("wafer-4x8")), cache_path(problem("16xH100"))
    assert grid.links_across == 8.0
    assert 1.0 / grid.s_per_byte == pytest.approx(0.95 * 1e12)
    alone_s = grid.time_s(1e9) - grid.start_s
    for devices, sharing in ((1, 1), (8, 1), (9, 2), (24, 3)):
        assert grid.time_s(1e9, devices) - grid.start_s == pytest.approx(sharing * alone_s)
    assert grid.most_per_s(64e6) == pytest.approx(8 * 0.95e12 / 64e6)
    assert hosts.time_s(1e9, 8.0) == hosts.time_s(1e9)
    assert hosts.most_per_s(64e6) == float("inf")


def test_the_cache_of_a_prompt_by_hand():
    """Llama 3 8B: 32 layers, 8 key heads of 128, two tensors of two bytes: 128 KiB a token."""
    question = problem(work=requests(prompt=1024))
    found = search_disaggregated(question, Choices({"tp": (1,), "pp": (1,), "cp": (1,)}))
    deployments, best = found.deployments, found.ranked[0]
    size = 2 * 2 * 32 * 8 * 128 * 1024
    assert deployments.decode.cache_bytes == pytest.approx(size)
    expected_s = cache_path(question).time_s(size)
    prompts = deployments.prefill.candidate(best.prefill_row)[0].micro_batch_size
    assert best.transfer_s == pytest.approx(float(expected_s if prompts == 1 else best.transfer_s))
    assert best.transfer_s >= expected_s


def test_answers_are_made_without_prompts():
    """The step is that of decode alone with answers half grown; the cache has its full length."""
    strategy, groups = stack([make_strategy(tp=4, micro_batch_size=16)]), np.ones(1)
    alone = price_serving(problem(), PLAIN, strategy, groups)
    half = Decode(batch_size=64, context_length=4096 + 256, software=RECORDED)
    whole = Decode(batch_size=64, context_length=4096 + 512, software=RECORDED)
    middle, full = (
        price_serving(problem(work=work), PLAIN, strategy, groups) for work in (half, whole)
    )
    assert alone.latency_s == middle.latency_s
    assert alone.memory_bytes == full.memory_bytes
    assert alone.first_token_s is None


def test_parts_of_both_times_sum_and_rates_match():
    found = meshwright.serve(**ASKED)
    best, work = found.best, found.workload
    assert sum(best.first_token_parts_s.values()) == pytest.approx(best.first_token_s)
    assert best.first_token_s <= 0.4 * (1.0 + 1e-9)
    assert best.latency_s <= 0.03
    worker = best.decode.worker.estimate
    assert best.latency_s == worker.latency_s
    most = min(best.decode.number * worker.sequences_in_flight, work.batch_size)
    made = most / (worker.latency_s * (work.answer_length - 1))
    assert best.requests_per_s == pytest.approx(made * best.decode.busy_share)
    prompts = best.prefill.worker
    taken = best.prefill.number * prompts.estimate.tokens_per_s / work.prompt_length
    assert best.requests_per_s == pytest.approx(taken * best.prefill.busy_share)
    assert best.tokens_per_s == best.requests_per_s * work.answer_length
    used = [pool.number * pool.worker.estimate.num_devices_used
            for pool in (best.prefill, best.decode)]  # fmt: skip
    assert best.num_devices_used == sum(used) <= 8


ASKED = {
    "model": "llama3-8b", "on": "8xH100", "disaggregated": True,
    "batch": 256, "prompt": "4k", "answer": 512, "max_ttft": "400ms", "max_tpot": "30ms",
}  # fmt: skip


def test_both_ways_are_compared_within_the_same_limits():
    found = meshwright.serve(**ASKED)
    mixed = meshwright.serve(**{**ASKED, "disaggregated": False})
    assert found.aggregated == mixed.best
    ratio = found.best.tokens_per_s / mixed.best.estimate.tokens_per_s
    assert found.speedup == ratio
    text = " ".join(text_of(found.page(), detail=True).split())
    winner = f"{'more' if ratio >= 1.0 else 'less'} throughput than workers that do both"
    assert winner in text
    assert f"{abs(ratio - 1.0):.0%} " in text
    assert "prefill and decode apart" in text
    covered = found.prefill_coverage.num_candidates
    assert f"What became of the plans of a prefill worker: {covered:,}: priced" in text


def test_a_plan_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "plan.json"
    found = meshwright.serve(**ASKED, out=str(path))
    assert load_serving(path) == found == meshwright.load(path)
    assert json.loads(path.read_text()) == DISAGGREGATED_FILE.to_data(found)


def test_servers_start_a_worker_of_each_kind():
    found = meshwright.serve(**ASKED, framework="vllm")
    scripts = served(found, "vllm")
    assert list(scripts) == ["vllm-prefill.sh", "vllm-decode.sh", "benchmark.sh"]
    assert all("NixlConnector" in scripts[name] for name in list(scripts)[:2])
    split = found.best.decode.worker.strategy
    assert f"--tensor-parallel-size {split.tp:.0f}" in scripts["vllm-decode.sh"]
    if found.best.decode.number > 1:
        assert f"REPLICAS={found.best.decode.number}" in scripts["vllm-decode.sh"]
    other = served(found, "sglang")
    for role in ("prefill", "decode"):
        assert f"--disaggregation-mode {role}" in other[f"sglang-{role}.sh"]
    with pytest.raises(meshwright.MeshwrightError, match="not written"):
        served(found, "tensorrt-llm")


def test_where_only_workers_that_do_both_keep_the_limits_they_are_named():
    """70B in 16 bits fills three of four H100s: nothing is left for workers of their own."""
    with pytest.raises(InfeasibleError, match="workers that do both do: tp4"):
        meshwright.serve(**{**ASKED, "model": "llama3-70b", "on": "4xH100", "max_ttft": "2s"})


def test_what_no_worker_keeps_is_named():
    with pytest.raises(InfeasibleError, match="no prompt passes within 1 ms"):
        meshwright.serve(**{**ASKED, "max_ttft": "1ms"})
    with pytest.raises(InfeasibleError, match="need two devices"):
        meshwright.serve(**{**ASKED, "on": "1xH100"})
    with pytest.raises(InfeasibleError, match="no split of at most 4 devices has tp 8"):
        meshwright.serve(**{**ASKED, "on": "8xH100", "tp": 8})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ttft": None}, "--max-ttft: is needed with --disaggregated"),
        ({"latency": True}, "--latency: has no effect"),
        ({"dp": 2}, "--dp: has no effect"),
        ({"answer": 1}, "an answer of two tokens"),
        ({"speculative_model": "llama3-8b", "speculative_tokens": 2, "acceptance": 0.7},
         "drafts are not priced"),
        ({"prompt": None, "answer": None, "max_ttft": None, "max_tpot": None,
          "context": "4k"}, "--context: applies only to decode"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        meshwright.serve(**{**ASKED, **options})


def test_an_answer_has_two_tokens():
    with pytest.raises(ValidationError, match="an answer of two tokens"):
        requests(answer=1)


def test_prompts_are_work_of_their_own():
    work = requests()
    prompts = prompts_of(work)
    assert (prompts.prompt_length, prompts.max_time_to_first_token_s) == (4096, 0.4)
    assert prompts.precision == work.precision
    held = price_passes(problem(work=prompts), PLAIN, stack([make_strategy(tp=2)])).held
    assert held[0].cache_bytes > 0.0
