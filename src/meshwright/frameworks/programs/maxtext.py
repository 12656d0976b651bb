"""MaxText: its YAML file and ``key=value`` options, written as a command for each host.

Degrees are divided into those within a slice (``ici``) and those over slices (``dcn``), innermost
axes first. A slice is a pod of TPUs, or the devices of one scale-up domain of GPUs.

Source: AI-Hypercomputer/maxtext 0.2.5 ``src/maxtext/configs/base.yml``, ``configs/types.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import gcd, prod

from meshwright.base.errors import SpecError
from meshwright.catalog.maxtext_models import BLOCKS, MODELS, config_of_keys, model_keys
from meshwright.catalog.models import read_config
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.launch import (
    degrees,
    header,
    layers_of_chunks,
    micro_batches,
    plan_launch,
    shell_script,
    words_of,
)
from meshwright.frameworks.reading.given import Given, Options, of_tree
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Devices
from meshwright.frameworks.reading.models import catalog_twin, known_model
from meshwright.frameworks.table import Value, assigned
from meshwright.graph.recompute import LAYER_INPUT, TENSORS
from meshwright.spec.model import ModelSpec
from meshwright.train.answer import Plan

AXES = {
    "data": "dp_replicate", "fsdp": "dp_shard", "fsdp_transpose": "dp_shard", "tensor": "tp",
    "tensor_transpose": "tp", "tensor_sequence": "tp", "sequence": "cp", "context": "cp",
    "pipeline": "pp", "expert": "ep",
}  # fmt: skip
"""Axis of this program for each axis of its mesh; experts borrow ranks of data parallelism."""
REMAT = {
    "minimal_with_context": "none", "minimal": "selective", "full": "full", "none": "full",
    "minimal_flash": "none", "minimal_with_quantization": "selective",
    "minimal_with_context_and_quantization": "none", "custom": "full",
}  # fmt: skip
"""Policies of recomputation, except those that keep single tensors; the first of each is written.

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
FILE_NAME = "maxtext.sh"
PROGRAM = "maxtext.trainers.pre_train.train"
INNERMOST = ("expert", "tensor", "context", "fsdp", "pipeline", "data")
"""Axes that are written, innermost first."""


