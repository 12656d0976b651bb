"""torchtune: recipes with adapters or without; adapters under FSDP2 are written.

Source: pytorch/torchtune 0.6.1 (2025-04, the last release), ``recipes/*_finetune_*.py`` and
``recipes/configs``; ``torchtune/models/*/_model_builders.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.base.errors import Fault
from meshwright.base.files import TREES
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.hugging_face import adapters_of
from meshwright.frameworks.launch import (
    degrees,
    header,
    host_words,
    shell_script,
    words_of,
)
from meshwright.frameworks.reading.adapters import adapter_options
from meshwright.frameworks.reading.given import Given, Options, of_tree
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.models import known_model
from meshwright.frameworks.refusals import framework_refusals
from meshwright.spec.workload import OptimizerPreset
from meshwright.train.answer import Plan

RECIPE = "lora_finetune_distributed"
OF_NETWORKS = {"gate", "up", "down"}


@framework("torchtune", reads="torchtune", writes="torchtune")
class Torchtune(LaunchFiles):
    """A recipe of torchtune, and a shell script for ``tune run``."""

    def configs(self) -> dict[str, str]:
        """Return the configuration of each model of the catalog that the recipe has."""
        return {
            f"{family}-{size}": f"{family.replace('.', '_')}/{size.upper()}_lora"
            for family, sizes in self.table.maps["sizes"].items() for size in sizes.split()
        }  # fmt: skip

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        config = given.text("config") or ""
        if config.endswith(TREES):
            given.add(of_tree(setting.config_files(config), config))
        elif config:
            for name in ("batch_size", "gradient_accumulation_steps"):
                if name not in given:
                    given.refuse("config", f"the {name} of {config} is not known",
                                 f"tune cp {config} FILE.yaml, and give the file")  # fmt: skip
        options: Options = self.table.read(given)
        component = given.text("model._component_") or ""
        model = self._model(config, component)
        world = setting.world(given, "the batch of a step is that of a device times devices")
        alone = "single_device" in (setting.launch.program if setting.launch else config)
        each, again = options["micro_batch_size"], options.pop("accumulation")
        options |= {
            "model": None if "model" in setting.stated else model,
            "global_batch": each * again * (1 if alone else world) if each and world else None,
            "zero_stage": "0" if alone else "3",
            "software": {"compiled": True} if options.pop("compiled") else {},
        }
        if "Chunked" in (given.text("loss._component_") or ""):
            given.notes.append("a loss in parts is priced as a whole one")
        if given.flag("dataset.packed"):
            given.notes.append(
                "a packed sequence attends as one; --with document_length=N says otherwise"
            )
        on_networks = options.pop("has_network_adapters")
        if "lora" not in component + config and "model.lora_rank" not in given:
            options["optimizer"] = _optimizer(given, options["precision"], model)
            return "accelerate", options
        options["optimizer"] = "adapters"
        if given.flag("model.quantize_base", default="qlora" in f"{component} {config}"):
            options["weights"] = "nf4-double"
            given.notes.append("NF4 of torchao has the bytes of that of bitsandbytes, and its rate")
        found = adapter_options(
            given, ("model.lora_rank",), ("model.lora_attn_modules",), usual_rank=8,
            usual_targets="q_proj v_proj output_proj",
        )  # fmt: skip
        if on_networks:
            found["lora_targets"] = "+".join(filter(None, (found["lora_targets"], "mlp")))
        return "accelerate", options | found

    def _model(self, config: str, component: str) -> str | None:
        """Return the model of the catalog that a configuration or a builder makes."""
        known = self.configs() | dict(self.table.maps["read"])
        stem = config.removesuffix("_single_device")
        stem = stem.replace("_qlora", "_lora").replace("_full", "_lora")
        builder = component.rpartition(".")[2].removeprefix("qlora_").removeprefix("lora_")
        builder = builder.removesuffix("_base").removesuffix("_instruct")
        builder = builder.replace("code_llama2", "codellama")
        by_name = {model.replace(".", "_").replace("-", "_"): model for model in known}
        by_config = {name: model for model, name in known.items()}
        return by_config.get(stem) or by_name.get(builder)

    def refusals(self, plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the recipe cannot run."""
        return [
            *framework_refusals(plan, "accelerate", is_written=False),
            *_own_refusals(plan, plan.model.name in self.configs()),
        ]

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script."""
        adapters = adapters_of(plan)
        assert adapters is not None
        names = self.table.maps["attention"]
        modules = [names[target] for target in adapters.targets if target in names]
        words = words_of(plan) | {
            "attention_modules": f"[{','.join(modules)}]",
            "has_network_adapters": "up" in adapters.targets,
            "lora_rank": adapters.rank, "lora_alpha": 2 * adapters.rank,
        }  # fmt: skip
        notes = (
            "download the model as its configuration says (tune download), and add data, as in",
            "  torchtune.sh checkpointer.checkpoint_dir=FOLDER dataset.source=NAME",
        )
        fields = [(f"{name}={value}",) for name, value in self.table.write(words)]
        options = [("--config", self.configs()[plan.model.name]), *fields]
        program = ["tune", "run", *host_words(plan), RECIPE]
        script = shell_script(header(plan, self.table.written, notes), (), program, options)
        return {"torchtune.sh": script}


def _own_refusals(plan: Plan, has_config: bool) -> Iterator[Fault]:
    work, plan_options, sizes = plan.workload, plan.best.plan_options, degrees(plan)
    adapters = adapters_of(plan)
    if adapters is None:
        yield Fault("workload.optimizer", f"{RECIPE} trains adapters", "--optimizer adapters")
    elif set(adapters.targets) & OF_NETWORKS not in (set(), OF_NETWORKS):
        message = "networks have adapters on all of their products, or on none"
        yield Fault("workload.adapters.targets", message, "--lora-targets mlp+...")
    if not has_config:
        message = f"has no configuration of {plan.model.name}"
        yield Fault("model", message, "plan with --framework accelerate")
    if work.precision.matmul not in ("bf16", "fp32"):
        yield Fault("workload.precision.matmul", f"{work.precision.matmul} is not read", "bf16")
    if work.precision.weight_format is not None:
        message = "its NF4 is that of torchao, not of bitsandbytes"
        yield Fault("workload.precision.weight_format", message, "plan without --weights")
    if plan_options.zero_stage != 3 or sizes["tp"] * sizes["cp"] * sizes["dp_replicate"] > 1:
        message = f"{RECIPE} shards over all devices by FSDP2, and splits nothing else"
        yield Fault("strategy", message, "zero_stage=3, tp=1, cp=1, dp_shard=dp")


def _optimizer(given: Given, precision: str | None, model: str | None) -> OptimizerPreset | str:
    """Return the bytes that the optimizer keeps for each parameter, all in the type of training.

    An update inside of the backward pass leaves the gradients of one layer alive.

    Source: torchtune 0.6.1, ``training/memory.py``, ``create_optim_in_bwd_wrapper``; bitsandbytes
    0.50, ``optim/adamw.py`` (a scale of FP32 for each block of 256 numbers).
    """
    preset = load_optimizer("adam-bf16" if precision == "bf16" else "adam-fp32")
    name = (given.text("optimizer._component_") or "torch.optim.AdamW").rpartition(".")[2]
    word, changes = preset.weight_bytes_per_param, Options()
    state = None
    if name in ("AdamW8bit", "Adam8bit", "PagedAdamW8bit", "PagedAdam8bit"):
        state = 2.0 * (1.0 + 4.0 / 256.0)
    elif name == "SGD":
        state = word if given.real("optimizer.momentum") else 0.0
    elif name not in ("AdamW", "Adam", "PagedAdamW", "PagedAdam"):
        given.refuse("optimizer._component_", f"{name} is not read", "torch.optim.AdamW")
    if state is not None:
        changes["state_bytes_per_param"] = state
        changes["step_traffic_bytes_per_param"] = 3.0 * word + 2.0 * state
    layers = getattr(known_model(model or ""), "num_layers", None)
    if given.flag("optimizer_in_bwd") and layers:
        changes["gradient_bytes_per_param"] = word / layers
    if not changes:
        return preset.name
    return preset.model_copy(update={"name": f"{name} of torchtune", **changes})
