"""Trainers of Hugging Face, with accelerate and DeepSpeed: arguments, YAML and JSON in one job.

A job of these has up to three parts: the arguments of the trainer (``TrainingArguments``, TRL and
scripts like it), the file of ``accelerate launch``, and the JSON of DeepSpeed. Each may stand
alone: missing options are then stated beside it.

Source: transformers 5.23 ``training_args.py``; accelerate 1.15 ``utils/dataclasses.py``; DeepSpeed
0.19.8 ``runtime/config.py`` and ``runtime/zero/config.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.hugging_face import EACH_BATCH
from meshwright.frameworks.reading.adapters import adapter_options
from meshwright.frameworks.reading.given import Given, Options, Statement, of_tree
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Devices
from meshwright.frameworks.reading.models import known_model
from meshwright.frameworks.table import load_table
from meshwright.spec.model import ModelSpec

NAMES = ("model_name_or_path", "model_name", "base_model", "model_id",
         "pretrained_model_name_or_path",
         "model_path", "model", "pretrain")  # fmt: skip
AT = "parallelism_config.parallelism_config_"
SHARDING = {"FULL_SHARD": "3", "SHARD_GRAD_OP": "2", "NO_SHARD": "0", "HYBRID_SHARD": "3",
            "HYBRID_SHARD_ZERO2": "2", "1": "3", "2": "2", "3": "0", "4": "3",
"5": "2"}  # fmt: skip
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adam", "adamw",
              "fusedadam", "cpuadam", "deepspeedcpuadam", "sgd", "adafactor", "adamw_8bit",
              "adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw",
              "adamw_torch_8bit", "lamb", "fusedlamb")  # fmt: skip


@framework("transformers", reads="transformers")
class Transformers(LaunchFiles):
    """A training job of Hugging Face's Trainer, under accelerate or DeepSpeed."""

    is_general = True

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        gather(given, setting)
        return read_gathered(given, setting)


def read_gathered(given: Given, setting: JobContext) -> tuple[str, Options]:
    """Return the framework, and options of this program, of all files of a job together."""
    stated: Options = load_table("transformers").read(given)
    options = _engine(given, setting, stated)
    framework = options.pop("framework")
    options |= _types(given, setting, stated, options)
    each = given.flag(f"accelerator_config.gradient_accumulation_kwargs.{EACH_BATCH}")
    if framework == "accelerate" and options["zero_stage"] == "3" and not each:
        options["software"]["sums_in_last_pass"] = True
    options |= _batch(given, setting, stated, options)
    options["optimizer"] = _optimizer(given, framework)
    options["weights"] = _stored_weights(given, options["optimizer"] == "adapters")
    if options["optimizer"] == "adapters":  # ModelConfig of TRL, and the usual targets of PEFT
        options |= adapter_options(
            given, ("lora_r", "lora_rank"), ("lora_target_modules", "lora_target"),
            usual_rank=16, usual_targets="q_proj v_proj",
            is_on_all=given.flag("lora_target_linear"),
        )  # fmt: skip
    if "model" not in setting.stated:
        options["model"] = _model(given)
    else:
        given.text(*NAMES)
    used = "bf16" if given.peek("ds.bf16.enabled") in (True, "true") else "fp16"
    given.refuse_unless("ds.communication_data_type", used, why="messages of another type are not "
                        "read", fix=used)  # fmt: skip
    return framework, options


