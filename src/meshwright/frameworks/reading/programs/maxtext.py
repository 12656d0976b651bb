"""MaxText: its YAML file, and ``key=value`` options behind it.

Source: AI-Hypercomputer/maxtext ``src/maxtext/configs/base.yml`` and its documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from meshwright.base.errors import SpecError
from meshwright.catalog.maxtext_models import BLOCKS, MODELS, config_of_keys
from meshwright.catalog.models import read_config
from meshwright.frameworks.reading.given import Given, names, of_tree
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Devices, Launch
from meshwright.frameworks.reading.models import catalog_twin, known_model
from meshwright.graph.recompute import LAYER_INPUT, TENSORS

AXES = {
    "data": "dp_replicate", "fsdp": "dp_shard", "fsdp_transpose": "dp_shard", "tensor": "tp",
    "tensor_transpose": "tp", "tensor_sequence": "tp", "sequence": "cp", "context": "cp",
    "pipeline": "pp", "expert": "ep",
}  # fmt: skip
"""Axis of this program for each axis of its mesh; experts borrow ranks of data parallelism."""
MATMUL_PRECISIONS = {"default": "tf32", "high": "tf32", "highest": "fp32"}
"""Precision of products of FP32 numbers. Source: JAX 0.10, ``docs/201/precision.md``."""
UNREAD = ("autoregressive", "diloco", "context_autoregressive", "context_usp_ulysses")
REMAT = {
    "none": "full", "full": "full", "minimal": "selective", "minimal_with_context": "none",
    "minimal_flash": "none", "minimal_with_quantization": "selective",
    "minimal_with_context_and_quantization": "none", "custom": "full",
}  # fmt: skip
"""Policies of recomputation, except those that keep single tensors.

