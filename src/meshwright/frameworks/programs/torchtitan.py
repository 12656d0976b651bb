"""torchtitan: TOML files and options up to 0.2, options of a configuration from 0.3 on.

A plan is written as a script for torchrun, with the models that 0.3 ships or one of its own.

Source: torchtitan 0.2.2 ``torchtitan/config/job_config.py``; 0.3.0 ``config/configs.py``,
``trainer.py``, ``distributed/pipeline_parallel.py`` and ``models/*/config_registry.py``; older
names: its releases 0.0 and 0.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshwright.catalog.models import load_model
from meshwright.catalog.torchtitan_models import MODULES, shipped_config
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.launch import (
    degrees,
    header,
    layers_of_chunks,
    shell_script,
    torchrun_words,
    words_of,
)
from meshwright.frameworks.reading.given import Given, Options, of_tree
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.models import stated_model
from meshwright.frameworks.table import Value, Words
from meshwright.frameworks.torchtitan_models import OWN_CONFIG, OWN_MODULE, own_module
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import OptimizerPreset, Precision
from meshwright.train.answer import Plan

OWN_PATH = 'export PYTHONPATH="$(cd "$(dirname "$0")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"'
"""Setting that lets Python find the module beside the script."""
ALLOW_TF32 = "export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
"""Setting of products in TF32. Source: PyTorch 2.13, ``docs/source/notes/cuda.rst``."""
CHUNKS = 8
"""Parts of the loss of shipped configurations. Source: ``components/loss.py``, ``num_chunks``."""
SCHEDULES = ("1f1b", "gpipe", "interleaved")
"""Schedules that are priced."""


@framework("torchtitan", reads="torchtitan", writes="torchtitan")
class Torchtitan(LaunchFiles):
    """A training job of torchtitan, and a shell script that starts ``torchtitan.train``."""

    catalog = "torchtitan"

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        if (path := given.path("job.config_file")) is not None:
            given.add(of_tree(setting.config_files(path), path))
        given.negated()
        is_registry = self._configured(given)
        given.renamed(self.table.renamed)
        found: Options = self.table.read(given)
        options: Options = {"model": self._model(given, setting)}
        options |= _degrees(given, setting, found)
        options |= _batch(given, found, options)
        return "torchtitan", options | _memory(given, found, is_registry) | _types(
            given, found, is_registry
        )

    def _configured(self, given: Given) -> bool:
        """Add the configuration that 0.3 starts from; return whether there is one.

        It is one of those that are shipped, or a function of a Python file among those read.
        """
        shipped = self.table.recipes
        name, target = given.text("config"), given.value("_target_")
        module = given.text("module")
        if target is not None:
            _built(given, self.table.maps["models"])
        elif name is not None and name in shipped:
            checkpoints = {"activation_checkpoint.selective_ac_option": "op"}
            given.add(of_tree(checkpoints | dict(shipped[name]), f"--config {name}"))
        elif name is not None:
            given.refuse("config", f"{name!r} is not known: give the file that defines it as well",
                         f"or one of {', '.join(shipped)}")  # fmt: skip
        if target is None and name is None and module is not None:
            given.needs("--config", "a module alone names no configuration")
        return "config" in given or str(target).endswith("Trainer.Config")

    def _model(self, given: Given, setting: JobContext) -> ModelSpec | None:
        """Return the model of a table, or of a name and a flavor."""
        if any(name.startswith("MODEL.") for name in given):
            given.value("model.name"), given.value("model.flavor")
            return stated_model(given)
        name, flavor = given.text("model.name"), given.text("model.flavor")
        if name is None and flavor is not None and "_target_" in given:
            given.needs("MODEL", f"{flavor} is a flavor of several models", "name it")
            return None
        models, module = self.table.maps["models"], (name or "llama3").lower()
        if found := models.get(f"{module} {flavor or ''}".lower()):
            return load_model(found)
        if flavor is None:
            given.needs("MODEL", "the file states no model.flavor", "name it")
        elif "model" not in setting.stated:
            known = [one.split()[1] for one in models if one.split()[0] == module]
            message = f"{name} {flavor} is not a model of the catalog"
            given.refuse("model.flavor", message, ", ".join(known))
        return None

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script; the choice of recomputation is a command and stands last."""
        config = shipped_config(plan.model, plan.workload.precision.matmul)
        own = {} if config else {f"{OWN_MODULE}.py": own_module(plan)}
        options = [
            ("--module", OWN_MODULE if own else MODULES[plan.model.architecture]),
            ("--config", config or OWN_CONFIG),
            *options_of(self.table.write(words_of_plan(plan))),
        ]
        recompute = (f"activation-checkpoint:{plan.best.plan_options.recompute}",)
        comments = header(plan, self.table.written, list(_notes(plan)))
        program = [*torchrun_words(plan), "-m torchtitan.train"]
        variables = [OWN_PATH] if own else []
        if plan.workload.precision.matmul == "tf32":
            variables.append(ALLOW_TF32)
        script = shell_script(comments, variables, program, options, [recompute])
        return {"torchtitan.sh": script, **own}


