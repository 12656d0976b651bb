"""torchtitan: TOML files and options up to 0.2, options of a shipped configuration from 0.3 on.

Source: torchtitan 0.2.2 ``torchtitan/config/job_config.py``; 0.3.0 ``config/configs.py`` and
``models/*/config_registry.py``; older names: its releases 0.0 and 0.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from meshwright.catalog.models import load_model
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.reading.given import Given, names, of_tree
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.models import stated_model

MODELS = {
    ("llama3", "8b"): "llama3-8b", ("llama3", "70b"): "llama3-70b",
    ("llama3", "405b"): "llama3.1-405b", ("llama3", "8b_flex"): "llama3-8b",
    ("llama4", "17bx16e"): "llama4-scout", ("llama4", "17bx128e"): "llama4-maverick",
    ("qwen3", "0.6b"): "qwen3-0.6b", ("qwen3", "1.7b"): "qwen3-1.7b", ("qwen3", "4b"): "qwen3-4b",
    ("qwen3", "8b"): "qwen3-8b", ("qwen3", "14b"): "qwen3-14b", ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b", ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("deepseek_v3", "16b"): "deepseek-v2-lite", ("deepseek_v3", "236b"): "deepseek-v2",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("gpt_oss", "20b"): "gpt-oss-20b", ("gpt_oss", "120b"): "gpt-oss-120b",
}  # fmt: skip
"""Models of the catalog by name and flavor."""


def _shipped(
    model: str, local_batch_size: int, seq_len: int, steps: int, recompute: str = "selective",
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the options of a configuration, by section."""
    module, flavor = model.split()
    training = {"local_batch_size": local_batch_size, "seq_len": seq_len, "steps": steps}
    if more.pop("without_graphs", False):
        training["disable_cuda_graphs"] = True
    compiled = {"compile": {"enable": True, "components": "loss"}} if "deepseek" in model else {}
    return (
        {
            "model": {"name": module, "flavor": flavor, "converters": more.pop("converters", "")},
            "training": training,
            "activation_checkpoint": {"mode": recompute, "selective_ac_option": "op"},
        }
        | ({"parallelism": more} if more else {})
        | compiled
    )


SHIPPED = {
    "llama3_8b": _shipped("llama3 8B", 1, 8192, 1000),
    "llama3_70b": _shipped("llama3 70B", 8, 8192, 1000, "full", tensor_parallel_degree=8),
    "llama3_405b": _shipped("llama3 405B", 2, 8192, 3000, "full", tensor_parallel_degree=8,
                            converters="float8")
    | {"compile": {"enable": True, "enable_async_tensor_parallel": True}},
    "qwen3_0_6b": _shipped("qwen3 0.6B", 4, 4096, 10),
    "qwen3_1_7b": _shipped("qwen3 1.7B", 4, 4096, 100),
    "qwen3_14b": _shipped("qwen3 14B", 4, 4096, 3000, "full"),
    "qwen3_32b": _shipped("qwen3 32B", 2, 4096, 3000, "full"),
    "qwen3_30b_a3b": _shipped("qwen3 30B-A3B", 2, 4096, 3000, "full"),
    "deepseek_v3_16b": _shipped("deepseek_v3 16B", 4, 4096, 1000, expert_parallel_degree=8,
                                pipeline_parallel_schedule="Interleaved1F1B", without_graphs=True),
    "deepseek_v3_671b": _shipped("deepseek_v3 671B", 4, 4096, 10000, expert_parallel_degree=2,
                                 pipeline_parallel_schedule="Interleaved1F1B", without_graphs=True),
    "deepseek_v3_671b_float8": _shipped(
        "deepseek_v3 671B", 4, 4096, 10000, expert_parallel_degree=2, converters="float8",
        pipeline_parallel_schedule="Interleaved1F1B", without_graphs=True),
    "gpt_oss_20b": _shipped("gpt_oss 20b", 1, 8192, 10000, "full"),
    "gpt_oss_120b": _shipped("gpt_oss 120b", 1, 8192, 10000, "full"),
}  # fmt: skip
"""Configurations of 0.3 by name: values of options that are not stated.

Those of DeepSeek compile their loss alone.
"""
OLDER = {
    "training.batch_size": "training.local_batch_size",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.compile": "compile.enable",
    "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "model.norm_type": "norm_type",
    "quantize.dense.float8.enable_fsdp_float8_all_gather":
        "quantize.linear.float8.enable_fsdp_float8_all_gather",
    "quantize.dense.float8.recipe_name": "quantize.linear.float8.recipe_name",
} | {
    f"experimental.{name}": f"parallelism.{name}"
    for name in ("pipeline_parallel_degree", "pipeline_parallel_schedule",
                 "context_parallel_degree",
                 "pipeline_parallel_microbatches", "pipeline_parallel_split_points",
                 "enable_async_tensor_parallel", "context_parallel_rotate_method",
                 "pipeline_parallel_schedule_csv", "expert_parallel_degree")
}  # fmt: skip
SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved",
             "interleaved_1f1b": "interleaved", "ZBVZeroBubble": "", "InterleavedZeroBubble": "",
             "DualPipeV": "", "LoopedBFS": ""}  # fmt: skip