Each layer is checkpointed: ``none`` gives it no policy, which keeps as little as ``full``. Source:
AI-Hypercomputer/maxtext 0.2.5 ``layers/nnx_decoders.py``, ``get_remat_policy``.
"""
QKV = ("query_proj", "key_proj", "value_proj")
KEEPS = {
    "save_qkv_proj": QKV, "save_out_proj": ("out_proj",), "save_dot_except_mlp": (*QKV, "out_proj"),
    "save_dot_with_context_except_mlp": (*QKV, "context", "out_proj"),
    "save_dot_except_mlpwi": (*QKV, "out_proj", "mlpwo"), "qkv_proj_offloaded": QKV,
    "minimal_offloaded": (*QKV, "out_proj", "mlpwi", "mlpwo"),
}  # fmt: skip
"""Tensors that a policy keeps; on the host if its name ends in ``_offloaded``."""
CUSTOM = {
    **{name: (name,) for name in TENSORS}, "qkv_proj": QKV, "mlpwi_0": ("mlpwi",),
    "mlpwi_1": ("mlpwi",), "moe_mlpwi_0": ("mlpwi",), "moe_mlpwi_1": ("mlpwi",),
    "moe_mlpwo": ("mlpwo",),
}  # fmt: skip
"""Keys of ``remat_policy: custom``, and the tensors that they place."""


SWITCHES = ("enable_diloco", "enable_rampup_batch_size", "use_dpo", "shard_optimizer_over_data",
            "use_2d_fsdp_sharding", "use_batch_split_schedule")  # fmt: skip
"""Switches that change the price where they are on, and are not read."""


@readers.register("maxtext")
class MaxText:
    """A training job of MaxText."""

    title = "MaxText"
    kind: Literal["training", "serving"] = "training"
    ignored = names(
        """
        base_config run_name base_output_directory dataset* tokenizer* hf_* grain_*
        tfds_* eval_* load_* checkpoint* enable_checkpointing async_checkpointing
        save_config* learning_rate* adam_* gradient_clipping* warmup* cosine* log_*
        enable_tensorboard use_vertex* tensorboard* vertex* upload* profiler* profile*
        skip_first_n* reuse_example* hardware jax_* metrics_* gcs_* enable_goodput*
        goodput* monitor_* enable_pathways* init_weights_seed data_shuffle_seed
        enable_data_shuffling packing xprof* dump_* compiled_trainstep* rope_*
        logits_via* normalize_embedding* cast_logits* z_loss* stack_trace*
        collect_stack* collective_timeout* sa_block* sa_use* sa_q* sa_k* use_iota_embed
        scan_layers param_scan_axis inhomogeneous* allow_split_physical_axes custom_mesh
        mesh_axes data_sharding logical_axis_rules record_* attention use_ragged*
        megablox sparse_matmul enable_emergency* local_checkpoint* word max_checkify
        elastic* managed_* decoder_block shard_mode num_epoch
        decode_sampling* per_device_eval* use_dmscan dtype_mm enable_nnx allow_split*
        enable_single_controller use_multimodal model_call_mode quantize_kvcache
        internal_compile* force_unroll capacity_* model_fsdp* logits_dot_in_fp32
        enable_profiler shardy sharding_tolerance mtp_loss_scaling* float32_* activations_in_float32
        local_sa_* use_splash* use_tokamax* use_jax_splash cost_estimate* add_bos add_eos
        chat_template* mmap_* blend_* train_split train_data_columns train_image* max_segments*
        context_parallel_load_balance context_parallel_reorder* debug_sharding enable_wandb wandb_*
        enable_jax_profiler enable_gcp* enable_mllog mllog_* heartbeat* report_* hide_profiler*
        max_num_checkpoints* multi_tier* mtc_* enable_multi_tier* enable_continuous* enable_orbax*
        enable_autocheckpoint enable_single_replica* source_checkpoint* save_quantized*
        prometheus* inference_* prefill_* decode_* autoregressive_decode* prompt max_prefill*
        abort_on_* skip_step* skip_jax* step_deviation* target_eval_loss tokenize_* lr_schedule*
        wsd_* muon_* adamw_mask enable_dropout routed_bias_update* use_chat_template use_sft
        sft_train_on* tpu_num* compile_xla_flags optimize_mesh* custom_mesh* override_logical*
        remove_size_one* input_data_sharding* scan_pipeline* scan_layers_per_stage
        set_remat_policy_on* wi_tile* wo_tile* ar_cache* compute_axis* prefix_caching*
        use_gmm_v2* ragged_* dense_init_scale norm_topk_prob use_random_routing
        load_balance_loss_weight shuffle_buffer* warm_input* write_estimator*
        """
    )

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return "maxtext" in launch.program.lower() or any(
            name.startswith(("ici_", "dcn_")) for name in given
        )

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has names of MaxText."""
        return "per_device_batch_size" in tree or any(
            key.startswith(("ici_", "dcn_")) for key in tree
        )

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        words = given.value("(word)") or []
        for path in (word for word in words if str(word).endswith((".yml", ".yaml"))):
            if str(path).rsplit("/", 1)[-1] == "base.yml":
                continue  # the defaults, which are known here
            try:
                given.add(of_tree(setting.config_files(path), path))
            except SpecError as error:
                given.faults += error.faults
        _devices(given, setting)
        options: dict[str, Any] = _degrees(given, setting)
        options |= _batch(given, setting, options)
        options |= _types(given)
        if "model" not in setting.stated:
            options["model"] = _model(given)
        else:
            for key in ("model_name", *_DIMS):
                given.value(key)
        _refuse(given)
        return "maxtext", options


def _devices(given: Given, setting: Setting) -> None:
    """Take the topology of an ahead-of-time compilation as the devices."""
    topology, slices = given.text("compile_topology"), given.whole("compile_topology_num_slices")
    if topology is None:
        return
    chip, _, count = topology.rpartition("-")
    if count.isdigit():
        cores = 2 if chip in ("v4", "v5p", "v3", "v2") else 1  # these are counted in cores
        total = int(count) // cores * (slices or 1)
        setting.devices = Devices(num_hosts=slices, total=total, chip=f"tpu-{chip}")
        setting.num_devices = setting.num_devices or total


