"""Batches and queues of requests against numbers derived by hand, and laws that hold for all."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_server
from meshwright.serve.passes import ServingProblem, price_passes
from meshwright.serve.requests import EqualRequests, Serving
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.workload import Decode, SoftwareStack

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
GENERIC = load_server("generic")
WHOLE = GENERIC.model_copy(update={"most_pass_tokens": 65_536})
GIB = 2.0**30


def serving(system="1xH100", model="llama3-8b", server=GENERIC, constants=NEUTRAL, **degrees):
    """A replica whose collectives and launches take no time of their own."""
    spec = load_system(system)
    ideal = {"collective_launch_s": 0.0, "launch_s": 0.0, "jitter": 0.0}
    workload = Decode(
        batch_size=1, context_length=1, software=SoftwareStack(cuda_graphs=True)
    )  # fmt: skip
    calibration = replace(load_calibration(spec.chip.family), **ideal)
    problem = ServingProblem(
        load_model(model), spec, workload, calibration, constants=constants
    )  # fmt: skip
    return Serving(problem, server, PLAIN, make_strategy(**degrees))


def asked(batch, prompt=1024, answer=256):
    return EqualRequests(*(np.array([float(v)]) for v in (prompt, answer, batch)))


def pass_s(served, sequences, new, past):
    """The seconds of one pass, priced by itself."""
    columns = stack([make_strategy(micro_batch_size=sequences)])
    shape = replace(served.problem.shape, new_tokens=new, past_tokens=past)
    return price_passes(served.problem, PLAIN, columns, shape).whole.total_s[0]


def test_a_batch_is_its_prompts_and_a_step_for_each_token():
    one = serving(server=WHOLE)
    found = one.served(asked(8))
    assert found.at_once[0] == 8
    assert found.prompt_s[0] == pytest.approx(pass_s(one, 8, 1024.0, 0.0))
    # A step at half of the answer: 1,024 + 128 tokens in the cache.
    assert found.step_s[0] == pytest.approx(pass_s(one, 8, 1.0, 1152.0))
    assert found.latency_s[0] == pytest.approx(found.prompt_s[0] + 256 * found.step_s[0])
    assert found.requests_per_s[0] == pytest.approx(8 / found.latency_s[0])


def test_the_middle_step_stands_for_all_steps():
    one = serving()
    each = [pass_s(one, 8, 1.0, float(past)) for past in range(1024, 1024 + 257)]
    trapezoid = sum(each) - (each[0] + each[-1]) / 2
    assert 256 * one.served(asked(8)).step_s[0] == pytest.approx(trapezoid, rel=1e-6)


def test_room_by_hand():
    # Llama 3 8B: 8,030,261,248 parameters of 2 bytes, a cache of 131,072 bytes for each token.
    one = serving()
    chip, buffers = one.problem.system.chip, one.problem.calibration.communication_buffer_bytes
    budget = 0.9 * chip.main_memory.capacity_bytes - buffers - 8_030_261_248 * 2
    most = budget / (1280 * 131_072)
    room = one.served(asked(8)).room[0]
    # The largest pass of 8,192 tokens takes less than 4 GiB.
    assert most - 4 * GIB / (1280 * 131_072) < room < most


def test_sequences_that_have_no_room_wait_for_a_turn():
    waits = serving(system="1xA100-40GB", model="llama2-7b", server=load_server("tensorrt-llm"))
    all_at_once = waits.served(asked(16, 512, 512))
    crowded = waits.served(asked(128, 512, 512))
    turns = np.ceil(128 / crowded.room[0])
    assert all_at_once.at_once[0] == 16
    assert turns > 1
    assert crowded.at_once[0] == 128 / turns
    evicts = replace(waits, server=waits.server.model_copy(update={"evicts": True}))
    assert evicts.served(asked(128, 512, 512)).latency_s[0] <= crowded.latency_s[0]


def test_a_queue_keeps_the_room_full():
    one = serving()
    found = one.served(asked(np.inf))
    assert found.at_once[0] == min(found.room[0], GENERIC.most_sequences)
    # Little's law: requests in flight over requests a second are the seconds of one answer.
    seconds = found.at_once[0] / found.requests_per_s[0]
    assert seconds == pytest.approx(256 * found.step_s[0])


def test_prompts_beside_answers_hide_behind_reading_weights():
    # 16 answers and 4 tokens of prompts read the same weights: cheaper than a pass of their own.
    one = serving(server=GENERIC.model_copy(update={"most_sequences": 16}))
    queue, batch = one.served(asked(np.inf, 256, 1024)), one.served(asked(16, 256, 1024))
    apart_s = batch.step_s[0] + batch.prompt_s[0] / 1024
    assert batch.step_s[0] < queue.step_s[0] < apart_s


def test_a_pipeline_is_as_fast_as_its_slowest_stage():
    one, two = serving(system="2xH100"), serving(system="2xH100", pp=2)
    alone, staged = one.served(asked(64)), two.served(asked(64))
    # Two groups of 32 go round: a round takes both turns of a stage with half of the layers, which
    # reads its weights twice.
    assert alone.step_s[0] < staged.step_s[0] * 2
    assert staged.step_s[0] > alone.step_s[0] * 0.5


def test_a_server_takes_its_own_time():
    slow = replace(NEUTRAL, host_step_s=1e-3, host_sequence_s=1e-5)
    found, plain = serving(constants=slow).served(asked(8)), serving().served(asked(8))
    assert found.step_s[0] - plain.step_s[0] == pytest.approx(1e-3 + 8e-5)


def test_in_a_pipeline_too_a_server_takes_its_time_for_each_sequence_not_each_token():
    slow = replace(NEUTRAL, host_sequence_s=1.0)
    found = serving("2xH100", constants=slow, pp=2).served(asked(np.inf))
    # Kernels take milliseconds beside it: two groups of half of the sequences, one after the other.
    assert found.step_s[0] == pytest.approx(found.at_once[0], rel=1e-2)


def test_prompts_that_are_sent_at_once_fill_their_passes():
    """Two passes of 128 prompts each: the mean one has its token after one pass and a half."""
    apart = load_server("sglang")
    one = serving(server=apart)
    one = replace(one, problem=replace(one.problem, server=apart))
    columns = (np.array([value]) for value in (64.0, 256.0, 256.0))
    found = one.served(EqualRequests(*columns, is_closed_loop=True, are_equal=True))
    full_s, step_s = pass_s(one, 128, 64.0, 0.0), pass_s(one, 256, 1.0, 64.0 + 128.0)
    assert found.prompt_s[0] == pytest.approx(1.5 * full_s + step_s, rel=0.05)
    # One by one each of them would read all weights.
    assert found.prompt_s[0] < 0.5 * 128 * pass_s(one, 1, 64.0, 0.0)


def test_columns_are_rows_one_by_one():
    one = serving()
    prompts, answers, batches = [128.0, 2048.0, 512.0], [128.0, 64.0, 512.0], [1.0, 16.0, 300.0]
    together = one.served(EqualRequests(*map(np.array, (prompts, answers, batches))))
    for index, values in enumerate(zip(prompts, answers, batches, strict=True)):
        alone = one.served(EqualRequests(*(np.array([value]) for value in values)))
        for name in ("room", "at_once", "prompt_s", "step_s", "latency_s"):
            assert getattr(together, name)[index] == getattr(alone, name)[0]


def test_a_model_without_room_is_told():
    found = serving(model="llama3-70b").served(asked(1))
    assert found.room[0] == 0


def test_experts_within_a_group_are_summed_once():
    # Split over tp, all ranks hold all tokens: attention and experts end in an all-reduce each, as
    # in a dense layer of the same width.
    sparse = serving(system="4xH100", model="mixtral-8x7b", tp=4, etp=4)
    dense = serving(system="4xH100", model="mistral-7b", tp=4)
    links = []
    for each, degrees in ((sparse, {"tp": 4, "etp": 4}), (dense, {"tp": 4})):
        columns = stack([make_strategy(micro_batch_size=64, **degrees)])
        shape = replace(each.problem.shape, new_tokens=1.0, past_tokens=1000.0)
        links.append(price_passes(each.problem, PLAIN, columns, shape).whole.tp_comm_s[0])
    assert links[0] == pytest.approx(links[1], rel=1e-9)