def gather(given: Given, setting: JobContext) -> None:
    """Put the files that the options name beside them, those of DeepSpeed under ``ds.``."""
    given.put_under("ds", {"zero_optimization", "train_micro_batch_size_per_gpu"})
    if "train_batch_size" in given and given.statement("train_batch_size").place:
        given.put_under("ds", {"train_batch_size"})
    words = given.value("(word)") or []
    paths = [str(word) for word in words if str(word).endswith((".yaml", ".yml", ".json"))]
    if isinstance(given.peek("config"), str):
        paths.append(str(given.path("config")))
    for named in paths:
        given.add(of_tree(setting.config_files(named), named))
    given.renamed(
        {
            "tensor_parallel_size": f"{AT}tp_size",
            "dp_shard_size": f"{AT}dp_shard_size",
            "dp_replicate_size": f"{AT}dp_replicate_size",
            "context_parallel_size": f"{AT}cp_size",
            "fsdp_version": "fsdp_config.version",
        }
    )
    launch = setting.launch
    for name, value in (launch.variables if launch else {}).items():
        if name.startswith("PARALLELISM_CONFIG_"):
            field = name.removeprefix("PARALLELISM_CONFIG_").lower()
            option = f"parallelism_config.parallelism_config_{field}"
            given.add(Given([Statement(option, value, name)]))
    if launch is not None and launch.launcher == "accelerate":
        own = Given(launch.launcher_options)
        for name in ("mixed_precision", "num_processes", "num_machines", "use_deepspeed",
                     "use_fsdp",
                     "deepspeed_config_file", "zero_stage",
            "gradient_accumulation_steps"):  # fmt: skip
            if name in own:
                given.add(Given([own.statement(name)]))
        for name in list(own):
            if name.startswith("fsdp_"):
                given.add(Given([own.statement(name, f"fsdp_config.{name}")]))
        if (path := own.path("config_file")) is not None:
            given.add(of_tree(setting.config_files(path), path))
    for name in ("deepspeed", "deepspeed_config", "deepspeed_config_file",
                 "deepspeed_config.deepspeed_config_file"):  # fmt: skip
        found = given.value(name) if name in given else None
        if isinstance(found, str) and found:
            tree = json.loads(found) if found.startswith("{") else setting.config_files(found)
            other = of_tree(tree, found)
            other.put_under("ds")
            given.add(other)
    for name in ("fsdp_config", "accelerator_config"):
        if isinstance(path := given.peek(name), str):
            given.text(name)
            tree = json.loads(path) if path.startswith("{") else setting.config_files(path)
            given.add(of_tree({name: tree}, path))


def _engine(given: Given, setting: JobContext, stated: Options) -> Options:
    """Return the framework, its ZeRO stage, degrees and offload to the host."""
    kind = (stated["distributed_type"] or "").upper()
    launch = setting.launch
    has_deepspeed = any(name.startswith("ds.") for name in given) or kind == "DEEPSPEED"
    has_deepspeed |= launch is not None and (launch.launcher == "deepspeed" or "deepspeed" in given)
    has_fsdp = (
        kind == "FSDP"
        or bool(given.peek("fsdp"))
        or any(name.startswith("fsdp_config.") for name in given)
    )
    total, hosts = stated["num_devices"], stated["num_hosts"]
    if total is not None:
        setting.num_devices = setting.num_devices or total
        setting.devices = Devices(num_hosts=hosts, total=total, chip=setting.devices.chip)
    if kind == "MEGATRON_LM":
        given.refuse("distributed_type", "MEGATRON_LM is not read here",
                     "the arguments of Megatron-LM")  # fmt: skip
    if has_deepspeed:
        return _deepspeed(given, stated, usual_stage="2" if kind == "DEEPSPEED" else "0")
    found: Options = {"framework": "accelerate", "zero_stage": "0"}
    if has_fsdp:
        found |= _fsdp(given, setting, stated)
    return found | _parallelism(given, stated, has_fsdp)


def _deepspeed(given: Given, stated: Options, usual_stage: str) -> Options:
    """Return the ZeRO stage, degrees and offload of the file of DeepSpeed.

    Leaf modules, which are gathered as one, and presets of layer names change no price.

    Source: DeepSpeed 0.19 ``runtime/zero/config.py``, ``runtime/tensor_parallel/config.py``,
    ``runtime/zero/mics.py``; transformers 5.23 makes weights under ``zero.Init`` alone.
    """
    at = "ds.zero_optimization."
    stage = given.text(f"{at}stage", "deepspeed_config.zero_stage", "zero_stage")
    if stage not in (None, "auto", "0", "1", "2", "3"):
        given.refuse(f"{at}stage", f"found {stage!r}", "0 to 3")
    stage = usual_stage if stage in (None, "auto") else stage
    on_host = set()
    for what in ("optimizer", "param"):
        device = given.text(f"{at}offload_{what}.device",
                            f"deepspeed_config.offload_{what}_device") or "none"  # fmt: skip
        if device == "nvme":
            name = f"{at}offload_{what}.device"
            given.refuse(name, "state on NVMe is not read", "cpu")
        elif device != "none":
            on_host.add(what)
    if given.flag(f"{at}cpu_offload"):
        on_host.add("optimizer")
    offload = None
    if on_host:  # from ZeRO 2 on gradients are summed where the optimizer is
        offload = "gradients" if stage in ("2", "3") else "optimizer"
        offload = {"param": "weights"}.get("".join(on_host), offload)
        offload = "state" if len(on_host) > 1 else offload
    if stated["offload_ratio"] not in (None, 1.0):
        given.refuse(f"{at}offload_optimizer.ratio", "a part of it is not read", "1.0")
    overlap = given.value(f"{at}overlap_comm")
    overlaps = stage == "3" if overlap in (None, "auto") else given.flag(f"{at}overlap_comm")
    given.refuse_unless(f"{at}mics_shard_size", "-1", "0", why="replicas of shards are not read: "
                        "the Trainer shards over all ranks", fix="-1")  # fmt: skip
    given.refuse_unless(f"{AT}cp_size", "1", why="ring attention under DeepSpeed is not read",
                        fix="FSDP")  # fmt: skip
    of_fsdp = ("*reshard_after_forward", "*offload_params", "*activation_checkpointing",
               "*sharding_strategy", "cpu_offload")  # fmt: skip
    given.refuse_each((*(f"fsdp_config.{name}" for name in of_fsdp), f"{AT}dp_*_size",
                       f"{AT}tp_size"), "is of FSDP, but DeepSpeed shards this job",
                      "one of both", ("1",))  # fmt: skip
    sp = "parallelism_config.parallelism_config_sp"
    ulysses = given.whole("ds.sequence_parallel_size", f"{sp}_size") or 1
    found: Options = {
        "framework": "deepspeed", "zero_stage": stage, "offload": offload, "cp": ulysses,
        "tp": stated["split_layers"] or 1,
        "overlap_data_parallel": "on" if overlaps else "off",
    }  # fmt: skip
    if stated["dp"] is not None:
        found["dp"] = stated["dp"]
    if ulysses > 1:
        found["context_kind"] = "ulysses"
    return found


