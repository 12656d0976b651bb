"""Megatron Bridge: overrides of a recipe, as a script for torchrun.

Megatron-LM's arguments as fields of ``ConfigContainer``: most are those of the model under the same
name. The recipe ``vanilla_gpt_pretrain_config`` sets nothing by itself; it has no latent attention,
so models with latent attention take the recipe of their name.

Adapters are those of ``CanonicalLoRA``: one for each projection, where queries, keys and values are
one product.

Source: megatron-bridge 0.6.2, ``training/config.py``, ``training/mixed_precision.py``,
``recipes/gpt``, ``peft/canonical_lora.py``; ``scripts/training/run_recipe.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.catalog.megatron_models import VANILLA, bridge_recipe
from meshwright.catalog.recipes import recipes
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.hugging_face import adapters_of
from meshwright.frameworks.launch import (
    degrees,
    header,
    shell_script,
    torchrun_words,
)
from meshwright.frameworks.programs.megatron import (
    arguments,
    variables,
)
from meshwright.frameworks.table import Words, load_table
from meshwright.sharding.strategy import Offload
from meshwright.train.answer import Plan
from meshwright.train.writing import has_short_gradients

FILE_NAME = "megatron_bridge.sh"
CHOICES = ("recompute_granularity", "recompute_method", "recompute_num_layers", "mtp_num_layers",
           "pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size")  # fmt: skip
"""Fields of recipes that are turned off by having no value."""
BFLOAT16 = "{_call_:false,_target_:torch.bfloat16}"


@framework("megatron_bridge", writes="megatron-bridge")
class BridgeOverrides(LaunchFiles):
    """A shell script that starts ``run_recipe.py``."""

    catalog = "megatron-bridge"

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script."""
        notes = (
            "run_recipe.py is scripts/training/run_recipe.py of Megatron Bridge;",
            "add what a plan does not hold (data, tokenizer, learning rate), as in",
            f"  {FILE_NAME} optimizer.lr=1e-4 model.rotary_base=500000 train.train_iters=50",
        )
        frozen = "name the frozen weights: checkpoint.pretrained_checkpoint=FOLDER"
        own = () if adapters_of(plan) is None else (frozen,)
        comments = header(plan, self.table.written, (*notes, *own))
        program = [*torchrun_words(plan), "run_recipe.py"]
        recipe = bridge_recipe(plan.model)
        options: list[Words] = [("--recipe", recipe)]
        stated = list(_overrides(plan))
        options += [(override,) for override in (*stated, *_turned_off(recipe, stated))]
        return {FILE_NAME: shell_script(comments, variables(plan), program, options)}


def _overrides(plan: Plan) -> Iterator[str]:
    """Yield ``field=value`` of every argument of Megatron-LM, then the fields without one."""
    of_model = bridge_recipe(plan.model) == VANILLA
    maps = load_table("megatron_bridge").maps
    architecture = {row.name for row in load_table("megatron").model_rows}
    for name, *values in arguments(plan):
        name = name.removeprefix("--").replace("-", "_")
        if of_model or name not in architecture:
            yield from _fields(name, ",".join(values) or "true")
    sizes, plan_options = degrees(plan), plan.best.plan_options
    if sizes["num_virtual_stages"] > 1:
        yield f"model.virtual_pipeline_model_parallel_size={sizes['num_virtual_stages']}"
    if plan_options.offload is Offload.ACTIVATIONS:
        yield "model.cpu_offloading=true"
        yield "model.cpu_offloading_weights=false"
        yield f"model.cpu_offloading_num_layers={plan.model.num_layers - 1}"
    yield f"mixed_precision={_precision(plan)}"
    if (adapters := adapters_of(plan)) is not None:
        modules = ",".join(maps["adapted"][target] for target in adapters.targets)
        kind = "megatron.bridge.peft.canonical_lora.CanonicalLoRA"
        yield f"peft={{_target_:{kind},target_modules:[{modules}],dim:{adapters.rank}}}"


def _turned_off(recipe: str, stated: Sequence[str]) -> Iterator[str]:
    """Yield an override of everything that the recipe turns on and the plan does not have."""
    fields = {override.partition("=")[0] for override in stated}
    for key, value in recipes("megatron_bridge").get(recipe, {}).items():
        for field in _fields_of(key):
            if (value is True or key in CHOICES) and field not in fields:
                yield f"{field}={'false' if value is True else 'null'}"


def _fields_of(name: str) -> list[str]:
    """Return the fields of an argument."""
    return load_table("megatron_bridge").maps["fields"].get(name, f"model.{name}").split()


def _fields(name: str, value: str) -> list[str]:
    """Return an argument as overrides."""
    if settled := load_table("megatron_bridge").maps["settled"].get(name):
        return settled.split()
    return [f"{field}={_value(name, value)}" for field in _fields_of(name)]


def _value(name: str, value: str) -> str:
    """Return a value in the grammar of Hydra: lists in brackets, odd words in quotes."""
    if name == "pipeline_model_parallel_layout":
        return f'"{value}"'
    if name in ("recompute_modules", "window_size"):
        return f"[{value}]"
    if name == "moe_layer_freq":
        runs = (run.split("*") for run in value.strip("()").split("+"))
        return f"[{','.join(','.join([one.strip('[]')] * int(count)) for one, count in runs)}]"
    return value


def _precision(plan: Plan) -> str:
    """Return a recipe of precision by name; written out where gradients are summed in bf16."""
    maps, precision = load_table("megatron_bridge").maps, plan.workload.precision.matmul
    if precision in ("fp32", "tf32", "fp16") or not has_short_gradients(plan.workload):
        return maps["precisions"][precision]
    return (
        "{_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,bf16:true,"
        f"{maps['narrow'].get(precision, '')}params_dtype:{BFLOAT16},pipeline_dtype:{BFLOAT16},"
        "autocast_enabled:false,grad_reduce_in_fp32:false}"
    )