def _degrees(given: Given, setting: JobContext, found: Options) -> Options:
    """Return the degrees and the schedule; the remaining ranks shard."""
    tp, pp, cp = found["tp"], found["pp"], found["cp"]
    replicas, shards = found["replicas"], found["shards"]
    if shards in (None, -1):
        world = setting.world(given, "the ranks that are left over shard the model")
        shards = max(1, (world or tp * pp * cp * replicas) // (tp * pp * cp * replicas))
    if cp > 1 and found["rotates"] == "alltoall":
        given.notes.append("keys and values of cp are priced as gathered, not passed round")
    options: Options = {
        "tp": tp, "pp": pp, "cp": cp, "dp": replicas * shards, "dp_shard": shards,
        "sequence_parallel": found["sequence_parallel"] if tp > 1 else "off",
        **({"context_kind": "gather"} if cp > 1 else {}),
    }  # fmt: skip
    if found["ep"] * found["expert_tp"] > 1:
        options |= {"ep": found["ep"], "etp": found["expert_tp"]}
    drops = found["reshard"] == "always" or (found["reshard"] != "never" and pp == 1)
    options["zero_stage"] = "0" if shards * cp == 1 else "2" if pp > 1 and not drops else "3"
    if options["zero_stage"] == "3" and not drops:
        options["reshard_after_forward"] = "off"
    if shards == 1:
        options["dp_shard"] = options["dp"] if cp == 1 else 1
    fixed = ("false",) if tp > 1 else ("false", "true")
    given.refuse_unless("parallelism.disable_loss_parallel", *fixed,
                        why="logits whole on each rank are not read", fix="false")  # fmt: skip
    if pp > 1:
        options["schedule"] = found["schedule"]
        if found["schedule"] not in SCHEDULES:
            message = f"{found['schedule']} is not read"
            fix = "1F1B, GPipe, Interleaved1F1B"
            given.refuse("parallelism.pipeline_parallel_schedule", message, fix)
    return options


def _batch(given: Given, found: Options, options: Options) -> Options:
    """Return the batch: a pipeline cuts that of a rank, otherwise gradients accumulate."""
    local, whole, length = found["local_batch_size"], found["global_batch"] or 0, found["seq"]
    if tokens := found["tokens_of_rank"]:
        local = max(1, tokens // length)
    of_ranks = local * options["dp"]
    batch = whole if whole > 0 else of_ranks
    answer = {"global_batch": batch, "seq": length, "micro_batch_size": local,
              "steps": found["steps"]}  # fmt: skip
    if options["pp"] > 1:
        parts = found["pipeline_parts"]
        micro = max(1, local // parts) if parts else found["pipeline_micro_batch_size"] or 1
        answer["micro_batch_size"] = micro
        if options["schedule"] == "interleaved":
            model, each = options["model"], found["layers_per_stage"]
            stages = -(-model.num_layers // (each * options["pp"])) if model and each else 2
            answer["num_virtual_stages"] = max(2, stages)
        if whole > 0 and whole != of_ranks:
            given.refuse("training.global_batch_size",
                         f"{whole} is not dp {options['dp']} x local_batch_size {local}: "
                         "pipelines that accumulate are not read",
                         f"local_batch_size {whole // options['dp'] or 1}")  # fmt: skip
    return answer


def _memory(given: Given, found: Options, is_registry: bool) -> Options:
    """Return the recomputation, and the offload to the host."""
    mode = given.word("activation_checkpoint", "activation_checkpoint.mode",
                      among=("none", "selective", "full")) or "selective"  # fmt: skip
    option = given.text("activation_checkpoint.selective_ac_option",
                        "activation_checkpoint.selective_ac_type")  # fmt: skip
    if mode == "selective" and (option or ("op" if is_registry else "2")) != "op":
        name = next((n for n in ("activation_checkpoint.selective_ac_option",
                                 "activation_checkpoint.mode") if n in given), "")  # fmt: skip
        message = f"recomputation of every layer number {option or 2} is not read"
        if name:
            given.refuse(name, message, "selective_ac_option = 'op'")
        else:
            given.needs("--recompute", "by default every second layer is recomputed, which is not "
                        "read", "full, selective or none")  # fmt: skip
    return {"recompute": mode, "offload": found["offload"]}


def _types(given: Given, found: Options, is_registry: bool) -> Options:
    """Return precisions, the optimizer, and the compiled parts."""
    precision = found["used_dtype"]
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
    named = "fsdp-mixed-bf16-reduce" if found["summed_dtype"] == "bf16" else None
    changes: dict[str, float] = {}
    if gathers and precision == "fp8":
        changes["gathered_weight_bytes_per_param"] = 1.0
    if found["kept_dtype"] == "bf16":
        changes |= {"weight_bytes_per_param": 2.0, "gradient_bytes_per_param": 2.0,
                    "state_bytes_per_param": 4.0, "step_traffic_bytes_per_param": 14.0}  # fmt: skip
    optimizer: OptimizerPreset | str | None = named
    if changes:
        preset = load_optimizer(named or "fsdp-mixed")
        optimizer = preset.model_copy(update={"name": f"{preset.name}, as stated", **changes})
    parts = (found["components"] or "model,loss") if found["compiles"] else ""
    software: Options = {"compiled": True} if "model" in parts else {}
    if "loss" in parts:
        software["loss"] = "compiled"
    software["logit_tiles"] = found["logit_tiles"] or (CHUNKS if is_registry else 1)
    if recipe and recipe.startswith("rowwise"):
        precision = Precision.model_validate({"matmul": precision, "row_scales": True})
    return {"precision": precision, "optimizer": optimizer,
            "async_tp": found["async_tp"] and "model" in parts,
            "cuda_graphs": is_registry and found["cuda_graphs"], "software": software}  # fmt: skip


def _built(given: Given, models: Mapping[str, str]) -> None:
    """Put the objects that a Python file builds under the names of options."""
    words = given.value("model_spec._args_", "model._args_") or []
    words = words or [given.value("model_spec.flavor")]
    source = given.text("model_spec._target_", "model._target_") or ""
    if words[0] is not None:
        module = _module(given, source, str(words[0]).lower(), models)
        given.add(of_tree({"model": {"flavor": words[0]} | ({"name": module} if module else {})}))
    for spec in ("model_spec", "model"):
        given.renamed({f"{spec}.converters": "model.converters",
                       f"{spec}.moe_comm_backend": "parallelism.expert_parallel_comm_backend",
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


def _module(given: Given, source: str, flavor: str, models: Mapping[str, str]) -> str | None:
    """Return the module of a flavor: by the import, ``--module``, or the function's name."""
    known = {name.split()[0] for name in models}
    parts = f"{source}.{given.text('module') or ''}".split(".")
    name = given.text("config") or ""
    found = [one for one in known if one in parts or name.startswith(one)]
    found = found or [one for one in known if f"{one} {flavor}" in models]
    return found[0] if len(found) == 1 else None


def _converters(stated: object) -> str:
    """Return the names of the converters of layers, as one text in lower case."""
    parts = stated if isinstance(stated, list) else [stated]
    names = [one.get("_target_", "") if isinstance(one, dict) else one for one in parts if one]
    return ", ".join(map(str, names)).lower().strip("[]")


def words_of_plan(plan: Plan) -> dict[str, Value]:
    """Return the plan in words of torchtitan.

    Without ZeRO every rank of dp is a replica. A pipeline cuts the batch of a rank, otherwise
    gradients accumulate. Configurations of DeepSeek compile their loss alone, so parts are named.
    """
    sizes, plan_options, work = degrees(plan), plan.best.plan_options, plan.workload
    is_split = plan_options.zero_stage > 0
    drops = plan_options.zero_stage == 3 and plan_options.reshard_after_forward
    of_rank = work.global_batch_size // sizes["dp"]
    parts = ["model"] * work.software.compiled + ["loss"] * (work.software.loss == "compiled")
    words = words_of(plan) | {
        "replicas": sizes["dp_replicate"] if is_split else sizes["dp"],
        "shards": sizes["dp_shard"] if is_split else 1,
        "reshard": "always" if drops else "never",
        "local_batch_size": of_rank if sizes["pp"] > 1 else sizes["micro_batch_size"],
        "pipeline_micro_batch_size": sizes["micro_batch_size"],
        "used_dtype": {"tf32": "fp32", "fp8": "bf16"}.get(work.precision.matmul,
                                                          work.precision.matmul),
        "compiles": bool(parts), "components": ",".join(parts) or None,
    }  # fmt: skip
    if sizes["pp"] > 1:
        lengths = layers_of_chunks(plan)
        words["first_less"], words["last_less"] = edge_weights(lengths, plan_options)
        words["layers_per_stage"] = max(lengths) if sizes["num_virtual_stages"] > 1 else None
    return words


def options_of(written: Iterable[tuple[str, Value]]) -> Iterator[Words]:
    """Yield ``--section.name value``; a switch is ``--section.name`` or ``--section.no-name``."""
    for name, value in written:
        section, _, field = name.rpartition(".")
        if isinstance(value, bool):
            yield (f"--{section}.{'' if value else 'no-'}{field}",)
        else:
            yield f"--{name}", f"{value}"


def _notes(plan: Plan) -> Iterator[str]:
    """Yield notes on how torchtitan runs the plan."""
    yield "tokenizer, data, learning rate and steps are those of the configuration"
    if plan.best.plan_options.zero_stage == 2:
        yield "ZeRO 2 is FSDP that keeps the gathered weights from the forward to the backward pass"
    if plan.best.strategy.pp > 1:
        yield PIPELINES


PIPELINES = (
    "pipelines need a PyTorch nightly of 2026-08-01 or later (pip install --pre torch): the "
    "trainer of torchtitan 0.3.0 hands micro-batches over one by one (pytorch/pytorch, pull "
    "request 188500), which PyTorch 2.13 refuses"
)
"""Source: torchtitan 0.3.0 ``trainer.py``, ``pp_forward_backward_step`` (``arg_mbs``); of 2.13
``distributed/pipelining/schedules.py``; landed by 2026-08-01: pytorch/torchtitan, pull request
4042."""


def edge_weights(lengths: Sequence[int], plan_options: PlanOptions) -> tuple[int, int]:
    """Return the layers that the first and the last stage get less, before layers are dealt.

    torchtitan deals layers plus weights evenly, the rest to the first stages. A single short stage
    is the last one, without any weight; of several short stages the first one is one.
    """
    embedding, head = plan_options.embedding_layers, plan_options.head_layers
    is_short = (sum(lengths) + embedding + head) % len(lengths) not in (0, len(lengths) - 1)
    return embedding + is_short, head
