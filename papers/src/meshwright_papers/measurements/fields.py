"""Rows as sources state them: typed fields after their words are read, before they are a question.

A field that a source does not state is None. ``source_words`` reads words into these fields,
``source_questions`` makes the question of a row of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from meshwright.sharding.strategy import Offload, Recompute
from meshwright.spec.system import DType
from meshwright.spec.workload import MOST_DEFERRED

ADAPTERS = "finetune-lora"
"""The task that trains adapters on frozen weights."""
"""Rows of all sources, and public training configurations."""
SHARED = ("source", "model", "hardware", "parallelism", "software", "precision", "definition",
          "reasons", "notes")  # fmt: skip
"""Parts that rows of a table name by index."""
_UNSTATED = ("", "null", "none stated", "unknown")


def _stated(value: Any) -> Any:
    """Return a value, or None where words say that it is not stated; whole floats are whole."""
    if isinstance(value, str) and value.strip().lower() in _UNSTATED:
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_text(value: Any) -> Any:
    """Return a number in the place of a text as that text."""
    return str(value) if isinstance(value, int | float) else value


_MAYBE = BeforeValidator(_stated)
_MOST_COUNT, _LEAST_AMOUNT, _MOST_AMOUNT = 10**12, 1e-12, 1e24
"""Largest count, least and largest amount (time, rate or size) of a job."""
Flag = Annotated[Annotated[bool, Strict()] | None, _MAYBE]
Count = Annotated[Annotated[int, Strict(), Field(ge=1, le=_MOST_COUNT)] | None, _MAYBE]
CountOrZero = Annotated[Annotated[int, Strict(), Field(ge=0, le=_MOST_COUNT)] | None, _MAYBE]
Amount = Annotated[
    Annotated[
        float, Strict(), Field(gt=_LEAST_AMOUNT, le=_MOST_AMOUNT, allow_inf_nan=False)
    ] | None, _MAYBE
]  # fmt: skip
Name = Annotated[str, BeforeValidator(_as_text)]
Text = Annotated[str | None, BeforeValidator(_as_text)]


class Fields(BaseModel):
    """Some fields of a row; fields without an effect on the price are skipped."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Source(Fields):
    """Source of a figure."""

    title: Text = None
    repo: Text = None
    path: Text = None
    commit: Text = None
    url: Text = None


class ModelFields(Fields):
    """Dims of the model; ``seq`` in tokens, ``params_b`` in billions."""

    name: Text = None
    catalog_name: Text = None
    """Name of the public model in the catalog; None: the model is built from the dims."""
    params_b: Amount = None
    layers: Count = None
    hidden: Count = None
    ffn: Count = None
    ffn_gated: Flag = None
    heads: Count = None
    kv_heads: Count = None
    head_dim: Count = None
    vocab: Count = None
    seq: Count = None
    n_experts: CountOrZero = None
    topk: CountOrZero = None
    moe_ffn: Count = None
    shared_experts: CountOrZero = None
    first_dense_layers: CountOrZero = None
    position: Text = None
    attention: Text = None
    """MHA, GQA, MQA, or MLA; no other field states the ranks of MLA."""


class HardwareFields(Fields):
    """Chips and the network that the source states; rates are of one direction."""

    chip: Text = None
    """Name of a chip of the catalog; other names are refused when the row is priced."""
    chips: Count = None
    chips_per_node: Count = None
    slices: Count = None
    """TPU slices joined by the data-centre network."""
    nvlink_domain: Count = None
    """Chips of one NVLink domain: 72 for NVL72."""
    nvlinks_per_chip: Count = None
    inter_node_gbit_per_chip: Amount = None
    """Rate between nodes of each chip [Gb/s]."""
    inter_node_gbit_per_node: Amount = None
    """Rate between nodes of a whole node, where the source states it so [Gb/s]."""
    rail_optimized: Flag = None
    """Whether each chip has its own switch; None: as in the standard system of the chip."""


class ParallelismFields(Fields):
    """Degrees and choices of the plan."""

    tp: Count = None
    sp: Flag = None
    pp: Count = None
    vpp: Count = None
    dp: Count = None
    dp_shard: Count = None
    """Ranks over which state is sharded; None: all, or those of one slice."""
    fsdp: Flag = None
    zero_stage: CountOrZero = None
    cp: Count = None
    ep: Count = None
    etp: Count = None
    dp_attention: Flag = None
    """Serving: tp ranks are dp replicas of attention, which share one set of experts."""
    embedding_layers: CountOrZero = None
    """Layers that the embedding counts as when layers are dealt over a pipeline."""
    head_layers: CountOrZero = None


class SoftwareFields(Fields):
    """Software of a row, as far as the source states it."""

    compile: Flag = None
    async_tp: Flag = None
    packed_sequences: Flag = None
    compiled_loss: Flag = None
    """Whether the cross entropy is compiled: that of PyTorch then holds one FP32 copy of the
    logits; one that is otherwise computed in place holds one more."""
    bf16_reductions: Flag = None
    """Whether full sharding reduces gradients in bf16."""
    separate_accumulation: Flag = None
    """Whether gradients of micro-batches are added in a separate pass."""
    optimizer: Text = None
    """Preset of the bytes kept for each parameter, if it is not that of the framework."""
    keeps_cast_inputs: Flag = None
    """Whether products of 8 bits keep their cast inputs."""
    narrow_activation_inputs: Flag = None
    """Whether activations keep their inputs in 8 bits."""
    narrow_parameters: Flag = None
    """Whether weights are kept in 8 bits beside their FP32 copy."""
    dropout: Flag = None
    deterministic: Flag = None
    """Whether kernels give the same bits each time."""
    deferred_logit_gradients: Annotated[
        Annotated[int, Strict(), Field(ge=1, le=MOST_DEFERRED)] | None, _MAYBE
    ] = None
    """Micro-batches with gradients of logits that wait for the weight gradient of the last
    product."""
    logit_tiles: Count = None
    """Parts in which logits are made one after the other."""
    separate_projections: Flag = None
    """Whether queries, keys and values are three products."""
    drafts_tokens: Flag = None
    """Speculative decoding: a pass checks several drafted tokens."""


