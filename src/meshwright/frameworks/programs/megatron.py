"""Megatron-LM and Megatron Bridge: arguments of ``pretrain_gpt.py``, of YAML files, and overrides.

The same words stand in all of them: options of the command line with dashes, fields of the
configuration with underscores.

Source: megatron-core 0.19.2, ``megatron/training/arguments.py``, ``TransformerConfig``,
``ModelParallelConfig``, ``OptimizerConfig``.

Megatron-LM: the arguments of ``pretrain_gpt.py``, as a script for torchrun.

Models that its GPT cannot express and plans that its arguments cannot express are refused.

Source: megatron-core 0.19.2, ``megatron/training/arguments.py`` and ``TransformerConfig``; rank
order of ``parallel_state``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from meshwright.base.budget import Budget, as_mapping
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.base.units import whole_number
from meshwright.catalog.huggingface.family import MOST_LAYERS
from meshwright.catalog.megatron_models import biases
from meshwright.catalog.recipes import recipes
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.framework import Framework, framework
from meshwright.frameworks.launch import (
    degrees,
    header,
    layers_of_chunks,
    num_experts,
    ordered_as,
    plan_launch,
    shell_script,
    torchrun_words,
)
from meshwright.frameworks.reading.adapters import adapter_options
from meshwright.frameworks.reading.given import Given, of_tree
from meshwright.frameworks.reading.job import Setting
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.models import catalog_twin, known_model, tokenizer_size
from meshwright.frameworks.reading.shell import base_name
from meshwright.frameworks.reading.stages import lengths_of, pipeline_layout, stage_choices
from meshwright.frameworks.table import Words, load_table
from meshwright.graph.recompute import MODULES
from meshwright.sharding.dealing import dealt
from meshwright.sharding.strategy import ContextKind, Offload, Recompute, lengths_text
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

COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
ONE_MOMENT = ("sgd", "lion", "muon", "dist_muon")
"""Optimizers that keep an FP32 copy and one moment.

Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/optimizer``, ``emerging_optimizers.py``.
"""
OPTIMIZERS = ("adam", "adamw", "distributed_fused_adam", *ONE_MOMENT)
SHARDING = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}


OF_DIST = ("use_megatron_fsdp", "use_torch_fsdp2", "use_tp_pp_dp_mapping",
           "num_distributed_optimizer_instances")  # fmt: skip
"""Fields of the section ``dist`` of Megatron Bridge that change a price."""
OTHERS = ("pretrain_t5", "pretrain_bert", "pretrain_vlm", "pretrain_vision", "pretrain_ict",
          "pretrain_retro", "pretrain_mimo", "multimodal")  # fmt: skip
"""Programs of Megatron-LM that train other kinds of models."""
VANILLA = "vanilla_gpt_pretrain_config"
"""Recipe without any settings."""
DIMS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
        "num_experts", "moe_ffn_hidden_size", "moe_router_topk", "vocab_size")  # fmt: skip


@framework("megatron", reads="megatron", writes="megatron")
class Megatron(Framework):
    """A training job of Megatron-LM's GPT, and a shell script that starts it."""

    catalog = "megatron"

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        name = base_name(launch.program)
        if {"model.tensor_model_parallel_size", "recipe"} & set(given) or _recipe_of(given):
            return True
        return "tensor_model_parallel_size" in given or (
            name.startswith(("pretrain_gpt", "pretrain_mamba", "pretrain_llama")) and len(given) > 4
        )

    def holds(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has the sections or the words of Megatron."""
        sections = {"MODEL_ARGS", "language_model", "model_parallel"}
        model = tree.get("model")
        is_bridge = isinstance(model, Mapping) and "tensor_model_parallel_size" in model
        is_bridge |= bool(_recipe_of(of_tree(tree))) or "recipe" in tree
        is_own = "tensor_model_parallel_size" in tree and "model_name_or_path" not in tree
        return bool(sections & set(tree)) or is_bridge or is_own

    def read(self, given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        if (path := given.path("config_file", "yaml_cfg")) is not None:
            given.add(of_tree(setting.config_files(path), path))
        program = setting.launch.program if setting.launch is not None else ""
        if any(name in program for name in OTHERS):
            message = "its model is not read: decoders of one stack of layers are"
            raise SpecError(Fault("", message), origin=program)
        if {"trainer.devices", "model.encoder_seq_length"} <= set(given):
            message = "is a name of NeMo 1 (megatron_gpt_config.yaml), whose files are not read"
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
                               "what they leave open is priced as Megatron starts it")  # fmt: skip
        options: dict[str, Any] = {}
        options |= _degrees(given, setting)
        options |= _batch(given)
        options |= _memory(given)
        options |= _types(given)
        options["optimizer"] = _optimizer(given, options)
        if peft := given.text("peft", "peft._target_"):
            options |= _adapters(given, peft)
        if "model" in setting.stated:
            _pass_over_model(given)
        else:
            options["model"] = _named_model(given) or _model(given, options)
        options |= _capacity(given)
        _predict(given, options)
        _refuse(given)
        return "megatron-bridge" if is_bridge else "megatron", options

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script."""
        notes = (
            "add what a plan does not hold (data, learning rate, rotary base, epsilon), as in",
            f"  {FILE_NAME} --mock-data --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 50",
        )
        comments = header(plan, self.written, notes)
        program = [*torchrun_words(plan_launch(plan)), "pretrain_gpt.py"]
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
        given.refuse(name, f"what the recipe {recipe} states is not known",
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
    given.value("load_weights")
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
        given.needs("MODEL", f"{name!r} is no model of the catalog", "name it, or its config.json")
    for word in MODEL_WORDS:
        given.value(word)
    return model


def _degrees(given: Given, setting: Setting) -> dict[str, Any]:
    """Return the degrees, and the sharding of state over ranks."""
    names = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
             "cp": "context_parallel_size"}  # fmt: skip
    found: dict[str, Any] = {ours: given.whole(theirs) or 1 for ours, theirs in names.items()}
    ep, etp = given.whole("expert_model_parallel_size"), given.whole("expert_tensor_parallel_size")
    hides = given.flag("overlap_moe_expert_parallel_comm")
    if given.whole("num_experts") or (ep or 1) > 1:
        found |= {"ep": ep or 1, "etp": etp or found["tp"]}
        found["overlap_expert_parallel"] = "on" if hides else "off"
    found["num_virtual_stages"] = _virtual_stages(given, found["pp"])
    given.refuse_unless(
        "microbatch_group_size_per_virtual_pipeline_stage",
        str(found["pp"]),
        "none",
        why=f"rounds of another length than pp {found['pp']} are not read",
    )
    splits = given.flag("sequence_parallel") and found["tp"] > 1  # Megatron turns it off with tp 1
    found["sequence_parallel"] = "on" if splits else "off"
    if (kind := given.word("cp_comm_type", among=("p2p", "a2a"))) and found["cp"] > 1:
        found["context_kind"] = "ulysses" if kind == "a2a" else "ring"
    found |= _sharding(given, setting, found)
    found |= _stage_lengths(given, found)
    has_pipeline_inside = given.flag("use_tp_pp_dp_mapping")
    if found["pp"] > 1 and "ep" in found and has_pipeline_inside:
        given.refuse("use_tp_pp_dp_mapping", "experts are priced with pp outside of dp only",
                     "the default order")  # fmt: skip
    elif found["pp"] > 1 and has_pipeline_inside:
        found["axis_order"] = "tp-cp-pp-dp"
    return found


def _num_layers(given: Given) -> int | None:
    """Return the layers that the files state, or of the model that their recipe names."""
    model = known_model(str(given.peek("hf_model") or ""))
    return given.whole("num_layers", most=MOST_LAYERS) or (model.num_layers if model else None)


def _virtual_stages(given: Given, pp: int) -> int | None:
    """Return the virtual stages of each rank, in any of their notations."""
    stages = given.whole("num_virtual_stages_per_pipeline_rank")
    layers, each = _num_layers(given), given.whole("num_layers_per_virtual_pipeline_stage")
    layout = given.text("pipeline_model_parallel_layout")
    if layout is not None and (lengths := layout_lengths(layout)) is not None:
        return len(lengths) // pp if len(lengths) > pp else None
    if each is None or stages is not None:
        return stages
    counted = (layers or 0) + sum(map(given.flag, COUNTED))
    if not counted or counted % (pp * each):
        given.refuse("num_layers_per_virtual_pipeline_stage",
                     f"{each} a stage do not divide {counted} layers over pp {pp}")  # fmt: skip
        return None
    return counted // (pp * each)


def _sharding(given: Given, setting: Setting, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ZeRO stage, its ranks, and the overlap of its collectives."""
    is_dealt = given.peek("optimizer") == "dist_muon"  # of layers to the ranks of dp
    is_dealt |= given.flag("use_distributed_optimizer")
    stage = "1" if is_dealt else _zero_stage(given, setting)
    strategy = given.word("data_parallel_sharding_strategy", among=SHARDING)
    fsdp = given.flag("use_megatron_fsdp", "use_custom_fsdp")
    if fsdp:
        stage = SHARDING[strategy or "optim_grads_params"]
    keeps = given.flag("torch_fsdp2_no_reshard_after_forward")
    if given.flag("use_torch_fsdp2"):
        stage = "3"
    overlaps = given.flag("overlap_grad_reduce") or fsdp or stage in ("2", "3")
    gathers = given.flag("overlap_param_gather")
    if stage == "1" and overlaps and not gathers:
        given.notes.append("priced as with --overlap-param-gather")
    answer: dict[str, Any] = {
        "zero_stage": stage, "overlap_data_parallel": "on" if overlaps else "off",
    }  # fmt: skip
    if keeps and stage == "3":
        answer["reshard_after_forward"] = "off"
    instances = given.whole("num_distributed_optimizer_instances") or 1
    if instances > 1 and stage != "0":
        world = setting.world(given, "the ranks of an optimizer instance depend on the devices")
        if world is not None:
            ranks = world // (found["tp"] * found["pp"] * found["cp"])
            answer["dp_shard"] = max(1, ranks // instances)
    return answer


def _zero_stage(given: Given, setting: Setting) -> str:
    """Return the ZeRO stage of Megatron-DeepSpeed: of its option, or of the file that it names."""
    tree: Mapping[str, Any] = {}
    if (path := given.path("deepspeed_config")) is not None:
        tree = setting.config_files(path)
    zero = as_mapping(tree.get("zero_optimization"))
    stage = given.text("zero_stage") or str(zero.get("stage", 0))
    for what in ("offload_optimizer", "offload_param"):
        if as_mapping(zero.get(what)).get("device", "none") != "none":
            given.refuse("deepspeed_config", f"{what} is not read here", "device none")
    given.flag("no_pipeline_parallel"), given.value("deepspeed_mpi")
    if not given.flag("deepspeed"):
        return "0"
    if stage not in ("0", "1", "2", "3"):
        given.refuse("zero_stage", f"found {stage!r}", "0 to 3")
        return "0"
    if stage == "0" and given.is_on("bf16"):
        given.notes.append("DeepSpeed shards the optimizer of BF16 under stage 0 as under stage 1")
        return "1"
    return stage


def _stage_lengths(given: Given, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers that embedding and head count as in the deal of layers."""
    layers = _num_layers(given)
    runs = found["pp"] * (found["num_virtual_stages"] or 1)
    first = given.whole("decoder_first_pipeline_num_layers", least=0)
    last = given.whole("decoder_last_pipeline_num_layers", least=0)
    layout = given.text("pipeline_model_parallel_layout")
    counts = [given.flag(name) for name in COUNTED]
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
            given.refuse("pipeline_model_parallel_layout", "is no layout of E, t, L and |")
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


def _batch(given: Given) -> dict[str, Any]:
    """Return the batch of a step, its sequences, and the tokens of the whole run."""
    batch, micro = given.whole("global_batch_size"), given.whole("micro_batch_size")
    length = given.whole("seq_length", "encoder_seq_length")
    found: dict[str, Any] = {"global_batch": batch, "micro_batch_size": micro, "seq": length}
    iterations, samples = given.whole("train_iters"), given.whole("train_samples")
    if length and samples:
        found["tokens"] = samples * length
    elif length and batch and iterations:
        found["tokens"] = iterations * batch * length
    if (ramp := given.value("rampup_batch_size")) is not None:
        found["batch_ramp"] = ",".join(re.findall(r"\d+", str(ramp).replace("_", "")))
    if given.flag("reset_attention_mask"):
        given.notes.append(
            "a packed sequence attends as one; --with document_length=N says otherwise"
        )
    if "seq_length" not in given and "encoder_seq_length" not in given:
        given.needs("--seq", "the files state no --seq-length")
    return found


def _memory(given: Given) -> dict[str, Any]:
    """Return the recomputation, and the offload to the host."""
    found = _recompute(given)
    if given.flag("optimizer_cpu_offload"):
        fraction = given.real("optimizer_offload_fraction")
        if fraction not in (None, 1.0):
            given.refuse("optimizer_offload_fraction", f"a part ({fraction}) is not read", "1.0")
        found["offload"] = "optimizer"
    return found


def _recompute(given: Given) -> dict[str, Any]:
    """Return the recomputation, and its number of layers in each chunk."""
    granularity = given.word("recompute_granularity", among=("full", "selective"))
    legacy = [given.flag(name) for name in ("checkpoint_activations",
                                            "deepspeed_activation_checkpointing")]  # fmt: skip
    if any(legacy) and granularity is None:
        granularity = "full"
    if given.flag("recompute_activations"):
        granularity = "selective"
    experts = given.flag("moe_layer_recompute")
    if experts and granularity == "full":
        given.refuse("moe_layer_recompute", "whole layers are recomputed already", "without it")
    elif experts:
        granularity = "selective"
    method = given.word("recompute_method", "activations_checkpoint_method",
                        among=("uniform", "block"))  # fmt: skip
    layers = given.whole("recompute_num_layers", "checkpoint_num_layers", least=0)
    modules = given.value("recompute_modules")
    if granularity == "full" and layers == 0 and method == "block":
        return {"recompute": "none"}
    if granularity == "full":
        if layers == 0:
            given.refuse("recompute_num_layers", "units of no layers never end", "1, or block")
        if method == "block":
            return {"recompute": "full", "recompute_layers": layers or 1}
        return {"recompute": "full", "recompute_run": layers or 1}
    if granularity == "selective":
        words = re.findall(r"\w+", modules) if isinstance(modules, str) else modules
        words = words or ["core_attn"]
        words = list(dict.fromkeys([*words, *(["moe"] if experts else [])]))
        if unread := [str(word) for word in words if word not in MODULES]:
            given.refuse("recompute_modules", f"{' '.join(unread)} is not read", ", ".join(MODULES))
        elif list(words) != ["core_attn"]:
            return {"recompute": "selective", "recompute_modules": "+".join(sorted(words))}
        return {"recompute": "selective"}
    return {"recompute": "none"}


def _types(given: Given) -> dict[str, Any]:
    """Return precisions, and options of the software that change the price.

    Transformer Engine 2 computes products of FP32 in TF32 (``common/gemm/cublaslt_gemm.cu``).
    """
    mixed = (given.text("mixed_precision") or "").replace(" ", "")
    precision = "fp32"
    for name, is_on in (
        ("fp16", given.flag("fp16") or mixed.startswith("fp16") or "fp16:true" in mixed),
        ("bf16", given.flag("bf16") or mixed.startswith("bf16") or "bf16:true" in mixed),
        ("fp8", given.word("fp8_format", among=("e4m3", "hybrid")) is not None or "fp8" in mixed),
        ("fp4", given.word("fp4_format", among=("e2m1",)) is not None or "fp4" in mixed),
    ):
        precision = name if is_on else precision
    if "current_scaling" in mixed or "nvfp4" in mixed:
        given.notes.append("the first and the last layer are priced in the type of the others")
    is_local = given.peek("transformer_impl") == "local"
    precision = "tf32" if precision == "fp32" and not is_local else precision
    graphs = (given.text("cuda_graph_impl") or "none") != "none"
    graphs = given.flag("enable_cuda_graph", "external_cuda_graph") or graphs
    dropout = [given.real(name) for name in ("hidden_dropout", "attention_dropout")]
    has_dropout = any(0.1 if rate is None else rate for rate in dropout)
    overlaps = given.flag("tp_comm_overlap")
    return {"precision": precision, "cuda_graphs": graphs, "async_tp": overlaps,
            "dropout": has_dropout, "software": _software(given)}  # fmt: skip


def _software(given: Given) -> dict[str, Any]:
    """Return the options of kernels that differ from those of most jobs."""
    found: dict[str, Any] = {}
    local = given.word("transformer_impl", among=("transformer_engine", "local")) == "local"
    backend = given.word("attention_backend", among=("flash", "fused", "auto", "unfused", "local"))
    flash = given.flag("use_flash_attn", default=not local)
    if backend in ("unfused", "local") or (backend is None and not flash):
        found["flash_attention"] = False
    if given.flag("cross_entropy_loss_fusion"):
        found["loss"] = "compiled"
    if given.flag("no_gradient_accumulation_fusion") or not given.flag(
        "gradient_accumulation_fusion", default=True
    ):
        found["fused_gradient_accumulation"] = False
    if given.flag("no_overlap_p2p_communication") or not given.flag(
        "overlap_p2p_comm", default=True
    ):
        found["overlaps_sends"] = False
    backend = given.text("moe_flex_dispatcher_backend")
    if given.flag("moe_enable_deepep") or given.peek("moe_token_dispatcher_type") == "flex":
        found["deduplicated_dispatch"] = True  # DeepEP and HybridEP send a token to a host once
    elif given.peek("num_experts") is not None and backend is None:
        found["deduplicated_dispatch"] = False
    return found


def _adapters(given: Given, peft: str) -> dict[str, Any]:
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


def _optimizer(given: Given, options: Mapping[str, Any]) -> OptimizerPreset | str | None:
    """Return the bytes that the optimizer keeps for each parameter."""
    kind = given.word("optimizer", among=OPTIMIZERS) or "adam"
    if "muon" in kind:
        given.notes.append("embeddings are updated with one moment, as matrices are")
    mixed = str(given.peek("mixed_precision") or "").replace(" ", "")
    short = given.flag("grad_reduce_in_bf16") or "grad_reduce_in_fp32:false" in mixed
    sums = given.flag("grad_reduce_in_fp32", default=not mixed.startswith("fp16"))
    short = short or not sums
    name = "megatron-adam-bf16-gradients" if short else "megatron-adam"
    if options["precision"] in ("fp32", "tf32"):
        name, short = "adam-fp32", False
    is_precise = given.flag("use_precision_aware_optimizer")
    kept = {field: given.word(f"{field}_dtype", among=BYTES) or "fp32"
            for field in ("main_grads", "main_params", "exp_avg", "exp_avg_sq")}  # fmt: skip
    fp8_weights = given.flag("fp8_param_gather", "fp8_param")
    fp8_weights |= any(name in mixed for name in ("delayed_scaling", "mxfp8"))
    preset = load_optimizer(name)
    changes: dict[str, Any] = {}
    if is_precise:
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
        stated = " ".join(
            f"{key.partition('_bytes')[0]} {value:g}" for key, value in changes.items()
        )
        return preset.model_copy(update={"name": f"{name} ({stated})", **changes})
    return name if short else None


def _capacity(given: Given) -> dict[str, Any]:
    """Return the load of every expert where each is padded to a multiple of the mean.

    Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/transformer/moe/moe_utils.py``,
    ``get_capacity`` and ``topk_routing_with_score_function``.
    """
    factor = given.real("moe_expert_capacity_factor")
    pads = given.flag("moe_pad_expert_input_to_capacity")
    if factor is None or factor < 0:
        return {}
    if pads and factor >= 1 and (given.whole("expert_model_parallel_size") or 1) > 1:
        return {"imbalance": f"{factor:g}"}
    given.notes.append(f"experts take at most {factor:g} times the mean: tokens that are dropped "
                       "are priced as if kept; padding within one rank is not")  # fmt: skip
    return {}


def _predict(given: Given, options: dict[str, Any]) -> None:
    """Add the layers for multi-token prediction, which follow the last one of the model.

    Source: NVIDIA/Megatron-LM 0.19.2 ``megatron/core/transformer/multi_token_prediction.py``.
    """
    extra = given.whole("mtp_num_layers", least=0)
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
    stated = options.pop("stage_layers", None)
    lengths = dealt(model.num_layers, runs, *edges).tolist()
    if stated is not None:
        lengths = lengths_of(stated)
    layout = given.peek("pipeline_model_parallel_layout")
    placed = layout_lengths(str(layout), "tm") if layout is not None else None
    if placed is not None and sum(placed) == len(longer):
        lengths = placed
    else:
        lengths[-1] += extra
    options |= stage_choices(lengths, len(longer)) or {}


def _refuse(given: Given) -> None:
    """Refuse options that change the price and have no counterpart."""
    load_table("megatron").judge(given)
    if given.flag("distribute_saved_activations") and given.is_on("sequence_parallel"):
        given.refuse("distribute_saved_activations", "sequence parallelism splits them already",
                     "without it")  # fmt: skip


MODEL_WORDS = ("make_vocab_size_divisible_by",
               "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
               "group_query_attention", "num_query_groups", "kv_channels",
               "max_position_embeddings",
               "swiglu", "normalization", "position_embedding_type",
               "use_rotary_position_embeddings",
               "untie_embeddings_and_output_weights", "disable_bias_linear", "add_bias_linear",
               "add_qkv_bias", "qk_layernorm", "window_size", "multi_latent_attention",
               "q_lora_rank",
               "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "num_experts",
               "moe_router_topk", "moe_ffn_hidden_size", "moe_layer_freq", "moe_grouped_gemm",
               "moe_shared_expert_intermediate_size", "moe_shared_expert_gate",
               "moe_router_enable_expert_bias", "moe_token_dispatcher_type", "vocab_size",
               "moe_router_num_groups", "moe_router_group_topk",
               "padded_vocab_size", "squared_relu", "share_embeddings_and_output_weights",
               "apply_residual_connection_post_layernorm")  # fmt: skip


HYBRID = ("hybrid_attention_ratio", "hybrid_mlp_ratio", "hybrid_override_pattern",
          "hybrid_layer_pattern", "mamba_state_dim", "mamba_head_dim", "mamba_num_groups",
          "mamba_num_heads", "spec", "experimental_attention_variant", "linear_attention_freq",
          "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
          "linear_num_key_heads", "linear_num_value_heads", "heterogeneous_layers_config_path",
          "heterogeneous_layers_config_encoded_json", "attention_output_gate")  # fmt: skip
"""Options of layer kinds that the options of one layer do not describe."""


def _pass_over_model(given: Given) -> None:
    """Take the dims of the model, where the user names another one."""
    for name in (*MODEL_WORDS, *HYBRID, "hf_model", "model_target_", "model_args_", "load_weights"):
        given.value(name)
    given.notes.append("the model is the one that you name, not that of the file")


def _model(given: Given, options: Mapping[str, Any]) -> ModelSpec | None:
    """Return the model of the script: its twin in the catalog, where there is one."""
    needed = {"num_layers": _num_layers(given)} | {
        name: given.whole(name) for name in ("hidden_size", "num_attention_heads")
    }
    if lacking := [f"--{n.replace('_', '-')}" for n, value in needed.items() if value is None]:
        given.needs("MODEL", f"no model follows without {', '.join(lacking)}", "name it")
    if None in needed.values():
        for name in (*MODEL_WORDS, *HYBRID):
            given.value(name)
        return None
    layers, hidden, heads = (value or 1 for value in needed.values())
    if (other := next((name for name in HYBRID if name in given), None)) is not None:
        given.needs("MODEL", f"the layers that {other} states do not follow from it", "name it")
        for name in (*MODEL_WORDS, *HYBRID):
            given.value(name)
        return None
    attention = _attention(given, hidden, heads)
    vocab = _vocabulary(given)
    gated = given.flag("swiglu")
    bias = given.flag("add_bias_linear", default=True) and not given.flag("disable_bias_linear")
    if given.flag("squared_relu"):
        gated = False
    if attention is None or vocab is None:
        for name in MODEL_WORDS:
            given.value(name)
        return None
    attention = attention.model_copy(
        update={"qkv_bias": bias or given.flag("add_qkv_bias"), "output_bias": bias}
    )
    width = given.whole("ffn_hidden_size")
    width = width or (4 * hidden if not gated else int(4 * hidden * 2 / 3 / 64) * 64)
    kinds, pattern = _layers(given, attention, width, gated, bias, layers)
    positions = given.text("position_embedding_type") or "learned_absolute"
    if given.flag("use_rotary_position_embeddings", "no_position_embedding"):
        positions = "rope"
    longest = given.whole("max_position_embeddings") or options.get("seq")
    tied = not given.flag("untie_embeddings_and_output_weights")
    if "share_embeddings_and_output_weights" in given:
        tied = given.flag("share_embeddings_and_output_weights")
    norm = given.word("normalization", among=("LayerNorm", "RMSNorm")) or "LayerNorm"
    model = ModelSpec(
        name="the model of the file", architecture="megatron_gpt", hidden_size=hidden,
        vocab_size=vocab, layer_kinds=kinds, layer_pattern=pattern,
        norm="rms" if norm == "RMSNorm" else "layer",
        learned_positions=(longest or 0) if positions == "learned_absolute" else 0,
        tied_embeddings=tied, max_sequence_length=longest,
    )  # fmt: skip
    unit = (given.whole("make_vocab_size_divisible_by") or 128) * int(options.get("tp") or 1)
    padded = model.model_copy(update={"vocab_size": -(-vocab // unit) * unit})
    return catalog_twin(model) or catalog_twin(padded) or model


def _attention(given: Given, hidden: int, heads: int) -> AttentionSpec | None:
    """Return self-attention; biases are filled in later."""
    norms = "head" if given.flag("qk_layernorm") else "none"
    if given.flag("multi_latent_attention"):
        for name in ("kv_channels", "num_query_groups", "group_query_attention"):
            given.value(name)
        query, rank = given.whole("q_lora_rank"), given.whole("kv_lora_rank") or 32
        return AttentionSpec(
            kind="mla", num_heads=heads, num_kv_heads=heads,
            head_size=given.whole("qk_head_dim") or 128,
            value_head_size=given.whole("v_head_dim") or 128, query_rank=query, kv_rank=rank,
            rope_head_size=given.whole("qk_pos_emb_head_dim") or 64,
        )  # fmt: skip
    size = given.whole("kv_channels") or hidden // heads
    groups = given.whole("num_query_groups")
    if "group_query_attention" in given and not given.flag("group_query_attention"):
        groups = None
    if groups is not None and heads % groups:
        given.refuse("num_query_groups", f"{groups} does not divide {heads} heads")
        return None
    window = None
    if (text := given.text("window_size")) is not None:
        numbers = re.findall(r"-?\d+", text)
        window = int(numbers[0]) + 1 if numbers and int(numbers[0]) >= 0 else None
    return AttentionSpec(
        num_heads=heads, num_kv_heads=groups or heads, head_size=size, value_head_size=size,
        qk_norm="head" if norms == "head" else "none", window=window,
    )  # fmt: skip


def _layers(
    given: Given, attention: AttentionSpec, width: int, gated: bool, bias: bool, num_layers: int
) -> tuple[tuple[LayerSpec, ...], tuple[int, ...]]:
    """Return the kinds of layers, and which kind each layer is."""
    dense = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=width, gated=gated, bias=bias),
    )
    count = given.whole("num_experts")
    names = ("moe_ffn_hidden_size", "moe_layer_freq", "moe_router_topk", "moe_grouped_gemm",
             "moe_shared_expert_intermediate_size", "moe_shared_expert_gate",
             "moe_router_enable_expert_bias", "moe_token_dispatcher_type")  # fmt: skip
    stated = {name: given.value(name) for name in names}
    if not count:
        return (dense,), (0,) * num_layers
    dispatcher = given.word("moe_token_dispatcher_type", among=("alltoall", "flex", "allgather"))
    if dispatcher == "allgather" and (given.peek("expert_model_parallel_size") or 1) != 1:
        given.notes.append("experts by all-gather are priced as by all-to-all: each token goes to "
                           "its own experts, not to all ranks of ep")  # fmt: skip
    experts = ExpertSpec(
        num_experts=count, top_k=min(given.whole("moe_router_topk") or 2, count),
        ffn_size=given.whole("moe_ffn_hidden_size") or width, gated=gated,
        shared_ffn_size=given.whole("moe_shared_expert_intermediate_size", least=0) or 0,
        shared_gate=given.flag("moe_shared_expert_gate"),
        router_bias=given.flag("moe_router_enable_expert_bias"),
        num_groups=given.whole("moe_router_num_groups") or 1,
        top_groups=given.whole("moe_router_group_topk") or 1,
    )  # fmt: skip
    holds = layer_pattern(stated["moe_layer_freq"], num_layers)
    if holds is None:
        given.refuse("moe_layer_freq",
                     f"found {stated['moe_layer_freq']!r} for {num_layers} layers",
                     "a number, or a list of zeros and ones for each layer")  # fmt: skip
        holds = [1] * num_layers
    sparse = LayerSpec(attention=attention, experts=experts)
    if all(holds):
        return (sparse,), (0,) * num_layers
    return (dense, sparse), tuple(holds)


def layer_pattern(frequency: Any, num_layers: int) -> list[int] | None:
    """Return which layers hold experts: every n-th from the first, or as ``([0]*3+[1]*58)``."""
    text = "1" if frequency is None else str(frequency)
    if (every := whole_number(text)) is not None:
        return [int(index % max(1, every) == 0) for index in range(num_layers)]
    try:
        holds = _list_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return holds if len(holds) == num_layers and set(holds) <= {0, 1} else None


def _list_of(node: ast.expr) -> list[int]:
    """Return a list that is written as a sum of repeated lists."""
    if isinstance(node, ast.List):
        return [
            one.value for one in node.elts
            if isinstance(one, ast.Constant) and isinstance(one.value, int)
        ]  # fmt: skip
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list_of(node.left) + _list_of(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        count, part = node.right, node.left
        if isinstance(part, ast.Constant):
            count, part = part, count
        if isinstance(count, ast.Constant) and isinstance(count.value, int):
            values = _list_of(part)
            if len(values) * count.value <= MOST_LAYERS:
                return values * count.value
    raise ValueError(ast.dump(node))


def _vocabulary(given: Given) -> int | None:
    """Return the rows of the embedding, from the size or from the tokenizer."""
    size = given.whole("padded_vocab_size", "vocab_size")
    source = str(given.peek("tokenizer_model") or "")
    usual = "GPT2BPETokenizer" if "merge_file" in given else ""  # that of pretrain_gpt.py
    size = size or tokenizer_size(given.text("tokenizer_type") or usual, source)
    if size is None:
        given.needs(
            "MODEL", "no --vocab-size, and a tokenizer of no model of the catalog", "name it"
        )
    return size


FILE_NAME = "pretrain_gpt.sh"
PIPELINE_INSIDE = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
"""Order of the axes under ``--use-tp-pp-dp-mapping``."""
PRECISIONS: dict[str, tuple[Words, ...]] = {
    "fp32": (),
    "tf32": (),
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid")),
    "fp4": (("--bf16",),),
}
FSDP_STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}


def arguments(plan: Plan) -> list[Words]:
    """Return the arguments of a plan, its model included."""
    return [
        *_parallel_options(plan),
        *_pipeline_options(plan),
        *_state_options(plan),
        *_memory_options(plan),
        *_workload_options(plan),
        *model_options(plan),
    ]


def _uses_fsdp(plan: Plan) -> bool:
    return plan.best.plan_options.zero_stage >= 2


def _has_data_axes(plan: Plan) -> bool:
    sizes = degrees(plan)
    return sizes["dp"] * sizes["cp"] > 1


def variables(plan: Plan) -> Iterator[str]:
    """Yield the environment: several hardware queues for Megatron-FSDP, otherwise one.

    Transformer Engine computes products of FP32 in TF32 unless libraries are told not to.

    Source: NVIDIA/TransformerEngine, ``common/gemm/cublaslt_gemm.cu``; CUDA, ``cuBLAS``.
    """
    fsdp = _uses_fsdp(plan)
    if plan.workload.precision.matmul == "fp32":
        yield "export NVIDIA_TF32_OVERRIDE=0"
    yield "unset CUDA_DEVICE_MAX_CONNECTIONS" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1"


def _parallel_options(plan: Plan) -> Iterator[Words]:
    sizes, plan_options = degrees(plan), plan.best.plan_options
    yield "--tensor-model-parallel-size", f"{sizes['tp']}"
    yield "--pipeline-model-parallel-size", f"{sizes['pp']}"
    yield "--context-parallel-size", f"{sizes['cp']}"
    if sizes["cp"] > 1:
        ulysses = plan_options.context_kind is ContextKind.ULYSSES
        yield "--cp-comm-type", "a2a" if ulysses else "p2p"
    if num_experts(plan):
        yield "--expert-model-parallel-size", f"{sizes['ep']}"
        yield "--expert-tensor-parallel-size", f"{sizes['etp']}"
    if plan_options.overlap_expert_parallel:
        yield ("--overlap-moe-expert-parallel-comm",)
    if plan_options.sequence_parallel:
        yield ("--sequence-parallel",)
    if plan_options.overlap_tensor_parallel and sizes["tp"] > 1:
        yield ("--tp-comm-overlap",)
    if not ordered_as(plan, MESH_AXES):
        yield ("--use-tp-pp-dp-mapping",)


def _pipeline_options(plan: Plan) -> Iterator[Words]:
    """Yield virtual stages, and the layers of each chunk where they differ.

    Interleaved chunks hold one layer less at the ends, or follow a layout, which also gives their
    number.
    """
    chunks, lengths = degrees(plan)["num_virtual_stages"], layers_of_chunks(plan)
    first, last, middle, usual = lengths[0], lengths[-1], set(lengths[1:-1]), max(lengths)
    counts_edges = middle == {usual} and min(first, last) >= usual - 1
    if len(middle) > 1 or (chunks > 1 and not counts_edges):
        yield "--pipeline-model-parallel-layout", pipeline_layout(lengths)
        return
    if chunks > 1:
        yield "--num-virtual-stages-per-pipeline-rank", f"{chunks}"
        if first < usual:
            yield ("--account-for-embedding-in-pipeline-split",)
        if last < usual:
            yield ("--account-for-loss-in-pipeline-split",)
        return
    if middle and first not in middle:
        yield "--decoder-first-pipeline-num-layers", f"{first}"
    if len(set(lengths)) > 1:
        yield "--decoder-last-pipeline-num-layers", f"{last}"


def _state_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of sharding and sums of weights, gradients and optimizer state."""
    plan_options, replicas = plan.best.plan_options, degrees(plan)["dp_replicate"]
    if plan_options.zero_stage:
        yield ("--use-distributed-optimizer",)
        if replicas > 1:
            yield "--num-distributed-optimizer-instances", f"{replicas}"
    if _uses_fsdp(plan):
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", FSDP_STRATEGY[plan_options.zero_stage]
        yield "--ckpt-format", "fsdp_dtensor"
    if plan_options.overlap_data_parallel and _has_data_axes(plan):
        yield ("--overlap-grad-reduce",)
        if plan_options.zero_stage:
            yield ("--overlap-param-gather",)
    if has_short_gradients(plan.workload):
        yield ("--grad-reduce-in-bf16",)


def _memory_options(plan: Plan) -> Iterator[Words]:
    plan_options = plan.best.plan_options
    if plan_options.recompute is Recompute.FULL:
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "block" if plan_options.recomputes_some else "uniform"
        number = plan_options.recompute_layers or plan_options.recompute_run
        yield "--recompute-num-layers", f"{number}"
    elif plan_options.recompute is Recompute.SELECTIVE:
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", *(plan_options.recompute_modules or ("core_attn",))
    if plan_options.offload is Offload.OPTIMIZER:
        yield ("--optimizer-cpu-offload",)
        yield ("--use-precision-aware-optimizer",)


def _workload_options(plan: Plan) -> Iterable[Words]:
    work, software = plan.workload, plan.workload.software
    yield "--micro-batch-size", f"{degrees(plan)['micro_batch_size']}"
    yield "--global-batch-size", f"{work.global_batch_size}"
    yield "--seq-length", f"{work.sequence_length}"
    ramp = work.batch_ramp
    if ramp is not None:
        yield "--rampup-batch-size", f"{ramp.start}", f"{ramp.increment}", f"{ramp.sequences}"
    if work.total_tokens is not None and ramp is not None:
        yield "--train-samples", f"{-(-work.total_tokens // work.sequence_length):.0f}"
    elif work.total_tokens is not None:
        yield "--train-iters", f"{-(-work.total_tokens // work.tokens_per_step):.0f}"
    yield from PRECISIONS[work.precision.matmul]
    yield "--attention-backend", "flash" if software.flash_attention else "unfused"
    if not software.dropout:
        yield "--attention-dropout", "0.0"
        yield "--hidden-dropout", "0.0"
    if software.cuda_graphs:
        yield "--cuda-graph-impl", "local"
    if software.loss == "compiled":
        yield ("--cross-entropy-loss-fusion",)


def model_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of the model."""
    model, length = plan.model, plan.workload.sequence_length
    kind = model.layer_kinds[0]
    yield "--num-layers", f"{model.num_layers}"
    yield "--hidden-size", f"{model.hidden_size}"
    yield "--ffn-hidden-size", f"{_dense_width(model)}"
    yield from _attention_options(model.attentions[0], length)
    yield "--max-position-embeddings", f"{model.learned_positions or length}"
    rotary = not model.learned_positions
    yield "--position-embedding-type", "rope" if rotary else "learned_absolute"
    yield "--normalization", "RMSNorm" if model.norm == "rms" else "LayerNorm"
    if _is_gated(kind):
        yield ("--swiglu",)
    if biases(kind) != "all":
        yield ("--disable-bias-linear",)
    if biases(kind) == "qkv":
        yield ("--add-qkv-bias",)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    yield "--vocab-size", f"{model.vocab_size}"
    yield from _expert_options(plan)


def _is_gated(kind: LayerSpec) -> bool:
    network = kind.feed_forward or kind.experts
    return network is not None and network.gated


def _dense_width(model: ModelSpec) -> int:
    """Return the width of dense layers; that of an expert where there are none."""
    dense = [kind.feed_forward.ffn_size for kind in model.layer_kinds if kind.feed_forward]
    experts = [kind.experts.ffn_size for kind in model.layer_kinds if kind.experts]
    return (dense or experts)[0]


def _attention_options(attention: AttentionSpec, sequence_length: int) -> Iterator[Words]:
    yield "--num-attention-heads", f"{attention.num_heads}"
    if attention.kind == "mla":
        yield ("--multi-latent-attention",)
        if attention.query_rank is not None:
            yield "--q-lora-rank", f"{attention.query_rank}"
        yield "--kv-lora-rank", f"{attention.kv_rank}"
        yield "--qk-head-dim", f"{attention.head_size}"
        yield "--qk-pos-emb-head-dim", f"{attention.rope_head_size}"
        yield "--v-head-dim", f"{attention.value_head_size}"
    else:
        yield "--kv-channels", f"{attention.head_size}"
        if attention.num_kv_heads != attention.num_heads:
            yield ("--group-query-attention",)
            yield "--num-query-groups", f"{attention.num_kv_heads}"
    if attention.qk_norm == "head" or attention.kind == "mla":
        yield ("--qk-layernorm",)
    if attention.window is not None and attention.window < sequence_length:
        yield "--window-size", f"{attention.window - 1},0"


def _expert_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of a mixture of experts, where there is one."""
    model = plan.model
    experts = next((kind.experts for kind in model.layer_kinds if kind.experts), None)
    if experts is None:
        return
    yield "--num-experts", f"{experts.num_experts}"
    yield "--moe-router-topk", f"{experts.top_k}"
    yield "--moe-ffn-hidden-size", f"{experts.ffn_size}"
    yield "--moe-layer-freq", layer_frequency(model)
    yield ("--moe-grouped-gemm",)
    yield from _dispatcher_options(plan)
    yield from _router_options(experts)


def _dispatcher_options(plan: Plan) -> Iterator[Words]:
    """Yield the dispatcher of tokens: all-to-all sends each copy, the others one to a host.

    Source: Megatron Bridge, ``flex_dispatcher_backend``: HybridEP for racks of one NVLink domain.
    """
    sizes, domain = degrees(plan), plan.system.levels[0].size
    crosses_hosts = sizes["ep"] * sizes["etp"] > domain
    if not crosses_hosts or not plan.workload.software.deduplicated_dispatch:
        yield "--moe-token-dispatcher-type", "alltoall"
        return
    yield "--moe-token-dispatcher-type", "flex"
    yield "--moe-flex-dispatcher-backend", "hybridep" if domain >= RACK_DOMAIN else "deepep"


def _router_options(experts: ExpertSpec) -> Iterator[Words]:
    if experts.shared_ffn_size:
        yield "--moe-shared-expert-intermediate-size", f"{experts.shared_ffn_size}"
    if experts.shared_gate:
        yield ("--moe-shared-expert-gate",)
    if experts.num_groups > 1:
        yield "--moe-router-num-groups", f"{experts.num_groups}"
        yield "--moe-router-group-topk", f"{experts.top_groups}"
    if experts.router_bias:
        yield ("--moe-router-enable-expert-bias",)
        yield "--moe-router-score-function", "sigmoid"


def layer_frequency(model: ModelSpec) -> str:
    """Return which layers hold experts, as a list of ones and zeros: ``([0]*3+[1]*58)``."""
    holds = [int(model.layer_kinds[kind].experts is not None) for kind in model.layer_pattern]
    runs = [(value, len(list(run))) for value, run in groupby(holds)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"
