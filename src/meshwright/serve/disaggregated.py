"""Prefill and decode on separate workers: number and split of the workers of each kind.

x workers take prompts, y others make answers, and the key-value cache of a prompt crosses the
network between them. All workers of a kind are alike. The fastest deployment within limits of the
time to the first token and per output token is found over the whole product of both spaces.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from meshwright.base.arrays import (
    FloatArray,
    IntArray,
    Num,
    ceil_div,
    column,
    larger,
    smaller,
    take_rows,
    where,
)
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_seconds
from meshwright.cost.communication import Collectives
from meshwright.search.exhaustive import TIE, Counts
from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.passes import ServingProblem, price_passes
from meshwright.serve.search import (
    PIPELINE_INSIDE,
    ServingColumns,
    ServingSpace,
    covered,
    is_in_time,
    memory_shortfall,
    replica_sizes,
)
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import (
    PlanOptions,
    Strategy,
    StrategyColumns,
    make_strategy,
    row,
    stack,
    take,
)
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import Decode, Prefill

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)


def queue_s(rate: Num, period_s: Num, prompts: Num) -> Num:
    """Return the mean wait of a prompt until its pass starts [s].

    A pass takes b prompts, the next one starts B later at the earliest. A prompt waits until b are
    there, and for the passes before its own: with rho = r B / b,

        (b - 1) / (2 r) + rho B / (2 b (1 - rho)).

    Parameters
    ----------
    rate
        Prompts that one worker gets, r [1/s].
    period_s
        Time between two passes, B [s].
    prompts
        Prompts of a pass, b.

    Assumes: prompts come as a Poisson process. For b = 1 this is the wait of an M/D/1 queue and
    exact; for several it is Allen and Cunneen's approximation for arrivals with squared variation 1
    / b, which tests hold to be no shorter than a simulation of each pass. Source: Zhong et al. 2024
    (DistServe), section 3.1, equations 1 and 2; Allen 1990, section 5.3.
    """
    load = rate * period_s / prompts
    return (prompts - 1.0) / (2.0 * rate) + load * period_s / (2.0 * prompts * (1.0 - load))


def rates_within(wait_s: Num, period_s: Num, prompts: Num) -> tuple[Num, Num]:
    """Return the least and the highest rate at which prompts wait no longer [1/s].

    With k = 2 b w / B, :func:`queue_s` is at most w where

        rho^2 (1 + k) - rho (b - 1 + k) + b - 1 <= 0:

    at lower rates passes take too long to fill, at higher ones prompts queue. Infinity and 0 where
    no rate will do.
    """
    k = 2.0 * prompts * wait_s / period_s
    middle, others = prompts - 1.0 + k, prompts - 1.0
    inside = middle * middle - 4.0 * (1.0 + k) * others
    is_met = (wait_s > 0.0) & (inside >= 0.0) & (k >= others)
    root = np.sqrt(where(is_met, inside, 0.0))
    scale = prompts / period_s / (2.0 * where(is_met, 1.0 + k, 1.0))
    return where(is_met, (middle - root) * scale, np.inf), where(is_met, (middle + root) * scale, 0)


@dataclass(frozen=True)
class CachePath:
    """Links from a device of one worker to a device of another."""

    start_s: float
    s_per_byte: float
    links_across: float = math.inf
    """Links between two rows of a grid; infinite where each device has a link of its own."""

    def time_s(self, num_bytes: Num, num_devices: Num = 1.0) -> Num:
        """Return the seconds in which each device of a worker sends, or receives, some bytes.

        A worker fills rows of a grid, and caches move along its columns: on 8 columns 3 of 24
        devices share each link.
        """
        sharing = larger(ceil_div(num_devices, self.links_across), 1.0)
        return self.start_s + sharing * num_bytes * self.s_per_byte

    def most_per_s(self, num_bytes: float) -> float:
        """Return the caches of some bytes that cross the grid between both kinds of workers [1/s].

        Workers of a kind lie side by side: all caches cross the columns between the two regions.
        """
        return self.links_across / (self.s_per_byte * num_bytes)


def cache_path(problem: ServingProblem) -> CachePath:
    """Return the path between neighbouring domains of the outermost level.

    Workers lie anywhere, so that a cache crosses the slowest level that joins them. On a grid both
    kinds have whole rows of it.
    """
    system = problem.system
    inner = reduce(int.__mul__, [level.size for level in system.levels[:-1]], 1)
    pair = stack([make_strategy(tp=inner, dp_replicate=2)])
    links = Collectives(problem.network(PIPELINE_INSIDE, pair), problem.collective_start_s)
    start_s, whole_s = (
        float(column(links.time_s(CollectiveKind.SEND, "dp_replicate", size))[0])
        for size in (0.0, 1.0e9)
    )
    across = float(inner) if problem.has_grid else math.inf
    return CachePath(start_s, (whole_s - start_s) / 1.0e9, across)


@dataclass(frozen=True)
class PromptWorkers:
    """Ways to build a worker of prefill of one size; a row each."""

    rows: IntArray
    """Indices of the columns that were searched."""
    prompts: FloatArray
    """Prompts of a pass."""
    pass_s: FloatArray
    """Time from the start of a pass to the first tokens, with the server's own time for a request
    [s]."""
    period_s: FloatArray
    """Time between two passes [s]."""
    num_devices: FloatArray
    """Devices of a worker."""
    prompts_per_sender: FloatArray
    """Prompts of a pass over the devices that share the sending of each prompt."""


@dataclass(frozen=True)
class AnswerWorkers:
    """Ways to build a worker of decode of one size, with one layout of the cache; a row each."""

    rows: IntArray
    sequences: FloatArray
    """Sequences in flight."""
    step_s: FloatArray
    """Time per output token [s]."""
    receivers: FloatArray
    """Replicas of a worker, each of which receives caches."""
    holders: float
    """Devices of a replica, which hold a cache between them."""
    device_bytes: float
    """Bytes of the cache of a prompt on one device [bytes]."""
    prompt_bytes: float
    """Bytes of the cache of a prompt on all devices of a replica, copies counted [bytes]."""


@dataclass(frozen=True)
class WorkerSplit:
    """A deployment: rows of both kinds, numbers of workers, and the times of a request."""

    prefill_row: int
    decode_row: int
    num_prefill: int
    num_decode: int
    num_devices: int
    requests_per_s: float
    prefill_share: float
    """Share of the requests that the prefill workers could take without a limit on waits [1]."""
    decode_share: float
    """Share of the requests that the decode workers could take [1]."""
    queue_s: float
    pass_s: float
    """Time of a pass, with the server's own time for a request [s]."""
    transfer_s: float
    step_s: float

    @property
    def first_token_s(self) -> float:
        """Mean time from sending a request until its cache is at its decode worker [s]."""
        return self.queue_s + self.pass_s + self.transfer_s


