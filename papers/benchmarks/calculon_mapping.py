"""The peer's points as questions for our own model, under the peer's assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from meshwright.catalog.systems import load_chip
from meshwright.cost.problem import Problem
from meshwright.serve.passes import ServingProblem
from meshwright.sharding.strategy import (
    AXES,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    make_strategy,
)
from meshwright.spec.calibration import Calibration
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec
from meshwright.spec.system import ChipSpec, DType, HostLink, MemoryLevel, NetworkLevel, SystemSpec
from meshwright.spec.workload import (
    OptimizerPreset,
    Precision,
    Prefill,
    SoftwareStack,
    Training,
)
from meshwright_papers.calculon.machine import (
    BYTES_PER_ELEMENT,
    Application,
    MemoryTier,
    System,
    application_named,
    system_named,
)

GIVEN = """
Given: the peer's peak rates, bandwidths, latencies and capacities, at the top step of its
efficiency tables; its network tiers, each axis on the tier that the plan names; FP16 or FP8 for
everything, no flash attention, all scores computed, dropout; no launch cost, jitter, margin or
library buffers; the bytes that it keeps and sends for each parameter. Ours: embedding, learned
positions, final norm and logits over a vocabulary of 51,200; whole tiles on the cores of the real
chip (108 of an A100, 132 of an H100; the peer states none), collectives, pipeline, memory, rules.
Inference is our prefill.
""".strip()

VOCABULARY = 51_200
"""Padded vocabulary of the Megatron papers; the peer has no embedding at all."""
CHIP_OF_SYSTEM = {"a100_80g": "A100", "a100_80e": "A100", "h100_80g_nvl8": "H100"}
"""Whose cores and tiles are meant: the peer does not state any."""
DTYPES: dict[str, DType] = {"float16": "fp16", "bfloat16": "bf16", "float8": "fp8"}
RECOMPUTES = {"none": Recompute.NONE, "attn_only": Recompute.SELECTIVE, "full": Recompute.FULL}
AXIS_OF_TIER_FIELD = {"tensor_par": "tp", "pipeline_par": "pp", "data_par": "dp_shard"}
STATE_BYTES = 12.0
"""Master copy and two moments in FP32."""

Execution = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """One point as our model takes it."""

    problem: Problem | ServingProblem
    strategy: Strategy
    plan_options: PlanOptions


def question_of(model: str, system: str, execution: Execution) -> Question:
    """Return a point of the peer as a problem, a strategy and a set of plan options of ours."""
    peer = system_named(system)
    spec = model_of(application_named(model), model, execution["attention_type"])
    target = system_of(peer, system, execution)
    constants = calibration_of(peer, execution)
    strategy = make_strategy(
        tp=execution["tensor_par"],
        pp=execution["pipeline_par"],
        dp_shard=execution["data_par"],
        num_virtual_stages=execution["pipeline_interleaving"],
        micro_batch_size=execution["microbatch_size"],
    )
    work = workload_of(execution, application_named(model).sequence_size)
    kind = Problem if isinstance(work, Training) else ServingProblem
    problem = kind(spec, target, work, constants)  # type: ignore[arg-type]
    return Question(problem, strategy, option_set_of(execution))


def model_of(application: Application, name: str, attention: str) -> ModelSpec:
    """Return a plain GPT with the blocks of an application: biases, learned positions, tied."""
    layer = LayerSpec(
        attention=AttentionSpec(
            num_heads=application.num_heads,
            num_kv_heads=1 if attention == "multiquery" else application.num_heads,
            head_size=application.head_size,
            value_head_size=application.head_size,
            qkv_bias=True,
            output_bias=True,
        ),
        feed_forward=FeedForwardSpec(ffn_size=application.feedforward_size, gated=False, bias=True),
    )
    return ModelSpec(
        name=name,
        architecture="GPTModel",
        hidden_size=application.hidden_size,
        vocab_size=VOCABULARY,
        layer_kinds=(layer,),
        layer_pattern=(0,) * application.num_blocks,
        norm="layer",
        learned_positions=application.sequence_size,
        tied_embeddings=True,
    )


def system_of(peer: System, name: str, execution: Execution) -> SystemSpec:
    """Return the processors of a plan; a level holds exactly the axes that the plan puts on it."""
    inner = prod(execution[axis] for axis in AXIS_OF_TIER_FIELD if execution[f"{axis}_net"] == 0)
    sizes = (inner, execution["num_procs"] // inner)
    levels = tuple(
        NetworkLevel(
            name=f"tier {index}",
            size=size,
            bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s,
            latency_s=tier.latency_s,
        )
        for index, (size, tier) in enumerate(zip(sizes, peer.networks, strict=True))
        if size > 1
    )
    host = HostLink(
        capacity_bytes=peer.host_memory.capacity_bytes,
        bandwidth_bytes_per_s=peer.host_memory.bandwidth_bytes_per_s * top(peer.host_memory),
    )
    chip = chip_of(peer, name)
    return SystemSpec(
        name=name, chip=chip, num_devices=execution["num_procs"], levels=levels, host=host
    )


def chip_of(peer: System, name: str) -> ChipSpec:
    """Return the chip of the peer's tables, with the cores and tiles of the real one."""
    real = load_chip(CHIP_OF_SYSTEM[name])
    memory = peer.memory
    return ChipSpec(
        name=name,
        vendor=real.vendor,
        family=real.family,
        matmul_flops_per_s={DTYPES[t]: e.peak_flops_per_s for t, e in peer.matrix.items()},
        memories=(
            MemoryLevel(
                name="near memory",
                capacity_bytes=memory.capacity_bytes,
                bandwidth_bytes_per_s=memory.bandwidth_bytes_per_s,
            ),
        ),
        num_cores=real.num_cores,
        tile_rows=real.tile_rows,
        tile_columns=real.tile_columns,
    )


