"""Servers: ``vllm serve``, SGLang's ``launch_server`` and ``trtllm-serve``.

Source: vLLM 0.33.0 ``engine/arg_utils.py``; SGLang 0.5.23 ``srt/server_args.py``; TensorRT-LLM
``commands/serve.py`` and ``llmapi/llm_args.py``.
"""

from __future__ import annotations

import json

from meshwright.frameworks.framework import Framework, framework
from meshwright.frameworks.reading.given import Given, Options, Tree, of_tree
from meshwright.frameworks.reading.job import Setting
from meshwright.frameworks.reading.launchers import Devices, Launch
from meshwright.frameworks.reading.models import known_model
from meshwright.spec.model import ModelSpec

CACHE = {"auto": None, "bfloat16": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8",
         "fp8_e5m2": "fp8", "fp8_inc": "fp8", "float16": "fp16", "int8": "int8"}  # fmt: skip
TYPES = {"auto": "", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
         "float": "fp32"}  # fmt: skip
QUANTIZED = {"fp8": "fp8", "w8a8_fp8": "fp8", "w8a8_int8": "int8", "modelopt": "fp8",
             "modelopt_fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4",
             "petit_nvfp4": "fp4", "fp4": "fp4"}  # fmt: skip
"""Names of quantized weights that multiply in their own type."""
STORED = {"awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq",
          "bitsandbytes": "nf4"}  # fmt: skip
"""Names of weights that are widened for products, as ``--weights`` calls them."""


_NAMES = ("model", "model_path", "model_tag", "model_id")
"""Options that name the checkpoint."""


def _common(given: Given, setting: Setting, server: str) -> Options:
    """Return the options of all servers: model, precisions, sequences in flight, tokens."""
    dtype = given.word("dtype", among=TYPES) or "auto"
    quantized = given.text("quantization")
    precision = None if dtype == "auto" else TYPES[dtype]  # auto: as the checkpoint has them
    stored = STORED.get(quantized or "")
    if quantized not in (None, "None", "none"):
        if quantized in QUANTIZED:
            precision = QUANTIZED[quantized]
        elif stored is None:
            known = ", ".join([*QUANTIZED, *STORED])
            given.refuse("quantization", f"{quantized} is not read from here",
                         f"{known}; other kinds by the config.json")  # fmt: skip
    cache = given.word("kv_cache_dtype", among=CACHE)
    return {"server": server, "decode": True, "precision": precision, "weights": stored,
            "kv_cache": CACHE[cache] if cache else None,
            "model": _model(given, setting)}  # fmt: skip


def _model(given: Given, setting: Setting) -> ModelSpec | None:
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
        given.needs("MODEL", f"{name!r} is no model of the catalog", "name it, or its config.json")
    return model


def _world(given: Given, setting: Setting, found: Options) -> None:
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


def _config(given: Given, setting: Setting, *names: str) -> None:
    """Add the statements of a YAML file that an option names."""
    if (path := given.path(*names)) is not None:
        given.add(of_tree(setting.config_files(path), path))


def _has_experts(model: object) -> bool:
    """Return whether a model that was read has experts."""
    return any(kind.experts for kind in getattr(model, "layer_kinds", ()))


def _worker(given: Given, found: Options, option: str, role: str) -> None:
    """Read the role of a worker: prefill or decode.

    It is priced without the transfer of caches: ``serve --disaggregated`` prices both roles. A
    worker of prefill takes prompts, and leaves room for the first token of an answer.
    """
    given.notes.append(f"{option}: the way of caches is priced by serve --disaggregated, not here")
    if role == "prefill" and found["context"]:
        found |= {"decode": None, "prefill": True, "context": None, "prompt": found["context"] - 1}


_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _transfer(given: Given, setting: Setting, found: Options) -> None:
    """Read the transfer of caches between workers of prefill and of decode.

    With a connector for both roles the router decides; scripts of this program state the role in
    their head.

    Source: vLLM 0.33, ``config/kv_transfer.py``.
    """
    option = "kv_transfer_config"
    text = given.text(option)
    if text is None:
        return
    try:
        stated = json.loads(text)
    except ValueError:
        stated = None
    if not isinstance(stated, dict) or not isinstance(stated.get("kv_connector"), str):
        given.refuse(option, "is no JSON object with kv_connector")
        return
    of_head = setting.launch.role if setting.launch is not None else ""
    _worker(given, found, option, _ROLES.get(str(stated.get("kv_role")), of_head))


