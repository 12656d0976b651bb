"""Workers of an answer of serving, as servers start them, and the requests that reach them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from meshwright.serve.answer import DisaggregatedPlan, ServingCandidate, ServingPlan
from meshwright.serve.answer_files import ServingAnswer
from meshwright.serve.disaggregated import prompts_of
from meshwright.serve.launching import joined_replicas
from meshwright.serve.traffic.answer import TrafficPlan
from meshwright.sharding.strategy import Strategy
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.traffic import Traffic
from meshwright.spec.workload import Decode, Precision, Prefill, Speculation


@dataclass(frozen=True)
class Workers:
    """Equal workers, each of them one server."""

    role: str
    """``prefill`` or ``decode``; empty: they do both."""
    number: int
    model: ModelSpec
    system: SystemSpec
    server: str
    """Server that was priced."""
    precision: Precision
    strategy: Strategy
    text: str
    """The split in the field's words."""
    longest: int
    """Tokens of the longest sequence."""
    most_sequences: int
    """Sequences that a replica of attention has at once."""
    version: str
    most_pass_tokens: int | None = None
    """Tokens of a pass at most; None: as the server has it."""
    memory_share: float | None = None
    two_batch_overlap: bool = False
    speculation: Speculation | None = None

    @property
    def joined(self) -> int:
        """Replicas of attention of one server: those that share its experts."""
        return int(joined_replicas(self.strategy))

    @property
    def num_devices(self) -> int:
        """Devices of one server."""
        sizes = self.strategy
        return int(sizes.tp * sizes.cp * sizes.pp) * self.joined

    @property
    def num_hosts(self) -> int:
        """Hosts of one server: those of the innermost level of the system."""
        host = self.system.levels[0].size if self.system.levels else 1
        return -(-self.num_devices // host)


def workers_of(answer: ServingAnswer) -> list[Workers]:
    """Return the workers of an answer, those of prefill before those of decode."""
    if isinstance(answer, TrafficPlan):
        best = answer.best
        return [Workers(
            "", best.num_workers, answer.model, answer.system, answer.server, answer.precision,
            best.strategy, best.split, answer.longest, answer.most_sequences, answer.version,
            answer.most_pass_tokens, answer.memory_share,
        )]  # fmt: skip
    if isinstance(answer, ServingPlan):
        sizes = answer.best.strategy
        number = int(sizes.dp / joined_replicas(sizes))
        return [_planned(answer, "", number, answer.best, answer.workload)]
    prefill, decode, work = answer.best.prefill, answer.best.decode, answer.workload
    return [
        _planned(answer, "prefill", prefill.number, prefill.worker, prompts_of(work)),
        _planned(answer, "decode", decode.number, decode.worker, work),
    ]


def _planned(
    answer: ServingPlan | DisaggregatedPlan, role: str, number: int, best: ServingCandidate,
    work: Prefill | Decode,
) -> Workers:  # fmt: skip
    longest, drafts = (
        (work.context_length, work.speculation)
        if isinstance(work, Decode)
        else (work.prompt_length + 1, None)
    )
    return Workers(
        role, number, answer.model, answer.system, answer.server, work.precision, best.strategy,
        best.text, longest, ceil(best.estimate.sequences_in_flight / best.strategy.dp),
        answer.version, memory_share=answer.memory_share,
        two_batch_overlap=work.two_batch_overlap, speculation=drafts,
    )  # fmt: skip


@dataclass(frozen=True)
class Requests:
    """Requests that a benchmark sends, as the answer was asked for."""

    traffic: Traffic | None
    """Requests at a rate; None: a new one follows each answer."""
    prompt_length: int
    answer_length: int
    in_flight: int
    """Requests in flight over all workers."""
    limits_s: Mapping[str, float]
    """Longest times, by ``ttft`` and ``tpot`` [s]."""


def requests_of(answer: ServingAnswer) -> Requests:
    """Return the requests of an answer; without a stated prompt, half of the context is one."""
    if isinstance(answer, TrafficPlan):
        limits = answer.max_time_to_first_token_s, answer.max_time_per_output_token_s
        asked = answer.traffic
        in_flight = ceil(answer.best.sequences_in_flight * answer.best.num_workers)
        return Requests(asked, asked.prompt_length, asked.answer_length, in_flight, _stated(limits))
    work = answer.workload
    if isinstance(work, Prefill):
        in_flight = work.batch_size
        return Requests(None, work.prompt_length, 1, in_flight,
                        _stated((work.max_time_to_first_token_s, None)))  # fmt: skip
    prompt = work.prompt_length or max(work.context_length // 2, 1)
    limits = work.max_time_to_first_token_s, work.max_time_per_output_token_s
    return Requests(None, prompt, max(work.context_length - prompt, 1), work.batch_size,
                    _stated(limits))  # fmt: skip


def _stated(limits_s: tuple[float | None, float | None]) -> dict[str, float]:
    names = ("ttft", "tpot")
    return {name: at for name, at in zip(names, limits_s, strict=True) if at is not None}
