"""Servers: ``vllm serve``, SGLang's ``launch_server`` and ``trtllm-serve``.

Source: vLLM 0.33.0 ``engine/arg_utils.py``; SGLang 0.5.23 ``srt/server_args.py``; TensorRT-LLM
``commands/serve.py`` and ``llmapi/llm_args.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from meshwright.frameworks.reading.given import Given, names, of_tree
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Devices, Launch
from meshwright.frameworks.reading.models import known_model

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


def _common(given: Given, setting: Setting, server: str) -> dict[str, Any]:
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


def _model(given: Given, setting: Setting) -> Any:
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


def _world(given: Given, setting: Setting, found: dict[str, Any]) -> None:
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


def _has_experts(model: Any) -> bool:
    """Return whether a model that was read has experts."""
    return any(kind.experts for kind in getattr(model, "layer_kinds", ()))


def _worker(given: Given, found: dict[str, Any], option: str, role: str) -> None:
    """Read the role of a worker: prefill or decode.

    It is priced without the transfer of caches: ``serve --disaggregated`` prices both roles. A
    worker of prefill takes prompts, and leaves room for the first token of an answer.
    """
    given.notes.append(f"{option}: the way of caches is priced by serve --disaggregated, not here")
    if role == "prefill" and found["context"]:
        found |= {"decode": None, "prefill": True, "context": None, "prompt": found["context"] - 1}


_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _transfer(given: Given, setting: Setting, found: dict[str, Any]) -> None:
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


def _drafts(given: Given) -> dict[str, Any]:
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


_EVERYWHERE = names(
    """
    host port uvicorn* served_model_name model_name api_key* chat_template* trust_remote_code log_*
    disable_log* enable_log* download_dir tokenizer* seed revision code_revision load_format
    model_loader* tool_call* reasoning_parser* enable_auto_tool* enable_reasoning ssl*
    allow_credentials allowed_* response_role lora_* max_loras hf_* generation_config*
    override_generation* guided_decoding* limit_mm* mm_* disable_fastapi* root_path
    middleware return_tokens* enable_prompt_tokens* enable_server_load* enable_metrics
    metrics* collect_* show_time_cost watchdog* dist_* nccl_* master_* node_rank random_seed
    stream_* decode_log* skip_server* warmups skip_tokenizer* otlp* prometheus*
    api_server_count distributed_executor_backend worker_* ray_* max_parallel_loading*
    swap_space block_size page_size use_v2* enable_sleep* enable_prefix_caching
    no_enable_prefix_caching prefix_caching* enable_chunked_prefill
    no_enable_chunked_prefill disable_radix_cache schedule_policy scheduling_policy
    schedule_conservativeness crash_dump* file_storage* enable_cache_report allow_auto*
    grammar_backend constrained_json* sampling_backend cuda_graph_* compilation_config
    disable_custom_all_reduce attention_backend sampling_defaults prefill_attention_backend
    decode_attention_backend mm_attention* enable_nccl* data_parallel_address
    data_parallel_rpc* data_parallel_start_rank data_parallel_rank headless
    data_parallel_backend data_parallel_size_local data_parallel_*_lb enable_request*
    fail_fast* metadata* disagg_* disaggregation_* server_role extra_encoder* num_postprocess*
    custom_tokenizer gpus_per_node max_beam_width guided* cuda_graph_config.*
    print_iter* enable_iter* scheduler_config.* stream_interval perf_metrics* return_perf*
    log_level disable_flashinfer* triton_attention_num* flashinfer_* init_expert* bucket_*
    delete_ckpt* batching_wait* allow_long* async_scheduling enable_return*
    structured_outputs* logits_processors eplb_*
    compilation_config.* detokenizer_worker_num model_impl json_model_override* rl_quant*
    enable_priority* disable_priority* priority_* default_priority* retraction_policy
    radix_* scheduler_recv* enable_mixed_chunk load_balance_method
    enable_p2p_check device base_gpu_id gpu_id_step soft_watchdog* sleep_on_idle use_ray
    custom_sigquit* numa_node gc_* fastapi_root_path admin_api_key weight_version
    completion_template tool_server preferred_sampling* incremental_streaming* *_tokens_buckets
    kv_events_config export_metrics* fp8_gemm* fp4_gemm* bf16_gemm* disable_cuda_graph_padding
    enable_profile_cuda_graph enable_cudagraph_gc enable_layerwise* enable_symm_mem
    triton_attention* enable_mscclpp pre_warm* moe_runner_backend deepep_mode deepep_config
    moe_dense_tp_size ep_num_redundant* ep_dispatch* expert_distribution* mooncake_*
    hicache_* image_processor* disable_fast_image* enable_lora max_lora* max_loaded_loras
    disable_shared_experts_fusion disable_chunked_prefix_cache
    weight_loader* enable_memory_saver enable_custom_logit* disable_outlines* shm_*
    language_model_only max_queued_requests num_gpu_blocks_override max_seq_len_to_capture
    long_prefill* max_num_partial* max_long_partial* enable_log_outputs disable_hybrid_kv*
    cudagraph_capture_sizes max_cudagraph* optimization_level O O1 O2 O3 safetensors_*
    use_tqdm* io_processor* pooler* runner convert skip_mm* interleave_mm* video_pruning*
    mamba_cache_dtype kv_sharing* limit_mm_per_prompt.* hf_overrides.* kv_cache_config.event*
    kv_cache_config.enable_partial* kv_cache_config.copy_on* kv_cache_config.sink*
    scheduler_config scheduler_config.* moe_config.* torch_compile_config.* allreduce_strategy
    use_cuda_graph* max_draft_len enable_layerwise_nvtx* garbage_collection* num_serve*
    reasoning_parser postprocess* trust_remote* enable_padding sampler_type
    """
)


@readers.register("vllm")
class Vllm:
    """A server of vLLM."""

    title = "vLLM"
    kind: Literal["training", "serving"] = "serving"
    ignored = _EVERYWHERE

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program == "vllm" or launch.program.startswith("vllm.")

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree is a file of ``vllm serve --config``."""
        return (
            "max_model_len" in tree
            or "gpu_memory_utilization" in tree
            or ({"max-model-len", "gpu-memory-utilization"} & set(tree) != set())
        )

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the server, and options of this program."""
        given.renamed({"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size",
                       "dp": "data_parallel_size", "ep": "enable_expert_parallel",
                       "q": "quantization", "tensor_parallel": "tensor_parallel_size",
                       "n": "nnodes", "asc": "async_scheduling"})  # fmt: skip
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
        given.whole("max_num_batched_tokens"), given.whole("nnodes")
        _world(given, setting, found)
        _share(given, found, "gpu_memory_utilization")
        _graphs(given, found, "enforce_eager")
        given.note_if("enable_eplb", "experts are priced as loaded alike")
        if given.text("all2all_backend") is not None:
            given.notes.append("all2all_backend: tokens are priced as the default sends them")
        found |= _drafts(given)
        _transfer(given, setting, found)
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size",
                     "cpu_offload_gb", "enable_dbo",
                     "kv_offloading_size", "spec_method", "num_redundant_experts"):  # fmt: skip
            given.refuse_unless(name, "1", "0", "false", why="is not read")
        return "vllm", found


@readers.register("sglang")
class Sglang:
    """A server of SGLang."""

    title = "SGLang"
    kind: Literal["training", "serving"] = "serving"
    ignored = _EVERYWHERE

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program.startswith("sglang")

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree is a file of ``launch_server --config``."""
        return "mem_fraction_static" in tree or "mem-fraction-static" in tree

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the server, and options of this program."""
        given.renamed({"tp": "tp_size", "tensor_parallel_size": "tp_size", "pp": "pp_size",
                       "pipeline_parallel_size": "pp_size", "dp": "dp_size",
                       "data_parallel_size": "dp_size", "ep": "ep_size",
                       "expert_parallel_size": "ep_size"})  # fmt: skip
        _config(given, setting, "config")
        found = _common(given, setting, "sglang")
        tp, pp = given.whole("tp_size") or 1, given.whole("pp_size") or 1
        dp, ep = given.whole("dp_size") or 1, given.whole("ep_size") or 1
        given.whole("nnodes")
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
        given.whole("chunked_prefill_size", least=-1), given.whole("max_prefill_tokens")
        _world(given, setting, found)
        _share(given, found, "mem_fraction_static")
        _graphs(given, found, "disable_cuda_graph")
        role = given.word("disaggregation_mode", among=("null", "prefill", "decode"))
        if role not in (None, "null"):
            _worker(given, found, "disaggregation_mode", role)
        for name in ("speculative_algorithm", "enable_two_batch_overlap",
                     "cpu_offload_gb", "moe_a2a_backend", "dcp_size", "attn_cp_size"):  # fmt: skip
            given.refuse_unless(name, "null", "none", "0", "1", "false", why="is not read")
        given.note_if(
            "disable_overlap_schedule", "the time of the host is that of servers that hide it"
        )
        for name in ("speculative_num_steps", "speculative_eagle_topk",
                     "speculative_draft_model_path",
                     "speculative_num_draft_tokens", "torch_compile_max_bs"):  # fmt: skip
            given.value(name)
        given.flag("enable_torch_compile")
        return "sglang", found


@readers.register("tensorrt-llm")
class TensorRtLlm:
    """A server of TensorRT-LLM."""

    title = "TensorRT-LLM"
    kind: Literal["training", "serving"] = "serving"
    ignored = _EVERYWHERE

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program == "trtllm-serve" or launch.program.startswith("tensorrt_llm")

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has options of its LLM API."""
        return "kv_cache_config" in tree

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the server, and options of this program."""
        _config(given, setting, "extra_llm_api_options", "config")
        given.renamed({"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size",
                       "moe_expert_parallel_size": "ep_size",
                       "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
                       "kv_cache_config.free_gpu_memory_fraction": "free_gpu_memory_fraction",
                       "kv_cache_config.dtype": "kv_cache_dtype",
                       "context_parallel_size": "cp_size",
                       "moe_cluster_parallel_size": "cluster_size"})  # fmt: skip
        backend = given.word("backend", among=("pytorch", "tensorrt", "_autodeploy")) or "pytorch"
        server = "tensorrt-llm" if backend == "tensorrt" else "tensorrt-llm-pytorch"
        found = _common(given, setting, server)
        tp, pp = given.whole("tp_size") or 1, given.whole("pp_size") or 1
        ep = given.whole("ep_size") or 1
        found |= {"tp": tp, "pp": pp, "dp": 1, "ep": ep}
        found |= {"batch": given.whole("max_batch_size"), "context": given.whole("max_seq_len")}
        given.whole("max_num_tokens"), given.whole("max_input_len")
        _world(given, setting, found)
        _share(given, found, "free_gpu_memory_fraction")
        for name in ("cp_size", "cluster_size", "speculative_config", "enable_attention_dp",
                     "moe_tensor_parallel_size", "cp_config",
            "kv_cache_config.host_cache_size"):  # fmt: skip
            given.refuse_unless(name, "1", "0", "false", why="is not read")
        for name in ("kv_cache_config.enable_block_reuse", "kv_cache_config.tokens_per_block",
                     "moe_config.backend", "kv_cache_config.max_tokens", "use_cuda_graph",
                     "attn_backend", "disable_overlap_scheduler"):  # fmt: skip
            given.value(name)
        return "tensorrt-llm", found


def _graphs(given: Given, found: dict[str, Any], name: str) -> None:
    """Read the switch that turns CUDA graphs off; the host time priced is that with graphs."""
    if given.flag(name):
        found["cuda_graphs"] = False
        given.notes.append(f"{name}: the time of the host is that of servers with CUDA graphs")


def _share(given: Given, found: dict[str, Any], name: str) -> None:
    """Read the share of the memory that the server fills."""
    share = given.real(name)
    if share is not None and not 0.0 < share <= 1.0:
        given.refuse(name, f"found {share:g}", "above 0 and at most 1")
    found["memory_share"] = None if share is None else f"{share:g}"
