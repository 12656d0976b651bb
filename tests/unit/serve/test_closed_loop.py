"""Closed loops of clients against a simulation of every pass, and against numbers by hand."""

import heapq
import random

import numpy as np
import pytest

from meshwright.catalog.workloads import load_server
from meshwright.serve.closed_loop import LoopOf, after_first_wave, steady, together
from meshwright.spec.workload import PAGED

STEP_S = 0.012


class Engine:
    """Plays passes one by one: answers first, then prompts in the order in which they were sent."""

    def __init__(self, clients, prompt, answer, budget, token_s, *, mixes=True, shortest=0.8):
        self.prompt, self.answer, self.budget, self.token_s = prompt, answer, budget, token_s
        self.mixes, self.shortest, self.random = mixes, shortest, random.Random(1)
        self.now_s, self.clients = 0.0, clients

    def drawn(self, length):
        return max(round(length * self.random.uniform(self.shortest, 1.0)), 2)

    def run(self, rounds):
        """Return the mean seconds to the first token, and for each of the others."""
        to_send, firsts, steps = self.clients * rounds, [], []
        waiting, prefilling, running = [], [], []

        def send():
            entry = (self.now_s, to_send, self.drawn(self.prompt), self.drawn(self.answer))
            heapq.heappush(waiting, entry)

        for _ in range(self.clients):
            send()
            to_send -= 1
        while waiting or prefilling or running:
            room, tokens, ended, kept = self.budget, 0, [], []
            while waiting and waiting[0][0] <= self.now_s:
                sent_s, _, prompt, answer = heapq.heappop(waiting)
                prefilling.append([sent_s, prompt, answer])
            for entry in prefilling:
                taken = min(entry[1], room)
                entry[1], room, tokens = entry[1] - taken, room - taken, tokens + taken
                (ended if entry[1] == 0 else kept).append(entry)
            prefilling = kept
            decodes = self.mixes or not tokens
            self.now_s += tokens * self.token_s + STEP_S * decodes
            going_on = []
            for entry in running:
                entry[1] -= decodes
                if entry[1]:
                    going_on.append(entry)
                    continue
                steps.append((self.now_s - entry[0]) / entry[2])
                if to_send > 0:
                    send()
                    to_send -= 1
            running = going_on
            for sent_s, _, answer in ended:
                firsts.append(self.now_s - sent_s)
                running.append([self.now_s, answer - 1, answer - 1])
        return np.mean(firsts), np.mean(steps)


def loop(clients, prompt, answer, budget, token_s, *, mixes=True, companions=0.0):
    return LoopOf(
        clients=float(clients), answer_tokens=float(answer), decode_s=STEP_S,
        more_s=prompt * token_s, own_s=prompt * token_s,
        passes_of_prompt=max(prompt / budget, 1.0) * mixes, prompts_of_pass=budget / prompt,
        steps_ahead=0.0, companions=companions,
    )  # fmt: skip


LOADS = [
    (clients, *lengths, token_s)
    for lengths in ((1024, 256), (4096, 512), (8192, 1024), (1024, 1024))
    for clients, token_s in ((4, 4e-5), (16, 4e-5), (64, 1.5e-5), (128, 8e-6))
]


@pytest.mark.parametrize(("clients", "prompt", "answer", "token_s"), LOADS)
def test_the_steady_state_is_that_of_a_simulation(clients, prompt, answer, token_s):
    first_s, step_s = Engine(clients, prompt, answer, 8192, token_s).run(12)
    mean = loop(clients, 0.9 * prompt, 0.9 * answer, 8192, token_s)
    state = steady(mean)
    assert state.step_s == pytest.approx(step_s, rel=0.06)
    assert after_first_wave(mean, state, 12.0) == pytest.approx(first_s, rel=0.25)


def test_equal_requests_that_do_not_mix_stay_together():
    made = Engine(32, 1024, 128, 8192, 4e-5, mixes=False, shortest=1.0)
    first_s, step_s = made.run(6)
    state = together(loop(32, 1024, 128, 8192, 4e-5, mixes=False))
    assert state.first_s == pytest.approx(first_s, rel=0.1)
    assert state.step_s == pytest.approx(step_s, rel=0.05)
    # Four passes of 8 prompts: after one, two, three and four times 8,192 tokens, and the step.
    assert state.first_s == pytest.approx(2.5 * 8192 * 4e-5 + STEP_S)


def test_one_client_waits_for_nobody():
    alone = steady(loop(1, 1000, 100, 8192, 1e-4))
    assert alone.step_s == STEP_S
    # Half of a pass of answers that may be in flight, then its own pass.
    assert alone.first_s == pytest.approx(1.5 * STEP_S + 0.1)


def test_prompts_that_fill_every_pass_queue():
    crowded = loop(512, 8192, 16, 8192, 1e-5)
    state = steady(crowded)
    assert state.step_s == pytest.approx(STEP_S + 0.08192, rel=0.01)
    # A pass takes one prompt: 512 of them make a round.
    assert state.first_s + 15 * state.step_s == pytest.approx(512 * state.step_s, rel=0.01)


def test_companions_and_steps_ahead_add_their_own_time():
    plain, met = (
        steady(loop(16, 512, 512, 8192, 1e-5, companions=number)) for number in (0.0, 2.0)
    )
    assert met.first_s - plain.first_s == pytest.approx(2 * 512e-5, rel=0.02)


def test_columns_are_rows_one_by_one():
    numbers = [(4, 1024, 256), (64, 4096, 512)]
    parts = [loop(*entry, 8192, 2e-5) for entry in numbers]
    columns = LoopOf(**{
        name: np.array([getattr(part, name) for part in parts]) for name in vars(parts[0])
    })  # fmt: skip
    found = steady(columns)
    for index, part in enumerate(parts):
        assert found.first_s[index] == steady(part).first_s
        assert found.step_s[index] == steady(part).step_s


def test_an_unknown_server_is_the_generic_one_of_the_catalog():
    known = load_server("generic").model_dump(exclude={"why"})
    assert PAGED.model_dump(exclude={"why"}) == known
