"""Requests on one worker, simulated iteration by iteration.

The worker batches continuously: each iteration carries one token of every answer in flight and
parts of prompts, up to the tokens of a pass. A request starts when its cache has room for its
prompt; where a growing answer finds no room, the request that started last gives up its place and
starts again. Prefixes stay in the room that is left, and the one unused for longest goes first.

Iterations without prompts between two events (an arrival, an end, a full cache) are one jump, so
that the work grows with the requests and not with their tokens.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.serve.traffic.iteration import Worker
from meshwright.spec.arrivals import Arrivals

BLOCK_TOKENS = 16
"""Tokens of a block of the cache. Source: vLLM, ``CacheConfig.block_size``."""

PACE = 0.1
"""Weight of the latest step in the mean of the latest ones."""


@dataclass(frozen=True)
class Replayed:
    """The requests of a worker as they passed; columns in the order of their arrival."""

    arrivals: Arrivals
    first_s: FloatArray
    """Time of the first token [s]."""
    end_s: FloatArray
    """Time of the last token [s]."""
    hit_tokens: FloatArray
    """Tokens of each prompt found in the cache."""
    evictions: int
    """Times that a request gave up its place."""
    busy_s: float
    """Time of all iterations [s]."""
    answer_steps: float
    """Tokens of answers made beside the first ones, those made twice included."""
    iterations: int

    @property
    def ttft_s(self) -> FloatArray:
        """Times to the first token [s]."""
        return self.first_s - self.arrivals.arrival_s

    @property
    def e2e_s(self) -> FloatArray:
        """Times from arrival to the last token [s]."""
        return self.end_s - self.arrivals.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """Times per output token after the first one; of answers of one token 0 [s]."""
        later = np.maximum(self.arrivals.answer_tokens - 1, 1)
        return (self.end_s - self.first_s) / later


def replay(worker: Worker, arrivals: Arrivals) -> Replayed:
    """Return the requests as they pass through one worker."""
    return _Queue(worker, arrivals).run()


class _Tables:
    """Prices of iterations by whole numbers, read without interpolation."""

    def __init__(self, worker: Worker) -> None:
        constants, most = worker.problem.constants, worker.server.most_sequences
        tokens = np.arange(worker.tokens[-1] + 1.0)
        self.tokens_s: list[float] = np.interp(tokens, worker.tokens, worker.tokens_s).tolist()
        self.logits_s: list[float] = np.interp(tokens, worker.tokens, worker.logits_s).tolist()
        lengths, answers = np.arange(worker.lengths[-1] + 1.0), np.arange(most + 1.0)
        prompts_s = np.interp(lengths, worker.lengths, worker.prompts_s, left=0.0)
        self.prompts_s: list[float] = prompts_s.tolist()
        hosts_s = constants.host_step_s + constants.host_sequence_s * answers
        self.hosts_s: list[float] = hosts_s.tolist()
        caches = [np.interp(answers, worker.sequences, row) for row in worker.caches_s.T]
        self.caches_s: list[list[float]] = np.array(caches).T.tolist()
        self.lengths: list[float] = worker.lengths.tolist()

    def cache_s(self, answers: int, mean: float) -> float:
        """Return the seconds of attention over caches of a mean length [s]."""
        lengths, row = self.lengths, self.caches_s[answers]
        if mean <= lengths[0]:
            return row[0]
        place = min(bisect_left(lengths, mean), len(lengths) - 1)
        low, below = lengths[place - 1], row[place - 1]
        return below + (mean - low) / (lengths[place] - low) * (row[place] - below)

    def step_s(self, answers: int, mean: float) -> float:
        """Return the seconds of an iteration of answers alone [s]."""
        alone = self.tokens_s[answers] + self.logits_s[answers] + self.hosts_s[answers]
        return alone + self.cache_s(answers, mean)

    def prompt_s(self, done: int, tokens: int) -> float:
        """Return the seconds of attention of a part of a prompt, as the worker has it [s]."""
        found = self.prompts_s[done + tokens] - self.prompts_s[done]
        return max(found, self.cache_s(1, done)) if done else found


class _Queue:
    """The state of a worker. Answers in flight share a clock of steps.

    An answer that starts at step S with c tokens has at step s its c - S + s tokens and ends at
    step S + rest: jumps move the clock, not the answers.
    """

    def __init__(self, worker: Worker, arrivals: Arrivals) -> None:
        self.worker, self.server, self.tables = worker, worker.server, _Tables(worker)
        self.arrivals = arrivals
        number = len(arrivals)
        self.arrival_s: list[float] = arrivals.arrival_s.tolist()
        self.prompt: list[int] = arrivals.prompt_tokens.tolist()
        self.answer: list[int] = arrivals.answer_tokens.tolist()
        self.prefix: list[int] = arrivals.prefix.tolist()
        self.shared: list[int] = arrivals.prefix_tokens.tolist()
        self.kept: list[int] = arrivals.kept_tokens.tolist()
        self.first_s = [0.0] * number
        self.end_s = [0.0] * number
        self.hits = [0.0] * number
        self.now, self.clock, self.coming = 0.0, 0, 0
        self.waiting: deque[int] = deque()
        self.passing: deque[list[int]] = deque()
        """Prompts that have started: the request, tokens done, all tokens."""
        self.growing: dict[int, int] = {}
        """Answers in flight in the order of their start: tokens less the clock."""
        self.ends: list[tuple[int, int, int]] = []
        self.starts = [0] * number
        self.made = [0] * number
        """Tokens of an answer made before the request gave up its place."""
        self.offsets, self.crossing = 0, [0] * BLOCK_TOKENS
        self.own_blocks: dict[int, int] = {}
        """Blocks of a prefix that a request in flight does not own."""
        self.free = worker.cache_tokens // BLOCK_TOKENS
        self.held: OrderedDict[int, int] = OrderedDict()
        """Blocks of each prefix in the cache, the one unused for longest first."""
        self.users: dict[int, int] = {}
        self.idle_blocks = 0
        """Blocks of held prefixes that no request in flight uses."""
        self.ahead = float(worker.problem.constants.steps_ahead)
        self.pace_s, self.since_s = self.tables.step_s(1, 0.0), 0.0
        """Mean time of the latest steps of answers, and time since the last one [s]."""
        self.is_full = False
        """Whether a request gave up its place for the next iteration, so that none starts in it."""
        self.evictions, self.busy_s, self.steps, self.iterations = 0, 0.0, 0.0, 0

    def run(self) -> Replayed:
        """Play all requests."""
        number, left = len(self.arrival_s), len(self.arrival_s)
        while left:
            self._take_in()
            if self._admit() or self.passing:
                left -= self._pass()
            elif self.growing:
                left -= self._jump()
            else:
                self._wait(number)
        return Replayed(
            self.arrivals, np.array(self.first_s), np.array(self.end_s), np.array(self.hits),
            self.evictions, self.busy_s, self.steps, self.iterations,
        )  # fmt: skip

    # ------------------------------------------------------------------------------- arrivals

    def _lag_s(self) -> float:
        """Return the time for which steps already scheduled keep a new request waiting."""
        return self.ahead * self.pace_s

    def _mean(self) -> float:
        count = len(self.growing)
        return self.clock + self.offsets / count if count else 0.0

    def _take_in(self) -> None:
        until, times = self.now - self._lag_s(), self.arrival_s
        while self.coming < len(times) and times[self.coming] <= until:
            self.waiting.append(self.coming)
            self.coming += 1

    def _wait(self, number: int) -> None:
        if self.coming < number:
            self.now = max(self.now, self.arrival_s[self.coming] + self._lag_s() * (1.0 + 1e-12))

    # ---------------------------------------------------------------------------------- room

    def _admit(self) -> bool:
        """Start waiting requests in their order while places, room and tokens are left."""
        found = False
        in_flight = len(self.growing) + len(self.passing)
        room = self._room() - sum(total - done for _, done, total in self.passing)
        most = 0 if self.is_full else self.server.most_sequences
        while self.waiting and in_flight < most and room > 0:
            request = self.waiting[0]
            tokens = self.prompt[request] + self.made[request]
            hit = self._hit(request, tokens)
            if not self.server.cuts_prompts and found and tokens - hit > room:
                break
            if not self._take(request, tokens, hit):
                break
            self.waiting.popleft()
            self.passing.append([request, hit, tokens])
            self.hits[request] = float(hit)
            in_flight += 1
            room -= tokens - hit
            found = True
        return found

    def _room(self) -> int:
        """Return the tokens of prompts that the next pass has room for."""
        beside = len(self.growing) if self.server.mixes_phases else 0
        return self.server.most_pass_tokens - beside

    def _hit(self, request: int, tokens: int) -> int:
        """Return the tokens of a prompt that the cache holds: whole blocks, never all of them."""
        blocks = self.held.get(self.prefix[request], 0) if self.prefix[request] >= 0 else 0
        most = min(self.shared[request], tokens - 1) // BLOCK_TOKENS
        return min(blocks, most) * BLOCK_TOKENS

    def _take(self, request: int, tokens: int, hit: int) -> bool:
        """Take the blocks of a request; False where there is no room for them."""
        name, shared = self.prefix[request], hit // BLOCK_TOKENS
        full = tokens if self.server.evicts else self.prompt[request] + self.answer[request]
        needed = -(-full // BLOCK_TOKENS) - shared
        is_idle = name in self.held and not self.users.get(name)
        usable = self.free + self.idle_blocks - (self.held[name] if is_idle and hit else 0)
        if needed > usable:
            if not self.growing and not self.passing:
                # Alone in an empty worker: nothing will ever end to make room.
                raise AssertionError("a request is longer than the cache")
            return False
        if hit:
            if is_idle:
                self.idle_blocks -= self.held[name]
            self.users[name] = self.users.get(name, 0) + 1
            self.held.move_to_end(name)
        self._make_room(needed)
        self.own_blocks[request] = shared
        return True

    def _make_room(self, blocks: int) -> None:
        """Take free blocks, and those of prefixes that nobody uses."""
        if blocks > self.free:
            for name in list(self.held):
                if not self.users.get(name):
                    freed = self.held.pop(name)
                    self.free += freed
                    self.idle_blocks -= freed
                    if blocks <= self.free:
                        break
        self.free -= blocks

    def _keep(self, request: int, tokens: int) -> None:
        """Let the first blocks of a request be those of its prefix, as soon as they are filled."""
        name, shared = self.prefix[request], self.own_blocks[request]
        more = min(self.kept[request], tokens) // BLOCK_TOKENS - shared
        if name < 0 or more <= 0 or shared != self.held.get(name, 0):
            return
        if not shared:
            self.users[name] = self.users.get(name, 0) + 1
        self.held[name] = shared + more
        self.held.move_to_end(name)
        self.own_blocks[request] = shared + more

    def _leave(self, request: int, tokens: int) -> None:
        """Give back the blocks of a request; those of its prefix stay in the cache."""
        name, shared = self.prefix[request], self.own_blocks.pop(request)
        full = tokens if self.server.evicts else self.prompt[request] + self.answer[request]
        self.free += -(-full // BLOCK_TOKENS) - shared
        if shared:
            self.users[name] -= 1
            if not self.users[name]:
                self.idle_blocks += self.held[name]

    # ------------------------------------------------------------------------------ iterations

    def _pass(self) -> int:
        """Run one iteration with parts of prompts; return the requests that end."""
        tables, mixes = self.tables, self.server.mixes_phases
        answers = len(self.growing) if mixes else 0
        if answers and not self._grow(1):
            self._evict()
            return 0
        room, taken, core_s, firsts = self._room(), 0, 0.0, []
        for entry in self.passing:
            request, done, total = entry
            tokens = min(total - done, room - taken) if self.server.cuts_prompts else total - done
            if tokens <= 0 or (taken and tokens > room - taken):
                break
            core_s += tables.prompt_s(done, tokens)
            taken += tokens
            entry[1] = done + tokens
            if entry[1] == total:
                firsts.append(request)
        answered = answers + len(firsts)
        seconds = tables.tokens_s[answers + taken] + tables.logits_s[answered]
        seconds += core_s + tables.hosts_s[answered]
        if answers:
            seconds += tables.cache_s(answers, self._mean())
        self._spend(seconds, 1, answers)
        ended = self._ended() if answers else 0
        for _ in firsts:
            self.passing.popleft()
        return ended + sum(self._start(request) for request in firsts)

    def _start(self, request: int) -> int:
        """Begin an answer with its first token; return 1 where it is the last one, too."""
        if not self.made[request]:
            self.first_s[request] = self.now
        length, done = self.prompt[request] + self.made[request], self.made[request] + 1
        rest = self.answer[request] - done
        self._keep(request, length)
        if rest <= 0:
            self.end_s[request] = self.now
            self._leave(request, length)
            return 1
        self.starts[request] += 1
        heapq.heappush(self.ends, (self.clock + rest, request, self.starts[request]))
        offset = length - self.clock
        self.growing[request] = offset
        self.offsets += offset
        self.crossing[offset % BLOCK_TOKENS] += 1
        return 0

    def _jump(self) -> int:
        """Run iterations of answers alone until the next event; return the requests that end."""
        count, mean = len(self.growing), self._mean()
        steps = self._next_end() - self.clock
        one_s = self.tables.step_s(count, mean)
        if not self.waiting and self.coming < len(self.arrival_s):
            gap_s = self.arrival_s[self.coming] + self._lag_s() - self.now
            steps = min(steps, max(int(np.ceil(gap_s / one_s)), 1))
        while steps and not self._grow(steps):
            steps //= 2
        if not steps:
            self._evict()
            return 0
        seconds = steps * self.tables.step_s(count, mean + (steps - 1) / 2.0)
        self._spend(seconds, steps, count)
        return self._ended()

    def _spend(self, seconds: float, steps: int, answers: int) -> None:
        self.now += seconds
        self.since_s += seconds
        self.busy_s += seconds
        self.iterations += steps
        self.is_full = False
        if answers:
            self.clock += steps
            share = min(PACE * steps, 1.0)
            self.pace_s += share * (self.since_s / steps - self.pace_s)
            self.since_s = 0.0
            self.steps += steps * answers

    def _grow(self, steps: int) -> bool:
        """Take the blocks into which answers grow in some steps; False where there is no room."""
        if not self.server.evicts:
            return True
        turns, rest = divmod(steps, BLOCK_TOKENS)
        needed = turns * len(self.growing)
        for step in range(rest):
            needed += self.crossing[-(self.clock + step) % BLOCK_TOKENS]
        if needed > self.free + self.idle_blocks:
            return False
        self._make_room(needed)
        return True

    def _next_end(self) -> int:
        while True:
            clock, request, start = self.ends[0]
            if request in self.growing and self.starts[request] == start:
                return clock
            heapq.heappop(self.ends)

    def _ended(self) -> int:
        """End the answers that have all their tokens; return their number."""
        ended = 0
        while self.growing and self._next_end() <= self.clock:
            request = heapq.heappop(self.ends)[1]
            self.end_s[request] = self.now
            tokens = self._stop(request)
            self._keep(request, tokens)
            self._leave(request, tokens)
            ended += 1
        return ended

    def _stop(self, request: int) -> int:
        """Take an answer out of the batch; return the tokens in its cache."""
        offset = self.growing.pop(request)
        self.offsets -= offset
        self.crossing[offset % BLOCK_TOKENS] -= 1
        return self.clock + offset

    def _evict(self) -> None:
        """Let the request that started last give up its place; it starts again first."""
        if self.passing:
            request, _, tokens = self.passing.pop()
        else:
            request = next(reversed(self.growing))
            tokens = self._stop(request)
            self.made[request] = tokens - self.prompt[request] + 1
        self._leave(request, tokens)
        self.waiting.appendleft(request)
        self.evictions += 1
        self.is_full = True