AT = "parallelism."


@readers.register("torchtitan")
class Torchtitan:
    """A training job of torchtitan."""

    title = "torchtitan"
    kind: Literal["training", "serving"] = "training"
    ignored = names(
        """
        job.* profiling.* profiler.* metrics.* lr_scheduler.* checkpoint.* comm.*
        tokenizer.* validation.* validator.* dataloader.* training.dataset*
        training.max_norm training.gc_* training.seed training.deterministic debug.*
        model.tokenizer_path model.hf_assets_path model.print_after_conversion
        hf_assets_path dump_folder norm_type memory_estimation.* optimizer.lr
        optimizer.beta* optimizer.eps optimizer.weight_decay optimizer.fused
        optimizer.implementation optimizer.foreach training.warmup_steps
        training.data_parallel_type activation_checkpoint.preserve_rng_state
        activation_checkpoint.early_stop activation_checkpoint.determinism_check
        activation_checkpoint.debug activation_checkpoint.per_op_sac*
        activation_checkpoint.memory_budget activation_checkpoint.visualize*
        parallelism.context_parallel_load_balancer parallelism.spmd_backend
        compile.backend parallelism.pipeline_parallel_schedule_csv
        parallelism.pipeline_parallel_expert_parallel*
        quantize.linear.float8.filter_fqns quantize.linear.float8.emulate
        float8.force_recompute_fp8_weight_in_bwd float8.filter_fqns float8.emulate
        quantize.linear.float8.precompute* float8.precompute* float8.scaling_type*
        experimental.custom_import experimental.custom_args_module training.warmup
        fault_tolerance.process* fault_tolerance.replica_id fault_tolerance.group_size
        fault_tolerance.min_replica* override.* loss.* model_spec.attn_backend model.attn_backend
        model_spec.seq_len model.seq_len training.data.* quantize.*.filter_fqns quantize.*.fqns
        quantize.*.precompute* quantize.*.emulate compile.components
        """
    )

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        named = "torchtitan" in launch.program or launch.program.endswith("run_train.sh")
        return named or any(name.startswith("parallelism.") for name in given)

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has the sections of torchtitan."""
        model = tree.get("model")
        if str(tree.get("_target_", "")).endswith(("Trainer.Config", "JobConfig")):
            return True
        return "parallelism" in tree or (isinstance(model, Mapping) and "flavor" in model)

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        if (path := given.path("job.config_file")) is not None:
            given.add(of_tree(setting.config_files(path), path))
        given.negated()
        is_registry = _configured(given)
        given.renamed(OLDER)
        options: dict[str, Any] = {"model": _model(given, setting)}
        options |= _degrees(given, setting)
        options |= _batch(given, setting, options)
        options |= _memory(given, is_registry)
        options |= _types(given, is_registry)
        return "torchtitan", options


def _configured(given: Given) -> bool:
    """Add the configuration that 0.3 starts from; return whether there is one.

    It is one of those that are shipped, or a function of a Python file among those that are read.
    """
    name, target = given.text("config"), given.value("_target_")
    if target is not None:
        _built(given)
    elif name in SHIPPED:
        given.add(of_tree(SHIPPED[name], f"--config {name}"))
    elif name is not None:
        given.refuse("config", f"{name!r} is not known: give the file that defines it as well",
                     f"or one of {', '.join(SHIPPED)}")  # fmt: skip
    module = given.text("module")
    if target is None and name is None and module is not None:
        given.needs("--config", "a module alone names no configuration")
    return "config" in given or str(target).endswith("Trainer.Config")


def _built(given: Given) -> None:
    """Put the objects that a Python file builds under the names of options."""
    words = given.value("model_spec._args_", "model._args_") or []
    words = words or [given.value("model_spec.flavor")]
    source = given.text("model_spec._target_", "model._target_") or ""
    if words[0] is not None:
        module = _module(given, source, str(words[0]).lower())
        given.add(of_tree({"model": {"flavor": words[0]} | ({"name": module} if module else {})}))
    for spec in ("model_spec", "model"):
        given.renamed({f"{spec}.converters": "model.converters",
                       f"{spec}.moe_comm_backend": f"{AT}expert_parallel_comm_backend",
                       "model_converters.converters": "model.converters"})  # fmt: skip
    target = given.text("activation_checkpoint._target_") or ""
    kinds = {"FullAC": "full", "SelectiveAC": "op", "FullActivationRemat": "full",
             "SelectiveActivationRemat": "op"}  # fmt: skip
    kind = next((mode for part, mode in kinds.items() if f".{part}" in f".{target}"), None)
    if "activation_checkpoint" in given and given.value("activation_checkpoint") is None:
        kind = "none"
    if kind is not None:
        mode = {"mode": "selective" if kind == "op" else kind, "selective_ac_option": kind}
        given.add(of_tree({"activation_checkpoint": mode}, target))
    elif target and "ActivationCheckpoint" not in target:
        given.refuse("activation_checkpoint._target_", f"{target} is not read",
                     "FullAC, SelectiveAC or None")  # fmt: skip
    optimizer = given.text("optimizer._target_") or ""
    if "InBackward" in optimizer or "muon" in optimizer.lower():
        given.refuse("optimizer._target_", f"{optimizer} is not read", "AdamW")
    for name in list(given):
        if name.endswith("._target_"):
            given.value(name)


def _module(given: Given, source: str, flavor: str) -> str | None:
    """Return the module of a flavor: by the import, ``--module``, or the function's name."""
    known = {name for name, _ in MODELS}
    parts = f"{source}.{given.text('module') or ''}".split(".")
    name = given.text("config") or ""
    found = [one for one in known if one in parts or name.startswith(one)]
    found = found or [one for one in known if (one, flavor) in MODELS]
    return found[0] if len(found) == 1 else None


