"""torchtitan: TOML files and options up to 0.2, options of a shipped configuration from 0.3 on.

Source: torchtitan 0.2.2 ``torchtitan/config/job_config.py``; 0.3.0 ``config/configs.py`` and
``models/*/config_registry.py``; older names: its releases 0.0 and 0.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.catalog.models import load_model
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.reading.given import Given, names, of_tree
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Launch

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


@dataclass(frozen=True)
class Shipped:
    """A configuration of 0.3: its model, and what it states where the options do not."""

    model: str
    local_batch_size: int
    seq_len: int
    steps: int
    recompute: str = "selective"
    tp: int = 1
    ep: int = 1
    schedule: str = "1F1B"
    cuda_graphs: bool = True
    compiled: bool = False
    async_tp: bool = False
    precision: str = "bf16"


SHIPPED = {
    "llama3_8b": Shipped("llama3-8b", 1, 8192, 1000),
    "llama3_70b": Shipped("llama3-70b", 8, 8192, 1000, "full", tp=8),
    "llama3_405b": Shipped("llama3.1-405b", 2, 8192, 3000, "full", tp=8, compiled=True,
                           async_tp=True, precision="fp8"),
    "qwen3_0_6b": Shipped("qwen3-0.6b", 4, 4096, 10),
    "qwen3_1_7b": Shipped("qwen3-1.7b", 4, 4096, 100),
    "qwen3_14b": Shipped("qwen3-14b", 4, 4096, 3000, "full"),
    "qwen3_32b": Shipped("qwen3-32b", 2, 4096, 3000, "full"),
    "qwen3_30b_a3b": Shipped("qwen3-30b-a3b", 2, 4096, 3000, "full"),
    "deepseek_v3_16b": Shipped("deepseek-v2-lite", 4, 4096, 1000, ep=8, cuda_graphs=False,
                               schedule="Interleaved1F1B"),
    "deepseek_v3_671b": Shipped("deepseek-v3", 4, 4096, 10000, ep=2, cuda_graphs=False,
                                schedule="Interleaved1F1B"),
    "deepseek_v3_671b_float8": Shipped("deepseek-v3", 4, 4096, 10000, ep=2, cuda_graphs=False,
                                       schedule="Interleaved1F1B", precision="fp8"),
    "gpt_oss_20b": Shipped("gpt-oss-20b", 1, 8192, 10000, "full"),
    "gpt_oss_120b": Shipped("gpt-oss-120b", 1, 8192, 10000, "full"),
}  # fmt: skip
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
        compile.components compile.backend parallelism.pipeline_parallel_schedule_csv
        parallelism.pipeline_parallel_expert_parallel*
        quantize.linear.float8.filter_fqns quantize.linear.float8.emulate
        float8.force_recompute_fp8_weight_in_bwd float8.filter_fqns float8.emulate
        quantize.linear.float8.precompute* float8.precompute* float8.scaling_type*
        experimental.custom_import experimental.custom_args_module training.warmup
        fault_tolerance.process* fault_tolerance.replica_id fault_tolerance.group_size
        fault_tolerance.min_replica* override.*
        """
    )

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        named = "torchtitan" in launch.program or launch.program.endswith("run_train.sh")
        return named or any(name.startswith("parallelism.") for name in given)

    @staticmethod
    def holds(tree: Mapping[str, Any], name: str) -> bool:
        """Return whether a tree has the sections of torchtitan."""
        model = tree.get("model")
        return "parallelism" in tree or (isinstance(model, Mapping) and "flavor" in model)

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        if (path := given.text("job.config_file")) is not None:
            given.add(of_tree(setting.config_files(path), path))
        given.negated()
        given.renamed(OLDER)
        shipped = _shipped(given)
        options: dict[str, Any] = {"model": _model(given, setting, shipped)}
        options |= _degrees(given, setting, shipped)
        options |= _batch(given, setting, shipped, options)
        options |= _memory(given, shipped)
        options |= _types(given, shipped)
        return "torchtitan", options


def _shipped(given: Given) -> Shipped | None:
    """Return the configuration that 0.3 starts from."""
    given.value("module")
    name = given.text("config")
    if name is None:
        return None
    if name not in SHIPPED:
        given.refuse("config", f"the configuration {name!r} is not known", ", ".join(SHIPPED))
        return None
    return SHIPPED[name]