class PrecisionFields(Fields):
    """Number formats; a format that is not stated is None."""

    activation: DType | None = None
    matmul: DType | None = None
    """Type of the matrix products, where it is narrower than activations."""
    weight: DType | None = None
    """Serving: type of the stored weights."""
    scaling: Literal["current", "mx", "row", "tensor"] | None = None
    """Scaling of 8-bit operands: ``current`` and ``mx`` of Transformer Engine, one scale for each
    row or for each tensor of torchao."""
    fp32_gradients: bool = False
    """Whether gradients of micro-batches are summed in FP32."""
    fp8_all_gather: bool = False
    """Whether full sharding gathers weights in 8 bits."""


class FlopsRule(StrEnum):
    """FLOPs that a source counts: N parameters, L layers of width h, s tokens, one token."""

    EIGHT_N = "8 N"
    SIX_N = "6 N + 12 L h s"
    MODEL = "model FLOPs, full scores"
    MODEL_CAUSAL = "model FLOPs, causal scores"
    HARDWARE = "hardware FLOPs, full scores"
    """With the forward pass repeated, as full recomputation does."""
    HARDWARE_CAUSAL = "hardware FLOPs, causal scores"


class MeasuredFields(Fields):
    """Measured values; ``tokens_per_s`` of the whole job."""

    iteration_time_s: Amount = None
    tokens_per_s: Amount = None
    tokens_per_s_per_chip: Amount = None
    samples_per_s: Amount = None
    tflops_per_chip: Amount = None
    mfu: Amount = None
    memory_bytes_per_chip: Amount = None
    memory_metric: Text = None
    """Memory that the source counts: ``allocated`` in it leaves out the runtime and memory that the
    allocator holds besides tensors; without ``max`` it is the memory between steps."""
    memory_of_last_stage: Flag = None
    """Whether the memory is that of the last stage of a pipeline, not of the fullest device."""
    param_opt_bytes: Amount = None
    """Bytes of parameters, gradients and optimizer state on one chip."""
    activation_bytes: Amount = None
    latency_s: Amount = None
    """Latency of a batch of requests, from the first token of the prompts to the last of the
    answers [s]."""
    total_tokens_per_s: Amount = None
    output_tokens_per_s: Amount = None
    output_tokens_per_s_per_chip: Amount = None
    ttft_ms: Amount = None
    tpot_ms: Amount = None
    tokens_per_s_per_user: Amount = None
    """Throughput of one stream of answers on a machine that serves from SRAM."""


class CommonFields(Fields):
    """Fields that a row of the tables and a row of a user's file share."""

    id: Name
    group: Name
    """Source with which its errors are counted."""
    task: Name = "pretrain"
    source: Source = Source()
    model: ModelFields = ModelFields()
    parallelism: ParallelismFields = ParallelismFields()
    software: SoftwareFields = SoftwareFields()
    measured: MeasuredFields = MeasuredFields()
    framework: Text = None
    """Stored row: profile of the framework, or server."""
    framework_version: Text = None
    date: Text = None
    """Date of the software, YYYY-MM."""
    micro_batch: Count = None
    """Micro-batch size [sequences]; in rows of MaxText for each chip."""
    global_batch: Count = None
    grad_accum: Count = None
    flash_attention: Flag = None
    batch: Count = None
    """Inference: requests that start together; not stated: a queue that keeps the server busy."""
    closed_loop: Flag = None
    """Inference: ``batch`` is a number of clients, each of which sends its next request when the
    answer to the one before has ended."""
    shortest_share: Amount = None
    """Inference: lengths are drawn evenly between this share of the stated ones and all of them;
    not stated: all requests are equal."""
    input_len: CountOrZero = None
    output_len: CountOrZero = None
    definition: Text = None
    """Inference: tokens that the throughput of the source counts."""
    notes: Text = None

    @property
    def is_serving(self) -> bool:
        """Whether requests were served; otherwise a model was trained."""
        return self.input_len is not None or self.output_len is not None or self.is_one_user

    @property
    def is_one_user(self) -> bool:
        """Whether the speed of one stream was measured, on layers cut into stages."""
        return self.measured.tokens_per_s_per_user is not None


class Row(CommonFields):
    """One measurement with its configuration."""

    hardware: HardwareFields = HardwareFields()
    precision: PrecisionFields | None = None
    recompute: Recompute | None = None
    recompute_modules: tuple[str, ...] = ()
    """Modules of Megatron that selective recomputation covers."""
    kept_tensors: tuple[str, ...] = ()
    """Tensors of MaxText that are kept on the device, while all others are made again."""
    offloaded_tensors: tuple[str, ...] = ()
    """Tensors of MaxText that are kept on the host, while all others are made again."""
    offload: Offload | None = None
    flops_counting: FlopsRule | None = None
    reasons: Mapping[str, str] = Field(default_factory=dict)
    """Words of the source by field, where they differ from the value."""


def table_rows(path: Path) -> list[Row]:
    """Return the rows of a stored table, in which a number stands for a part that rows share."""
    table = json.loads(path.read_text(encoding="utf-8"))
    parts = table["parts"]
    return [
        Row.model_validate(
            {key: parts[key][value] if key in parts else value for key, value in entry.items()}
        )
        for entry in table["rows"]
    ]
