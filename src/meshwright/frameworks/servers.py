"""Plans of serving as commands of servers: one replica each, to be started once for every replica.

Source: vLLM 0.33 ``engine/arg_utils.py``; SGLang 0.5.23; TensorRT-LLM 1.1 ``trtllm-serve``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from meshwright.base.errors import UnsupportedError
from meshwright.catalog.workloads import load_server
from meshwright.frameworks.launch import Words, on_one_line
from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
from meshwright.serve.disaggregated import prompts_of
from meshwright.serve.launching import cache_faults, serving_faults
from meshwright.spec.workload import Decode


@dataclass(frozen=True)
class ServeCommand:
    """How a server is started."""

    title: str
    program: str
    options: Callable[[ServingPlan], Iterator[Words]]
    roles: Mapping[str, Words] = field(default_factory=dict)
    """What a worker of prefill and of decode is told besides; empty: they are not written."""
    drafts: str = ""
    """The option that says what is drafted; empty: it is not written."""


def served(plan: ServingPlan | DisaggregatedPlan, name: str) -> dict[str, str]:
    """Return the script that starts one replica of a plan, or one of each kind of worker.

    Raises
    ------
    UnsupportedError
        When the server cannot express the plan; names everything that it cannot.
    """
    if isinstance(plan, ServingPlan):
        return {f"{name}.sh": _script(plan, name, int(plan.best.strategy.dp))}
    scripts = {}
    for role, pool, work in (
        ("prefill", plan.best.prefill, prompts_of(plan.workload)),
        ("decode", plan.best.decode, plan.workload),
    ):
        if role not in SERVERS[name].roles:
            title = SERVERS[name].title
            raise UnsupportedError(f"{title}: prefill and decode apart are not written")
        worker = ServingPlan(
            plan.model, plan.system, work, plan.calibration, plan.server, "throughput",
            pool.worker, (), None, None, 0, version=plan.version,
        )  # fmt: skip
        more = SERVERS[name].roles[role]
        scripts[f"{name}-{role}.sh"] = _script(worker, name, pool.number, role, more)
    return scripts


def _script(
    plan: ServingPlan, name: str, replicas: int, role: str = "", more: Words = ()
) -> str:  # fmt: skip
    """Return the script that starts one replica, of a role where prefill and decode are apart."""
    command = SERVERS[name]
    launches = load_server(name).launches
    assert launches is not None  # of each server that is written
    faults = serving_faults(launches, plan.model, plan.system, plan.best.strategy)
    faults += cache_faults(launches, plan.workload)
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise UnsupportedError(f"{command.title} cannot express this plan\n{listed}", faults)
    drafts = plan.workload.speculation if isinstance(plan.workload, Decode) else None
    if drafts is not None and (drafts.draft is not None or not command.drafts):
        raise UnsupportedError(f"{command.title}: drafts are not written, but for mtp of vLLM")
    sizes, best = plan.best.strategy, plan.best
    per_replica = int(sizes.tp * sizes.pp)
    comments = [
        f"{command.title}, written by meshwright {plan.version}".rstrip(),
        f"model: {plan.model.name}",
        f"system: {plan.system.name} ({plan.system.num_devices} x {plan.system.chip.name})",
        f"plan: {best.text}",
        f"replicas: {replicas}; start this once for each, on {per_replica} devices of one host",
    ]
    if drafts is not None:
        number = drafts.drafted_tokens
        more = command.drafts, f'{{"method": "mtp", "num_speculative_tokens": {number}}}'
    comments += [f"role: {role}; a router sends each request to both roles"] if role else []
    options = [shlex.join(words) for words in (*command.options(plan), *([more] if more else []))]
    text = " \\\n    ".join([command.program, *options, '"$@"'])
    text = f"export REPLICAS={replicas}\n{text}" if replicas > 1 else text
    head = [f"# {on_one_line(line)}" for line in comments]
    return "\n".join(["#!/usr/bin/env bash", *head, "set -euo pipefail", text, ""])


def _lengths(plan: ServingPlan) -> tuple[str, str]:
    """Return the longest sequence, and the sequences that one replica holds at once."""
    work = plan.workload
    length = work.context_length if isinstance(work, Decode) else work.prompt_length + 1
    return f"{length}", f"{ceil(plan.best.estimate.sequences_in_flight / plan.best.strategy.dp)}"


def _vllm(plan: ServingPlan) -> Iterator[Words]:
    sizes, precision = plan.best.strategy, plan.workload.precision
    length, count = _lengths(plan)
    yield "--tensor-parallel-size", f"{sizes.tp:.0f}"
    yield "--pipeline-parallel-size", f"{sizes.pp:.0f}"
    if sizes.ep > 1:
        yield ("--enable-expert-parallel",)
    yield "--max-model-len", length
    yield "--max-num-seqs", count
    if precision.weight == "fp8":
        yield "--quantization", "fp8"
    if precision.kv_cache == "fp8":
        yield "--kv-cache-dtype", "fp8"


def _sglang(plan: ServingPlan) -> Iterator[Words]:
    sizes, precision = plan.best.strategy, plan.workload.precision
    length, count = _lengths(plan)
    yield "--tp-size", f"{sizes.tp:.0f}"
    yield "--pp-size", f"{sizes.pp:.0f}"
    if sizes.ep > 1:
        yield "--ep-size", f"{sizes.ep:.0f}"
    yield "--context-length", length
    yield "--max-running-requests", count
    if precision.weight == "fp8":
        yield "--quantization", "fp8"
    if precision.kv_cache == "fp8":
        yield "--kv-cache-dtype", "fp8_e4m3"


def _tensorrt(plan: ServingPlan) -> Iterator[Words]:
    sizes = plan.best.strategy
    length, count = _lengths(plan)
    yield "--tp_size", f"{sizes.tp:.0f}"
    yield "--pp_size", f"{sizes.pp:.0f}"
    if sizes.ep > 1:
        yield "--ep_size", f"{sizes.ep:.0f}"
    yield "--max_seq_len", length
    yield "--max_batch_size", count
    if "tensorrt" in plan.server.lower():
        yield "--backend", "pytorch" if "pytorch" in plan.server.lower() else "tensorrt"


_MODEL = '"${MODEL:?weights: a folder, or a name of Hugging Face}"'
_NIXL = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
"""Source: vLLM, docs/features/nixl_connector_usage.md."""
SERVERS: Mapping[str, ServeCommand] = {
    "vllm": ServeCommand(
        "vLLM 0.33", f"vllm serve {_MODEL}", _vllm,
        dict.fromkeys(("prefill", "decode"), ("--kv-transfer-config", _NIXL)),
        drafts="--speculative-config",
    ),
    "sglang": ServeCommand(
        "SGLang 0.5.23", f"python3 -m sglang.launch_server --model-path {_MODEL}", _sglang,
        {role: ("--disaggregation-mode", role) for role in ("prefill", "decode")},
    ),
    "tensorrt-llm": ServeCommand("TensorRT-LLM 1.1", f"trtllm-serve {_MODEL}", _tensorrt),
}  # fmt: skip
"""Commands of servers, by the names that ``--server`` takes."""