def _model(given: Given, setting: Setting, shipped: Shipped | None) -> Any:
    name, flavor = given.text("model.name"), given.text("model.flavor")
    if shipped is not None:
        return load_model(shipped.model)
    key = ((name or "llama3").lower(), (flavor or "").lower())
    if key in MODELS:
        return load_model(MODELS[key])
    known = ", ".join(f"{one[1]}" for one in MODELS if one[0] == key[0])
    if flavor is None:
        given.needs("MODEL", "the file states no model.flavor", "name it")
    elif "model" not in setting.stated:
        given.refuse("model.flavor", f"{name} {flavor} is no model of the catalog", known)
    return None


def _degrees(given: Given, setting: Setting, shipped: Shipped | None) -> dict[str, Any]:
    """Return degrees; the ranks that are left over shard."""
    at = "parallelism."
    tp = given.whole(f"{at}tensor_parallel_degree") or (shipped.tp if shipped else 1)
    pp = given.whole(f"{at}pipeline_parallel_degree") or 1
    cp = given.whole(f"{at}context_parallel_degree") or 1
    replicas = given.whole(f"{at}data_parallel_replicate_degree") or 1
    shards = given.whole(f"{at}data_parallel_shard_degree", least=-1)
    if shards in (None, -1):
        world = setting.world(given, "the ranks that are left over shard the model")
        shards = max(1, (world or tp * pp * cp * replicas) // (tp * pp * cp * replicas))
    rotates = given.word(f"{at}context_parallel_rotate_method", among=("allgather", "alltoall"))
    if cp > 1 and rotates != "alltoall":
        given.notes.append("keys and values of cp are priced as passed round, not gathered")
    found: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "dp": replicas * shards, "dp_shard": shards,
        "ep": given.whole(f"{at}expert_parallel_degree") or (shipped.ep if shipped else 1),
    }  # fmt: skip
    etp = given.whole(f"{at}expert_tensor_parallel_degree")
    found["etp"] = etp or 1
    if found["ep"] == 1 and found["etp"] == 1:
        del found["ep"], found["etp"]
    keeps = given.word(f"{at}fsdp_reshard_after_forward", among=("default", "always", "never"))
    drops = keeps == "always" or (keeps != "never" and pp == 1)
    found["zero_stage"] = "0" if shards * cp == 1 else "2" if pp > 1 and not drops else "3"
    if found["zero_stage"] == "3" and not drops:
        found["reshard_after_forward"] = "off"
    if shards == 1:
        found["dp_shard"] = found["dp"] if cp == 1 else 1
    found["sequence_parallel"] = (
        "on" if tp > 1 and given.flag(f"{at}enable_sequence_parallel", default=True) else "off"
    )
    if tp > 1:
        given.refuse_unless(f"{at}disable_loss_parallel", "false",
                            why="logits whole on each rank are not read", fix="false")  # fmt: skip
    else:
        given.value(f"{at}disable_loss_parallel")
    given.refuse_unless(f"{at}expert_parallel_comm_backend", "standard",
                        why="is not read", fix="standard")  # fmt: skip
    given.refuse_unless(f"{at}enable_fsdp_symm_mem", "false", why="is not read", fix="false")
    return found | _pipeline(given, pp, shipped)


def _pipeline(given: Given, pp: int, shipped: Shipped | None) -> dict[str, Any]:
    at = "parallelism."
    named = given.word(f"{at}pipeline_parallel_schedule", among=SCHEDULES)
    named = named or (shipped.schedule if shipped else "1F1B")
    each = given.whole(f"{at}pipeline_parallel_layers_per_stage")
    for end in ("first", "last"):
        given.whole(f"{at}pipeline_parallel_{end}_stage_less_layers", least=0)
    for name in ("pipeline_parallel_split_points", "module_fqns_per_model_part"):
        if given.value(f"{at}{name}"):
            given.refuse(f"{at}{name}", "stages by name are not read", "layers dealt evenly")
    if pp == 1:
        return {}
    schedule = SCHEDULES[named]
    if not schedule:
        given.refuse(f"{at}pipeline_parallel_schedule", f"{named} is not read",
                     "1F1B, GPipe, Interleaved1F1B")  # fmt: skip
    found: dict[str, Any] = {"schedule": schedule}
    if schedule == "interleaved":
        found["layers_per_stage"] = each
    return found