def _model(given: Given, setting: Setting) -> Any:
    if any(name.startswith("MODEL.") for name in given):
        given.value("model.name"), given.value("model.flavor")
        return stated_model(given)
    name, flavor = given.text("model.name"), given.text("model.flavor")
    if name is None and flavor is not None and "_target_" in given:
        given.needs("MODEL", f"{flavor} is a flavor of several models", "name it")
        return None
    key = ((name or "llama3").lower(), (flavor or "").lower())
    if key in MODELS:
        return load_model(MODELS[key])
    known = ", ".join(f"{one[1]}" for one in MODELS if one[0] == key[0])
    if flavor is None:
        given.needs("MODEL", "the file states no model.flavor", "name it")
    elif "model" not in setting.stated:
        given.refuse("model.flavor", f"{name} {flavor} is no model of the catalog", known)
    return None


def _degrees(given: Given, setting: Setting) -> dict[str, Any]:
    """Return the degrees; the remaining ranks shard."""
    tp = given.whole(f"{AT}tensor_parallel_degree") or 1
    pp = given.whole(f"{AT}pipeline_parallel_degree") or 1
    cp = given.whole(f"{AT}context_parallel_degree") or 1
    replicas = given.whole(f"{AT}data_parallel_replicate_degree") or 1
    shards = given.whole(f"{AT}data_parallel_shard_degree", least=-1)
    if shards in (None, -1):
        world = setting.world(given, "the ranks that are left over shard the model")
        shards = max(1, (world or tp * pp * cp * replicas) // (tp * pp * cp * replicas))
    rotates = given.word(f"{AT}context_parallel_rotate_method", among=("allgather", "alltoall"))
    if cp > 1 and rotates != "alltoall":
        given.notes.append("keys and values of cp are priced as passed round, not gathered")
    found: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "dp": replicas * shards, "dp_shard": shards,
        "ep": given.whole(f"{AT}expert_parallel_degree") or 1,
    }  # fmt: skip
    etp = given.whole(f"{AT}expert_tensor_parallel_degree")
    found["etp"] = etp or 1
    if found["ep"] == 1 and found["etp"] == 1:
        del found["ep"], found["etp"]
    keeps = given.word(f"{AT}fsdp_reshard_after_forward", among=("default", "always", "never"))
    drops = keeps == "always" or (keeps != "never" and pp == 1)
    found["zero_stage"] = "0" if shards * cp == 1 else "2" if pp > 1 and not drops else "3"
    if found["zero_stage"] == "3" and not drops:
        found["reshard_after_forward"] = "off"
    if shards == 1:
        found["dp_shard"] = found["dp"] if cp == 1 else 1
    found["sequence_parallel"] = (
        "on" if tp > 1 and given.flag(f"{AT}enable_sequence_parallel", default=True) else "off"
    )
    if tp > 1:
        given.refuse_unless(f"{AT}disable_loss_parallel", "false",
                            why="logits whole on each rank are not read", fix="false")  # fmt: skip
    else:
        given.value(f"{AT}disable_loss_parallel")
    given.refuse_unless(f"{AT}expert_parallel_comm_backend", "standard",
                        why="is not read", fix="standard")  # fmt: skip
    given.refuse_unless(f"{AT}enable_fsdp_symm_mem", "false", why="is not read", fix="false")
    return found | _pipeline(given, pp)


