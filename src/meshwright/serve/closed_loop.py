"""Clients in a closed loop: each sends a request when the answer to the one before has ended.

State equations of a steady state, as plain functions of numbers and of columns. The time of a pass
is known (:mod:`meshwright.serve.passes`); results are the number of prompts that each pass carries,
the mean time per output token, and the mean time to the first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from meshwright.base.arrays import N, Num, larger, positive_part, smaller

ROUNDS = 12
"""Rounds of the fixed point of step and wait: the remaining error is below 0.03 % in 99 of 100
loads, and below 2 % in all, of 1 to 2,048 clients and prompts that fill from none to all of the
passes."""


@dataclass(frozen=True)
class LoopOf(Generic[N]):
    """Clients of a closed loop, and the times of passes."""

    clients: N
    """Requests in flight, N."""
    answer_tokens: N
    """Tokens of an answer, O; its first one comes with the prompt."""
    decode_s: N
    """Time of a pass of one token for each answer in flight, d [s]."""
    more_s: N
    """Time that one prompt adds to the passes that carry it, for others in flight, e [s]."""
    own_s: N
    """Time that a prompt adds for itself: in a pipeline in all stages, not only the slowest [s]."""
    passes_of_prompt: N
    """Passes over which a prompt is cut, at least 1."""
    prompts_of_pass: N
    """Prompts for which a pass has room; below 1, the share of one."""
    steps_ahead: N
    """Steps already scheduled when a request arrives, which it waits for, w."""
    companions: N
    """Prompts that stay together with each prompt because they were sent together, c; 0 where
    lengths vary."""


@dataclass(frozen=True)
class LoopState(Generic[N]):
    """The steady state."""

    step_s: N
    """Mean time per output token, with the prompts of others in between [s]."""
    first_s: N
    """Mean time to the first token, from when the request is sent [s]."""
    prompts_of_step: N
    """Prompts that a mean step carries."""


def steady(loop: LoopOf[Num]) -> LoopState[Num]:
    """Return the steady state of clients with requests of about equal length.

    With T to the first token and t for each of the O - 1 others, the N - 1 other clients send

        r = (N - 1) / (T + (O - 1) t)

    prompts a second, so that a step carries a = min(r t, room) of them and takes t = d + a e. A
    request meets a pass in flight, and waits for half of it. Passes met are longer than the mean
    one; with a Poisson number of prompts in each, E[x^2] / E[x] of their lengths is

        L = t + a e^2 / t.

    Then it passes with the q = r (L + w t) + c prompts that were sent while that pass and the
    steps ahead went on: of those that find no room in the same pass only the earlier half goes
    before it,

        T = L / 2 + w t + passes d + own + e (min(q, room - 1) + max(q - room + 1, 0) / 2).

    Where prompts alone fill every pass, they queue: T + (O - 1) t is at least N t / room.

    Range: lengths that vary by a few per cent or more, so that requests which once started
    together do not stay together; against a simulation of each pass, tests hold t within 6 % and
    T within a quarter from 4 to 128 clients.
    """
    n, others = loop.clients, positive_part(loop.clients - 1.0)
    later = positive_part(loop.answer_tokens - 1.0)
    d, e, room = loop.decode_s, loop.more_s, loop.prompts_of_pass
    first_s = e + d
    step_s = d + smaller(others / larger(later, 1.0), room) * e
    share: Num = 0.0 * step_s
    for _ in range(ROUNDS):
        rate = others / (first_s + later * step_s)
        share = smaller(rate * step_s, room)
        step_s = d + share * e
        first_s = first_token_s(loop, rate, step_s, share)
        first_s = larger(first_s, n * step_s / room - later * step_s)
    return LoopState(step_s, first_s, share)


def first_token_s(loop: LoopOf[Num], rate: Num, step_s: Num, share: Num) -> Num:
    """Return the mean time to the first token where others send requests at a rate [s].

    The equations of :func:`steady`: half of the pass that a request meets, steps ahead, its own
    passes, and the prompts that pass with it.

    Parameters
    ----------
    share
        Prompts that a mean step carries.
    """
    e, room = loop.more_s, loop.prompts_of_pass
    beside = positive_part(room - 1.0)
    met_s = step_s + share * e * e / step_s
    waits_s = loop.steps_ahead * step_s
    queued = rate * (met_s + waits_s)
    ahead = smaller(queued, beside) + positive_part(queued - beside) / 2.0
    ahead = ahead + smaller(loop.companions, positive_part(loop.clients - 1.0))
    own_s = loop.passes_of_prompt * loop.decode_s + loop.own_s
    return met_s / 2.0 + waits_s + own_s + e * ahead


def requests_per_s(clients: Num, first_s: Num, step_s: Num, answer_tokens: Num) -> Num:
    """Return the requests that clients end in a second [1/s].

    Each of N clients holds a request for T until its first token and for t until each of the
    O - 1 others, so that by Little's law they end

        N / (T + (O - 1) t).

    Example: 64 clients, T = 1 s, t = 20 ms and O = 101 end 64 / (1 + 2) = 21.3 requests a second.
    """
    return clients / (first_s + positive_part(answer_tokens - 1.0) * step_s)


def together(loop: LoopOf[Num]) -> LoopState[Num]:
    """Return the state of equal requests when all prompts pass before any answer goes on.

    They start together, end together, and so start together again. Half of the prompts pass before
    a mean one and half after it: with g = min(N, room) of them in a pass,

        T = e (N + g) / 2 + d,    t = d + e (N - g) / (2 (O - 1)).

    A round of T + (O - 1) t takes all prompts and all steps: N e + O d.
    """
    n, later = loop.clients, larger(loop.answer_tokens - 1.0, 1.0)
    share = positive_part(n - larger(smaller(n, loop.prompts_of_pass), 1.0)) / (2.0 * later)
    first_s = loop.more_s * (n - share * later) + loop.decode_s
    return LoopState(loop.decode_s + share * loop.more_s, first_s, share)


def first_wave_s(loop: LoopOf[Num]) -> Num:
    """Return the mean time to the first token where all clients send their first request at once.

    N prompts pass one after another, as many at a time as have room: after j passes of d and the
    prompts in them, j times as many have their token, so that the mean is half of N prompts and of
    one pass full of them,

        e (N + min(N, room)) / 2 + d (max(N / room, 1) + 1) / 2.
    """
    n, room = loop.clients, loop.prompts_of_pass
    turns = larger(n / room, 1.0)
    in_pass = larger(smaller(n, room), 1.0)
    return loop.more_s * (n + in_pass) / 2.0 + loop.decode_s * (turns + 1.0) / 2.0


def after_first_wave(loop: LoopOf[Num], state: LoopState[Num], rounds: Num) -> Num:
    """Return the mean time to the first token over some requests of each client [s].

    The first of them are all sent at once; the others are in the steady state. Infinitely many
    leave the steady state alone.
    """
    return state.first_s + (first_wave_s(loop) - state.first_s) / rounds
