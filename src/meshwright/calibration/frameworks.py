"""What sources leave unstated: one documented default for each framework."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """The settings of a framework where its users do not say otherwise."""

    name: str
    stack: str
    """The name in :class:`~meshwright.spec.workload.SoftwareStack`."""
    optimizer: str
    bf16_optimizer: str
    """The same where training is in bf16."""
    zero_stage: int
    """Without full sharding."""
    sequence_parallel: bool
    """Where tp is used."""
    flash_attention: bool
    recompute: str
    overlaps: bool
    """Data-parallel collectives overlap computation."""
    async_tensor_parallel: bool = False
    compiled: bool = False
    eager: bool = False
    attention_kernels: str = "native"
    """``flash-2`` is native to Ampere alone."""
    selective_recompute: str = "attention"
    fused_gradient_accumulation: bool = True
    sums_whole_bf16_gradients: bool = False
    """Under ZeRO 1, where training is in bf16."""
    overlaps_sends: bool = True
    scatters_sends: bool = False
    cuda_graphs: bool = False
    dropout: bool = False
    reshards: bool = True
    """Full sharding drops gathered weights between forward and backward."""
    fp32_logit_copies: float = 1.0
    fp32_split_logit_copies: float = 1.0
    """The same where tp splits the logits."""
    keeps_cast_inputs: bool = False
    keeps_stage_outputs: bool = False
    counts_runtime: bool = True
    """Stated memory is that of the device; otherwise what the allocator of the framework holds."""
    why: str = ""


MEGATRON_LM = Framework(
    "megatron-lm", "megatron", "megatron-adam-fp16", "megatron-adam", 0, False, False,
    "full", False, dropout=True, overlaps_sends=False, scatters_sends=True,
    why="Megatron-LM of the 2021 and 2022 papers: local data parallelism after the backward pass, "
    "16-bit gradients in fp16 and FP32 ones in bf16, scattered sends, dropout 0.1, fused softmax, "
    "all activations recomputed",
)  # fmt: skip
NEMO = Framework(
    "nemo", "megatron", "megatron-adam-bf16-gradients", "megatron-adam-bf16-gradients", 1, True,
    True, "none", True, async_tensor_parallel=True, keeps_cast_inputs=True,
    why="NeMo and Megatron Bridge performance recipes: distributed optimizer with overlap, "
    "gradients reduced in bf16, sequence parallelism and overlapped tensor parallelism; "
    "Transformer Engine keeps fp8 inputs, fp8 weights in place of bf16 ones",
)  # fmt: skip
DEEPSPEED = Framework(
    "deepspeed", "deepspeed", "deepspeed-adam", "deepspeed-adam", 1, False, False, "none", False,
    fused_gradient_accumulation=False, sums_whole_bf16_gradients=True, scatters_sends=True,
    keeps_stage_outputs=True,
    why="Megatron-DeepSpeed: ZeRO 1 under pipelines, reduced after the backward pass; FP32 "
    "accumulation and sums of whole gradients in bf16, sends in parts of tp; stages keep what "
    "they sent; memory as the driver tells it",
)  # fmt: skip
LLM_FOUNDRY = Framework(
    "llm-foundry", "generic", "fsdp-mixed", "fsdp-mixed", 3, False, True, "none", True,
    eager=True, attention_kernels="portable", fp32_logit_copies=0.0, counts_runtime=False,
    why="llm-foundry with FSDP FULL_SHARD: bf16 parameters and FP32 reductions (mode DEFAULT); "
    "fused cross entropy in place",
)  # fmt: skip
TORCHTITAN = Framework(
    "torchtitan", "torchtitan", "fsdp-mixed", "fsdp-mixed", 3, True, True, "selective", True,
    eager=True, attention_kernels="flash-2", selective_recompute="half_of_products",
    fp32_logit_copies=2.5, fp32_split_logit_copies=3.5, keeps_stage_outputs=True,
    counts_runtime=False,
    why="torchtitan: FSDP2, FP32 reductions, selective checkpoints, sequence parallelism with tp; "
    "plain cross entropy in FP32; memory is the most that the allocator reserved",
)  # fmt: skip
MAXTEXT = Framework(
    "maxtext", "maxtext", "fsdp-mixed-bf16-reduce", "fsdp-mixed-bf16-reduce", 3, True, True,
    "full", True, async_tensor_parallel=True, compiled=True,
    selective_recompute="all_but_products",
    why="MaxText: sharded by XLA, compiled steps, bf16 gradients, flash attention kernels",
)  # fmt: skip
FSDP = Framework(
    "fsdp", "generic", "fsdp-mixed", "fsdp-mixed", 3, True, True, "none", True,
    eager=True, attention_kernels="flash-2", fp32_logit_copies=2.5, fp32_split_logit_copies=3.5,
    counts_runtime=False,
    why="PyTorch FSDP where nothing else is known",
)  # fmt: skip

FRAMEWORKS = {
    profile.name: profile
    for profile in (MEGATRON_LM, NEMO, DEEPSPEED, LLM_FOUNDRY, TORCHTITAN, MAXTEXT, FSDP)
}
