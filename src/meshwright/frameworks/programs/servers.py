"""Servers: ``vllm serve``, SGLang's ``launch_server`` and ``trtllm-serve``, read and written.

A command that is written starts one replica. Replicas of attention that share one set of experts
are one server; a server on several hosts is started on each of them.

Source: vLLM 0.33, ``engine/arg_utils.py``, ``docs/serving/parallelism_scaling.md`` and
``docs/serving/data_parallel_deployment.md``; SGLang 0.5.23, ``srt/server_args.py``; TensorRT-LLM
1.1, ``commands/serve.py``, ``llmapi/llm_args.py``, ``trtllm-serve`` under
``trtllm-llmapi-launch`` (2026-11).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import ClassVar

from meshwright.base.errors import UnsupportedError
from meshwright.catalog.workloads import load_server
from meshwright.frameworks.framework import LaunchFiles, framework, readers
from meshwright.frameworks.launch import on_one_line
from meshwright.frameworks.reading.given import Given, Options, of_tree
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Devices
from meshwright.frameworks.reading.models import known_model
from meshwright.frameworks.table import Value, Words, dashed
from meshwright.frameworks.workers import Workers
from meshwright.serve.launching import server_faults, serving_faults
from meshwright.spec.model import ModelSpec

_NAMES = ("model", "model_path", "model_tag", "model_id")
"""Options that name the checkpoint."""


_NODE, _HEAD = "${NODE_RANK:?of this host, from 0}", "${HEAD_ADDRESS:?of the first host}"
MODEL = '"${MODEL:?weights: a folder, or a name of Hugging Face}"'
_NIXL = '{"kv_connector": "NixlConnector", "kv_role": "%s"}'
"""Setting of the transfer of caches; the router gives the roles, not this value.

