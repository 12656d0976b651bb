"""Megatron-LM and Megatron Bridge: arguments of ``pretrain_gpt.py``, of YAML files, and overrides.

The same words stand in all of them: options of the command line with dashes, fields of the
configuration with underscores. A plan is written as a script for torchrun; models and plans that
the arguments of its GPT cannot express are refused.

Source: megatron-core 0.19.2, ``megatron/training/arguments.py``, ``TransformerConfig``,
``ModelParallelConfig``, ``OptimizerConfig``; rank order of ``parallel_state``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from meshwright.base.budget import Budget, as_mapping
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.base.units import whole_number
from meshwright.catalog.megatron_models import VANILLA, biases
from meshwright.catalog.recipes import recipes
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.launch import (
    degrees,
    header,
    layers_of_chunks,
    ordered_as,
    shell_script,
    torchrun_words,
    words_of,
)
from meshwright.frameworks.reading.adapters import adapter_options
from meshwright.frameworks.reading.given import Given, Options, Tree, of_tree
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.models import catalog_twin, known_model, tokenizer_size
from meshwright.frameworks.reading.python import PythonFile
from meshwright.frameworks.reading.shell import base_name
from meshwright.frameworks.reading.stages import lengths_of, pipeline_layout, stage_choices
from meshwright.frameworks.table import Value, Words, dashed, load_table
from meshwright.graph.recompute import MODULES
from meshwright.sharding.dealing import dealt
from meshwright.sharding.strategy import Offload, Recompute, lengths_text
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)
from meshwright.spec.workload import OptimizerPreset
from meshwright.train.answer import Plan
from meshwright.train.writing import MESH_AXES, RACK_DOMAIN, has_short_gradients

BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
ONE_MOMENT = ("sgd", "lion", "muon", "dist_muon")
"""Optimizers that keep an FP32 copy and one moment.

Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/optimizer``, ``emerging_optimizers.py``.
"""
OPTIMIZERS = ("adam", "adamw", "distributed_fused_adam", *ONE_MOMENT)


OF_DIST = ("use_megatron_fsdp", "use_torch_fsdp2", "use_tp_pp_dp_mapping",
           "num_distributed_optimizer_instances")  # fmt: skip
"""Fields of the section ``dist`` of Megatron Bridge that change a price."""
OTHERS = ("pretrain_t5", "pretrain_bert", "pretrain_vlm", "pretrain_vision", "pretrain_ict",
          "pretrain_retro", "pretrain_mimo", "multimodal")  # fmt: skip
"""Programs of Megatron-LM that train other kinds of models."""
PROGRAMS = ("pretrain_gpt", "pretrain_mamba", "pretrain_llama")
"""Programs of Megatron-LM that a few options start."""
DIMS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
        "num_experts", "moe_ffn_hidden_size", "moe_router_topk", "vocab_size")  # fmt: skip


BESIDE_MODEL = {"", "num_layers", "num_experts", "dispatcher", "flex_backend"}
"""Options of the model that decide on other options as well."""
FILE_NAME = "pretrain_gpt.sh"


@framework("megatron", reads="megatron", writes="megatron")
class Megatron(LaunchFiles):
    """A training job of Megatron-LM's GPT, and a shell script that starts it."""

    catalog = "megatron"

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        is_own = base_name(launch.program).startswith(PROGRAMS)
        return super().starts(launch, given) or (is_own and len(given) > 4)

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        if (path := given.path("config_file", "yaml_cfg")) is not None:
            given.add(of_tree(setting.config_files(path), path))
        program = setting.launch.program if setting.launch is not None else ""
        if any(name in program for name in OTHERS):
            message = "its model is not read: decoders of one stack of layers are"
            raise SpecError(Fault("", message), origin=program)
        if {"trainer.devices", "model.encoder_seq_length"} <= set(given):
            message = "is a name of NeMo 1 (megatron_gpt_config.yaml); its files are not read"
            fix = "arguments of Megatron-LM, or a recipe of Megatron Bridge"
            raise SpecError(Fault("model.encoder_seq_length", message, fix))
        recipe = given.text("recipe") or _recipe_of(given)
        is_bridge = bool(recipe) or any(
            name.startswith(("model.", "train.", "ddp.")) for name in given
        )
        given.renamed(
            {f"dataset.{name}": "seq_length" for name in ("seq_length", "sequence_length")}
        )
        given.renamed({f"dist.{name}": name for name in OF_DIST})
        for name in ("_args_", "_target_"):
            given.renamed({f"model.{name}": f"model{name}"})
        _mixed_precision(given)
        given.flatten(("model", "train", "ddp", "optimizer", "comm_overlap", "language_model",
                       "model_parallel", "MODEL_ARGS", "training", "cfg"))  # fmt: skip
        given.flatten(("mixed_precision",))
        given.renamed(load_table("megatron").renamed)
        if recipe:
            _start_from(given, recipe)
        elif is_bridge and "num_layers" not in given:
            given.notes.append("overrides of a recipe that the files do not name (recipe: NAME): "
                               "open options take the defaults of Megatron")  # fmt: skip
        dims = {row.option for row in self.table.model_rows} - BESIDE_MODEL
        passed_over = dims if "model" in setting.stated else ()
        found: Options = self.table.read(given, passed_over)
        if found["num_layers"] is None and (own := known_model(str(given.peek("hf_model") or ""))):
            found["num_layers"] = own.num_layers
        options = _degrees(given, setting, found)
        options |= _batch(given, found)
        options |= _recompute(given, found) | {"offload": found["offload"]}
        fraction = given.real("optimizer_offload_fraction")
        if found["offload"] and fraction not in (None, 1.0):
            given.refuse("optimizer_offload_fraction", f"a part ({fraction}) is not read", "1.0")
        options |= _types(given, found)
        options["optimizer"] = _optimizer(given, found, options)
        if peft := given.text("peft", "peft._target_"):
            options |= _adapters(given, peft)
        frequency = given.value("moe_layer_freq")
        others = {name: given.value(name) for name in HYBRID if name in given}
        if "model" in setting.stated:
            for name in ("hf_model", "model_target_", "model_args_"):
                given.value(name)
            given.notes.append("the model is the one that you name, not that of the file")
        else:
            named = _named_model(given)
            options["model"] = named or _model(
                given, found | {"layer_frequency": frequency}, options, tuple(others)
            )
        options |= _capacity(given, found)
        _predict(given, found, options)
        if given.flag("distribute_saved_activations") and found["sequence_parallel"] == "on":
            given.refuse("distribute_saved_activations", "sequence parallelism splits them already",
                         "without it")  # fmt: skip
        return "megatron-bridge" if is_bridge else "megatron", options

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script."""
        notes = (
            "add what a plan does not hold (data, learning rate, rotary base, epsilon), as in",
            f"  {FILE_NAME} --mock-data --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 50",
        )
        comments = header(plan, self.table.written, notes)
        program = [*torchrun_words(plan), "pretrain_gpt.py"]
        script = shell_script(comments, variables(plan), program, arguments(plan))
        return {FILE_NAME: script}


def _recipe_of(given: Given) -> str:
    """Return the recipe that a Python file calls; empty: it calls none."""
    name = str(given.peek("_target_") or "").rpartition(".")[2]
    return name if name.endswith("_config") or name == "ConfigContainer" else ""


def _start_from(given: Given, recipe: str) -> None:
    """Add the options that a recipe of Megatron Bridge states and the files do not."""
    given.value("_target_", "_args_", "config")
    known = recipes("megatron_bridge")
    if recipe in known:
        stated = {key: value for key, value in known[recipe].items() if key != "path"}
        given.renamed({"model": "hf_model"})
        given.add(of_tree({"hf_model": stated.pop("model")}, recipe))
        own = of_tree(stated, recipe)
        own.renamed(load_table("megatron").renamed)
        if "bf16" in given or "fp16" in given:
            own.without("mixed_precision")
        given.add(own)
    elif recipe not in (VANILLA, "ConfigContainer"):
        name = "recipe" if "recipe" in given else "_target_"
        given.refuse(name, f"the recipe {recipe} is not known",
                     f"give its Python file as well; {nearest(recipe, known, most=3)}")  # fmt: skip


def _mixed_precision(given: Given) -> None:
    """Put a recipe of precision under its name; it decides on gradients, not ``ddp``."""
    words = given.value("mixed_precision._args_")
    if (target := given.text("mixed_precision._target_")) is not None:
        name = str(words[0]) if words else target.rpartition(".")[2]
        if name.endswith("_mixed"):
            given.add(of_tree({"mixed_precision": name}))
    if "mixed_precision" in given or target is not None:
        given.value("ddp.grad_reduce_in_fp32")
        given.without("ddp.grad_reduce_in_fp32")


def _named_model(given: Given) -> ModelSpec | None:
    """Return the model that a recipe names, or that of the checkpoint of its provider."""
    kind, words = given.text("model_target_") or "", given.value("model_args_")
    name = given.text("hf_model")
    if "AutoBridge" in kind:
        name = str(words[0]) if words else None
    elif kind and not kind.endswith("GPTModelProvider"):
        given.refuse("model_target_", f"{kind} is not read", "AutoBridge or GPTModelProvider")
    if name is None:
        return None
    for dim in DIMS:
        given.refuse_unless(dim, "none", why="dims beside the model of a recipe are not read",
                            fix="name the model beside the file")  # fmt: skip
    if (model := known_model(name)) is None:
        given.needs(
            "MODEL", f"{name!r} is not a model of the catalog", "name it, or its config.json"
        )
    return model


def _degrees(given: Given, setting: JobContext, stated: Options) -> Options:
    """Return the degrees, and the sharding of state over ranks."""
    pp, ep = stated["pp"], stated["ep"] or 1
    found: Options = {
        "tp": stated["tp"], "pp": pp, "cp": stated["cp"],
        "num_virtual_stages": _virtual_stages(given, stated),
        # Megatron turns it off with tp 1
        "sequence_parallel": stated["sequence_parallel"] if stated["tp"] > 1 else "off",
    }  # fmt: skip
    if stated["num_experts"] or ep > 1:
        found |= {"ep": ep, "etp": stated["etp"] or stated["tp"]}
        found["overlap_expert_parallel"] = stated["overlap_expert_parallel"]
    given.refuse_unless("microbatch_group_size_per_virtual_pipeline_stage", str(pp),
                        why=f"rounds of another length than pp {pp} are not read")  # fmt: skip
    given.refuse_unless("deallocate_pipeline_outputs", "true",
                        why="stages that keep their sent outputs are not read")  # fmt: skip
    if stated["cp"] > 1:
        found["context_kind"] = stated["context_kind"]
    found |= _sharding(given, setting, stated)
    found |= _stage_lengths(given, stated, found)
    if pp > 1 and "ep" in found and stated["has_pipeline_inside"]:
        given.refuse("use_tp_pp_dp_mapping", "experts are priced with pp outside of dp only",
                     "the default order")  # fmt: skip
    elif pp > 1 and stated["has_pipeline_inside"]:
        found["axis_order"] = "tp-cp-pp-dp"
    return found


def _virtual_stages(given: Given, stated: Options) -> int | None:
    """Return the virtual stages of each rank, in any of their notations."""
    pp, each = stated["pp"], stated["layers_per_chunk"]
    layout = stated["layout"]
    if layout is not None and (lengths := layout_lengths(layout)) is not None:
        return len(lengths) // pp if len(lengths) > pp else None
    if each is None or stated["virtual_stages"] is not None:
        return stated["virtual_stages"]  # type: ignore[no-any-return]
    counted = (stated["num_layers"] or 0) + stated["counts_embedding"] + stated["counts_loss"]
    if not counted or counted % (pp * each):
        given.refuse("num_layers_per_virtual_pipeline_stage",
                     f"{each} a stage do not divide {counted} layers over pp {pp}")  # fmt: skip
        return None
    return counted // (pp * each)  # type: ignore[no-any-return]


def _sharding(given: Given, setting: JobContext, stated: Options) -> Options:
    """Return the ZeRO stage, its ranks, and the overlap of its collectives."""
    is_dealt = given.peek("optimizer") == "dist_muon"  # of layers to the ranks of dp
    stage = "1" if is_dealt or stated["shards_optimizer"] else _zero_stage(given, setting)
    if stated["has_fsdp"]:
        stage = stated["zero_stage"] or "3"
    if stated["has_torch_fsdp"]:
        stage = "3"
    overlaps = stated["overlaps_gradients"] or stated["has_fsdp"] or stage in ("2", "3")
    if stage == "1" and overlaps and not stated["overlaps_weights"]:
        given.notes.append("priced as with --overlap-param-gather")
    answer: Options = {
        "zero_stage": stage, "overlap_data_parallel": "on" if overlaps else "off",
    }  # fmt: skip
    if stated["keeps_weights"] and stage == "3":
        answer["reshard_after_forward"] = "off"
    if stated["instances"] > 1 and stage != "0":
        world = setting.world(given, "the ranks of an optimizer instance depend on the devices")
        if world is not None:
            ranks = world // (stated["tp"] * stated["pp"] * stated["cp"])
            answer["dp_shard"] = max(1, ranks // stated["instances"])
    return answer


def _zero_stage(given: Given, setting: JobContext) -> str:
    """Return the ZeRO stage of Megatron-DeepSpeed: of its option, or of the file that it names."""
    tree: Tree = {}
    if (path := given.path("deepspeed_config")) is not None:
        tree = setting.config_files(path)
    zero = as_mapping(tree.get("zero_optimization"))
    stage = given.text("zero_stage") or str(zero.get("stage", 0))
    for what in ("offload_optimizer", "offload_param"):
        if as_mapping(zero.get(what)).get("device", "none") != "none":
            given.refuse("deepspeed_config", f"{what} is not read here", "device none")
    if not given.flag("deepspeed"):
        return "0"
    if stage not in ("0", "1", "2", "3"):
        given.refuse("zero_stage", f"found {stage!r}", "0 to 3")
        return "0"
    if stage == "0" and given.is_on("bf16"):
        given.notes.append("DeepSpeed shards the optimizer of BF16 under stage 0 as under stage 1")
        return "1"
    return stage


def _stage_lengths(given: Given, stated: Options, found: Options) -> Options:
    """Return the number of layers that embedding and head count as in the deal of layers."""
    layers, layout = stated["num_layers"], stated["layout"]
    runs = found["pp"] * (found["num_virtual_stages"] or 1)
    first, last = stated["first_layers"], stated["last_layers"]
    counts = [stated["counts_embedding"], stated["counts_loss"]]
    if layers and runs > layers + sum(counts):
        given.refuse("pipeline_model_parallel_size", f"{runs} stages have no {layers} layers")
        return {}
    if any(counts) and layers and found["pp"] > 1:
        return stage_choices(dealt(layers, runs, *map(int, counts)).tolist(), layers) or {}
    if layers is None or (first is None and last is None and layout is None):
        _refuse_rest(given, layers, found["pp"], runs)
        return {}
    if layout is not None:
        lengths = layout_lengths(layout)
        if lengths is None:
            given.refuse("pipeline_model_parallel_layout", "is not a layout of E, t, L and |")
            return {}
    else:
        # Each rank cuts its layers into as many chunks.
        between = layers - (first or 0) - (last or 0)
        inner = found["pp"] - (first is not None) - (last is not None)
        ranks = [between // inner] * inner if inner else []
        ranks = [*([] if first is None else [first]), *ranks, *([] if last is None else [last])]
        lengths = [held // (runs // found["pp"]) for held in ranks] * (runs // found["pp"])
    if (choices := stage_choices(lengths, layers)) is not None:
        return choices
    name = "pipeline_model_parallel_layout"
    if layout is None:
        name = f"decoder_{'first' if last is None else 'last'}_pipeline_num_layers"
    given.refuse(name, f"stages of {lengths_text(lengths)} layers are not the {layers} "
                 "of the model")  # fmt: skip
    return {}


def _refuse_rest(given: Given, layers: int | None, pp: int, runs: int) -> None:
    """Refuse layers that do not divide over stages, or over their chunks; DeepSpeed deals any.

    Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/transformer/transformer_block.py``,
    ``get_num_layers_to_build``.
    """
    if layers is None or layers % runs == 0 or given.is_on("deepspeed"):
        return
    name = "num_layers" if "num_layers" in given else "recipe"
    last = layers - (pp - 1) * -(-layers // pp)
    fix = f"--decoder-last-pipeline-num-layers {last}" if runs == pp and last > 0 else (
        f"--pipeline-model-parallel-layout '{pipeline_layout(dealt(layers, runs).tolist())}'"
    )  # fmt: skip
    given.refuse(name, f"{layers} layers do not divide over {pp} stages"
                 + (f" of {runs // pp} chunks" if runs > pp else ""), fix)  # fmt: skip


def layout_lengths(text: str, layers: str = "t") -> list[int] | None:
    """Return the decoder layers of each stage of a layout such as ``Et*3|(tt|)*14,tL``.

    Parameters
    ----------
    layers
        Letters that count: ``tm`` with those of multi-token prediction.
    """
    plain, budget = re.sub(r"[\s,\"']", "", text), Budget(letters=2**20)

    def repeated(found: re.Match[str]) -> str:
        part, count = found[1] or found[2], int(found[3])
        budget.spend(letters=len(part) * count, at="pipeline_model_parallel_layout")
        return part * count

    for _ in range(8):
        spread = re.sub(r"(?:\(([^()]*)\)|([EtLm]))\*([0-9]{1,9})", repeated, plain)
        if spread == plain:
            break
        plain = spread
    if re.fullmatch(r"[EtLm|]+", plain) is None:
        return None
    return [sum(map(stage.count, layers)) for stage in plain.split("|")]


def _batch(given: Given, stated: Options) -> Options:
    """Return the batch of a step, its sequences, and the tokens of the whole run."""
    found = {name: stated[name] for name in ("global_batch", "micro_batch_size", "seq")}
    if stated["seq"] and stated["samples"]:
        found["tokens"] = stated["samples"] * stated["seq"]
    else:
        found["steps"] = stated["steps"]
    if (ramp := given.value("rampup_batch_size")) is not None:
        found["batch_ramp"] = ",".join(re.findall(r"\d+", str(ramp).replace("_", "")))
    if given.flag("reset_attention_mask"):
        given.notes.append(
            "a packed sequence attends as one; --with document_length=N says otherwise"
        )
    if "seq_length" not in given and "encoder_seq_length" not in given:
        given.needs("--seq", "the files state no --seq-length")
    return found


def _recompute(given: Given, stated: Options) -> Options:
    """Return the recomputation, and its number of layers in each chunk."""
    legacy = [given.flag(name) for name in ("checkpoint_activations",
                                            "deepspeed_activation_checkpointing")]  # fmt: skip
    kind = stated["recompute"] or ("full" if any(legacy) else None)
    if given.flag("recompute_activations"):
        kind = "selective"
    experts = given.flag("moe_layer_recompute")
    if experts and kind == "full":
        given.refuse("moe_layer_recompute", "whole layers are recomputed already", "without it")
    elif experts:
        kind = "selective"
    layers, is_block = stated["recompute_num_layers"], stated["recompute_method"] == "block"
    modules = given.value("recompute_modules")
    if kind == "full" and layers == 0 and is_block:
        return {"recompute": "none"}
    if kind == "full":
        if layers == 0:
            given.refuse("recompute_num_layers", "units of no layers never end", "1, or block")
        return {"recompute": "full", "recompute_layers" if is_block else "recompute_run":
                layers or 1}  # fmt: skip
    if kind == "selective":
        words = re.findall(r"\w+", modules) if isinstance(modules, str) else modules
        words = words or ["core_attn"]
        words = list(dict.fromkeys([*words, *(["moe"] if experts else [])]))
        if unread := [str(word) for word in words if word not in MODULES]:
            given.refuse("recompute_modules", f"{' '.join(unread)} is not read", ", ".join(MODULES))
        elif words != ["core_attn"]:
            return {"recompute": "selective", "recompute_modules": "+".join(sorted(words))}
        return {"recompute": "selective"}
    return {"recompute": "none"}


def _types(given: Given, stated: Options) -> Options:
    """Return precisions, and options of the software that change the price.

    Transformer Engine 2 computes products of FP32 in TF32 (``common/gemm/cublaslt_gemm.cu``).
    """
    mixed = (given.text("mixed_precision") or "").replace(" ", "")
    precision = "fp32"
    for name, is_on in (
        ("fp16", stated["fp16"] or mixed.startswith("fp16") or "fp16:true" in mixed),
        ("bf16", stated["bf16"] or mixed.startswith("bf16") or "bf16:true" in mixed),
        ("fp8", stated["fp8_format"] or "fp8" in mixed),
        ("fp4", given.word("fp4_format", among=("e2m1",)) is not None or "fp4" in mixed),
    ):
        precision = name if is_on else precision
    if "current_scaling" in mixed or "nvfp4" in mixed:
        given.notes.append("the first and the last layer are priced in the type of the others")
    if precision == "fp32" and stated["implementation"] != "local":
        precision = "tf32"
    graphs = given.flag("enable_cuda_graph", "external_cuda_graph")
    dropout = bool(stated["hidden_dropout"] or stated["attention_dropout"])
    return {"precision": precision, "cuda_graphs": graphs or stated["cuda_graph_impl"] != "none",
            "async_tp": stated["async_tp"], "dropout": dropout,
            "software": _software(given, stated)}  # fmt: skip


def _software(given: Given, stated: Options) -> Options:
    """Return the options of kernels that differ from those of most jobs."""
    found: Options = {}
    flash = given.flag("use_flash_attn", default=stated["implementation"] != "local")
    kernel = stated["attention"]
    if kernel in ("unfused", "local") or (kernel is None and not flash):
        found["flash_attention"] = False
    if stated["loss"]:
        found["loss"] = stated["loss"]
    if given.flag("no_gradient_accumulation_fusion") or not given.flag(
        "gradient_accumulation_fusion", default=True
    ):
        found["fused_gradient_accumulation"] = False
    if given.flag("no_overlap_p2p_communication") or not given.flag(
        "overlap_p2p_comm", default=True
    ):
        found["overlaps_sends"] = False
    if given.flag("moe_enable_deepep") or stated["dispatcher"] == "flex":
        found["deduplicated_dispatch"] = True  # DeepEP and HybridEP send a token to a host once
    elif stated["num_experts"] is not None and stated["flex_backend"] is None:
        found["deduplicated_dispatch"] = False
    return found


def _adapters(given: Given, peft: str) -> Options:
    """Return the adapters of Megatron Bridge: ``LoRA`` or ``CanonicalLoRA``, of usual rank 32.

    Source: megatron-bridge 0.6.2, ``peft/lora.py`` and ``peft/canonical_lora.py``.
    """
    if "LoRA" not in peft and "lora" not in peft:
        given.refuse("peft", f"{peft} is not read", "LoRA or CanonicalLoRA")
    fields = re.findall(r"(?<!\w)(\w++):(\[[^\]]*+\]|[^,{}\[\]]++)", peft)
    own = of_tree(dict(fields))
    own.add(
        Given(
            given.statement(name, name.removeprefix("peft."))
            for name in given
            if name.startswith("peft.") and given.value(name) is not None
        )
    )
    found = adapter_options(
        own, ("dim",), ("target_modules",), usual_rank=32,
        usual_targets="linear_qkv linear_proj linear_fc1 linear_fc2",
    )  # fmt: skip
    given.faults += own.faults
    return {"optimizer": "adapters", **found}


def _optimizer(given: Given, stated: Options, options: Options) -> OptimizerPreset | str | None:
    """Return the bytes that the optimizer keeps for each parameter."""
    kind = given.word("optimizer", among=OPTIMIZERS) or "adam"
    if "muon" in kind:
        given.notes.append("embeddings are updated with one moment, as matrices are")
    mixed = str(given.peek("mixed_precision") or "").replace(" ", "")
    short = stated["has_short_gradients"] or "grad_reduce_in_fp32:false" in mixed
    sums = given.flag("grad_reduce_in_fp32", default=not mixed.startswith("fp16"))
    short = short or not sums
    name = "megatron-adam-bf16-gradients" if short else "megatron-adam"
    if options["precision"] in ("fp32", "tf32"):
        name, short = "adam-fp32", False
    kept = {field: given.word(f"{field}_dtype", among=BYTES) or "fp32"
            for field in ("main_grads", "main_params", "exp_avg", "exp_avg_sq")}  # fmt: skip
    fp8_weights = given.flag("fp8_param_gather", "fp8_param")
    fp8_weights |= any(name in mixed for name in ("delayed_scaling", "mxfp8"))
    preset = load_optimizer(name)
    changes: Options = {}
    if stated["is_precise"]:
        state = sum(BYTES[kept[field]] for field in ("main_params", "exp_avg", "exp_avg_sq"))
        gradient = min(BYTES[kept["main_grads"]], preset.gradient_bytes_per_param)
        changes = {"state_bytes_per_param": state, "gradient_bytes_per_param": gradient,
                   "step_traffic_bytes_per_param": gradient + 2.0 * state + 2.0}  # fmt: skip
    if kind in ONE_MOMENT:
        state = BYTES["fp32"] * 2.0
        if "muon" in kind:
            changes |= {"orthogonal_steps": given.whole("muon_num_ns_steps") or 5}
            given.note_if("muon_tp_mode", "updates are priced as orthogonal by block of tp")
        changes |= {"state_bytes_per_param": state, "step_traffic_bytes_per_param":
                    preset.gradient_bytes_per_param + 2.0 * state + 2.0}  # fmt: skip
    if fp8_weights and options.get("precision") == "fp8":
        changes |= {"gathered_weight_bytes_per_param": 1.0}
    if changes:
        told = " ".join(f"{key.partition('_bytes')[0]} {value:g}" for key, value in changes.items())
        return preset.model_copy(update={"name": f"{name} ({told})", **changes})
    return name if short else None


def _capacity(given: Given, stated: Options) -> Options:
    """Return the load of every expert where each is padded to a multiple of the mean.

    Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/transformer/moe/moe_utils.py``,
    ``get_capacity`` and ``topk_routing_with_score_function``.
    """
    factor = stated["capacity"]
    if factor is None or factor < 0:
        return {}
    if stated["pads_experts"] and factor >= 1 and (stated["ep"] or 1) > 1:
        return {"imbalance": f"{factor:g}"}
    given.notes.append(f"experts take at most {factor:g} times the mean: tokens that are dropped "
                       "are priced as if kept; padding within one rank is not")  # fmt: skip
    return {}


def _predict(given: Given, stated: Options, options: Options) -> None:
    """Add the layers for multi-token prediction, which follow the last one of the model.

    Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/transformer/multi_token_prediction.py``.
    """
    extra = stated["prediction_layers"]
    if not extra:
        return
    model = options.get("model")
    if model is None:
        given.notes.append(f"{extra} layers for multi-token prediction are not priced: the model "
                           "is the one that you name")  # fmt: skip
        return
    given.notes.append(f"{extra} layers for multi-token prediction are priced as layers behind the "
                       "last, each with logits and loss; their projections are not")  # fmt: skip
    longer = (*model.layer_pattern, *model.layer_pattern[-1:] * extra)
    name = f"{model.name} with {extra} of prediction"
    changes = {"layer_pattern": longer, "name": name, "prediction_depths": extra}
    options["model"] = model.model_copy(update=changes)
    runs = options["pp"] * (options["num_virtual_stages"] or 1)
    if options["pp"] == 1:
        return
    edges = [int(options.pop(edge, 0)) for edge in ("embedding_layers", "head_layers")]
    listed = options.pop("stage_layers", None)
    lengths = dealt(model.num_layers, runs, *edges).tolist()
    if listed is not None:
        lengths = lengths_of(listed)
    placed = layout_lengths(stated["layout"], "tm") if stated["layout"] is not None else None
    if placed is not None and sum(placed) == len(longer):
        lengths = placed
    else:
        lengths[-1] += extra
    options |= stage_choices(lengths, len(longer)) or {}


HYBRID = ("hybrid_attention_ratio", "hybrid_mlp_ratio", "hybrid_override_pattern",
          "hybrid_layer_pattern", "mamba_state_dim", "mamba_head_dim", "mamba_num_groups",
          "mamba_num_heads", "spec", "experimental_attention_variant", "linear_attention_freq",
          "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
          "linear_num_key_heads", "linear_num_value_heads", "heterogeneous_layers_config_path",
          "heterogeneous_layers_config_encoded_json", "attention_output_gate")  # fmt: skip
"""Options of layer kinds that the options of one layer do not describe."""


def _model(
    given: Given, stated: Options, options: Options, others: tuple[str, ...]
) -> ModelSpec | None:
    """Return the model of the script: its twin in the catalog, where there is one."""
    needed = {"num-layers": stated["num_layers"], "hidden-size": stated["hidden_size"],
              "num-attention-heads": stated["num_heads"]}  # fmt: skip
    if lacking := [f"--{name}" for name, value in needed.items() if value is None]:
        given.needs("MODEL", f"no model follows without {', '.join(lacking)}", "name it")
        return None
    if others:
        given.needs("MODEL", f"the layers that {others[0]} states do not follow from it", "name it")
        return None
    layers, hidden, _ = needed.values()
    gated, vocab = stated["gated"] and not stated["squared_relu"], _vocabulary(given, stated)
    bias = stated["bias"] and not stated["lacks_bias"]
    attention = _attention(given, stated, bias)
    if attention is None or vocab is None:
        return None
    usual = 4 * hidden if not stated["gated"] else int(4 * hidden * 2 / 3 / 64) * 64
    dense = FeedForwardSpec(ffn_size=stated["ffn_size"] or usual, gated=gated, bias=bias)
    kinds, pattern = _layers(given, stated, attention, dense, layers)
    has_table = stated["positions"] == "learned_absolute" and not stated["has_rotary"]
    longest = stated["longest"] or options.get("seq")
    is_tied = stated["is_tied"] if stated["is_tied"] is not None else not stated["is_untied"]
    model = ModelSpec(
        name="the model of the file", architecture="megatron_gpt", hidden_size=hidden,
        vocab_size=vocab, layer_kinds=kinds, layer_pattern=pattern, norm=stated["norm"],
        learned_positions=(longest or 0) if has_table else 0, tied_embeddings=is_tied,
        max_sequence_length=longest,
    )  # fmt: skip
    unit = stated["vocab_unit"] * int(options.get("tp") or 1)
    padded = model.model_copy(update={"vocab_size": -(-vocab // unit) * unit})
    return catalog_twin(model) or catalog_twin(padded) or model


def _attention(given: Given, stated: Options, bias: bool) -> AttentionSpec | None:
    """Return self-attention."""
    heads = stated["num_heads"]
    biases = {"qkv_bias": bias or stated["qkv_bias"], "output_bias": bias}
    if stated["is_latent"]:
        return AttentionSpec(
            kind="mla", num_heads=heads, num_kv_heads=heads,
            head_size=stated["latent_head_size"] or 128,
            value_head_size=stated["value_head_size"] or 128, query_rank=stated["query_rank"],
            kv_rank=stated["kv_rank"] or 32, rope_head_size=stated["rope_head_size"] or 64,
            **biases,
        )  # fmt: skip
    size = stated["head_size"] or stated["hidden_size"] // heads
    groups = stated["num_kv_heads"] if stated["shares_heads"] else None
    if groups is not None and heads % groups:
        given.refuse("num_query_groups", f"{groups} does not divide {heads} heads")
        return None
    before = re.findall(r"-?\d+", stated["window"] or "")
    window = int(before[0]) + 1 if before and int(before[0]) >= 0 else None
    return AttentionSpec(
        num_heads=heads, num_kv_heads=groups or heads, head_size=size, value_head_size=size,
        qk_norm="head" if stated["has_head_norms"] else "none", window=window, **biases,
    )  # fmt: skip


def _layers(
    given: Given, stated: Options, attention: AttentionSpec, dense: FeedForwardSpec,
    num_layers: int,
) -> tuple[tuple[LayerSpec, ...], tuple[int, ...]]:  # fmt: skip
    """Return the kinds of layers, and which kind each layer is."""
    plain = LayerSpec(attention=attention, feed_forward=dense)
    count, frequency = stated["num_experts"], stated["layer_frequency"]
    if not count:
        return (plain,), (0,) * num_layers
    if stated["dispatcher"] == "allgather" and (stated["ep"] or 1) != 1:
        given.notes.append("experts by all-gather are priced as by all-to-all: each token goes to "
                           "its own experts, not to all ranks of ep")  # fmt: skip
    experts = ExpertSpec(
        num_experts=count, top_k=min(stated["top_k"], count), gated=dense.gated,
        ffn_size=stated["expert_size"] or dense.ffn_size,
        shared_ffn_size=stated["shared_size"] or 0,
        **{name: stated[name] for name in ("shared_gate", "router_bias", "num_groups",
                                           "top_groups")},
    )  # fmt: skip
    holds = layer_pattern(frequency, num_layers)
    if holds is None:
        given.refuse("moe_layer_freq", f"found {frequency!r} for {num_layers} layers",
                     "a number, or a list of zeros and ones for each layer")  # fmt: skip
        holds = [1] * num_layers
    sparse = LayerSpec(attention=attention, experts=experts)
    if all(holds):
        return (sparse,), (0,) * num_layers
    return (plain, sparse), tuple(holds)


def layer_pattern(frequency: object, num_layers: int) -> list[int] | None:
    """Return which layers hold experts: every n-th from the first, or as ``([0]*3+[1]*58)``."""
    text = "1" if frequency is None else str(frequency)
    if (every := whole_number(text)) is not None:
        return [int(index % max(1, every) == 0) for index in range(num_layers)]
    try:
        holds = PythonFile(f"HOLDS = {text.strip()}", "moe_layer_freq").scope["HOLDS"]
    except SpecError:
        return None
    if not isinstance(holds, list) or len(holds) != num_layers:
        return None
    return holds if all(one in (0, 1) for one in holds) else None


def _vocabulary(given: Given, stated: Options) -> int | None:
    """Return the rows of the embedding, from the size or from the tokenizer."""
    size: int | None = stated["padded_vocab_size"] or stated["vocab_size"]
    source = str(given.peek("tokenizer_model") or "")
    usual = "GPT2BPETokenizer" if "merge_file" in given else ""  # that of pretrain_gpt.py
    size = size or tokenizer_size(given.text("tokenizer_type") or usual, source)
    if size is None:
        given.needs(
            "MODEL", "no --vocab-size, and a tokenizer of no model of the catalog", "name it"
        )
    return size


def arguments(plan: Plan) -> list[Words]:
    """Return the arguments of a plan, its model included."""
    written = load_table("megatron").write(_words(plan))
    return list(dashed((name.replace("_", "-"), value) for name, value in written))


def variables(plan: Plan) -> Iterator[str]:
    """Yield the environment: several hardware queues for Megatron-FSDP, otherwise one.

    Transformer Engine computes products of FP32 in TF32 unless libraries are told not to.

    Source: NVIDIA/TransformerEngine, ``common/gemm/cublaslt_gemm.cu``; CUDA, ``cuBLAS``.
    """
    fsdp = plan.best.plan_options.zero_stage >= 2
    if plan.workload.precision.matmul == "fp32":
        yield "export NVIDIA_TF32_OVERRIDE=0"
    yield "unset CUDA_DEVICE_MAX_CONNECTIONS" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1"


def _words(plan: Plan) -> dict[str, Value]:
    """Return the plan in words of Megatron-LM."""
    options, work, sizes = plan.best.plan_options, plan.workload, degrees(plan)
    overlaps = options.overlap_data_parallel and sizes["dp"] * sizes["cp"] > 1
    words = words_of(plan) | {
        "overlap_expert_parallel": "on" if options.overlap_expert_parallel else "off",
        "has_pipeline_inside": not ordered_as(plan, MESH_AXES),
        "shards_optimizer": options.zero_stage > 0,
        "instances": sizes["dp_replicate"] if options.zero_stage else 1,
        "has_fsdp": options.zero_stage >= 2,
        "overlaps_gradients": overlaps,
        "overlaps_weights": overlaps and options.zero_stage > 0,
        "has_short_gradients": has_short_gradients(work),
        "is_precise": options.offload is Offload.OPTIMIZER,
        "bf16": work.precision.matmul in ("bf16", "fp8", "fp4"),
        "fp16": work.precision.matmul == "fp16",
        "fp8_format": "hybrid" if work.precision.matmul == "fp8" else None,
        "attention": "flash" if work.software.flash_attention else "unfused",
        "cuda_graph_impl": "local" if work.software.cuda_graphs else None,
    }
    if not work.software.dropout:
        words |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    if (ramp := work.batch_ramp) is not None:
        words["batch_ramp"] = (f"{ramp.start}", f"{ramp.increment}", f"{ramp.sequences}")
        if work.total_tokens is not None:
            samples = int(-(-work.total_tokens // work.sequence_length))
            words |= {"samples": samples, "steps": None}
    if options.recompute is Recompute.FULL:
        words["recompute_method"] = "block" if options.recomputes_some else "uniform"
        words["recompute_num_layers"] = options.recompute_layers or options.recompute_run
    elif options.recompute is Recompute.SELECTIVE:
        words["recompute_modules"] = options.recompute_modules or ("core_attn",)
    return words | _stages(plan) | model_words(plan)


def _stages(plan: Plan) -> dict[str, Value]:
    """Return virtual stages, and the layers of each chunk where they differ.

    Interleaved chunks hold one layer less at the ends, or follow a layout, which also gives their
    number.
    """
    chunks, lengths = degrees(plan)["num_virtual_stages"], layers_of_chunks(plan)
    first, last, middle, usual = lengths[0], lengths[-1], set(lengths[1:-1]), max(lengths)
    counts_edges = middle == {usual} and min(first, last) >= usual - 1
    if len(middle) > 1 or (chunks > 1 and not counts_edges):
        return {"layout": pipeline_layout(lengths)}
    if chunks > 1:
        return {"virtual_stages": chunks, "counts_embedding": first < usual,
                "counts_loss": last < usual}  # fmt: skip
    return {
        "first_layers": first if middle and first not in middle else None,
        "last_layers": last if len(set(lengths)) > 1 else None,
    }


def model_words(plan: Plan) -> dict[str, Value]:
    """Return the model in words of Megatron-LM."""
    model, length = plan.model, plan.workload.sequence_length
    kind, bias = model.layer_kinds[0], biases(model.layer_kinds[0])
    network = kind.feed_forward or kind.experts
    dense = [kind.feed_forward.ffn_size for kind in model.layer_kinds if kind.feed_forward]
    experts = next((kind.experts for kind in model.layer_kinds if kind.experts), None)
    return {
        "num_layers": model.num_layers, "hidden_size": model.hidden_size,
        "ffn_size": dense[0] if dense else experts.ffn_size if experts else None,
        **_attention_words(model.attentions[0], length),
        "longest": model.learned_positions or length,
        "positions": "learned_absolute" if model.learned_positions else "rope",
        "norm": model.norm, "gated": network is not None and network.gated,
        "lacks_bias": bias != "all", "qkv_bias": bias == "qkv",
        "is_untied": not model.tied_embeddings, "vocab_size": model.vocab_size,
        **(_expert_words(plan, experts) if experts else {}),
    }  # fmt: skip


def _attention_words(attention: AttentionSpec, length: int) -> dict[str, Value]:
    """Return self-attention in words of Megatron-LM; a window counts the tokens before a token."""
    is_latent = attention.kind == "mla"
    found: dict[str, Value] = {
        "num_heads": attention.num_heads, "is_latent": is_latent,
        "has_head_norms": attention.qk_norm == "head" or is_latent,
    }  # fmt: skip
    if attention.window is not None and attention.window < length:
        found["window"] = f"{attention.window - 1},0"
    if is_latent:
        return found | {
            "query_rank": attention.query_rank, "kv_rank": attention.kv_rank,
            "latent_head_size": attention.head_size, "rope_head_size": attention.rope_head_size,
            "value_head_size": attention.value_head_size,
        }  # fmt: skip
    found["head_size"] = attention.head_size
    if attention.num_kv_heads != attention.num_heads:
        found |= {"shares_heads": True, "num_kv_heads": attention.num_kv_heads}
    return found


def _expert_words(plan: Plan, experts: ExpertSpec) -> dict[str, Value]:
    """Return experts in words of Megatron-LM, with the dispatcher of their tokens.

    All-to-all sends each copy of a token, the others one to a host.

    Source: Megatron Bridge, ``flex_dispatcher_backend``: HybridEP for racks of one NVLink domain.
    """
    sizes, levels = degrees(plan), plan.system.levels
    domain = levels[0].size if levels else 1
    crosses_hosts = sizes["ep"] * sizes["etp"] > domain
    is_flex = crosses_hosts and plan.workload.software.deduplicated_dispatch
    return {
        "num_experts": experts.num_experts, "top_k": experts.top_k,
        "expert_size": experts.ffn_size, "layer_frequency": layer_frequency(plan.model),
        "groups_products": True, "dispatcher": "flex" if is_flex else "alltoall",
        "flex_backend": ("hybridep" if domain >= RACK_DOMAIN else "deepep") if is_flex else None,
        "shared_size": experts.shared_ffn_size or None, "shared_gate": experts.shared_gate,
        "num_groups": experts.num_groups, "top_groups": experts.top_groups,
        "router_bias": experts.router_bias,
    }  # fmt: skip


def layer_frequency(model: ModelSpec) -> str:
    """Return which layers hold experts, as a list of ones and zeros: ``([0]*3+[1]*58)``."""
    holds = [int(model.layer_kinds[kind].experts is not None) for kind in model.layer_pattern]
    runs = [(value, len(list(run))) for value, run in groupby(holds)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"