def _fsdp(given: Given, setting: JobContext, stated: Options) -> Options:
    """Return the options in the words of ``--fsdp`` and the fields of ``fsdp_config``."""
    words = (given.text("fsdp") or "").replace(",", " ").split()
    at = "fsdp_config."
    strategy, reshard = stated["sharding_strategy"], stated["reshard"]
    stage = "3"
    inside: Options = {}
    if strategy is not None:
        if strategy.upper() not in SHARDING:
            given.refuse(f"{at}fsdp_sharding_strategy", f"found {strategy!r}", ", ".join(SHARDING))
        stage = SHARDING.get(strategy.upper(), "3")
        is_hybrid = "HYBRID" in strategy.upper() or strategy in ("4", "5")
        if is_hybrid and (hosts := setting.devices.num_hosts) and (total := setting.num_devices):
            inside = {"dp": total, "dp_shard": max(1, total // hosts)}
        elif is_hybrid:
            given.refuse(f"{at}fsdp_sharding_strategy", "shards inside of each host are not read "
                         "from here", "state --dp-shard beside FULL_SHARD")  # fmt: skip
    for word in words:
        if word in ("full_shard", "shard_grad_op", "no_shard"):
            stage = SHARDING[word.upper()]
        elif word.startswith("hybrid_shard"):
            given.refuse("fsdp", f"{word}: shards inside of each host are not read from here",
                         "state --dp-shard beside full_shard")  # fmt: skip
        elif word not in ("auto_wrap", "offload"):
            given.refuse("fsdp", f"{word} is not known", "full_shard, shard_grad_op, auto_wrap")
    drops = True
    if reshard is not None and stage == "3":
        if reshard.upper() in SHARDING:
            stage = SHARDING[reshard.upper()]
        elif reshard.lower() == "false":
            drops = False
        elif reshard.lower() != "true":
            given.refuse(f"{at}fsdp_reshard_after_forward", f"found {reshard!r}", "true or false")
    if stage == "2":  # gathered weights are kept until the backward pass of each micro-batch
        stage, drops = "3", False
    found: Options = {"zero_stage": stage} | inside
    if not drops:
        found["reshard_after_forward"] = "off"
    if stated["offloads_params"] or "offload" in words:
        found["offload"] = "state"
    if stated["fsdp_recomputes"]:
        found["recompute"] = "full"
    return found


def _parallelism(given: Given, stated: Options, has_fsdp: bool) -> Options:
    """Return the degrees of ``parallelism_config``."""
    found: Options = {"tp": stated["tp"], "cp": stated["cp"]}
    given.refuse_unless("parallelism_config.parallelism_config_sp_size", "1", why="is not read",
                        fix="1")  # fmt: skip
    shards, replicas = stated["dp_shard"], stated["dp_replicate"]
    if shards or replicas or found["tp"] * found["cp"] > 1:  # their product is the processes
        found |= {"dp": (shards or 1) * (replicas or 1), "dp_shard": shards or 1}
        if shards and shards > 1 and not has_fsdp:
            found["zero_stage"] = "3"
    return found


def _types(given: Given, setting: JobContext, stated: Options, options: Options) -> Options:
    """Return precisions, recomputation, and the compiled parts."""
    mixed = stated["mixed"]
    is_on = {
        kind: any([mixed == kind, given.is_on(kind), given.is_on(f"ds.{kind}.enabled")])
        for kind in ("bf16", "fp16")
    }
    found: Options = {
        "precision": "fp8" if mixed == "fp8" else "bf16" if is_on["bf16"] else
        "fp16" if is_on["fp16"] else "fp32",
    }  # fmt: skip
    is_stated = any(given.peek(kind) not in (None, "auto") for kind in (*is_on, "tf32"))
    if not any([mixed, is_stated, *is_on.values()]) and setting.launch is None:
        given.needs("--precision", "the files leave the type of the numbers open", "bf16")
        found["precision"] = None
    whole = given.text("torch_dtype", "dtype", "model_dtype")
    if found["precision"] == "fp32" and whole in ("bfloat16", "float16", "bf16"):
        found["precision"] = "fp16" if whole == "float16" else "bf16"
    if given.flag("tf32") and found["precision"] == "fp32":  # leaves products of 16 bits alone
        found["precision"] = "tf32"
    found["recompute"] = "full" if stated["recomputes"] else options.get("recompute", "none")
    dynamo = (given.text("dynamo_config.dynamo_backend") or "NO").upper()
    software: Options = {}
    if stated["compiled"] or dynamo not in ("NO", "NONE"):
        software["compiled"] = True
    if loss := _loss(given):
        software["loss"] = loss
    attention = given.text("attn_implementation", "flash_attn") or "sdpa"
    if attention == "eager":
        software["flash_attention"] = False
    if given.flag("use_flash_attn", "use_flash_attention_2", "flash_attention"):
        software["flash_attention"] = True
    return found | {"software": software}


LIGER = ("use_liger_kernel", "use_liger", "enable_liger_kernel")
"""Switches of Liger kernels, which fuse the last product with its loss by default."""


def _loss(given: Given) -> str:
    """Return the kernel of the loss, as ``SoftwareStack`` names it; empty: that of the framework.

    Source: liger-kernel 0.6 ``transformers/monkey_patch.py``; axolotl 0.13 ``integrations/liger``,
    a plugin that does nothing without its switches, and ``monkeypatch/unsloth_.py``.
    """

    def is_on(*names: str) -> bool:
        values = [given.flag(name) for name in names if name in given]  # each of them is read
        return True in values

    at = "liger_kernel_config."
    fuses = given.flag(f"{at}fused_linear_cross_entropy", default=True)
    alone = given.flag(f"{at}cross_entropy")
    has_liger = is_on(*LIGER)
    if given.flag("liger_fused_linear_cross_entropy") or (has_liger and fuses):
        return "linear"
    is_fused = is_on("liger_cross_entropy", "unsloth_cross_entropy_loss")
    if is_fused or (has_liger and alone):
        return "compiled"
    return ""


def _batch(given: Given, setting: JobContext, stated: Options, options: Options) -> Options:
    """Return the batch: that of a device x accumulation x the devices that hold data."""
    each, again = stated["micro_batch_size"], stated["accumulation"]
    whole, length = stated["global_batch"], stated["seq"]
    _agree(given, each, again)
    split = (options.get("tp") or 1) * (options.get("cp") or 1)
    _multiply(given, whole, each, again, setting.num_devices and setting.num_devices // split)
    found: Options = {"micro_batch_size": each}
    if whole is None or each is None:
        if each is None and whole is None:
            each = found["micro_batch_size"] = 8 if setting.launch is not None else None
        world = setting.num_devices
        is_known = "global_batch" in setting.stated
        if each is not None and not is_known:
            world = setting.world(given, "the batch of a step is that of a device times devices")
        if each is not None and world is not None:
            whole = each * (again or 1) * max(1, world // split)
    found["global_batch"] = whole
    if each is None and whole is not None and setting.num_devices:
        found["micro_batch_size"] = max(1, whole // (setting.num_devices // split) // (again or 1))
    found |= {"seq": length, "steps": stated["steps"]}
    packing = given.flag("packing", "sample_packing", "neat_packing", "packing_samples")
    if length and not packing:
        given.notes.append(f"every sequence is priced as long as the longest: {length} tokens")
    elif packing:
        given.notes.append(
            "a packed sequence attends as one; --with document_length=N says otherwise"
        )
    return found


def _agree(given: Given, each: int | None, again: int | None) -> None:
    """Refuse values in the file of DeepSpeed that contradict the options of the trainer.

    Source: huggingface/transformers 5.23 ``integrations/deepspeed.py``,
    ``HfTrainerDeepSpeedConfig.trainer_config_finalize``.
    """
    for name, used in (("train_micro_batch_size_per_gpu", each),
                       ("gradient_accumulation_steps", again)):  # fmt: skip
        stated = given.whole(f"ds.{name}")
        if stated is not None and used is not None and stated != used:
            given.refuse(f"ds.{name}", f"{stated}, but the options of the trainer state {used}",
                         f"{used} or auto")  # fmt: skip


def _multiply(
    given: Given, whole: int | None, each: int | None, again: int | None, ranks: int | None
) -> None:
    """Refuse a batch that is not that of a device x accumulation x the devices that hold data.

    Source: deepspeedai/DeepSpeed 0.19 ``runtime/config.py``, ``_batch_assertion``.
    """
    if whole is None or (each is None and again is None) or not (ranks or (each and again)):
        return
    name = "ds.train_batch_size" if "ds.train_batch_size" in given else "train_batch_size"
    unit = (each or 1) * (again or 1) * (ranks or 1)
    parts = [f"{word} {number}" for word, number in (
        ("micro-batch", each), ("accumulation", again), ("ranks", ranks)) if number]  # fmt: skip
    is_open = not (each and again and ranks)
    if whole == unit or (is_open and whole % unit == 0):
        return
    relation = "no multiple of" if is_open else "not"
    given.refuse(name, f"{whole} is {relation} {' x '.join(parts)} = {unit}", f"{unit}, or auto")


def _optimizer(given: Given, framework: str) -> str | None:
    """Return the optimizer, by the bytes that it keeps for each parameter."""
    adapts = given.flag("use_peft", "use_lora", "lora")
    tuned = given.word("finetuning_type", "adapter", among=("full", "lora", "qlora"))
    adapts |= tuned in ("lora", "qlora")
    if adapts:  # whose state is the same to a price, whatever updates it
        given.text("optim", "optimizer"), given.text("ds.optimizer.type")
        given.value("ds.data_types.grad_accum_dtype")
        return "adapters"
    name = given.word("optim", "optimizer", among=OPTIMIZERS)
    own = given.word("ds.optimizer.type", among=OPTIMIZERS)
    kind = (own or name or "adamw").lower()
    if kind == "adafactor":
        return "adafactor"
    if kind == "sgd":
        return "sgd"
    if "8bit" in kind:
        return "deepspeed-adam-8bit" if framework == "deepspeed" else "fsdp-adam-8bit"
    # DeepSpeed 0.19 runtime/config.py: the type in which gradients are summed
    summed = given.word("ds.data_types.grad_accum_dtype", among=("fp32", "fp16", "bf16"))
    return "deepspeed-adam-fp32-gradients" if summed == "fp32" else None


def _stored_weights(given: Given, is_frozen: bool) -> str | None:
    """Return the format in which bitsandbytes keeps frozen weights; None: as the model has them."""
    narrow = [name for name in ("load_in_4bit", "load_in_8bit", "use_qlora") if given.flag(name)]
    kind = given.word("bnb_4bit_quant_type", among=("nf4", "fp4"))
    is_double = given.flag("use_bnb_nested_quant", "bnb_4bit_use_double_quant")
    if not narrow:
        return None
    if not is_frozen or "use_qlora" in narrow:
        fix = "16-bit weights" if not is_frozen else "load_in_4bit"
        given.refuse(narrow[0], "quantized weights under training are not read", fix)
    if kind == "fp4":
        given.refuse("bnb_4bit_quant_type", "fp4 is not read", "nf4")
    if "load_in_8bit" in narrow:
        return "bnb-int8"
    return "nf4-double" if is_double else "nf4"


def _model(given: Given) -> ModelSpec | str | None:
    name = given.text(*NAMES)
    if name is None:
        given.needs("MODEL", "no model follows from the files", "name it")
        return None
    if (model := known_model(name)) is None and not Path(name).exists():
        option = next(one for one in NAMES if one in given)
        given.refuse(
            option, f"{name!r} is not a model of the catalog", "name the model beside the file"
        )
    return model
