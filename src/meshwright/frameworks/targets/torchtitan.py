"""torchtitan: the options of its trainer, as a script for torchrun, and the models that it ships.

Source: torchtitan 0.3.0, ``torchtitan/config/configs.py``, ``trainer.py``,
``distributed/pipeline_parallel.py``, ``torchtitan/models/*/config_registry.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.base.errors import Fault
from meshwright.catalog.torchtitan_models import MODULES, shipped_config
from meshwright.frameworks.launch import (
    Words,
    degrees,
    header,
    layers_of_chunks,
    plan_launch,
    shell_script,
    torchrun_words,
)
from meshwright.frameworks.refusals import framework_refusals
from meshwright.frameworks.registry import exporters
from meshwright.frameworks.torchtitan_models import OWN_CONFIG, OWN_MODULE, own_module
from meshwright.sharding.strategy import Offload, PlanOptions, ScheduleKind
from meshwright.train.answer import Plan

FILE_NAME = "torchtitan.sh"
SCHEDULES = {
    ScheduleKind.GPIPE: "GPipe",
    ScheduleKind.ONE_F_ONE_B: "1F1B",
    ScheduleKind.INTERLEAVED: "Interleaved1F1B",
}
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp8": "bfloat16"}
OWN_PATH = 'export PYTHONPATH="$(cd "$(dirname "$0")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"'
"""Setting that lets Python find the module beside the script."""
ALLOW_TF32 = "export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
"""Setting of products in TF32. Source: PyTorch 2.13, ``docs/source/notes/cuda.rst``."""


@exporters.register("torchtitan")
class TorchtitanOptions:
    """A shell script that starts ``torchtitan.train``."""

    title = "torchtitan 0.3.0"
    is_text = True

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the options cannot express."""
        return framework_refusals(plan, "torchtitan")

    @staticmethod
    def render(plan: Plan) -> dict[str, str]:
        """Return the script; the choice of recomputation is a command and stands last."""
        config = shipped_config(plan.model, plan.workload.precision.matmul)
        own = {} if config else {f"{OWN_MODULE}.py": own_module(plan)}
        options = [
            ("--module", OWN_MODULE if own else MODULES[plan.model.architecture]),
            ("--config", config or OWN_CONFIG),
            *_parallel_options(plan),
            *_pipeline_options(plan),
            *_training_options(plan),
            *_compile_options(plan),
        ]
        recompute = (f"activation-checkpoint:{plan.best.plan_options.recompute}",)
        comments = header(plan, TorchtitanOptions.title, list(_notes(plan)))
        program = [*torchrun_words(plan_launch(plan)), "-m torchtitan.train"]
        variables = [OWN_PATH] if own else []
        if plan.workload.precision.matmul == "tf32":
            variables.append(ALLOW_TF32)
        script = shell_script(comments, variables, program, options, [recompute])
        return {FILE_NAME: script, **own}


def data_degrees(plan: Plan) -> tuple[int, int]:
    """Return replicas and shards: without ZeRO every rank of dp is a replica."""
    sizes = degrees(plan)
    if plan.best.plan_options.zero_stage == 0:
        return sizes["dp"], 1
    return sizes["dp_replicate"], sizes["dp_shard"]


def _notes(plan: Plan) -> Iterator[str]:
    """Yield notes on how torchtitan runs the plan."""
    yield "tokenizer, data, learning rate and steps are those of the configuration"
    if plan.best.plan_options.zero_stage == 2:
        yield "ZeRO 2 is FSDP that keeps the gathered weights from the forward to the backward pass"


def _parallel_options(plan: Plan) -> Iterator[Words]:
    sizes, plan_options = degrees(plan), plan.best.plan_options
    replicas, shards = data_degrees(plan)
    drops = plan_options.zero_stage == 3 and plan_options.reshard_after_forward
    yield "--parallelism.data_parallel_replicate_degree", f"{replicas}"
    yield "--parallelism.data_parallel_shard_degree", f"{shards}"
    yield "--parallelism.fsdp_reshard_after_forward", "always" if drops else "never"
    yield "--parallelism.tensor_parallel_degree", f"{sizes['tp']}"
    if sizes["tp"] > 1:
        prefix = "" if plan_options.sequence_parallel else "no-"
        yield (f"--parallelism.{prefix}enable_sequence_parallel",)
    yield "--parallelism.context_parallel_degree", f"{sizes['cp']}"
    yield "--parallelism.expert_parallel_degree", f"{sizes['ep']}"


def _pipeline_options(plan: Plan) -> Iterator[Words]:
    sizes = degrees(plan)
    yield "--parallelism.pipeline_parallel_degree", f"{sizes['pp']}"
    if sizes["pp"] == 1:
        return
    lengths = layers_of_chunks(plan)
    schedule = SCHEDULES[plan.best.plan_options.schedule]
    yield "--parallelism.pipeline_parallel_schedule", schedule
    yield "--parallelism.pipeline_parallel_microbatch_size", f"{sizes['micro_batch_size']}"
    first, last = edge_weights(lengths, plan.best.plan_options)
    yield "--parallelism.pipeline_parallel_first_stage_less_layers", f"{first}"
    yield "--parallelism.pipeline_parallel_last_stage_less_layers", f"{last}"
    if sizes["num_virtual_stages"] > 1:
        yield "--parallelism.pipeline_parallel_layers_per_stage", f"{max(lengths)}"


def edge_weights(lengths: Sequence[int], plan_options: PlanOptions) -> tuple[int, int]:
    """Return the layers that the first and the last stage get less, before layers are dealt.

    torchtitan deals layers plus weights evenly, the rest to the first stages. A single short stage
    is the last one, without any weight; of several short stages the first one is one.
    """
    embedding, head = plan_options.embedding_layers, plan_options.head_layers
    is_short = (sum(lengths) + embedding + head) % len(lengths) not in (0, len(lengths) - 1)
    return embedding + is_short, head


def _training_options(plan: Plan) -> Iterator[Words]:
    """Yield the batch: a pipeline cuts that of a rank, otherwise gradients accumulate."""
    sizes, work = degrees(plan), plan.workload
    of_rank = work.global_batch_size // sizes["dp"]
    local = of_rank if sizes["pp"] > 1 else sizes["micro_batch_size"]
    yield "--training.local_batch_size", f"{local}"
    yield "--training.global_batch_size", f"{work.global_batch_size}"
    yield "--training.seq_len", f"{work.sequence_length}"
    if work.total_tokens is not None:
        yield "--training.steps", f"{-(-work.total_tokens // work.tokens_per_step):.0f}"
    if plan.best.plan_options.offload is Offload.STATE:
        yield ("--training.enable_cpu_offload",)
    yield "--training.mixed_precision_param", DTYPES[work.precision.matmul]
    if not work.software.cuda_graphs:
        yield ("--training.disable_cuda_graphs",)


def _compile_options(plan: Plan) -> Iterator[Words]:
    """Yield the compile options: configurations of DeepSeek compile their loss alone."""
    software = plan.workload.software
    parts = ["model"] * software.compiled + ["loss"] * (software.loss == "compiled")
    overlaps = plan.best.plan_options.overlap_tensor_parallel and degrees(plan)["tp"] > 1
    yield (f"--compile.{'' if parts else 'no-'}enable",)
    if parts:
        yield "--compile.components", ",".join(parts)
    yield (f"--compile.{'' if overlaps else 'no-'}enable_async_tensor_parallel",)
