"""The search for prefill and decode apart finds what every pair of rows and numbers would."""

import random

import pytest
from sampled import sampled

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.search.exhaustive import TIE, Counts
from meshwright.serve.disaggregated import (
    deployments_of,
    queue_s,
    rates_within,
    search_disaggregated,
)
from meshwright.serve.passes import ServingProblem
from meshwright.sharding.space import Choices
from meshwright.spec.workload import Decode, SoftwareStack


def random_problem(seed):
    draw = random.Random(seed)
    system = load_system(f"{draw.choice((2, 3, 4, 6, 8))}x{draw.choice(('H100', 'H200'))}")
    prompt, answer = draw.choice((128, 1024, 8192)), draw.choice((16, 256))
    work = Decode(
        batch_size=draw.randint(1, 24),
        prompt_length=prompt,
        context_length=prompt + answer,
        disaggregated=True,
        software=SoftwareStack(cuda_graphs=True),
        max_time_to_first_token_s=draw.choice((0.05, 0.2, 1.0)),
        max_time_per_output_token_s=draw.choice((None, 0.008, 0.02)),
    )
    model = load_model(draw.choice(("llama3-8b", "deepseek-v2-lite", "gemma2-9b")))
    return ServingProblem(model, system, work, load_calibration(system.chip.family))


def brute_force(found):
    """Return the most requests/s of every pair of rows, and of all numbers of workers."""
    prefill, decode, path = found.prefill, found.decode, found.path
    work, devices = found.problem.workload, found.problem.system.num_alive
    best = 0.0
    for first in range(len(prefill.columns)):
        s = prefill.candidate(first)[0]
        prompts = s.micro_batch_size * s.dp
        period_s = prompts * work.prompt_length / prefill.columns.tokens_per_s[first]
        senders = s.tp * s.cp * s.pp
        for second in range(len(decode.columns)):
            d = decode.candidate(second)[0]
            mine = decode.cache_bytes[second]
            sent = s.micro_batch_size * mine * d.tp * d.pp / senders
            transfer_s = path.time_s(max(sent, mine))
            wait_s = work.max_time_to_first_token_s - transfer_s
            wait_s = wait_s - prefill.columns.latency_s[first]
            slow_s = max(period_s, transfer_s)
            low, high = (float(rate) for rate in rates_within(wait_s, slow_s, prompts))
            for x in range(1, int((devices - d.num_devices) // s.num_devices) + 1):
                for y in range(1, int((devices - x * s.num_devices) // d.num_devices) + 1):
                    held = min(y * decode.columns.sequences_in_flight[second], work.batch_size)
                    made = held / (decode.columns.latency_s[second] * (work.answer_length - 1))
                    made = min(made, y * d.dp / path.time_s(mine))
                    if x * low <= made:
                        best = max(best, min(made, x * high))
    return best


@pytest.mark.parametrize("seed", sampled(range(40), 8))
def test_search_is_brute_force(seed):
    problem = random_problem(seed)
    choices = Choices({"micro_batch_size": (1, 2, 5, 12)})
    most = brute_force(deployments_of(problem, choices, Counts(), Counts()))
    if most == 0.0:
        with pytest.raises(InfeasibleError, match="keeps the limits"):
            search_disaggregated(problem, choices)
        return
    result = search_disaggregated(problem, choices)
    best = result.ranked[0]
    assert most * (1.0 - TIE) <= best.requests_per_s <= most * (1.0 + 1e-9)
    assert best.first_token_s <= problem.max_first_token_s * (1.0 + 1e-9)
    sizes = [
        kind.columns.strategy.num_devices[chosen]
        for kind, chosen in (
            (result.deployments.prefill, best.prefill_row),
            (result.deployments.decode, best.decode_row),
        )
    ]
    assert best.num_devices == best.num_prefill * sizes[0] + best.num_decode * sizes[1]
    assert best.num_devices <= problem.system.num_alive
    columns = result.deployments.prefill.columns
    s = result.deployments.prefill.candidate(best.prefill_row)[0]
    prompts = s.micro_batch_size * s.dp
    period_s = prompts * problem.workload.prompt_length / columns.tokens_per_s[best.prefill_row]
    waits_s = queue_s(
        best.requests_per_s / best.num_prefill, max(period_s, best.transfer_s), prompts
    )
    assert best.queue_s == pytest.approx(waits_s)
