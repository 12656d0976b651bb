"""Requests from prompt to last token: both latencies of one deployment, and limits on both."""

import numpy as np
import pytest
from pydantic import ValidationError

import meshwright
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_server
from meshwright.serve.answer import SERVING_FILE
from meshwright.serve.passes import ServingProblem, price_passes
from meshwright.serve.price import SERVING_TIME_PARTS, price_serving
from meshwright.serve.requests import EqualRequests, Serving
from meshwright.serve.serve import serve
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.workload import Decode, Prefill, SoftwareStack
from meshwright.view.terminal import text_of

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
RECORDED = SoftwareStack(cuda_graphs=True)


def problem(work, system="8xH100", model="llama3-8b"):
    spec = load_system(system)
    return ServingProblem(load_model(model), spec, work, load_calibration(spec.chip.family))


def requests(prompt=2048, answer=256, batch=512, **limits):
    return Decode(
        batch_size=batch, prompt_length=prompt, context_length=prompt + answer, software=RECORDED,
        **limits,
    )  # fmt: skip


def priced(work, *, groups=1, **degrees):
    columns = stack([make_strategy(**degrees)])
    return price_serving(problem(work), PLAIN, columns, np.array([float(groups)]))


@pytest.mark.parametrize(
    ("degrees", "groups"), [({"tp": 1}, 1), ({"tp": 4}, 1), ({"tp": 2, "pp": 4}, 4)]
)
def test_the_step_is_that_of_a_queue(degrees, groups):
    """The same steady state that measured queues are predicted with."""
    server = load_server("generic").model_copy(
        update={"most_sequences": 16 * groups, "most_pass_tokens": 10**6}
    )
    replica = Serving(problem(requests()), server, PLAIN, make_strategy(**degrees))
    queue = replica.served(EqualRequests(*(np.array([v]) for v in (2048.0, 256.0, np.inf))))
    assert queue.at_once[0] == 16 * groups
    found = priced(requests(), groups=groups, micro_batch_size=16, **degrees)
    assert found.latency_s[0] == pytest.approx(queue.step_s[0], rel=1e-12)


def test_parts_sum_to_the_time_per_output_token():
    found = priced(requests(), tp=4, micro_batch_size=8)
    parts = sum(getattr(found.time, name)[0] for name in SERVING_TIME_PARTS)
    assert parts == pytest.approx(found.latency_s[0], rel=1e-12)


