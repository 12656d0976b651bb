"""torchtune: adapters under FSDP2, as overrides of the configuration of a model.

Source: pytorch/torchtune 0.6.1 (2025-04, the last release),
``recipes/lora_finetune_distributed.py`` and ``recipes/configs``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.base.errors import Fault
from meshwright.frameworks.hugging_face import adapters_of
from meshwright.frameworks.launch import (
    degrees,
    header,
    micro_batches,
    plan_launch,
    shell_script,
)
from meshwright.frameworks.refusals import framework_refusals
from meshwright.frameworks.registry import exporters
from meshwright.frameworks.torchtune_models import CONFIGS
from meshwright.sharding.strategy import Offload, Recompute
from meshwright.train.answer import Plan

FILE_NAME = "torchtune.sh"
RECIPE = "lora_finetune_distributed"
OF_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "output_proj"}
OF_NETWORKS = ("gate", "up", "down")


@exporters.register("torchtune")
class TorchtuneOverrides:
    """A shell script for ``tune run``."""

    title = "torchtune 0.6.1"
    is_text = True

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the recipe cannot run."""
        return [*framework_refusals(plan, "accelerate", is_written=False), *_own_refusals(plan)]

    @staticmethod
    def render(plan: Plan) -> dict[str, str]:
        """Return the script."""
        launch = plan_launch(plan)
        notes = (
            "download the model as its configuration says (tune download), and add data, as in",
            f"  {FILE_NAME} checkpointer.checkpoint_dir=FOLDER dataset.source=NAME",
        )
        program = ["tune", "run", f"--nnodes={launch.num_hosts}",
                   f"--nproc-per-node={launch.devices_per_host}"]  # fmt: skip
        if launch.num_hosts > 1:
            program += ["--rdzv-backend=c10d",
                        '--rdzv-endpoint="${HEAD_ADDRESS:?the first host}:29500"']  # fmt: skip
        options = [("--config", CONFIGS[plan.model.name]), *((one,) for one in _overrides(plan))]
        comments = header(plan, TorchtuneOverrides.title, notes)
        return {FILE_NAME: shell_script(comments, (), [*program, RECIPE], options)}


def _own_refusals(plan: Plan) -> Iterator[Fault]:
    work, plan_options, sizes = plan.workload, plan.best.plan_options, degrees(plan)
    adapters = adapters_of(plan)
    if adapters is None:
        yield Fault("workload.optimizer", f"{RECIPE} trains adapters", "--optimizer adapters")
    elif set(adapters.targets) & set(OF_NETWORKS) not in (set(), set(OF_NETWORKS)):
        message = "networks have adapters on all of their products, or on none"
        yield Fault("workload.adapters.targets", message, "--lora-targets mlp+...")
    if plan.model.name not in CONFIGS:
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


def _overrides(plan: Plan) -> Iterator[str]:
    """Yield ``field=value`` of all that the plan states."""
    work, plan_options = plan.workload, plan.best.plan_options
    adapters = adapters_of(plan)
    assert adapters is not None
    modules = [OF_ATTENTION[target] for target in adapters.targets if target in OF_ATTENTION]
    yield f"model.lora_attn_modules=[{','.join(modules)}]"
    yield f"model.apply_lora_to_mlp={'up' in adapters.targets}"
    yield "model.apply_lora_to_output=False"
    yield f"model.lora_rank={adapters.rank}"
    yield f"model.lora_alpha={2 * adapters.rank}"
    yield f"batch_size={degrees(plan)['micro_batch_size']}"
    yield f"gradient_accumulation_steps={micro_batches(plan)}"
    yield f"tokenizer.max_seq_len={work.sequence_length}"
    yield "dataset.packed=True"
    yield f"dtype={work.precision.matmul}"
    yield f"enable_activation_checkpointing={plan_options.recompute is Recompute.FULL}"
    yield "enable_activation_offloading=False"
    yield f"fsdp_reshard_after_forward={plan_options.reshard_after_forward}"
    yield f"fsdp_cpu_offload={plan_options.offload is Offload.STATE}"
    yield f"compile={work.software.compiled}"
    yield "loss._component_=torch.nn.CrossEntropyLoss"
