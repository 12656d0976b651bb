"""Plans of serving as commands of servers: one replica each, to be started once for every replica.

Replicas of attention that share one set of experts are one server; a server on several hosts is
started on each of them.

Source: vLLM 0.33, ``engine/arg_utils.py``, ``docs/serving/parallelism_scaling.md`` and
``docs/serving/data_parallel_deployment.md``; SGLang 0.5.23, ``srt/server_args.py``; TensorRT-LLM
1.1, ``trtllm-serve`` under ``trtllm-llmapi-launch`` (2026-11).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from meshwright.base.errors import UnsupportedError
from meshwright.catalog.workloads import load_server
from meshwright.frameworks.launch import on_one_line
from meshwright.frameworks.table import Words
from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
from meshwright.serve.disaggregated import prompts_of
from meshwright.serve.launching import joined_replicas, server_faults, serving_faults
from meshwright.spec.workload import Decode


@dataclass(frozen=True)
class ServeCommand:
    """Command that starts a server: program, options, and options of several hosts."""

    title: str
    program: str
    options: Callable[[ServingPlan], Iterator[Words]]
    roles: Mapping[str, Words] = field(default_factory=dict)
    """Extra options of prefill and decode workers; empty: they are not written."""
    drafts: str = ""
    """Option that states speculative decoding; empty: it is not written."""
    on_hosts: Callable[[ServingPlan, int], Iterator[str]] = lambda plan, hosts: iter(())
    """Options of each of several hosts, as shell text."""
    launcher: Callable[[int], str] = lambda devices: ""
    """Command that starts the processes of several hosts, before the program."""


def served(plan: ServingPlan | DisaggregatedPlan, name: str) -> dict[str, str]:
    """Return the script that starts one replica of a plan, or one of each kind of worker.

    Raises
    ------
    UnsupportedError
        When the server cannot express the plan; names everything that it cannot.
    """
    if isinstance(plan, ServingPlan):
        sizes = plan.best.strategy
        return {f"{name}.sh": _script(plan, name, int(sizes.dp / joined_replicas(sizes)))}
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
            pool.worker, (), None, None, 0, version=plan.version, memory_share=plan.memory_share,
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
    faults += server_faults(launches, plan.system, plan.workload)
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise UnsupportedError(f"{command.title} cannot express this plan\n{listed}", faults)
    drafts = plan.workload.speculation if isinstance(plan.workload, Decode) else None
    if drafts is not None and (drafts.draft is not None or not command.drafts):
        raise UnsupportedError(f"{command.title}: drafts are not written, but for mtp of vLLM")
    best, devices, hosts = plan.best, _devices(plan), _hosts(plan)
    where = f"{devices} devices of one host" if hosts == 1 else f"each of {hosts} hosts"
    comments = [
        f"{command.title}, written by meshwright {plan.version}".rstrip(),
        f"model: {plan.model.name}",
        f"system: {plan.system.name} ({plan.system.num_devices} x {plan.system.chip.name})",
        f"plan: {best.text}",
        f"replicas: {replicas}; start this once for each, on {where}",
    ]
    if drafts is not None:
        number = drafts.drafted_tokens
        more = command.drafts, f'{{"method": "mtp", "num_speculative_tokens": {number}}}'
    comments += [f"role: {role}; a router sends each request to both roles"] if role else []
    options = [shlex.join(words) for words in (*command.options(plan), *([more] if more else []))]
    around = list(command.on_hosts(plan, hosts)) if hosts > 1 else []
    program = command.program if hosts == 1 else command.launcher(devices) + command.program
    text = " \\\n    ".join([program, *options, *around, '"$@"'])
    text = f"export REPLICAS={replicas}\n{text}" if replicas > 1 else text
    head = [f"# {on_one_line(line)}" for line in comments]
    return "\n".join(["#!/usr/bin/env bash", *head, "set -euo pipefail", text, ""])


def _joined(plan: ServingPlan) -> int:
    """Return the replicas of attention of one server: those that share its experts."""
    return int(joined_replicas(plan.best.strategy))


def _devices(plan: ServingPlan) -> int:
    """Return the devices of one server."""
    sizes = plan.best.strategy
    return int(sizes.tp * sizes.cp * sizes.pp) * _joined(plan)


def _hosts(plan: ServingPlan) -> int:
    """Return the hosts of one server: those of the innermost level of the system."""
    host = plan.system.levels[0].size if plan.system.levels else 1
    return -(-_devices(plan) // host)


def _lengths(plan: ServingPlan) -> tuple[str, str]:
    """Return the longest sequence, and the sequences that one replica holds at once."""
    work = plan.workload
    length = work.context_length if isinstance(work, Decode) else work.prompt_length + 1
    return f"{length}", f"{ceil(plan.best.estimate.sequences_in_flight / plan.best.strategy.dp)}"


def _share(plan: ServingPlan, option: str) -> Iterator[Words]:
    """Yield the share of the memory, where it was stated."""
    if plan.memory_share is not None:
        yield option, f"{plan.memory_share:g}"


_NODE, _HEAD = "${NODE_RANK:?of this host, from 0}", "${HEAD_ADDRESS:?of the first host}"


def _vllm_on_hosts(plan: ServingPlan, hosts: int) -> Iterator[str]:
    """Yield the options of vLLM on each host; those after the first answer no requests."""
    joined = _joined(plan)
    if joined > 1:
        local = joined // hosts
        yield f"--data-parallel-size-local {local}"
        yield f'--data-parallel-start-rank "$(({_NODE} * {local}))"'
        yield f'--data-parallel-address "{_HEAD}"'
        yield "--data-parallel-rpc-port 13345"
    else:
        yield f"--nnodes {hosts}"
        yield f'--node-rank "{_NODE}"'
        yield f'--master-addr "{_HEAD}"'
    yield "${HEADLESS:+--headless}"


def _sglang_on_hosts(plan: ServingPlan, hosts: int) -> Iterator[str]:
    """Yield the options of SGLang on each host."""
    yield f"--nnodes {hosts}"
    yield f'--node-rank "{_NODE}"'
    yield f'--dist-init-addr "{_HEAD}:20000"'


def _vllm(plan: ServingPlan) -> Iterator[Words]:
    sizes, precision = plan.best.strategy, plan.workload.precision
    length, count = _lengths(plan)
    yield "--tensor-parallel-size", f"{sizes.tp:.0f}"
    yield "--pipeline-parallel-size", f"{sizes.pp:.0f}"
    if (joined := _joined(plan)) > 1:
        yield "--data-parallel-size", f"{joined}"
    if sizes.ep > 1:
        yield ("--enable-expert-parallel",)
    yield "--max-model-len", length
    yield "--max-num-seqs", count
    yield from _share(plan, "--gpu-memory-utilization")
    if precision.weight == "fp8":
        yield "--quantization", "fp8"
    if precision.kv_cache == "fp8":
        yield "--kv-cache-dtype", "fp8"


def _sglang(plan: ServingPlan) -> Iterator[Words]:
    sizes, precision = plan.best.strategy, plan.workload.precision
    length, count = _lengths(plan)
    joined = _joined(plan)
    yield "--tp-size", f"{sizes.tp * joined:.0f}"
    yield "--pp-size", f"{sizes.pp:.0f}"
    if joined > 1:
        yield "--dp-size", f"{joined}"
        yield ("--enable-dp-attention",)
    if sizes.ep > 1:
        yield "--ep-size", f"{sizes.ep:.0f}"
    yield "--context-length", length
    yield "--max-running-requests", f"{int(count) * joined}"
    yield from _share(plan, "--mem-fraction-static")
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
    yield from _share(plan, "--kv_cache_free_gpu_memory_fraction")
    if "tensorrt" in plan.server.lower():
        yield "--backend", "pytorch" if "pytorch" in plan.server.lower() else "tensorrt"


_MODEL = '"${MODEL:?weights: a folder, or a name of Hugging Face}"'
_NIXL = '{"kv_connector": "NixlConnector", "kv_role": "%s"}'
"""Setting of the transfer of caches; the router gives the roles, not this value.

Source: vLLM 0.33, docs/features/nixl_connector_usage.md.
"""
SERVERS: Mapping[str, ServeCommand] = {
    "vllm": ServeCommand(
        "vLLM 0.33", f"vllm serve {_MODEL}", _vllm,
        {role: ("--kv-transfer-config", _NIXL % kind)
         for role, kind in (("prefill", "kv_producer"), ("decode", "kv_consumer"))},
        "--speculative-config", _vllm_on_hosts,
    ),
    "sglang": ServeCommand(
        "SGLang 0.5.23", f"python3 -m sglang.launch_server --model-path {_MODEL}", _sglang,
        {role: ("--disaggregation-mode", role) for role in ("prefill", "decode")},
        on_hosts=_sglang_on_hosts,
    ),
    "tensorrt-llm": ServeCommand(
        "TensorRT-LLM 1.1", f"trtllm-serve {_MODEL}", _tensorrt,
        launcher=lambda devices: f"mpirun -n {devices} trtllm-llmapi-launch ",
    ),
}  # fmt: skip
"""Commands of servers, by the names that ``serve --framework`` takes."""