@framework("maxtext", reads="maxtext", writes="maxtext")
class MaxText(LaunchFiles):
    """A training job of MaxText, and a shell script that starts it on one host."""

    catalog = "maxtext"

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
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
        found: Options = self.table.read(given)
        options = _degrees(given, setting, found)
        options |= _batch(given, setting, found, options)
        options |= _types(given, found)
        if "model" not in setting.stated:
            options["model"] = _model(given)
        else:
            for key in ("model_name", *_DIMS):
                given.value(key)
        return "maxtext", options

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script."""
        notes = (
            "start on each host; add what a plan does not hold (data, learning rate), as in",
            f"  {FILE_NAME} run_name=first base_output_directory=out dataset_type=synthetic",
        )
        written = [*self.table.write(_words(plan)), *_mesh(plan).items(), *_policy(plan).items()]
        own = [(f"{key}={value}",) for key, value in model_keys(plan.model).items()]
        options = [*own, *assigned(written)]
        comments = header(plan, self.table.written, notes)
        program = ["python3", "-m", PROGRAM]
        return {FILE_NAME: shell_script(comments, _variables(plan), program, options)}


def _devices(given: Given, setting: JobContext) -> None:
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


def _degrees(given: Given, setting: JobContext, stated: Options) -> Options:
    """Return degrees: each axis inside of a slice times that between slices."""
    sizes: dict[str, int] = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "dp_shard": 1, "dp_replicate": 1}
    rest: list[str] = []
    for where in ("ici", "dcn"):
        for axis, ours in AXES.items():
            name = f"{where}_{axis}_parallelism"
            default = -1 if (where, axis) in (("ici", "fsdp"), ("dcn", "data")) else 1
            size = given.whole(name, least=-1)
            size = default if size is None else size
            if size == 0:
                given.refuse(name, "found 0", "a degree, or -1 for the devices that are left")
                size = 1
            if size == -1:
                rest.append(ours)
            else:
                sizes[ours] *= size
    if rest and (world := setting.world(given, "an axis of -1 takes the devices that are left")):
        sizes[rest[0]] *= max(1, world // prod(sizes.values()))
    ep = sizes.pop("ep")
    shards = sizes.pop("dp_shard") * ep  # experts share the ranks of fsdp: weights besides them too
    replicas = sizes.pop("dp_replicate")
    found: Options = dict(sizes) | {"dp": shards * replicas, "dp_shard": shards}
    if ep > 1:
        found |= {"ep": ep, "etp": 1}
    is_sharded = shards > 1 or sizes["cp"] > 1  # weights lie on the ranks of context as well
    found["zero_stage"] = "3" if is_sharded else "0"
    if not is_sharded:
        found["dp_shard"] = found["dp"]
    if sizes["cp"] > 1 and stated["context_strategy"] not in (None, "ring"):
        given.notes.append("keys and values of cp are priced as passed round, not gathered")
    if sizes["pp"] > 1:
        found["schedule"] = "gpipe"
        if (repeats := stated["pipeline_repeats"]) and repeats > 1:
            message = f"{repeats} rounds of a pipeline are not read"
            given.refuse("num_pipeline_repeats", message, "1")
    return found


def _batch(given: Given, setting: JobContext, stated: Options, options: Options) -> Options:
    """Return the batch: that of a device times devices, with accumulation."""
    each, again = stated["device_batch"], stated["accumulation"]
    found: Options = {"seq": stated["seq"], "steps": stated["steps"]}
    world = setting.world(given, "the batch of a step is that of a device times devices")
    if not world:
        _pipeline_parts(given, stated["pipeline_parts"], options, 0)
        return found
    whole = round(each * world * again)
    micro = each * world / options["dp"]
    if micro < 1 or micro != int(micro):
        message = f"{each:g} a device are {micro:g} sequences on each of dp {options['dp']}"
        given.refuse("per_device_batch_size", message, "a whole number")
    parts = _pipeline_parts(given, stated["pipeline_parts"], options, micro)
    if again > 1 and parts > 1:
        given.notes.append("accumulated batches are priced as one pass through the pipeline")
    found |= {"global_batch": whole, "micro_batch_size": max(1, int(micro) // parts)}
    return found


def _pipeline_parts(given: Given, count: int | None, options: Options, sequences: float) -> int:
    """Return the micro-batches into which a pipeline cuts the sequences of a rank; 1 without one.

    0 sequences: their number is not known yet.

    Source: MaxText 0.2.5 ``pyconfig.py``: the number of stages, twice that where activations are
    forwarded late; a multiple of the stages that divides the batch.
    """
    late = given.flag("pipeline_delay_activation_forwarding")
    name, stages = "num_pipeline_microbatches", options.get("pp") or 1
    if stages == 1:
        return 1
    count = count if count and count > 0 else stages * (1 + late)
    if count % stages:
        nearest = -(-count // stages) * stages
        given.refuse(name, f"{count} are not a multiple of {stages} stages", f"{nearest}")
    elif sequences and sequences % count:
        allowed = [n for n in range(stages, int(sequences) + 1, stages) if sequences % n == 0]
        fix = f"{min(allowed, key=lambda n: abs(n - count))}" if allowed else ""
        at = name if name in given else "per_device_batch_size"
        given.refuse(at, f"{sequences:g} sequences of a rank are not {count} micro-batches", fix)
    return count


def _types(given: Given, stated: Options) -> Options:
    """Return precisions, recomputation, and offload to the host.

    Products of FP32 numbers are in TF32 by default: JAX 0.10, ``docs/201/precision.md``.
    """
    precision = stated["dtype"]
    if precision == "fp32":
        wide = stated["wide_precision"] or "default"
        precision = "tf32" if wide == "default" else wide
        if wide == "default":
            given.notes.append("products of FP32 are priced in TF32; TPUs round them to bf16")
    given.word("grad_dtype", among=("float32", "bfloat16"))
    if quantized := stated["quantization"]:
        precision = "int8" if quantized == "int8" else "fp8"
    optimizer = given.word("opt_type", among=("adamw", "adam_pax", "sgd"))
    if optimizer != "sgd":
        optimizer = "adam-bf16" if stated["weight_dtype"] == "bf16" else None
    tiles = stated["logit_tiles"]
    return {"precision": precision, **_recomputation(given), "offload": stated["offload"],
            "optimizer": optimizer, "dropout": bool(given.real("dropout_rate")),
            "software": {"logit_tiles": tiles} if tiles > 1 else {}}  # fmt: skip


def _recomputation(given: Given) -> Options:
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


def _model(given: Given) -> ModelSpec | None:
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
        "model_name", f"{name!r} is not a model of the catalog", "name the model beside the file"
    )
    return None


_DIMS = frozenset(
    ["decoder_block", "base_moe_mlp_dim"]
    + [key for block in BLOCKS.values() for key in (*block.names, *block.keys)]
)


def _stated_model(given: Given, dims: list[str]) -> ModelSpec | None:
    """Return the model of the catalog with these dims, or a model of them."""
    words = {key: given.text(key) or "" for key in dims}
    values: Options = {key: _value(word) for key, word in words.items()}
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


def _variables(plan: Plan) -> Iterator[str]:
    """Yield the address of the first host; hosts of TPUs find each other."""
    if plan_launch(plan).num_hosts > 1 and plan.system.chip.vendor != "Google":
        yield 'export JAX_COORDINATOR_IP="${HEAD_ADDRESS:?the first host}"'
        yield f"export JAX_COORDINATOR_PORT=29500 NNODES={plan_launch(plan).num_hosts}"
        yield 'export NODE_RANK="${NODE_RANK:?the number of this host}"'


def axis_degrees(plan: Plan) -> dict[str, int]:
    """Return the degree of each axis of MaxText's mesh: experts take a part of the data axes."""
    sizes, is_sharded = degrees(plan), plan.best.plan_options.zero_stage > 0
    shards = sizes["dp_shard"] if is_sharded else 1
    copies = sizes["dp_replicate"] if is_sharded else sizes["dp"]
    shards, copies = (shards // sizes["ep"], copies) if is_sharded else (1, copies // sizes["ep"])
    return {
        "expert": sizes["ep"], "tensor": sizes["tp"], "context": sizes["cp"], "fsdp": shards,
        "pipeline": sizes["pp"], "data": copies,
    }  # fmt: skip


def _words(plan: Plan) -> dict[str, Value]:
    """Return the plan in words of MaxText.

    Gradients accumulate, or a pipeline cuts the batch of a device. By default products are in bf16
    on TPUs.
    """
    sizes, work, used = degrees(plan), plan.workload, int(plan.best.strategy.num_devices)
    is_tpu, vendor = plan.system.chip.vendor == "Google", plan.system.chip.vendor
    precision, count = work.precision.matmul, micro_batches(plan)
    is_wide = precision in ("fp32", "tf32")
    words = words_of(plan) | {
        "hardware": "tpu" if is_tpu else "gpu",
        "attention": "flash" if is_tpu else "cudnn_flash_te",
        "device_batch": float(Fraction(sizes["micro_batch_size"] * sizes["dp"], used)),
        "context_strategy": "ring",
        "weight_dtype": "bf16" if work.optimizer.name == "adam-bf16" else None,
        "dtype": "fp32" if is_wide else "bf16",
        "wide_precision": precision if is_wide else None,
        "quantization": precision if precision in ("fp8", "int8") else None,
    }
    if vendor == "AMD" and precision == "fp8":
        words["quantization"] = "nanoo_fp8"
    if sizes["pp"] > 1:
        words |= {
            "accumulation": None, "device_batch": float(Fraction(work.global_batch_size, used)),
            "pipeline_parts": count, "layers_per_stage": layers_of_chunks(plan)[0],
            "pipeline_repeats": sizes["num_virtual_stages"], "scans_layers": False,
        }  # fmt: skip
    return words


def _policy(plan: Plan) -> dict[str, str]:
    """Return the recomputation, with the place of each tensor where the plan names some."""
    plan_options = plan.best.plan_options
    if plan_options.stored_tensors:
        places = dict.fromkeys(plan_options.kept_tensors, "device")
        places |= dict.fromkeys(plan_options.offloaded_tensors, "offload")
        halves = {"mlpwi": ("mlpwi", "mlpwi_0", "mlpwi_1")}
        keys = {key: place for name, place in places.items() for key in halves.get(name, (name,))}
        return {"remat_policy": "custom", **keys}
    known = (policy for policy, kept in REMAT.items() if kept == plan_options.recompute)
    return {"remat_policy": next(known)}


def _mesh(plan: Plan) -> dict[str, int]:
    """Return the degrees within a slice, then those over slices."""
    used, inside, outside = int(plan.best.strategy.num_devices), {}, {}
    is_pod = plan.system.chip.vendor == "Google" or not plan.system.levels
    room = used if is_pod else min(used, plan.system.levels[0].size)
    sizes = axis_degrees(plan)
    for axis in INNERMOST:
        inside[f"ici_{axis}_parallelism"] = within = gcd(sizes[axis], room)
        outside[f"dcn_{axis}_parallelism"] = sizes[axis] // within
        room //= within
    return {**inside, **outside}