Source: vLLM 0.33, docs/features/nixl_connector_usage.md.
"""


class ServerFiles(LaunchFiles):
    """A server: files that start it, and the command that starts one replica of a plan."""

    kind = "serving"
    config_options: tuple[str, ...] = ("config",)
    """Options that name a YAML file of options."""
    program = ""
    """Start of the command."""
    roles: ClassVar[Mapping[str, Words]] = {}
    """Extra options of prefill and decode workers; empty: they are not written."""
    drafts = ""
    """Option that states speculative decoding; empty: it is not written."""
    image = ""
    """Image of containers that holds the server."""
    tag = "latest"
    """Version of the image."""
    port = 8000
    """Port of the requests, and of ``/health``."""

    def on_hosts(self, workers: Workers) -> Iterator[str]:
        """Yield the options of each of several hosts, as shell text."""
        yield from ()

    def launcher(self, devices: int) -> str:
        """Return the command that starts the processes of several hosts, before the program."""
        return ""

    def stated(self, given: Given, setting: JobContext) -> Options:
        """Return the options of a file that all servers have."""
        given.renamed(self.table.renamed)
        if (path := given.path(*self.config_options)) is not None:
            given.add(of_tree(setting.config_files(path), path))
            given.renamed(self.table.renamed)
        found: Options = self.table.read(given)
        quantized, own = found.pop("quantization"), self.table.maps["quantized"]
        found["weights"] = stored = self.table.maps["stored"].get(quantized or "")
        if quantized in own:
            found["precision"] = own[quantized]
        elif quantized not in (None, "None", "none") and stored is None:
            known = ", ".join([*own, *self.table.maps["stored"]])
            given.refuse("quantization", f"{quantized} is not read from here",
                         f"{known}; other kinds by the config.json")  # fmt: skip
        share = found["memory_share"]
        if share is not None and not 0.0 < share <= 1.0:
            option = next(row.name for row in self.table.rows if row.option == "memory_share")
            given.refuse(option, f"found {share:g}", "above 0 and at most 1")
        found["memory_share"] = None if share is None else f"{share:g}"
        found.pop("pass_tokens", None)  # prompts are priced as they fill the passes of the server
        if not found.get("two_batch_overlap"):
            found.pop("two_batch_overlap", None)
        if found.pop("lacks_graphs", False):
            option = next(row.name for row in self.table.rows if row.option == "lacks_graphs")
            found["cuda_graphs"] = False
            told = "the time of the host is that of servers with CUDA graphs"
            given.notes.append(f"{option}: {told}")
        return found | {"decode": True, "model": _model(given, setting)}

    def words(self, workers: Workers) -> dict[str, Value]:
        """Return workers in words of the server."""
        sizes, precision = workers.strategy, workers.precision
        return {
            "tp": int(sizes.tp), "pp": int(sizes.pp), "ep": int(sizes.ep),
            "joined": workers.joined, "has_expert_axis": sizes.ep > 1, "context": workers.longest,
            "batch": workers.most_sequences, "pass_tokens": workers.most_pass_tokens,
            "memory_share": workers.memory_share, "two_batch_overlap": workers.two_batch_overlap,
            "quantization": "fp8" if precision.weight == "fp8" else None,
            "kv_cache": "fp8" if precision.kv_cache == "fp8" else "",
            "precision": "",  # that of the checkpoint; trtllm-serve has no option for it
        }  # fmt: skip

    def options(self, workers: Workers) -> Iterator[Words]:
        """Yield the options of the command."""
        written = self.table.write(self.words(workers))
        yield from dashed((name.replace("_", "-"), value) for name, value in written)


def _model(given: Given, setting: JobContext) -> ModelSpec | None:
    words = given.value("(word)") or []
    if "model" in setting.stated:
        for option in _NAMES:
            given.path(option)
        return None
    name = given.text(*_NAMES) or next(
        (str(word) for word in words if word not in ("serve", "launch_server")), None
    )
    if name is None:
        given.needs("MODEL", "the files name no model", "name it")
        return None
    model = known_model(name)
    if model is None:
        given.needs(
            "MODEL", f"{name!r} is not a model of the catalog", "name it, or its config.json"
        )
    return model


def _world(given: Given, setting: JobContext, found: Options) -> None:
    """Take the product of the degrees as the devices, where their number is not stated.

    A server that the files start several times has one replica for each start, each with its batch.
    """
    degree = found["tp"] * found["pp"] * found["dp"]
    launch = setting.launch
    copies = launch.copies if launch is not None else 1
    stated = launch.variables.get("REPLICAS", "") if launch is not None else ""
    copies = int(stated) if stated.isdigit() and int(stated) else copies
    count = setting.devices.count or 0
    replicas = max(copies, count // degree)
    found["batch"] = found["batch"] and found["batch"] * found["dp"]  # of each that holds data
    if replicas > 1:
        given.notes.append(f"{replicas} servers, each with the batch that it states")
        found["dp"] *= replicas
        found["batch"] = found["batch"] and found["batch"] * replicas
    if count < degree * replicas:  # of one host, or one process, where a server takes several
        setting.devices = Devices(total=degree * replicas, chip=setting.devices.chip)
    setting.num_devices = setting.num_devices or setting.devices.count


def _worker(given: Given, found: Options, option: str, role: str) -> None:
    """Read the role of a worker: prefill or decode.

    It is priced without the transfer of caches: ``serve --disaggregated`` prices both roles. A
    worker of prefill takes prompts, and leaves room for the first token of an answer.
    """
    given.notes.append(f"{option}: the way of caches is priced by serve --disaggregated, not here")
    if role == "prefill" and found["context"]:
        found |= {"decode": None, "prefill": True, "context": None, "prompt": found["context"] - 1}


_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _object(given: Given, option: str, field: str, kind: type) -> Options | None:
    """Return the JSON object of an option; None: it is not stated, or has no such field."""
    text = given.text(option)
    try:
        stated = {} if text is None else json.loads(text)
    except ValueError:
        stated = None
    if isinstance(stated, dict) and isinstance(stated.get(field), kind):
        return stated
    if text is not None:
        given.refuse(option, f"is no JSON object with {field}")
    return None


def _transfer(given: Given, setting: JobContext, found: Options) -> None:
    """Read the transfer of caches between workers of prefill and of decode.

    With a connector for both roles the router decides; scripts of this program state the role in
    their head.

    Source: vLLM 0.33, ``config/kv_transfer.py``.
    """
    option = "kv_transfer_config"
    stated = _object(given, option, "kv_connector", str)
    if stated is None:
        return
    of_head = setting.launch.role if setting.launch is not None else ""
    _worker(given, found, option, _ROLES.get(str(stated.get("kv_role")), of_head))


def _drafts(given: Given) -> Options:
    """Return the speculative decoding of vLLM: by another model, or by layers of the checkpoint.

    Source: vLLM 0.33 ``config/speculative.py``. No file states the share of accepted drafts.
    """
    option, known = "speculative_config", ("method", "model", "num_speculative_tokens")
    stated = _object(given, option, "num_speculative_tokens", int)
    if stated is None:
        return {}
    others = [name for name in stated if name not in known]
    method, name = str(stated.get("method", "draft_model")), str(stated.get("model", ""))
    is_own = method == "mtp" or method.endswith("_mtp")
    model = None if is_own or method != "draft_model" else known_model(name)
    if others or (model is None and not is_own):
        fix = "mtp, or a draft_model of the catalog"
        given.refuse(option, f"{', '.join(others) or name or method} is not read", fix)
        return {}
    given.needs("--acceptance", "the files do not say how many drafts are accepted", "such as 0.7")
    number = stated["num_speculative_tokens"]
    return {"speculative_model": model.name if model else "mtp", "speculative_tokens": number}


@framework("vllm", reads="vllm")
class Vllm(ServerFiles):
    """A server of vLLM."""

    program = f"vllm serve {MODEL}"
    roles: ClassVar[Mapping[str, Words]] = {
        role: ("--kv-transfer-config", _NIXL % kind)
        for role, kind in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
    }
    drafts = "--speculative-config"
    image, tag = "vllm/vllm-openai", "v0.33.0"

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the server, and options of this program."""
        found = self.stated(given, setting) | {"server": "vllm"}
        tp, dp = found["tp"], found.pop("joined")
        ep = tp * dp if found.pop("has_expert_axis") else 1
        found |= {"dp": dp, "ep": ep}
        if ep == 1 and dp > 1 and (found["model"] is None or found["model"].has_experts):
            # FusedMoEParallelConfig.make (vLLM 0.33, fused_moe/config.py): experts are split inside
            found["etp"] = tp * dp
        _world(given, setting, found)
        if given.text("all2all_backend") is not None:
            given.notes.append("all2all_backend: tokens are priced as the default sends them")
        found |= _drafts(given)
        _transfer(given, setting, found)
        return "vllm", found

    def on_hosts(self, workers: Workers) -> Iterator[str]:
        """Yield the options of vLLM on each host; those after the first answer no requests."""
        joined, hosts = workers.joined, workers.num_hosts
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