def _drafts(given: Given) -> Options:
    """Return the speculative decoding of vLLM: by another model, or by layers of the checkpoint.

    Source: vLLM 0.33 ``config/speculative.py``. No file states the share of accepted drafts.
    """
    option, known = "speculative_config", ("method", "model", "num_speculative_tokens")
    text = given.text(option)
    if text is None:
        return {}
    try:
        stated = json.loads(text)
    except ValueError:
        stated = None
    if not isinstance(stated, dict) or not isinstance(stated.get("num_speculative_tokens"), int):
        given.refuse(option, "is no JSON object with num_speculative_tokens")
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
class Vllm(Framework):
    """A server of vLLM."""

    kind = "serving"

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program == "vllm" or launch.program.startswith("vllm.")

    def holds(self, tree: Tree) -> bool:
        """Return whether a tree is a file of ``vllm serve --config``."""
        return (
            "max_model_len" in tree
            or "gpu_memory_utilization" in tree
            or ({"max-model-len", "gpu-memory-utilization"} & set(tree) != set())
        )

    def read(self, given: Given, setting: Setting) -> tuple[str, Options]:
        """Return the server, and options of this program."""
        given.renamed(self.table.renamed)
        _config(given, setting, "config")
        found = _common(given, setting, "vllm")
        tp = given.whole("tensor_parallel_size") or 1
        pp = given.whole("pipeline_parallel_size") or 1
        dp = given.whole("data_parallel_size") or 1
        ep = tp * dp if given.flag("enable_expert_parallel") else 1
        found |= {"tp": tp, "pp": pp, "dp": dp, "ep": ep}
        if ep == 1 and dp > 1 and (found["model"] is None or _has_experts(found["model"])):
            # FusedMoEParallelConfig.make (vLLM 0.33, fused_moe/config.py): experts are split inside
            found["etp"] = tp * dp
        found |= {"batch": given.whole("max_num_seqs"), "context": given.whole("max_model_len")}
        _world(given, setting, found)
        _share(given, found, "gpu_memory_utilization")
        _graphs(given, found, "enforce_eager")
        if given.text("all2all_backend") is not None:
            given.notes.append("all2all_backend: tokens are priced as the default sends them")
        found |= _drafts(given)
        _transfer(given, setting, found)
        self.table.judge(given)
        return "vllm", found


@framework("sglang", reads="sglang")
class Sglang(Framework):
    """A server of SGLang."""

    kind = "serving"

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program.startswith("sglang")

    def holds(self, tree: Tree) -> bool:
        """Return whether a tree is a file of ``launch_server --config``."""
        return "mem_fraction_static" in tree or "mem-fraction-static" in tree

    def read(self, given: Given, setting: Setting) -> tuple[str, Options]:
        """Return the server, and options of this program."""
        given.renamed(self.table.renamed)
        _config(given, setting, "config")
        found = _common(given, setting, "sglang")
        tp, pp = given.whole("tp_size") or 1, given.whole("pp_size") or 1
        dp, ep = given.whole("dp_size") or 1, given.whole("ep_size") or 1
        batch = given.whole("max_running_requests")
        if given.flag("enable_dp_attention") and dp > 1:
            if tp % dp or ep not in (tp, dp):
                message = "experts are priced on all ranks of tp, or one of each on a replica"
                fix = f"ep_size {tp} or {dp}, with a dp_size that divides tp_size"
                given.refuse("enable_dp_attention", message, fix)
            tp, batch = max(1, tp // dp), batch and max(1, batch // dp)
            note = "enable_dp_attention: dense layers and the head are priced in each replica"
            given.notes.append(note)
        found |= {"tp": tp, "pp": pp, "dp": dp, "ep": ep}
        found |= {"batch": batch, "context": given.whole("context_length")}
        _world(given, setting, found)
        _share(given, found, "mem_fraction_static")
        _graphs(given, found, "disable_cuda_graph")
        role = given.word("disaggregation_mode", among=("null", "prefill", "decode"))
        if role not in (None, "null"):
            _worker(given, found, "disaggregation_mode", role)
        self.table.judge(given)
        return "sglang", found


@framework("tensorrt_llm", reads="tensorrt-llm")
class TensorRtLlm(Framework):
    """A server of TensorRT-LLM."""

    kind = "serving"

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program == "trtllm-serve" or launch.program.startswith("tensorrt_llm")

    def holds(self, tree: Tree) -> bool:
        """Return whether a tree has options of its LLM API."""
        return "kv_cache_config" in tree

    def read(self, given: Given, setting: Setting) -> tuple[str, Options]:
        """Return the server, and options of this program."""
        _config(given, setting, "extra_llm_api_options", "config")
        given.renamed(self.table.renamed)
        backend = given.word("backend", among=("pytorch", "tensorrt", "_autodeploy")) or "pytorch"
        server = "tensorrt-llm" if backend == "tensorrt" else "tensorrt-llm-pytorch"
        found = _common(given, setting, server)
        tp, pp = given.whole("tp_size") or 1, given.whole("pp_size") or 1
        ep = given.whole("ep_size") or 1
        found |= {"tp": tp, "pp": pp, "dp": 1, "ep": ep}
        found |= {"batch": given.whole("max_batch_size"), "context": given.whole("max_seq_len")}
        _world(given, setting, found)
        _share(given, found, "free_gpu_memory_fraction")
        self.table.judge(given)
        return "tensorrt-llm", found


def _graphs(given: Given, found: Options, name: str) -> None:
    """Read the switch that turns CUDA graphs off; the host time priced is that with graphs."""
    if given.flag(name):
        found["cuda_graphs"] = False
        given.notes.append(f"{name}: the time of the host is that of servers with CUDA graphs")


def _share(given: Given, found: Options, name: str) -> None:
    """Read the share of the memory that the server fills."""
    share = given.real(name)
    if share is not None and not 0.0 < share <= 1.0:
        given.refuse(name, f"found {share:g}", "above 0 and at most 1")
    found["memory_share"] = None if share is None else f"{share:g}"