def _pipeline(given: Given, pp: int) -> dict[str, Any]:
    named = given.word(f"{AT}pipeline_parallel_schedule", among=SCHEDULES)
    named = named or "1F1B"
    each = given.whole(f"{AT}pipeline_parallel_layers_per_stage")
    for end in ("first", "last"):
        given.whole(f"{AT}pipeline_parallel_{end}_stage_less_layers", least=0)
    for name in ("pipeline_parallel_split_points", "module_fqns_per_model_part"):
        if given.value(f"{AT}{name}"):
            given.refuse(f"{AT}{name}", "stages by name are not read", "layers dealt evenly")
    if pp == 1:
        return {}
    schedule = SCHEDULES[named]
    if not schedule:
        given.refuse(f"{AT}pipeline_parallel_schedule", f"{named} is not read",
                     "1F1B, GPipe, Interleaved1F1B")  # fmt: skip
    found: dict[str, Any] = {"schedule": schedule}
    if schedule == "interleaved":
        found["layers_per_stage"] = each
    return found


def _batch(given: Given, setting: Setting, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch: a pipeline cuts that of a rank, otherwise gradients accumulate."""
    local = given.whole("training.local_batch_size") or 8
    whole = given.whole("training.global_batch_size", least=-1)
    length = given.whole("training.seq_len", "training.max_context_length") or 2048
    if tokens := given.whole("training.num_tokens_per_microbatch_per_dp_rank"):
        local = max(1, tokens // length)
    micro = given.whole("parallelism.pipeline_parallel_microbatch_size")
    count = given.whole("parallelism.pipeline_parallel_microbatches")
    batch = whole if whole and whole > 0 else local * options["dp"]
    steps = given.whole("training.steps")
    found = {"global_batch": batch, "seq": length, "micro_batch_size": local}
    if options["pp"] > 1:
        found["micro_batch_size"] = max(1, local // count) if count else micro or 1
        each = options.pop("layers_per_stage", None) if isinstance(options, dict) else None
        model = options.get("model")
        if options.get("schedule") == "interleaved":
            layers = model.num_layers if model is not None else None
            stages = -(-layers // (each * options["pp"])) if layers and each else 2
            found["num_virtual_stages"] = max(2, stages)
        if whole and whole > 0 and whole != local * options["dp"]:
            given.refuse("training.global_batch_size",
                         f"{whole} is not dp {options['dp']} x local_batch_size {local}: "
                         "pipelines that accumulate are not read",
                         f"local_batch_size {whole // options['dp'] or 1}")  # fmt: skip
    if steps:
        found["tokens"] = steps * batch * length
    return found


def _memory(given: Given, is_registry: bool) -> dict[str, Any]:
    """Return the recomputation, and the offload to the host."""
    mode = given.word("activation_checkpoint", "activation_checkpoint.mode",
                      among=("none", "selective", "full"))  # fmt: skip
    option = given.text("activation_checkpoint.selective_ac_option",
                        "activation_checkpoint.selective_ac_type")  # fmt: skip
    mode = mode or "selective"
    usual = "op" if is_registry else "2"
    if mode == "selective" and (option or usual) != "op":
        name = next((n for n in ("activation_checkpoint.selective_ac_option",
                                 "activation_checkpoint.mode") if n in given), "")  # fmt: skip
        message = f"recomputation of every layer number {option or 2} is not read"
        if name:
            given.refuse(name, message, "selective_ac_option = 'op'")
        else:
            given.needs("--recompute", "by default every second layer is recomputed, which is not "
                        "read", "full, selective or none")  # fmt: skip
    on_host = given.flag("training.enable_cpu_offload")
    return {"recompute": mode, "offload": "state" if on_host else None}


def _types(given: Given, is_registry: bool) -> dict[str, Any]:
    """Return precisions, the optimizer, and the compiled parts."""
    kinds = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
    kept = given.word("training.dtype", among=kinds) or "float32"
    used = given.word("training.mixed_precision_param", among=kinds) or "bfloat16"
    summed = given.word("training.mixed_precision_reduce", among=kinds) or "float32"
    precision = kinds[used]
    converters = _converters(given.value("model.converters"))
    if "float8" in converters or given.flag("float8.enable_float8_linear"):
        precision = "fp8"
    elif converters:
        given.refuse("model.converters", f"{converters} is not read", "float8")
    recipe = given.word("quantize.linear.float8.recipe_name", "float8.recipe_name",
                        among=("tensorwise", "rowwise", "rowwise_with_gw_hp"))  # fmt: skip
    gathers = given.flag("quantize.linear.float8.enable_fsdp_float8_all_gather",
                         "float8.enable_fsdp_float8_all_gather")  # fmt: skip
    given.word("optimizer.name", among=("AdamW", "Adam"))
    given.refuse_unless("optimizer.early_step_in_backward", "false",
                        why="gradients that are freed within the backward pass are not read",
                        fix="false")  # fmt: skip
    given.refuse_unless("fault_tolerance.enable", "false", why="is not read", fix="false")
    optimizer: Any = "fsdp-mixed-bf16-reduce" if summed == "bfloat16" else None
    changes: dict[str, float] = {}
    if gathers and precision == "fp8":
        changes["gathered_weight_bytes_per_param"] = 1.0
    if kept == "bfloat16":
        changes |= {"weight_bytes_per_param": 2.0, "gradient_bytes_per_param": 2.0,
                    "state_bytes_per_param": 4.0, "step_traffic_bytes_per_param": 14.0}  # fmt: skip
    if changes:
        preset = load_optimizer(optimizer or "fsdp-mixed")
        optimizer = preset.model_copy(update={"name": f"{preset.name}, as stated", **changes})
    parts, compiles = given.text("compile.components"), given.flag("compile.enable")
    compiled = compiles and (parts is None or "model" in parts)
    software: dict[str, Any] = {"compiled": True} if compiled else {}
    if compiles and (parts is None or "loss" in parts):
        software["loss"] = "compiled"
    if tiles := given.whole("loss.num_chunks"):
        software["logit_tiles"] = tiles
    async_tp = given.flag("parallelism.enable_async_tensor_parallel") and compiled
    graphs = is_registry and not given.flag("training.disable_cuda_graphs")
    return {"precision": _precision(precision, recipe), "optimizer": optimizer,
            "async_tp": async_tp, "cuda_graphs": graphs,
            "software": software}  # fmt: skip


def _converters(stated: Any) -> str:
    """Return the names of the converters of layers, as one text in lower case."""
    parts = stated if isinstance(stated, list) else [stated]
    names = [one.get("_target_", "") if isinstance(one, dict) else one for one in parts if one]
    return ", ".join(map(str, names)).lower().strip("[]")


def _precision(name: str, recipe: str | None) -> Any:
    from meshwright.spec.workload import Precision

    rows = bool(recipe and recipe.startswith("rowwise"))
    return Precision.model_validate({"matmul": name, "row_scales": rows}) if rows else name
