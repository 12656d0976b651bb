"""Requests of a worker played one by one: by hand, against queueing theory, and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic_workers import FlatWorker, priced_worker, requests

from meshwright.serve.traffic.arrivals import drawn, lengths_drawn
from meshwright.serve.traffic.queueing import BLOCK_TOKENS, _Queue, replay
from meshwright.spec.arrivals import Arrivals
from meshwright.spec.traffic import Traffic
from meshwright.spec.workload import PAGED


def test_two_requests_by_hand() -> None:
    # Iterations of 1 s + 0.1 s a token. Request 0 comes at 0: a pass of 10 tokens ends at 2.0 with
    # its first token. A step of 1.1 s follows, to 3.1. Request 1 came at 2.5 in between: its 5
    # tokens pass beside the token of request 0 in 1.6 s, to 4.7, when request 0 has its third
    # token and ends. One step of 1.1 s gives request 1 its second token at 5.8.
    worker = FlatWorker(start_s=1.0, token_s=0.1)
    found = replay(worker, requests([0.0, 2.5], [10, 5], [3, 2]))
    assert found.first_s == pytest.approx([2.0, 4.7])
    assert found.end_s == pytest.approx([4.7, 5.8])
    assert found.tpot_s == pytest.approx([1.35, 1.1])
    assert found.iterations == 4


def test_prompts_are_cut_into_passes() -> None:
    # 25 tokens in passes of 10: three passes of 1 s, the first token at 3.
    worker = FlatWorker(server=PAGED.model_copy(update={"most_pass_tokens": 10}))
    found = replay(worker, requests([0.0], 25, 1))
    assert found.end_s == pytest.approx([3.0])
    assert found.iterations == 3


def test_servers_that_do_not_mix_let_answers_wait() -> None:
    # First token at 1. The prompt of request 1 passes alone from 2 to 3, then both answers step.
    worker = FlatWorker(server=PAGED.model_copy(update={"mixes_phases": False}))
    found = replay(worker, requests([0.0, 1.5], 4, [3, 2]))
    assert found.first_s == pytest.approx([1.0, 3.0])
    assert found.end_s == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_place_is_an_m_d_1_queue(load: float) -> None:
    # One sequence at a time with an answer of one token: service 1 s, at random
    # arrivals wait rho / (2 (1 - rho)) before it (Pollaczek and Khinchine).
    server = PAGED.model_copy(update={"most_sequences": 1})
    number = 20_000
    times = np.cumsum(np.random.default_rng(3).exponential(1.0 / load, number))
    found = replay(FlatWorker(server=server), requests(times.tolist(), 1, 1))
    wait = float(found.ttft_s.mean()) - 1.0
    assert wait == pytest.approx(load / (2.0 * (1.0 - load)), rel=0.08)


def test_a_full_cache_evicts_the_last_request() -> None:
    # Three blocks of 16. Two prompts of 16 tokens take one each; both answers need a second block
    # for their second token: one is left, so request 1 gives up its place and starts again
    # when request 0 has ended, with 16 + 1 tokens.
    worker = FlatWorker(cache_tokens=3 * BLOCK_TOKENS)
    found = replay(worker, requests([0.0, 0.0], 16, 4))
    assert found.evictions == 1
    assert found.end_s[0] == pytest.approx(4.0)
    assert found.end_s[1] > found.end_s[0]
    assert found.first_s == pytest.approx([1.0, 1.0])


def test_servers_that_reserve_never_evict() -> None:
    worker = FlatWorker(
        cache_tokens=3 * BLOCK_TOKENS, server=PAGED.model_copy(update={"evicts": False})
    )
    found = replay(worker, requests([0.0, 0.0], 16, 4))
    assert found.evictions == 0
    assert found.first_s == pytest.approx([1.0, 5.0])


def test_prefixes_stay_until_others_need_their_room() -> None:
    # Prompts of 32 tokens, all shared. The last token is never cached: 16 of the 32 are found.
    alone = [0.0, 10.0, 20.0, 30.0]
    roomy = FlatWorker(cache_tokens=8 * BLOCK_TOKENS)
    found = replay(roomy, requests(alone, 32, 2, prefix=[0, 1, 0, 1], shared=32))
    assert found.hit_tokens.tolist() == [0.0, 0.0, 16.0, 16.0]
    # Four blocks hold one prefix of two blocks beside the request that runs.
    tight = FlatWorker(cache_tokens=4 * BLOCK_TOKENS)
    found = replay(tight, requests(alone, 32, 2, prefix=[0, 1, 0, 1], shared=32))
    assert found.hit_tokens.tolist() == [0.0] * 4
    found = replay(tight, requests(alone, 32, 2, prefix=[0, 0, 0, 0], shared=32))
    assert found.hit_tokens.tolist() == [0.0, 16.0, 16.0, 16.0]


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 30.0), st.integers(1, 90), st.integers(1, 60), st.integers(-1, 3)
        ),
        min_size=1, max_size=25,
    ),
    st.integers(10, 40), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_request_ends_and_gives_back_its_blocks(
    rows: list[tuple[float, int, int, int]], blocks: int, mixes: bool, evicts: bool, cuts: bool
) -> None:
    rows.sort()
    times, prompts, answers, prefix = (list(column) for column in zip(*rows, strict=True))
    server = PAGED.model_copy(
        update={"mixes_phases": mixes, "evicts": evicts, "cuts_prompts": cuts,
                "most_pass_tokens": 100, "most_sequences": 6}
    )  # fmt: skip
    worker = FlatWorker(token_s=0.01, cache_tokens=blocks * BLOCK_TOKENS, server=server)
    asked = requests(times, prompts, answers, prefix=prefix, shared=40)
    queue = _Queue(worker, asked)
    found = queue.run()
    assert (found.first_s > asked.arrival_s).all()
    assert (found.end_s >= found.first_s).all()
    assert found.answer_steps + found.evictions >= (asked.answer_tokens - 1).sum()
    # Nothing is in flight: all blocks are free, or hold prefixes that nobody uses.
    assert queue.free + queue.idle_blocks == blocks
    assert queue.idle_blocks == sum(queue.held.values())
    assert not queue.growing
    assert not queue.offsets


def test_jumps_give_the_times_of_single_steps() -> None:
    # A request that comes late cuts the jumps of the first one; neither its end nor the number of
    # iterations may depend on where.
    worker = priced_worker(longest=4096)
    one = requests([0.0], 512, 1000)
    whole = replay(worker, one)
    cut = replay(worker, requests([0.0, 1e6], 512, [1000, 1]))
    assert cut.end_s[0] == pytest.approx(whole.end_s[0], rel=1e-9)
    steps = [worker.step_s(1.0, 512.0 + step) for step in range(999)]
    first = float(whole.end_s[0] - whole.first_s[0])
    assert first == pytest.approx(sum(steps), rel=2e-3)


def test_drawn_lengths_have_their_mean_and_spread() -> None:
    lengths = lengths_drawn(np.random.default_rng(0), 1000.0, 0.5, 200_000)
    assert lengths.mean() == pytest.approx(1000.0, rel=0.01)
    assert lengths.std() == pytest.approx(500.0, rel=0.02)


def test_drawn_arrivals_have_their_rate() -> None:
    asked = Traffic(rate_per_s=4.0, prompt_length=100, answer_length=50)
    found = drawn(asked, 4.0, 20_000)
    assert found.rate_per_s == pytest.approx(4.0, rel=0.03)
    constant = drawn(asked.model_copy(update={"arrivals": "constant"}), 4.0, 100)
    assert np.diff(constant.arrival_s) == pytest.approx(np.full(99, 0.25))


def test_turns_begin_with_the_turns_before() -> None:
    asked = Traffic(
        rate_per_s=3.0, prompt_length=100, answer_length=50, turns=3, turn_interval_s=10.0
    )
    found = drawn(asked, 3.0, 3000)
    assert found.rate_per_s == pytest.approx(3.0, rel=0.1)
    # The three turns have prompts of 100, 250 and 400 tokens, of which 0, 150 and 300 were there.
    assert sorted(set(found.prompt_tokens.tolist())) == [100, 250, 400]
    assert ((found.prompt_tokens - found.prefix_tokens) == 100).all()
    assert ((found.kept_tokens - found.prompt_tokens) == 50).all()


def test_a_router_keeps_a_prefix_on_one_worker() -> None:
    asked = requests([0.0, 1.0, 2.0, 3.0, 4.0], 8, 2, prefix=[7, -1, 7, 3, -1], shared=4)
    parts = [asked.of_worker(index, 2) for index in range(2)]
    assert [part.arrival_s.tolist() for part in parts] == [[0.0, 2.0, 3.0], [1.0, 4.0]]
    assert isinstance(parts[0], Arrivals)