@framework("sglang", reads="sglang")
class Sglang(ServerFiles):
    """A server of SGLang."""

    program = f"python3 -m sglang.launch_server --model-path {MODEL}"
    image, tag = "lmsysorg/sglang", "v0.5.23"
    port = 30000
    roles: ClassVar[Mapping[str, Words]] = {
        role: ("--disaggregation-mode", role) for role in ("prefill", "decode")
    }

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the server, and options of this program."""
        found = self.stated(given, setting) | {"server": "sglang"}
        tp, dp, ep, batch = found["tp"], found.pop("joined"), found["ep"], found["batch"]
        if found.pop("splits_attention") and dp > 1:
            if tp % dp or ep not in (tp, dp):
                message = "experts are priced on all ranks of tp, or one of each on a replica"
                fix = f"ep_size {tp} or {dp}, with a dp_size that divides tp_size"
                given.refuse("enable_dp_attention", message, fix)
            tp, batch = max(1, tp // dp), batch and max(1, batch // dp)
            note = "enable_dp_attention: dense layers and the head are priced in each replica"
            given.notes.append(note)
        found |= {"tp": tp, "dp": dp, "batch": batch}
        _world(given, setting, found)
        role = given.word("disaggregation_mode", among=("null", "prefill", "decode"))
        if role not in (None, "null"):
            _worker(given, found, "disaggregation_mode", role)
        return "sglang", found

    def words(self, workers: Workers) -> dict[str, Value]:
        """Return workers in words of SGLang, in which tp counts the ranks of all replicas."""
        joined, words = workers.joined, super().words(workers)
        return words | {"tp": int(workers.strategy.tp) * joined,
                        "batch": workers.most_sequences * joined,
                        "splits_attention": joined > 1}  # fmt: skip

    def on_hosts(self, workers: Workers) -> Iterator[str]:
        """Yield the options of SGLang on each host."""
        yield f"--nnodes {workers.num_hosts}"
        yield f'--node-rank "{_NODE}"'
        yield f'--dist-init-addr "{_HEAD}:20000"'


@framework("tensorrt_llm", reads="tensorrt-llm")
class TensorRtLlm(ServerFiles):
    """A server of TensorRT-LLM."""

    config_options = ("extra_llm_api_options", "config")
    program = f"trtllm-serve {MODEL}"
    image, tag = "nvcr.io/nvidia/tensorrt-llm/release", "1.1.0"

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the server, and options of this program."""
        found = self.stated(given, setting) | {"dp": 1}
        is_built = found.pop("backend") == "tensorrt"
        found["server"] = "tensorrt-llm" if is_built else "tensorrt-llm-pytorch"
        _world(given, setting, found)
        return "tensorrt-llm", found

    def words(self, workers: Workers) -> dict[str, Value]:
        """Return workers in words of TensorRT-LLM: narrow types are those of the checkpoint."""
        server, words = workers.server.lower(), super().words(workers)
        words["backend"] = "pytorch" if "pytorch" in server else "tensorrt"
        if "tensorrt" not in server:
            words["backend"] = None
        return words | {"quantization": None, "kv_cache": ""}

    def options(self, workers: Workers) -> Iterator[Words]:
        """Yield the options of the command, with underscores."""
        yield from dashed(self.table.write(self.words(workers)))

    def launcher(self, devices: int) -> str:
        """Return the command that starts the processes of several hosts, before the program."""
        return f"mpirun -n {devices} trtllm-llmapi-launch "