def _batch(
    given: Given, setting: Setting, shipped: Shipped | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the batch: a pipeline cuts the batch of a rank, without one gradients add up."""
    local = given.whole("training.local_batch_size")
    local = local or (shipped.local_batch_size if shipped else 8)
    whole = given.whole("training.global_batch_size", least=-1)
    length = given.whole("training.seq_len") or (shipped.seq_len if shipped else 2048)
    micro = given.whole("parallelism.pipeline_parallel_microbatch_size")
    count = given.whole("parallelism.pipeline_parallel_microbatches")
    batch = whole if whole and whole > 0 else local * options["dp"]
    steps = given.whole("training.steps") or (shipped.steps if shipped else None)
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


def _memory(given: Given, shipped: Shipped | None) -> dict[str, Any]:
    """Return what is recomputed, and what lives on the host."""
    mode = given.word("activation_checkpoint.mode", "activation_checkpoint",
                      among=("none", "selective", "full"))  # fmt: skip
    option = given.text("activation_checkpoint.selective_ac_option",
                        "activation_checkpoint.selective_ac_type")  # fmt: skip
    if mode is None:
        mode = shipped.recompute if shipped else "selective"
    if mode == "selective" and shipped is None and option != "op":
        name = next((n for n in ("activation_checkpoint.selective_ac_option",
                                 "activation_checkpoint.mode") if n in given), "")  # fmt: skip
        message = f"recomputation of every layer number {option or 2} is not read"
        if name:
            given.refuse(name, message, "selective_ac_option = 'op'")
        else:
            given.needs("--recompute", "by default every second layer is recomputed, which is not "
                        "read", "full, selective or none")  # fmt: skip
    on_host = given.flag("training.enable_cpu_offload")
    return {"recompute": mode, "offload": "all" if on_host else None}


def _types(given: Given, shipped: Shipped | None) -> dict[str, Any]:
    """Return types of numbers, the optimizer, and what is compiled."""
    kinds = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
    kept = given.word("training.dtype", among=kinds) or "float32"
    used = given.word("training.mixed_precision_param", among=kinds) or "bfloat16"
    summed = given.word("training.mixed_precision_reduce", among=kinds) or "float32"
    precision = kinds[used]
    converters = str(given.value("model.converters") or "")
    if "float8" in converters or given.flag("float8.enable_float8_linear"):
        precision = "fp8"
    elif converters not in ("", "[]"):
        given.refuse("model.converters", f"{converters} is not read", "float8")
    if shipped is not None and shipped.precision == "fp8":
        precision = "fp8"
    recipe = given.word("quantize.linear.float8.recipe_name", "float8.recipe_name",
                        among=("tensorwise", "rowwise", "rowwise_with_gw_hp"))  # fmt: skip
    gathers = given.flag("quantize.linear.float8.enable_fsdp_float8_all_gather",
                         "float8.enable_fsdp_float8_all_gather")  # fmt: skip
    given.word("optimizer.name", among=("AdamW", "Adam"))
    given.refuse_unless("optimizer.early_step_in_backward", "false", why="is not read", fix="false")
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
    compiled = given.flag("compile.enable", default=bool(shipped and shipped.compiled))
    async_tp = given.flag("parallelism.enable_async_tensor_parallel",
                          default=bool(shipped and shipped.async_tp))  # fmt: skip
    graphs = shipped is not None and shipped.cuda_graphs
    if "training.disable_cuda_graphs" in given:
        graphs = not given.flag("training.disable_cuda_graphs")
    return {"precision": _precision(precision, recipe), "optimizer": optimizer,
            "async_tp": async_tp, "cuda_graphs": graphs,
            "software": {"compiled": True} if compiled else {}}  # fmt: skip


def _precision(name: str, recipe: str | None) -> Any:
    from meshwright.spec.workload import Precision

    rows = bool(recipe and recipe.startswith("rowwise"))
    return Precision.model_validate({"matmul": name, "row_scales": rows}) if rows else name
