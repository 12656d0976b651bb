"""Rules on the ways of serving that a server can start: one table for search and exporters.

A rule reads :class:`~meshwright.spec.workload.Serves` of a server and judges rows of degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, Num, column, larger
from meshwright.base.errors import Fault
from meshwright.serve.passes import ServingProblem
from meshwright.sharding.strategy import Strategy, StrategyColumns, StrategyOf, stack
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Precision, Serves


@dataclass(frozen=True)
class ServingCase:
    """Input of a rule: rows of degrees, and the limits of a server."""

    s: StrategyColumns
    serves: Serves
    system: SystemSpec
    has_experts: bool

    @property
    def host(self) -> int:
        """Devices that share a host: those of the innermost level."""
        return self.system.levels[0].size if self.system.levels else 1

    @property
    def joined(self) -> FloatArray:
        """Replicas of attention that share one set of experts: they form one server."""
        return column(joined_replicas(self.s))

    def words(self, strategy: Strategy) -> dict[str, object]:
        """Return the values of the names in messages."""
        return {**vars(strategy), "dp": strategy.dp, "host": self.host}


def joined_replicas(s: StrategyOf[Num]) -> Num:
    """Return the replicas of attention that share one set of experts, 1 where none do."""
    return larger(s.ep * s.etp / (s.tp * s.cp), 1.0)


Judge = Callable[[ServingCase], BoolArray]


@dataclass(frozen=True)
class ServingRule:
    """One reason for which a server does not start a row of degrees."""

    name: str
    path: str
    breaks: Judge
    message: str
    """Message, with the degrees of a row, and ``host``, in place of names in braces."""
    fix: str


def _lacking(axis: str) -> ServingRule:
    return ServingRule(
        f"serve-{axis}", f"strategy.{axis}",
        lambda case: (getattr(case.s, axis) > 1) & (axis not in case.serves.axes),
        f"the server has no {axis}: {axis} {{{axis}:.0f}}", f"{axis}=1",
    )  # fmt: skip


def _splits_experts_otherwise(case: ServingCase) -> BoolArray:
    """Return the rows with experts neither on whole replicas nor on all devices of one.

    The experts of a layer lie on the devices of one server: tp of them, or tp times the replicas
    of attention that it joins. vLLM has whole experts on all of them, or a part of each on all.

    Source: vLLM 0.33, ``model_executor/layers/fused_moe/config.py``, ``FusedMoEParallelConfig``
    (ep is tp x dp where it is enabled, else 1); SGLang 0.5.23, ``srt/server_args.py``
    (``tp_size % ep_size == 0``, and with ``enable_dp_attention`` ``tp_size % dp_size == 0``);
    TensorRT-LLM 1.1, ``mapping.py`` (``moe_tp_size * moe_ep_size == tp_size``; attention of
    ``enable_attention_dp`` is not written).
    """
    s, joined = case.s, case.joined
    devices = s.tp * s.cp * joined
    fills = (s.ep * s.etp == devices) & (s.dp % joined == 0)
    if case.serves.splits_experts == "all_or_none":
        fills &= (s.ep == devices) | (s.ep == 1)
    return np.asarray(~fills & case.has_experts)


def _joins_otherwise(case: ServingCase) -> BoolArray:
    """Return the rows that join replicas where the server does not, or that lie on several hosts.

    Source: vLLM 0.33, ``docs/serving/data_parallel_deployment.md``: ranks of
    ``--data-parallel-size-local`` on each host.
    """
    s = case.s
    spans = s.tp * s.cp * s.pp > case.host
    return np.asarray((case.joined > 1) & (spans | (not case.serves.joins_replicas)))


def _fills_no_hosts(case: ServingCase) -> BoolArray:
    """Return the rows with a server on several hosts that it does not fill.

    Every host starts equally many ranks.

    Source: vLLM 0.33, ``config/parallel.py`` (``nnodes`` divides the world); SGLang 0.5.23,
    ``srt/server_args.py`` (``tp_size * pp_size % nnodes == 0``).
    """
    devices = case.s.tp * case.s.cp * case.s.pp * case.joined
    return np.asarray((devices > case.host) & (devices % case.host != 0))


RULES = (
    *map(_lacking, ("tp", "cp", "pp", "ep")),
    ServingRule(
        "serve-experts", "strategy.ep",
        _splits_experts_otherwise,
        "the devices of a stage of one server hold its experts: ep {ep:.0f} x etp {etp:.0f} with "
        "tp {tp:.0f} and dp {dp:.0f}",
        "ep={tp:.0f} with etp=1, or ep=1 with etp={tp:.0f}",
    ),
    ServingRule(
        "serve-joined", "strategy.ep",
        _joins_otherwise,
        "replicas that share experts are not started, or lie on several hosts each: ep {ep:.0f} x "
        "etp {etp:.0f} with tp {tp:.0f} x pp {pp:.0f} on hosts of {host}",
        "ep={tp:.0f} with etp=1, or ep=1 with etp={tp:.0f}",
    ),
    ServingRule(
        "serve-hosts", "strategy",
        _fills_no_hosts,
        "a server on several hosts fills them: tp {tp:.0f} x pp {pp:.0f}, with the replicas that "
        "share its experts, on hosts of {host}",
        "at most {host} devices of a server, or a multiple of them",
    ),
)  # fmt: skip


def refused_rows(problem: ServingProblem, s: StrategyColumns) -> Iterator[tuple[str, BoolArray]]:
    """Yield each rule with the rows that break it; nothing where nothing is known of a server."""
    if problem.launches is not None:
        case = case_of(problem.launches, problem.model, problem.system, s)
        for rule in RULES:
            yield rule.name, rule.breaks(case)


def case_of(
    serves: Serves, model: ModelSpec, system: SystemSpec, s: StrategyColumns
) -> ServingCase:
    """Return the input of the rules for some rows."""
    return ServingCase(s, serves, system, model.has_experts)


def serving_faults(
    serves: Serves, model: ModelSpec, system: SystemSpec, strategy: Strategy
) -> list[Fault]:
    """Return the reasons why a server does not start one split of the devices."""
    case = case_of(serves, model, system, stack([strategy]))
    words = case.words(strategy)
    return [
        Fault(rule.path, f"{rule.message.format(**words)} [{rule.name}]", rule.fix.format(**words))
        for rule in RULES
        if bool(np.any(rule.breaks(case)))
    ]


def server_faults(
    serves: Serves, system: SystemSpec, precision: Precision, *, overlaps: bool
) -> list[Fault]:
    """Return the reasons why a server starts nothing: vendor of the chips, cache, overlap.

    Parameters
    ----------
    overlaps
        Whether the two halves of a pass overlap.
    """
    cache, chip, found = precision.kv_cache, system.chip, []
    if chip.vendor not in serves.vendors:
        message = f"the server does not run on {chip.name} of {chip.vendor}"
        found.append(Fault("framework", message, f"chips of {' or '.join(serves.vendors)}"))
    if cache not in serves.kv_cache:
        known = " or ".join(serves.kv_cache)
        found.append(Fault("precision.kv_cache", f"the server has no KV cache in {cache}", known))
    if overlaps and not serves.overlaps_batches:
        message = "the server does not overlap the halves of a pass"
        found.append(Fault("two_batch_overlap", message, "leave it out"))
    return found