SERVERS: dict[str, ServerFiles] = {
    name: one for name, one in readers.items() if isinstance(one, ServerFiles)
}  # fmt: skip
"""Servers by the names that ``--server`` takes."""


def script(workers: Workers, name: str) -> str:
    """Return the script that starts one of the workers.

    Raises
    ------
    UnsupportedError
        When the server cannot express the workers; names everything that it cannot.
    """
    command, title, role = SERVERS[name], SERVERS[name].table.written, workers.role
    if role and role not in command.roles:
        raise UnsupportedError(f"{title}: prefill and decode apart are not written")
    launches = load_server(name).launches
    assert launches is not None  # of each server that is written
    faults = serving_faults(launches, workers.model, workers.system, workers.strategy)
    faults += server_faults(
        launches, workers.system, workers.precision, overlaps=workers.two_batch_overlap
    )
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise UnsupportedError(f"{title} cannot express this plan\n{listed}", faults)
    more, drafts = command.roles.get(role, ()), workers.speculation
    if drafts is not None:
        if drafts.draft is not None or not command.drafts:
            raise UnsupportedError(f"{title}: drafts are not written, but for mtp of vLLM")
        number = drafts.drafted_tokens
        more = command.drafts, f'{{"method": "mtp", "num_speculative_tokens": {number}}}'
    devices, hosts, replicas = workers.num_devices, workers.num_hosts, workers.number
    where = f"{devices} devices of one host" if hosts == 1 else f"each of {hosts} hosts"
    comments = [
        f"{title}, written by meshwright {workers.version}".rstrip(),
        f"model: {workers.model.name}",
        f"system: {workers.system.name} ({workers.system.num_devices} x "
        f"{workers.system.chip.name})",
        f"plan: {workers.text}",
        f"replicas: {replicas}; start this once for each, on {where}",
    ]
    comments += [f"role: {role}; a router sends each request to both roles"] if role else []
    options = [
        shlex.join(words) for words in (*command.options(workers), *([more] if more else []))
    ]
    around = list(command.on_hosts(workers)) if hosts > 1 else []
    program = command.program if hosts == 1 else command.launcher(devices) + command.program
    text = " \\\n    ".join([program, *options, *around, '"$@"'])
    text = f"export REPLICAS={replicas}\n{text}" if replicas > 1 else text
    head = [f"# {on_one_line(line)}" for line in comments]
    return "\n".join(["#!/usr/bin/env bash", *head, "set -euo pipefail", text, ""])