def test_a_step_costs_what_decode_does_and_its_share_of_prompts():
    """Between the step of answers alone and that step with whole passes of its prompts after it."""
    sequences, prompt, answer = 32, 2048, 256
    found = priced(requests(prompt, answer), tp=4, micro_batch_size=sequences)
    middle = Decode(batch_size=512, context_length=prompt + answer // 2, software=RECORDED)
    alone_s = priced(middle, tp=4, micro_batch_size=sequences).latency_s[0]
    prompts = Prefill(batch_size=1, prompt_length=prompt, software=RECORDED)
    prompt_s = priced(prompts, tp=4).latency_s[0]
    assert alone_s < found.latency_s[0] < alone_s + sequences / answer * prompt_s
    # A request waits for half of a pass, and shares its own with prompts sent meanwhile.
    assert prompt_s < found.first_token_s[0] < 2.0 * (prompt_s + found.latency_s[0])


def test_short_prompts_leave_the_step_of_decode():
    short = priced(requests(1, 2047), tp=4, micro_batch_size=8)
    plain = Decode(batch_size=512, context_length=1024, software=RECORDED)
    step_s = priced(plain, tp=4, micro_batch_size=8).latency_s[0]
    assert short.latency_s[0] == pytest.approx(step_s, rel=0.01)


def test_prompts_that_start_together_pass_together():
    few, many = (
        priced(requests(2048, 16), tp=4, micro_batch_size=size).first_token_s[0]
        for size in (16, 64)
    )
    # Four prompts begin in each step of 64 answers of 16 tokens, one in each step of 16: passes
    # and waits are longer.
    assert 1.6 < many / few < 4.5


def test_the_cache_holds_prompt_and_answer_and_the_largest_pass_has_room():
    found = priced(requests(2048, 256), tp=4, micro_batch_size=8)
    plain = Decode(batch_size=512, context_length=2304, software=RECORDED)
    decode = priced(plain, tp=4, micro_batch_size=8)
    (use,), (other,) = (
        [m for m in each.memory if m.weights_bytes[0]][:1] for each in (found, decode)
    )
    assert use.kv_cache_bytes == other.kv_cache_bytes
    assert use.weights_bytes == other.weights_bytes
    # A server reserves room for 8,192 tokens of a pass, whatever comes: six of logits at most.
    assert use.working_bytes == pytest.approx(other.working_bytes, rel=0.05)
    assert use.working_bytes > 8192 * 4096 * 2 * 2


LIMITS = {"max_time_to_first_token_s": 0.4, "max_time_per_output_token_s": 0.04}


def test_both_limits_hold_for_every_plan_that_is_ranked():
    found = serve("llama3-70b", "8xH100", requests(4096, 512, 256, **LIMITS))
    free = serve("llama3-70b", "8xH100", requests(4096, 512, 256))
    for entry in (found.best, *found.runners_up):
        # At the slow end of the interval: eight of ten measured times are within the limit.
        assert entry.estimate.first_token_interval_s[1] <= 0.4
        assert entry.estimate.latency_interval_s[1] <= 0.04
    assert found.num_too_slow > 0
    assert free.best.estimate.tokens_per_s > found.best.estimate.tokens_per_s
    assert free.best.estimate.first_token_s > 0.4
    rate = found.best.estimate.tokens_per_s / 512
    assert found.requests_per_s == pytest.approx(rate)
    assert SERVING_FILE.from_json(SERVING_FILE.to_json(found)) == found


def test_the_limit_that_nothing_keeps_is_named():
    def missed(**limits):
        with pytest.raises(InfeasibleError) as caught:
            serve("llama3-70b", "8xH100", requests(4096, 512, 256, **limits))
        return str(caught.value)

    first = missed(max_time_to_first_token_s=0.01, max_time_per_output_token_s=1.0)
    assert "10 ms to the first token" in first
    assert "per output token" not in first
    token = missed(max_time_to_first_token_s=9.0, max_time_per_output_token_s=0.001)
    assert "1 ms per output token" in token
    assert "to the first token" not in token


def test_screen_shows_both_times_and_the_rate_of_requests():
    found = serve("llama3-70b", "8xH100", requests(4096, 512, 256, **LIMITS))
    text = " ".join(text_of(found.page()).split())
    assert "256 requests of 4,096 + 512 tokens at once" in text
    assert "TPOT within 40 ms, TTFT within 400 ms" in text
    assert f"TTFT {found.best.estimate.first_token_s * 1e3:.0f} ms (" in text
    assert "requests/s" in text


ASKED = {"model": "llama3-8b", "on": "1xH100", "batch": 8}


def test_both_flags_ask_for_requests():
    found = meshwright.serve(
        **ASKED, prompt="1k", answer=128, max_ttft="1s",
        max_tpot="20ms",
    )  # fmt: skip
    work = found.workload
    assert (work.prompt_length, work.context_length, work.answer_length) == (1024, 1152, 128)
    assert work.max_time_to_first_token_s == 1.0
    assert work.max_time_per_output_token_s == 0.02
    assert found.best.estimate.first_token_s is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "1k", "max_ttft": "1s"}, "--answer: is needed"),
        (
            {"prompt": "1k", "answer": 8, "context": "1k"},
            "--context: applies only to decode",
        ),
        (
            {"prompt": 8, "answer": 8, "max_latency": "1s"},
            "--max-latency: applies only to decode or prefill",
        ),
        ({"context": "1k", "answer": 8}, "--context: applies only to decode"),
        ({"prompt": "1k", "max_tpot": "1s"}, "--answer: is needed"),
        ({"context": "1k", "framework": "megatron"}, "megatron trains"),
    ],
)
def test_options_of_other_questions_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        meshwright.serve(**ASKED, **options)


def test_a_request_has_an_answer_and_a_limit_of_its_prompt_needs_one():
    with pytest.raises(ValidationError, match="leaves no answer"):
        Decode(batch_size=1, context_length=8, prompt_length=8)
    with pytest.raises(ValidationError, match="needs a prompt_length"):
        Decode(batch_size=1, context_length=8, max_time_to_first_token_s=1.0)


def test_prefill_and_decode_alone_have_no_second_time():
    assert priced(Decode(batch_size=8, context_length=128), tp=1).first_token_s is None
    assert price_passes(
        problem(requests()), PLAIN, stack([make_strategy()])
    ).requests is None  # fmt: skip