def _degrees(given: Given, setting: Setting) -> dict[str, Any]:
    """Return degrees: each axis inside of a slice times that between slices."""
    sizes: dict[str, int] = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "dp_shard": 1, "dp_replicate": 1}
    rest: list[str] = []
    for where in ("ici", "dcn"):
        for axis, ours in AXES.items():
            name = f"{where}_{axis}_parallelism"
            default = -1 if (where, axis) in (("ici", "fsdp"), ("dcn", "data")) else 1
            size = given.whole(name, least=-1)
            size = default if size is None else size
            if size == -1:
                rest.append(ours)
            else:
                sizes[ours] *= size
        for axis in UNREAD:
            given.refuse_unless(f"{where}_{axis}_parallelism", "1", why="is not read", fix="1")
    world = setting.num_devices
    known = 1
    for size in sizes.values():
        known *= size
    if rest and world is None:
        setting.world(given, "an axis of -1 takes the devices that are left")
    elif rest and world is not None:
        sizes[rest[0]] *= max(1, world // known)
    ep = sizes.pop("ep")
    shards = sizes.pop("dp_shard") * ep  # experts share the ranks of fsdp: weights besides them too
    replicas = sizes.pop("dp_replicate")
    found: dict[str, Any] = dict(sizes) | {"dp": shards * replicas, "dp_shard": shards}
    if ep > 1:
        found |= {"ep": ep, "etp": 1}
    is_sharded = shards > 1 or sizes["cp"] > 1  # weights lie on the ranks of context as well
    found["zero_stage"] = "3" if is_sharded else "0"
    if not is_sharded:
        found["dp_shard"] = found["dp"]
    kind = given.text("context_parallel_strategy")
    if sizes["cp"] > 1 and kind not in (None, "ring"):
        given.notes.append("keys and values of cp are priced as passed round, not gathered")
    if sizes["pp"] > 1:
        found |= _pipeline(given, sizes["pp"])
    return found


def _pipeline(given: Given, pp: int) -> dict[str, Any]:
    repeats = given.whole("num_pipeline_repeats", least=-1)
    given.whole("num_layers_per_pipeline_stage")
    if repeats and repeats > 1:
        given.refuse("num_pipeline_repeats", f"{repeats} rounds of a pipeline are not read", "1")
    return {"schedule": "gpipe"}


def _batch(given: Given, setting: Setting, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch: that of a device times devices, with accumulation."""
    each = given.real("per_device_batch_size")
    each = 12.0 if each is None else each
    again = given.whole("gradient_accumulation_steps") or 1
    length = given.whole("max_target_length") or 2048
    found: dict[str, Any] = {"seq": length}
    if world := setting.world(given, "the batch of a step is that of a device times devices"):
        whole = round(each * world * again)
        micro = each * world / options["dp"]
        if micro < 1 or micro != int(micro):
            given.refuse("per_device_batch_size",
                         f"{each:g} a device are {micro:g} sequences on each "
                         f"of dp {options['dp']}", "a whole number")  # fmt: skip
        parts = _pipeline_parts(given, options, micro)
        if again > 1 and parts > 1:
            given.notes.append("accumulated batches are priced as one pass through the pipeline")
        found |= {"global_batch": whole, "micro_batch_size": max(1, int(micro) // parts)}
        if (steps := given.whole("steps", least=-1)) and steps > 0:
            found["tokens"] = steps * whole * length
    else:
        _pipeline_parts(given, options, 0)
    given.value("steps")
    return found


def _pipeline_parts(given: Given, options: Mapping[str, Any], sequences: float) -> int:
    """Return the micro-batches into which a pipeline cuts the sequences of a rank; 1 without one.

    0 sequences: their number is not known yet.

    Source: MaxText 0.2.5 ``pyconfig.py``: the number of stages, twice that where activations are
    forwarded late; a multiple of the stages that divides the batch.
    """
    late = given.flag("pipeline_delay_activation_forwarding")
    name, stages = "num_pipeline_microbatches", options.get("pp") or 1
    count = given.whole(name, least=-1) or -1
    if stages == 1:
        return 1
    count = count if count > 0 else stages * (1 + late)
    if count % stages:
        nearest = -(-count // stages) * stages
        given.refuse(name, f"{count} are no multiple of {stages} stages", f"{nearest}")
    elif sequences and sequences % count:
        allowed = [n for n in range(stages, int(sequences) + 1, stages) if sequences % n == 0]
        fix = f"{min(allowed, key=lambda n: abs(n - count))}" if allowed else ""
        at = name if name in given else "per_device_batch_size"
        given.refuse(at, f"{sequences:g} sequences of a rank are not {count} micro-batches", fix)
    return count


def _types(given: Given) -> dict[str, Any]:
    """Return precisions, recomputation, and offload to the host."""
    kinds = {"bfloat16": "bf16", "float32": "fp32"}
    precision = kinds[given.word("dtype", among=kinds) or "bfloat16"]
    kept = given.word("matmul_precision", among=MATMUL_PRECISIONS) or "default"
    if precision == "fp32":
        precision = MATMUL_PRECISIONS[kept]
        if kept == "default":
            given.notes.append("products of FP32 are priced in TF32; TPUs round them to bf16")
    weights = given.word("weight_dtype", among=kinds)
    given.word("grad_dtype", among=("float32", "bfloat16"))
    quantized = given.word("quantization", among=("", "int8", "fp8", "fp8_full", "nanoo_fp8",
                                                  "fp8_gpu", "te_fp8_delayedscaling"))  # fmt: skip
    if quantized:
        precision = "int8" if quantized == "int8" else "fp8"
    for name in ("use_qwix_quantization", "quantization_local_shard_count"):
        given.value(name)
    offload = "optimizer" if given.flag("optimizer_memory_host_offload") else None
    given.refuse_unless("parameter_memory_host_offload", "false", why="is not read", fix="false")
    optimizer = given.word("opt_type", among=("adamw", "adam_pax", "sgd"))
    if optimizer != "sgd":
        optimizer = "adam-bf16" if weights == "bfloat16" else None
    tiles = given.whole("num_vocab_tiling") or 1
    return {"precision": precision, **_recomputation(given), "offload": offload,
            "optimizer": optimizer, "dropout": bool(given.real("dropout_rate")),
            "software": {"logit_tiles": tiles} if tiles > 1 else {}}  # fmt: skip


def _recomputation(given: Given) -> dict[str, Any]:
    """Return the recomputation, and the tensors kept on the device or on the host."""
    policy = given.word("remat_policy", among={**REMAT, **KEEPS}) or "full"
    places: dict[str, set[str]] = {"device": set(), "offload": set(), "remat": set()}
    for key, tensors in CUSTOM.items():
        place = given.word(key, among=places)
        if place and policy == "custom":
            places[place].update(tensors)
    if policy in KEEPS:
        places["offload" if policy.endswith("_offloaded") else "device"].update(KEEPS[policy])
    if mixed := (places["device"] & places["offload"]) | (places["remat"] & {*places["device"],
                 *places["offload"]}):  # fmt: skip
        given.refuse("remat_policy", f"parts of {', '.join(sorted(mixed))} in several places are "
                     "not read", "one place for each tensor")  # fmt: skip
    kept = [name for name in TENSORS if name in places["device"] and name != LAYER_INPUT]
    away = [name for name in TENSORS if name in places["offload"]]
    if not kept and not away:
        return {"recompute": REMAT.get(policy, "full")}
    stored = {"kept_tensors": "+".join(kept), "offloaded_tensors": "+".join(away)}
    return {"recompute": "selective", **{name: text for name, text in stored.items() if text}}


def _model(given: Given) -> Any:
    """Return the model by its name, or by its dims."""
    name = given.text("model_name")
    dims = [key for key in given if key in _DIMS]
    if name in (None, "default"):
        if "base_emb_dim" in dims:
            return _stated_model(given, dims)
        given.needs("MODEL", "the files state no model_name", "name it")
        return None
    for key in [key for key in dims if key != "decoder_block"]:
        given.refuse(key, "dims beside model_name are not read", "a config.json of the model")
    if name in MODELS and (model := known_model(MODELS[name])) is not None:
        return model
    given.refuse(
        "model_name", f"{name!r} is no model of the catalog", "name the model beside the file"
    )
    return None


_DIMS = frozenset(
    ["decoder_block", "base_moe_mlp_dim"]
    + [key for block in BLOCKS.values() for key in (*block.names, *block.keys)]
)


def _stated_model(given: Given, dims: list[str]) -> Any:
    """Return the model of the catalog with these dims, or a model of them."""
    words = {key: given.text(key) or "" for key in dims}
    values: dict[str, Any] = {key: _value(word) for key, word in words.items()}
    config = config_of_keys(values)
    if config is None:
        given.refuse(
            "decoder_block", f"{values['decoder_block']} is not read", "a config.json of the model"
        )
        return None
    try:
        model = read_config(config, origin="decoder_block and dims")
    except SpecError as error:
        given.faults += error.faults
        return None
    return catalog_twin(model) or model


def _value(word: str) -> object:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    return int(word) if word.lstrip("-").isdigit() else word


def _refuse(given: Given) -> None:
    given.refuse_unless("mu_dtype", "", "float32", why="is not read", fix="float32")
    given.refuse_unless("mtp_num_layers", "0", why="layers for multi-token prediction are not read",
                        fix="0")  # fmt: skip
    for name in SWITCHES:
        given.refuse_unless(name, "false", why="is not read", fix="false")
    for name in ("global_parameter_scale", "override_model_config"):
        given.refuse_unless(name, "1", "false", why="is not read", fix="a config.json of the model")