def top(tier: MemoryTier) -> float:
    """Return the efficiency of large accesses."""
    return tier.steps[0].efficiency


def calibration_of(peer: System, execution: Execution) -> Calibration:
    """Return the peer's constants: top steps, tier efficiencies, and nothing else.

    Where no axis lies on its inner tier, our innermost level is its outer tier.
    """
    matrix = peer.matrix[execution["datatype"]].steps[0].efficiency
    inner, outer = (tier.efficiency for tier in peer.networks)
    uses_inner = any(
        execution[f"{axis}_net"] == 0 and execution[axis] > 1 for axis in AXIS_OF_TIER_FIELD
    )
    return Calibration(
        matmul_efficiency=matrix,
        matmul_sustained_efficiency=1.0,
        narrow_matmul_efficiency=1.0,
        portable_attention_efficiency=1.0,
        grouped_matmul_efficiency=1.0,
        expert_kernels=0.0,
        expert_traffic_factor=1.0,
        eager_traffic_factor=1.0,
        attention_forward_efficiency=matrix,
        attention_backward_efficiency=matrix,
        memory_efficiency=top(peer.memory),
        elementwise_efficiency=top(peer.memory),
        fast_network_efficiency=inner if uses_inner else outer,
        slow_network_efficiency=outer,
        overlap_slowdown=peer.networks[execution["data_par_net"]].processor_usage,
        launch_s=0.0,
        operator_s=0.0,
        collective_launch_s=0.0,
        jitter=0.0,
        memory_margin_fraction=0.0,
        allocator_factor=1.0,
        communication_buffer_bytes=0.0,
        communicator_bytes=0.0,
        checkpoint_s=0.0,
        restart_s=0.0,
        mtbf_device_hours=1e9,
        family="calculon",
    )


def workload_of(execution: Execution, sequence_size: int) -> Training | Prefill:
    """Return a training step, or one forward pass over the batch."""
    dtype, word = DTYPES[execution["datatype"]], BYTES_PER_ELEMENT[execution["datatype"]]
    precision = Precision(matmul=dtype, activation=dtype, kv_cache=dtype, weight=dtype)
    tiled = execution["tensor_par_overlap"] != "none"
    software = SoftwareStack(flash_attention=False, dropout=True, async_tensor_parallel=tiled)
    if not execution["training"]:
        inference = software.model_copy(update={"dropout": False})
        return Prefill(
            batch_size=execution["batch_size"],
            prompt_length=sequence_size,
            precision=precision,
            software=inference,
        )
    preset = OptimizerPreset(
        name="calculon",
        weight_bytes_per_param=word,
        gradient_bytes_per_param=word,
        state_bytes_per_param=STATE_BYTES,
        gathered_weight_bytes_per_param=word,
        reduced_gradient_bytes_per_param=word,
        step_traffic_bytes_per_param=2 * STATE_BYTES + 2 * word,
    )
    return Training(
        global_batch_size=execution["batch_size"],
        sequence_length=sequence_size,
        precision=precision,
        optimizer=preset,
        software=software,
        causal=False,
    )


def option_set_of(execution: Execution) -> PlanOptions:
    """Return the categorical choices of a plan; axes on the inner tier come first."""
    tiers = {AXIS_OF_TIER_FIELD[axis]: execution[f"{axis}_net"] for axis in AXIS_OF_TIER_FIELD}
    interleaves = execution["pipeline_interleaving"] > 1
    return PlanOptions(
        sequence_parallel=execution["tensor_par_comm_type"] == "rs_ag",
        zero_stage=int(execution["optimizer_sharding"]),
        recompute=RECOMPUTES[execution["activation_recompute"]],
        schedule=ScheduleKind.INTERLEAVED if interleaves else ScheduleKind.ONE_F_ONE_B,
        overlap_data_parallel=execution["data_par_overlap"],
        overlap_tensor_parallel=execution["tensor_par_overlap"] != "none",
        offload=_offload_of(execution),
        axis_order=tuple(sorted(AXES, key=lambda axis: (tiers.get(axis, 0), AXES.index(axis)))),
    )


def _offload_of(execution: Execution) -> Offload:
    """Return what goes to the host; the points have all of it or nothing."""
    parts = [execution[f"{name}_offload"] for name in ("weight", "activations", "optimizer")]
    if any(parts) != all(parts):
        raise ValueError("a point offloads some but not all; our plan options name one or all")
    return Offload.ALL if all(parts) else Offload.NONE