@dataclass(frozen=True)
class WorkerKind:
    """One kind of worker: its problem, and every row that fits the memory and its limit."""

    space: ServingSpace
    option_sets: tuple[PlanOptions, ...]
    columns: ServingColumns
    cache_bytes: FloatArray
    """Bytes of the cache of one prompt on the fullest device [bytes]."""

    def candidate(self, index: int) -> tuple[Strategy, PlanOptions, int]:
        """Return strategy, plan options and number of groups of a row."""
        plan_options = self.option_sets[int(self.columns.option_set_of[index])]
        return row(self.columns.strategy, index), plan_options, int(self.columns.num_groups[index])


@dataclass(frozen=True)
class Deployments:
    """All deployments of a problem: the product of two spaces and of the numbers of workers."""

    prefill: WorkerKind
    decode: WorkerKind
    path: CachePath
    given: tuple[int, int] | None = None
    """Numbers of prefill and of decode workers; None: any."""

    @property
    def problem(self) -> ServingProblem:
        """Problem of the decode workers."""
        return self.decode.space.problem

    def prompt_workers(self) -> dict[int, PromptWorkers]:
        """Return the rows of prefill by the devices of a worker."""
        found, columns = self.prefill.columns, self.prefill.columns.strategy
        prompts = columns.micro_batch_size * columns.dp
        length = float(self.prefill.space.problem.pass_length)
        everything = PromptWorkers(
            rows=np.arange(len(found)),
            prompts=prompts,
            pass_s=found.latency_s + host_of_prompt_s(self.problem.constants, length),
            period_s=prompts * length / found.tokens_per_s,
            num_devices=columns.num_devices,
            prompts_per_sender=columns.micro_batch_size / (columns.tp * columns.cp * columns.pp),
        )
        sizes = columns.num_devices
        return {int(size): take_rows(everything, sizes == size) for size in np.unique(sizes)}

    def answer_workers(self) -> dict[int, list[AnswerWorkers]]:
        """Return the rows of decode by the devices of a worker, and by their layout of a cache."""
        found, columns = self.decode.columns, self.decode.columns.strategy
        keys = np.stack([columns.num_devices, self.decode.cache_bytes, columns.tp * columns.pp])
        groups, group_of = np.unique(keys, axis=1, return_inverse=True)
        answers: dict[int, list[AnswerWorkers]] = {}
        for index, (size, device_bytes, holders) in enumerate(groups.T):
            rows = np.flatnonzero(group_of.reshape(-1) == index)
            mine = AnswerWorkers(
                rows, found.sequences_in_flight[rows], found.latency_s[rows], columns.dp[rows],
                float(holders), float(device_bytes), float(device_bytes * holders),
            )  # fmt: skip
            answers.setdefault(int(size), []).append(mine)
        return answers

    def transfer_s(self, prompts: PromptWorkers, answers: AnswerWorkers) -> FloatArray:
        """Return the seconds to send the caches of a pass to the decode workers.

        The transfer starts after the pass, as vLLM's NixlConnector reads caches; sending layer by
        layer would hide a part of it. All devices of a worker send at once, and each device of a
        receiver gets its own part. Heads held by several devices are sent to each of them; the
        slower side counts.
        """
        sent = prompts.prompts_per_sender * answers.prompt_bytes
        taken_s = self.path.time_s(answers.device_bytes, answers.holders)
        return column(larger(self.path.time_s(sent, prompts.num_devices), taken_s))

    def answer_rates(self, workers: AnswerWorkers, most: int) -> FloatArray:
        """Return the requests/s of 1 to ``most`` workers of each row, a line for each row.

        y workers of n sequences hold min(y n, batch) of them, and each needs O - 1 steps: the first
        token comes with the prompt. A device takes in one cache at a time.
        """
        work = self.problem.workload
        assert isinstance(work, Decode)
        number = np.arange(1.0, most + 1.0)
        held = smaller(workers.sequences[:, None] * number, float(work.batch_size))
        made = held / (workers.step_s[:, None] * (work.answer_length - 1.0))
        taken_s = self.path.time_s(workers.device_bytes, workers.holders)
        taken = workers.receivers[:, None] * number / taken_s
        crossing = self.path.most_per_s(workers.prompt_bytes)
        return np.minimum(np.minimum(made, taken), crossing)

    def prompt_rates(
        self, prompts: PromptWorkers, answers: AnswerWorkers
    ) -> tuple[FloatArray, FloatArray]:
        """Return the least and the highest requests/s of one worker of each row within the limit.

        The limit holds at the slow end of the interval. Caches leave while the next pass goes on,
        so that the slower of both sets the pace.
        """
        limit_s = self.problem.sure_first_token_s
        assert limit_s is not None
        transfer_s = self.transfer_s(prompts, answers)
        period_s = larger(prompts.period_s, transfer_s)
        low, high = rates_within(limit_s - prompts.pass_s - transfer_s, period_s, prompts.prompts)
        return column(low), column(high)

    def best(self, top: int) -> list[WorkerSplit]:
        """Return the best deployment of each pair of sizes of workers, best first.

        Given both sizes, the way to hold a cache and the numbers x and y, a deployment does
        min(R, x h) requests a second, with R of the decode workers and h of a prefill worker, if R
        is at least x l. Rows of one kind meet those of the other only in R: it grows with the rate
        of a decode row and with y, so that the fastest row and the largest y that x leaves room
        for are as good as any; and among prefill rows whose l is low enough the highest h is. So
        the best of a product of rows is found from the rows of each kind alone.

        Within a tie of the best one, fewer devices win, then the shorter time to the first token.
        """
        found = []
        for size, prompts in self.prompt_workers().items():
            for other, kinds in self.answer_workers().items():
                pairs = [self._pair(prompts, size, answers, other) for answers in kinds]
                splits = [split for split in pairs if split is not None]
                if splits:
                    found.append(_ranked(splits)[0])
        return _ranked(found)[:top]

    def _numbers(self, size: int, other: int) -> tuple[IntArray, int]:
        """Return the numbers of prefill workers that are tried, and the most of decode workers."""
        devices = self.problem.system.num_alive
        if self.given is None:
            return np.arange(1, (devices - other) // size + 1), (devices - size) // other
        x, y = self.given
        return np.arange(x, x + (x * size + y * other <= devices)), y

    def _pair(
        self, prompts: PromptWorkers, size: int, answers: AnswerWorkers, other: int
    ) -> WorkerSplit | None:
        """Return the best deployment of workers of two sizes; None: nothing keeps the limits."""
        devices = self.problem.system.num_alive
        numbers, most = self._numbers(size, other)
        if not len(numbers) or most < 1:
            return None
        rates = self.answer_rates(answers, most)
        fastest = rates.max(axis=0)
        low, high = self.prompt_rates(prompts, answers)
        order = np.argsort(low)
        low, reached = low[order], np.maximum.accumulate(high[order])
        offered = fastest[np.minimum((devices - numbers * size) // other, most) - 1]
        last = np.searchsorted(low, offered / numbers, side="right") - 1
        done = np.where(last >= 0, np.minimum(offered, numbers * reached[last]), 0.0)
        if done.max() <= 0.0:
            return None
        return self._leanest(prompts, size, answers, other, rates, done.max() * (1.0 - TIE))

    def _leanest(
        self, prompts: PromptWorkers, size: int, answers: AnswerWorkers, other: int,
        rates: FloatArray, goal: float,
    ) -> WorkerSplit:  # fmt: skip
        """Return the fewest workers that reach a rate of requests, the quickest among them."""
        low, high = self.prompt_rates(prompts, answers)
        (numbers, most), fastest = self._numbers(size, other), rates.max(axis=0)
        order = np.argsort(-high)
        able = np.searchsorted(-high[order], -goal / numbers, side="right")
        numbers, able = numbers[able > 0], able[able > 0]
        least = np.minimum.accumulate(low[order])[able - 1]
        beside = 1 + np.searchsorted(fastest, np.maximum(goal, numbers * least))
        beside = beside if self.given is None else np.full(len(numbers), most)
        counts = numbers * size + beside * other
        chosen = int(np.argmin(np.where(beside <= len(fastest), counts, np.inf)))
        used, x, y = (int(values[chosen]) for values in (counts, numbers, beside))
        able = (x * high >= goal) & (x * low <= fastest[y - 1])
        done = np.minimum(fastest[y - 1], x * high)
        transfer_s = self.transfer_s(prompts, answers)
        period_s = larger(prompts.period_s, transfer_s)
        waits_s = np.full(len(done), np.inf)
        waits_s[able] = queue_s((done / x)[able], period_s[able], prompts.prompts[able])
        first = int(np.argmin(waits_s + prompts.pass_s + transfer_s))
        rate = float(done[first])
        steps_s = np.where(rates[:, y - 1] >= rate, answers.step_s, np.inf)
        second = int(np.argmin(steps_s))
        return WorkerSplit(
            prefill_row=int(prompts.rows[first]),
            decode_row=int(answers.rows[second]),
            num_prefill=x,
            num_decode=y,
            num_devices=used,
            requests_per_s=rate,
            prefill_share=rate * float(period_s[first] / prompts.prompts[first]) / x,
            decode_share=rate / float(rates[second, y - 1]),
            queue_s=float(waits_s[first]),
            pass_s=float(prompts.pass_s[first]),
            transfer_s=float(transfer_s[first]),
            step_s=float(answers.step_s[second]),
        )


def _ranked(splits: list[WorkerSplit]) -> list[WorkerSplit]:
    """Return deployments, the best first."""
    best = max((split.requests_per_s for split in splits), default=0.0)

    def key(split: WorkerSplit) -> tuple[float, ...]:
        is_tie = split.requests_per_s >= best * (1.0 - TIE)
        rate = best if is_tie else split.requests_per_s
        return -rate, split.num_devices * is_tie, split.first_token_s, split.step_s

    return sorted(splits, key=key)


@dataclass(frozen=True)
class DisaggregatedResult:
    """The best deployments, and the coverage of both spaces."""

    deployments: Deployments
    ranked: tuple[WorkerSplit, ...]
    prefill_counts: Counts
    decode_counts: Counts
    elapsed_s: float


def search_disaggregated(
    problem: ServingProblem, choices: Choices, *, top: int = 5,
    workers: tuple[int, int] | None = None,
) -> DisaggregatedResult:  # fmt: skip
    """Return the best deployments with separate workers for prompts and answers.

    Parameters
    ----------
    workers
        Numbers of prefill and of decode workers that are given; None: any.

    Raises
    ------
    InfeasibleError
        When nothing fits the memory or keeps both limits.
    """
    started = time.perf_counter()
    if problem.system.num_alive < 2:
        raise InfeasibleError("separate workers of prefill and decode need two devices")
    counts = Counts(), Counts()
    found = replace(deployments_of(problem, choices, *counts), given=workers)
    ranked = found.best(top)
    if not ranked:
        raise InfeasibleError(_shortfall(found))
    elapsed_s = time.perf_counter() - started
    return DisaggregatedResult(found, tuple(ranked), *counts, elapsed_s)


def deployments_of(
    problem: ServingProblem, choices: Choices, prefill: Counts, decode: Counts
) -> Deployments:
    """Return all deployments of a problem; each space is counted."""
    work = problem.workload
    assert isinstance(work, Decode)
    prompts = replace(problem, workload=prompts_of(work))
    sizes = replica_sizes(problem, problem.system.num_alive - 1)
    senders = _kind(ServingSpace(prompts, choices, sizes), prompts, prefill)
    receivers = _kind(ServingSpace(problem, choices, sizes), prompts, decode)
    return Deployments(_with_room_to_send(senders), receivers, cache_path(problem))


def prompts_of(work: Decode) -> Prefill:
    """Return the prompts of requests as a prefill workload."""
    assert work.prompt_length is not None
    return Prefill(
        batch_size=work.batch_size, prompt_length=work.prompt_length, precision=work.precision,
        software=work.software, expert_load_imbalance=work.expert_load_imbalance,
        max_time_to_first_token_s=work.max_time_to_first_token_s,
        two_batch_overlap=work.two_batch_overlap,
    )  # fmt: skip


def _kind(space: ServingSpace, prompts: ServingProblem, counts: Counts) -> WorkerKind:
    """Return the rows of one kind of worker.

    Replicas inside a worker that share no experts are separate workers, and left out.
    """
    option_sets, columns = covered(space, counts)
    if not len(columns):
        raise InfeasibleError(memory_shortfall(space, counts))
    s = columns.strategy
    is_one = (s.dp == 1) | (s.ep * s.etp > s.tp * s.cp)
    columns = take_rows(columns, is_one & is_in_time(space, columns))
    return WorkerKind(space, option_sets, columns, _cache_bytes(prompts, columns.strategy))


def _cache_bytes(prompts: ServingProblem, strategy: StrategyColumns) -> FloatArray:
    """Return the cache of one prompt on the fullest device of each row [bytes]."""
    keys = np.stack([strategy.tp, strategy.pp, strategy.cp])
    _, firsts, places = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    if not len(firsts):
        return np.zeros(0)
    held = price_passes(prompts, PLAIN, take(strategy, firsts)).held
    return column(reduce(larger, [use.cache_bytes for use in held]))[places.reshape(-1)]


def _with_room_to_send(prefill: WorkerKind) -> WorkerKind:
    """Return the rows with room for the caches of one more pass: those being sent."""
    columns, capacity = prefill.columns, prefill.space.problem.system.chip.main_memory
    more = prefill.cache_bytes * columns.strategy.micro_batch_size
    fits = columns.memory_bytes + more <= capacity.capacity_bytes
    return replace(prefill, columns=take_rows(columns, fits), cache_bytes=prefill.cache_bytes[fits])


def _shortfall(found: Deployments) -> str:
    """Return the reason why no prefill or decode workers keep their limits."""
    problem, missed = found.problem, []
    first_s, token_s = problem.max_first_token_s, problem.max_latency_s
    if not len(found.prefill.columns):
        missed.append(f"no prompt passes within {format_seconds(first_s or 0.0)}")
    if not len(found.decode.columns):
        missed.append(f"no worker of decode keeps {format_seconds(token_s or 0.0)} a token")
    if found.given is not None and not missed:
        x, y = found.given
        missed.append(f"{x}P{y}D on {problem.system.num_alive} devices does not")
    left = missed or ["no pair of workers does, with queue, pass and transfer of the cache"]
    return f"no split into prefill and decode workers keeps the limits: {', '.join(left)}"
