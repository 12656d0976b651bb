"""The work on the model: training, prefill or decode, and the software that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, cast

from pydantic import Field, model_validator

from meshwright.spec.declaration import Bytes, Count, Declaration, Seconds
from meshwright.spec.model import ModelSpec, WeightFormat
from meshwright.spec.system import ChipSpec, DType


class Precision(Declaration):
    """Types of the numbers: of the matrix products, and of stored and sent tensors."""

    matmul: DType = "bf16"
    """Type of the linear layers; attention, logits and norms stay in ``activation``."""
    row_scales: bool = False
    """Operands of the linear layers have one scale for each row; otherwise one, or blocks."""
    activation: DType = "bf16"
    kv_cache: DType = "bf16"
    weight: DType = "bf16"
    """Type of the resident weights of inference; training takes it from the optimizer preset."""
    weight_format: WeightFormat | None = None
    """Format of a quantised checkpoint, in place of ``weight``; in training of frozen weights."""

    @property
    def weight_name(self) -> str:
        """Name of the type or the format of the resident weights of inference."""
        return self.weight if self.weight_format is None else self.weight_format.name

    @property
    def weight_bytes(self) -> float:
        """Bytes of one resident weight of inference."""
        if self.weight_format is None:
            return BYTES_OF[self.weight]
        return self.weight_format.bytes_per_weight

    @classmethod
    def on(cls, chip: ChipSpec, matmul: DType | None = None, **others: DType) -> Self:
        """Return the types of a chip for a type of the linear layers.

        The rest has the same type, or the 16 bits of the chip where it is narrower. Only given
        types count as stated.
        """
        is_wide = matmul is not None and BYTES_OF[matmul] >= 2.0
        word = matmul if matmul is not None and is_wide else chip.word
        types = {"matmul": matmul or word, "activation": word, "kv_cache": word, "weight": word}
        stated = {*others} | ({"matmul"} if matmul is not None else set())
        whole = dict(cls.model_validate(types | others))
        return cast("Self", cls.model_construct(stated, **whole))


class OptimizerPreset(Declaration):
    """Bytes per parameter that a framework keeps, and which of them ZeRO shards.

    ``weight`` is read by the forward pass, ``gradient`` is accumulated, ``state`` holds the
    master copy and moments. ``reduced_gradient`` and ``gathered_weight`` travel.
    """

    name: str
    weight_bytes_per_param: float = Field(gt=0)
    gradient_bytes_per_param: float = Field(ge=0)
    state_bytes_per_param: float = Field(ge=0)
    gathered_weight_bytes_per_param: float = Field(default=2.0, gt=0)
    reduced_gradient_bytes_per_param: float = Field(default=4.0, ge=0)
    update_bytes_per_param: float = Field(default=0.0, ge=0)
    """Held in addition to the state while the update runs, and kept by the allocator after it."""
    bucket_params: float = Field(default=0.0, ge=0)
    """Gradients that are copied into one message, in addition to those that are kept."""
    live_params: float = Field(default=0.0, ge=0)
    """Gathered parameters that full sharding leaves in place.

    Source: DeepSpeed configuration JSON, ``stage3_max_live_parameters``.
    """
    adapter_share: float = Field(default=0.0, ge=0)
    """Parameters of adapters over those of the frozen model, to which the other bytes refer; 0: no
    adapters, or adapters that are left out."""
    step_traffic_bytes_per_param: float = Field(default=28.0, ge=0)
    """HBM traffic of one optimizer step for each parameter of the shard."""
    orthogonal_steps: int = Field(default=0, ge=0, le=64)
    """Steps of the iteration that makes the update of a matrix in a layer orthogonal (Muon)."""
    row_state_bytes: Bytes | None = None
    """State of one row of a table that is looked up: an update touches the rows that were read, and
    nothing else. None: tables are trained like all other weights."""
    source: str = ""

    @property
    def freezes_weights(self) -> bool:
        """Whether weights are frozen: they have no gradients."""
        return self.gradient_bytes_per_param == 0.0 or self.adapter_share > 0.0

    @property
    def updated_bytes_per_param(self) -> float:
        """Bytes of a weight that an update writes: none of one that rests."""
        return 0.0 if self.freezes_weights else self.weight_bytes_per_param

    @property
    def trains_wide_weights(self) -> bool:
        """Whether all weights are wider than the products that read them."""
        is_wide = self.weight_bytes_per_param > self.gathered_weight_bytes_per_param
        return is_wide and not self.freezes_weights

    @property
    def cast_bytes_per_param(self) -> float:
        """Bytes that autocast copies of a weight: of one that trains in a wider type.

        Of frozen weights adapters alone are copied, FP32 to two bytes.
        """
        if self.freezes_weights:
            return 2.0 * self.adapter_share
        return self.gathered_weight_bytes_per_param * self.trains_wide_weights

    def with_gradients(self, dtype: Literal["fp32", "bf16"]) -> OptimizerPreset:
        """Return the preset with gradients that are accumulated and reduced in a type.

        The update reads each gradient once, so that its traffic changes by as much: 30 - 2 bytes a
        parameter for ``megatron-adam`` in bf16. Source: ``--accumulate-allreduce-grads-in-fp32``
        and ``--grad-reduce-in-bf16`` of NVIDIA/Megatron-LM, ``megatron/training/arguments.py``
        (2026-11).
        """
        word = BYTES_OF[dtype]
        if self.gradient_bytes_per_param == self.reduced_gradient_bytes_per_param == word:
            return self
        read = self.step_traffic_bytes_per_param - self.reduced_gradient_bytes_per_param
        changes = {"name": f"{self.name}, {dtype} gradients", "gradient_bytes_per_param": word,
                   "reduced_gradient_bytes_per_param": word,
                   "step_traffic_bytes_per_param": read + word}  # fmt: skip
        return self.model_copy(update=changes)

    def gathered_bytes_per_param(self, zero_stage: float) -> float:
        """Return the bytes of a weight that are gathered.

        ZeRO 3 gathers weights for each pass; below it they are gathered after an update, and
        frozen weights have none.
        """
        if self.freezes_weights and zero_stage < 3:
            return 0.0
        return self.gathered_weight_bytes_per_param


AdapterTarget = Literal["q", "k", "v", "o", "gate", "up", "down"]


class Adapters(Declaration):
    """Trained factors of low rank beside frozen products.

    Source: LoRA, Hu et al. 2021 (arXiv 2106.09685), section 4.1.
    """

    rank: Count
    targets: tuple[AdapterTarget, ...]
    """Products with adapters: projections of attention, and of networks, those of experts
    included."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Parts of a layer with an adapter on some product."""
        attention, networks = set("qkvo"), {"gate", "up", "down"}
        return (
            *(("attention",) if attention & set(self.targets) else ()),
            *(
                ("feed_forward", "experts", "shared_experts")
                if networks & set(self.targets)
                else ()
            ),
        )


AxisName = Literal["tp", "cp", "pp", "vpp", "ep", "etp", "dp_replicate", "tatp"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
ZeroStage = Literal[0, 1, 2, 3]
Offloaded = Literal["optimizer", "gradients", "state", "activations", "weights", "all"]


LossKernel = Literal["plain", "compiled", "linear", "cut"]
"""The operators of the framework; one compiled or fused kernel after the last product; the last
product and the loss in parts of the tokens, each with its gradients in the forward pass; or the
same in tiles that never leave the chip, made again for their gradients.

Source: torch.compile of ``cross_entropy``, torchtitan ``components/loss.py``; Liger Kernel 0.6
``ops/fused_linear_cross_entropy.py``; Wijmans et al. 2024, Cut Your Losses (arXiv 2411.09009).
"""


class Switches(Declaration):
    """Options of a framework that make no plan slower or larger: searched plans have them on.

    Fields of :class:`SoftwareStack`, unless the user states them; None: no such option. Not among
    them are CUDA graphs, whose buffers are not priced (over 10 GB with pipelines, says NVIDIA's
    guide to Megatron Bridge of 2026), nor a fused loss that holds more than the plain one.
    """

    compiled: bool | None = None
    loss: LossKernel | None = None
    async_tensor_parallel: bool | None = None


class Launches(Declaration):
    """Plans that a framework can start; no other plan starts in it.

    ``sharding/launching.py`` holds the rules that read it.
    """

    axes: tuple[AxisName, ...]
    """Axes with degrees that may be above 1; data parallelism always may."""
    schedules: tuple[Schedule, ...] = ()
    """Schedules of pipelines."""
    uneven_stages: bool = False
    """Pipeline stages may hold different numbers of layers."""
    uneven_chunks: bool = False
    """Chunks of interleaved stages may hold different numbers of layers."""
    stage_layers: bool = False
    """Layers of each stage, or of each chunk, may be stated one by one."""
    zero_stages: tuple[ZeroStage, ...]
    zero_stages_in_pipelines: tuple[ZeroStage, ...] | None = None
    """Stages under pipelines; None: ``zero_stages``."""
    zero_stages_without_pipelines: tuple[ZeroStage, ...] | None = None
    """Stages without pipelines; None: ``zero_stages``. FSDP2 that keeps gathered weights gathers
    them again for each micro-batch, except in a pipeline."""
    zero_stages_with_context: tuple[ZeroStage, ...] | None = None
    """Stages where cp is used; None: ``zero_stages``."""
    zero_stages_with_tensor: tuple[ZeroStage, ...] | None = None
    """Stages where tp is used beside dp or cp; None: ``zero_stages``."""
    replicas_need_shards: bool = False
    """Whether replicas beside tp or cp need more than one shard of dp."""
    drops_gathered_weights: tuple[bool, ...] = (True,)
    """Whether full sharding gathers weights again for the backward pass."""
    overlaps_data_parallel: tuple[bool, ...] = (True, False)
    overlaps_tensor_parallel: tuple[bool, ...] = (False,)
    equal_logit_tiles: bool = False
    """Whether parts of the loss hold equally many tokens of a sequence on a rank."""
    compiles_overlap: bool = False
    """Whether collectives of tp overlap products in compiled models only."""
    switches: Switches = Switches()
    overlaps_expert_parallel: tuple[bool, ...] = (False,)
    """Whether communication of experts hides behind other micro-batches."""
    recomputes_beside_experts: bool = False
    """Whether whole layers, or their experts, may be recomputed then."""
    sequence_parallel: tuple[bool, ...] = (True, False)
    """Sequence parallelism where tp is used."""
    experts_need_sequence_parallel: bool = False
    """Experts with tp need sequence parallelism."""
    even_expert_shards: bool = False
    """Whether weights of experts are sharded in equal parts of their rows where more ranks than
    experts share them."""
    expert_axes: tuple[Literal["tp", "cp", "dp_shard", "dp_replicate"], ...] = (
        "tp", "cp", "dp_shard", "dp_replicate",
    )  # fmt: skip
    """Axes with ranks that experts divide again; whole replicas only where ZeRO leaves them
    whole."""
    whole_kv_heads: bool = False
    """Whether tp divides the heads of keys and values; otherwise ranks may share one."""
    ties_in_pipelines: bool = True
    """Whether pipelines train models whose embedding and head share a table."""
    context_kinds: tuple[Literal["ring", "gather", "ulysses"], ...] = ()
    sinks_need_ulysses: bool = False
    """Whether attention sinks are split over cp by all-to-all only."""
    whole_sequences: tuple[str, ...] = ()
    """Architectures with attention that it does not split over cp."""
    recompute: tuple[Literal["none", "selective", "full"], ...]
    recompute_modules: tuple[str, ...] = ()
    """Names of the modules, besides the attention core, that selective recomputation may cover."""
    stored_tensors: tuple[str, ...] = ()
    """Tensors that selective recomputation may keep on the device or on the host, by name."""
    recompute_layers: bool = False
    """Whether full recomputation may cover some layers of a stage and leave others."""
    recompute_runs: bool = False
    """Whether it may keep one input for a run of layers."""
    offload: Mapping[Offloaded, tuple[ZeroStage, ...]] = Field(default_factory=dict)
    """Tensors that may live on the host, and the ZeRO stages under which they may."""
    axis_orders: tuple[tuple[str, ...], ...]
    """Orders of the ranks, innermost first."""
    precisions: tuple[DType, ...]
    precisions_in_one_pass: tuple[DType, ...] = ()
    """Precisions with gradients that do not accumulate over micro-batches outside pipelines."""
    vendors: tuple[str, ...]
    """Vendors of its chips."""
    batch_ramp: bool = False
    """Whether the batch may grow over the first steps."""
    adapters: bool = False
    """Whether adapters may be trained on frozen weights."""
    architectures: tuple[str, ...] | None = None
    """Architectures of its models, as Hugging Face names them; None: any model of transformers."""

    def has_model(self, architecture: str) -> bool:
        """Tell whether it has the layers of an architecture."""
        return self.architectures is None or architecture in self.architectures


SelectiveRecompute = Literal["attention", "half_of_products", "all_but_products"]


MOST_DEFERRED = 4096
"""Most micro-batches with gradients of logits that wait: no memory holds more."""


class SoftwareStack(Declaration):
    """The framework, as far as it changes time and memory."""

    framework: str = ""
    """Framework of the catalog, with its version; empty: not known."""
    launches: Launches | None = None
    """Plans that it can start; None: not known, and no plan is refused for it."""
    flash_attention: bool = True
    attention_kernels: Literal["native", "portable"] = "native"
    """Written for the chip (cuDNN, FlashAttention-2 on Ampere), or not (FlashAttention-2 on Hopper,
    FlashAttention-1, Triton)."""
    eager: bool = False
    """Each elementwise operator is a separate kernel; otherwise a library or a compiler fuses
    them."""
    norms_in_steps: bool = False
    """Norms by root mean squares are several kernels where operators are kernels of their own.

    Source: huggingface/transformers, ``modeling_llama.py``, ``LlamaRMSNorm``.
    """
    selective_recompute: SelectiveRecompute = "attention"
    """Part that selective recomputation repeats: the attention core; every second product and all
    elementwise operators, but not the core; or all but the products."""
    separate_projections: bool = False
    """Queries, keys and values are made by three products: selective recomputation of half of them
    counts them apart.

    Source: torchtitan before 2026-06, pytorch/torchtitan, pull request 3714.
    """
    stops_recompute_early: bool = False
    """Recomputation of a layer ends with the last tensor that it keeps: the sums behind its last
    product are not made again.

    Source: PyTorch 2.13 ``utils/checkpoint.py``, ``set_checkpoint_early_stop``.
    """
    fused_gradient_accumulation: bool = True
    """Products of weight gradients accumulate into the gradient; otherwise a separate pass does."""
    overlaps_sends: bool = True
    """Interleaved stages send while the next chunk computes; otherwise each send is exposed."""
    scatters_sends: bool = False
    """Each rank of tp sends its part of the tensor between stages; the receivers gather it.

    Source: Narayanan et al. 2021, section 4.1.
    """
    sums_whole_gradients: bool = False
    """ZeRO 1 sums all gradients on every rank, and each uses its shard.

    Source: BF16_Optimizer under pipelines, microsoft/DeepSpeed deepspeed/runtime/pipe/engine.py;
    ``DistributedDataParallel`` of PyTorch 2.13.
    """
    broadcasts_updates: bool = False
    """Under ZeRO 1 each rank broadcasts the weights that it has updated, in their own type; other
    frameworks gather them in the type of products.

    Source: PyTorch 2.13 ``distributed/optim/zero_redundancy_optimizer.py``, ``_sync_params``.
    """
    sums_in_last_pass: bool = False
    """Without pipelines, ZeRO 3 scatters gradients once a step: those of several micro-batches are
    summed whole before.

    Source: ``no_sync`` of Accelerate 1.15, which transformers 5.23 ``trainer.py`` enters for all
    micro-batches but the last, unless ``sync_each_batch`` is set.
    """
    sums_replicas_each_pass: bool = False
    """Replicas of a shard sum its gradients in each micro-batch, not once a step.

    Source: FSDP2 of PyTorch 2.13 without ``set_requires_all_reduce``: torchtitan 0.3.0
    ``trainer.py``; Accelerate 1.15 with ``sync_each_batch``.
    """
    dropout: bool = False
    deterministic: bool = False
    """Kernels give the same bits each time: products have the workspace for it."""
    compiled: bool = False
    """Elementwise operators are fused by a compiler."""
    cuda_graphs: bool = False
    """Kernel launches are recorded: no launch cost."""
    async_tensor_parallel: bool = False
    """Collectives of tp are decomposed and overlapped with the matrix product."""
    deduplicated_dispatch: bool = True
    """A token goes to a host once for all of its experts there; inside, to each of them."""
    loss: LossKernel = "plain"
    """Algorithm from logits to their loss, and its gradient."""
    fp32_logit_copies: float = Field(default=1.0, ge=0)
    """FP32 copies of the logits that the loss holds at its peak, in addition to the logits and
    their gradient in the activation type: 1 of the probabilities of early Megatron, 0.5 since they
    are made in place and the gradient comes after the logits (megatron-core,
    ``tensor_parallel/cross_entropy.py``), 0 of a fused kernel, 2.5 of PyTorch (log-probabilities,
    their gradient, that of the logits; the narrow gradient comes after them)."""
    fp32_split_logit_copies: float = Field(default=1.0, ge=0)
    """FP32 copies of the logits where tp splits them: 3.5 of PyTorch."""
    deferred_logit_gradients: int = Field(default=0, ge=0, le=MOST_DEFERRED)
    """Micro-batches with gradients of logits that wait for that of the last product's weights.

    Source: megatron-core, ``defer_embedding_wgrad_compute`` with ``wgrad_deferral_limit``.
    """
    logit_tiles: Count = 1
    """Parts in which logits and their loss are made one after the other, each gone before the next.

    Source: AI-Hypercomputer/maxtext, ``num_vocab_tiling``; torchtitan 0.3.0
    ``components/loss.py``, ``num_chunks``.
    """

    head_in_loss: bool = False
    """Where there are several parts, the loss multiplies each by the head, and goes back through
    the head, before the layers go backward; gradients of the head are reduced by then.

    Source: torchtitan 0.3.0 ``components/loss.py``, ``ChunkedLossWrapper``.
    """

    @property
    def has_head_in_loss(self) -> bool:
        """Whether the loss multiplies by the head, in parts."""
        return self.head_in_loss and self.logit_tiles > 1

    @property
    def logit_copies(self) -> tuple[float, float]:
        """FP32 copies of the logits at the peak of the loss: of whole ones, and of those of tp.

        A compiled loss of PyTorch holds one, where the framework makes one in place one more.
        """
        if self.loss in ("linear", "cut"):
            return 0.0, 0.0
        if self.loss == "compiled":
            copies = self.fp32_logit_copies + 1.0 if self.fp32_logit_copies < 1.0 else 1.0
            return copies, copies
        return self.fp32_logit_copies, self.fp32_split_logit_copies

    keeps_cast_inputs: bool = False
    """Products of cast operands keep the cast input for the backward pass, not the wider one, as
    Transformer Engine does."""
    transformer_engine: bool = False
    """Products of layers are those of Transformer Engine, which has a workspace of its own."""
    keeps_gathered_inputs: bool = False
    """Products under sequence parallelism keep their gathered input for the backward pass;
    otherwise they keep their part of it and gather again, as Megatron does.

    Source: PyTorch, whose ``linear`` saves its input; torchtitan 0.3.0 and
    ``torch.distributed.tensor.parallel`` gather in front of it, seen in dry runs of both.
    """
    wide_key_gradients: bool = False
    """Sums of the gradients of keys and values travel round a ring of cp in FP32; it keeps its
    output beside the copy that the next product reads.

    Source: PyTorch 2.13, ``convert_to_f32`` of
    ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``.
    """
    weighs_rows_in_fp32: bool = False
    """Scores multiply the rows that come back from experts, whose FP32 copies are kept; otherwise
    they are multiplied in with the activation function of the experts.

    Source: torchtitan 0.3.0, ``combine`` of ``models/common/token_dispatcher.py``.
    """
    narrow_activation_inputs: bool = False
    """The input of the activation function is kept in 8 bits, and cast back for its backward pass.

    Source: megatron-core, ``TransformerConfig.activation_func_fp8_input_store``.
    """
    keeps_stage_outputs: bool = False
    """A stage keeps its sent outputs until its backward pass, as DeepSpeed and PyTorch do."""
    keeps_receive_buffers: bool = False
    """A stage has buffers for the messages of all micro-batches of a step, as PyTorch has."""
    whole_in_pipelines: bool = False
    """In a pipeline, sharded weights stay gathered from the first forward pass to the last
    backward pass, and gradients are summed whole until then, in the type of their reduction; ZeRO 2
    shards weights at rest as ZeRO 3 does.

    Source: PyTorch 2.13 ``distributed/pipelining/stage.py``, ``backward_maybe_with_nosync``
    (``set_reshard_after_backward``, ``set_requires_gradient_sync``), seen in dry runs.
    """
    shards_by_unit: bool = False
    """Full sharding gathers and reduces one unit at a time (the embedding, a layer, the head), with
    a message beside it, and makes gradients in the first backward pass of a step.

    Source: PyTorch 2.13 ``distributed/fsdp/_fully_shard``, seen in dry runs.
    """
    shards_over_one: bool = False
    """Full sharding runs over one rank too, with its copies and messages, where ranks of dp are
    replicas or there are none.

    Source: torchtitan 0.3.0 ``models/llama3/parallelize.py`` ("Always run apply_fsdp_to_decoder").
    """
    autocasts_whole_weights: bool = False
    """Weights that nothing shards are wide: products cast them, replicas sum wide gradients.

    Source: PyTorch 2.13 ``aten/src/ATen/autocast_mode.h``, ``nn/parallel/distributed.py``.
    """
    keeps_last_unit: bool = False
    """Full sharding keeps the head gathered from its forward to its backward pass.

    Source: Accelerate 1.15 ``utils/fsdp_utils.py``, ``fsdp2_prepare_model`` (``tail_modules``).
    """
    whole_table_gradients: bool = False
    """Where tp splits the words of the token table, its gradient is made for all words first.

    Source: ``RowwiseParallel`` of PyTorch 2.13 for ``nn.Embedding`` (a partial sum),
    seen in dry runs; torchtitan 0.3.0 looks words up itself.
    """
    update_copies: float = Field(default=0.0, ge=0)
    """FP32 copies of its parameters that an update on the device makes, and frees.

    Source: 1 of PyTorch 2.13 ``optim/adam.py``, ``_multi_tensor_adam`` (``_foreach_sqrt``), seen in
    dry runs; 0 of fused ones.
    """
    copies_shards: bool = False
    """Full sharding fills and empties its buffers by copies, as PyTorch does."""
    updates_on_host: bool = True
    """Offloaded optimizer state is updated by the processors of the host; otherwise it travels to
    the device for each update, and back.

    Source: DeepSpeed ``ops/adam/cpu_adam.py``, PyTorch FSDP2 ``CPUOffloadPolicy``, megatron-core
    ``HybridDeviceOptimizer``; otherwise MaxText ``optimizer_memory_host_offload``.
    """
    host_buffer_factor: float = Field(default=1.0, ge=1)
    """Host memory that offload takes over the tensors that it keeps there.

    Source: 1.5 of DeepSpeed 0.19 ``runtime/zero/stage3.py``, ``additional_buffer_factor`` of
    ``estimate_zero3_model_states_mem_needs``.
    """


class BatchRamp(Declaration):
    """A batch that grows over the first sequences of a run, in equal increments.

    Each size lasts for an equal number of sequences. Source: megatron-core,
    ``num_microbatches_calculator.py``, ``--rampup-batch-size``.
    """

    start: Count
    """Sequences of the first steps."""
    increment: Count
    sequences: Count
    """Sequences of all steps before the whole batch."""

    def sizes(self, global_batch_size: int) -> range:
        """Return the sizes of the batch before the whole one."""
        return range(self.start, global_batch_size, self.increment)

    def misses(self, global_batch_size: int) -> str:
        """Return why it does not reach the whole batch; empty where it does."""
        rest = global_batch_size - self.start
        if rest > 0 and rest % self.increment == 0:
            return ""
        return f"{self.start} + n x {self.increment} does not reach the batch {global_batch_size}"


class Training(Declaration):
    """Training: one optimizer step on a global batch."""

    kind: Literal["training"] = "training"
    global_batch_size: Count
    """Sequences of one step."""
    sequence_length: Count
    precision: Precision = Precision()
    optimizer: OptimizerPreset
    software: SoftwareStack = SoftwareStack()
    expert_load_imbalance: float = Field(default=1.0, ge=1)
    """Load of the busiest expert rank over the mean."""
    causal: bool = True
    total_tokens: float | None = Field(default=None, gt=0)
    """Tokens of the whole run, for days and money."""
    batch_ramp: BatchRamp | None = None
    """Growth of the batch of the run to its size; it changes the whole run, not the step."""
    adapters: Adapters | None = None
    """Adapters under a preset that freezes weights; None: they are left out of the price."""

    document_length: Count | None = None
    """Tokens of each document packed into a sequence, which attends only to itself; for documents
    of unequal length the mean of the squares over the mean. None: a sequence is one document."""
    stated: tuple[str, ...] | None = None
    """Names that the question states of ``optimizer``, ``gradient_dtype``, ``software.NAME``; the
    rest is usual, and another framework has its own. None: all that differs from the defaults."""

    @model_validator(mode="after")
    def _packs_whole_documents(self) -> Self:
        if self.document_length is not None and self.document_length > self.sequence_length:
            raise ValueError(
                f"document_length: {self.document_length} is longer than a sequence of "
                f"{self.sequence_length}"
            )
        return self

    @model_validator(mode="after")
    def _freezes_weights_under_adapters(self) -> Self:
        if self.adapters is not None and not self.optimizer.freezes_weights:
            raise ValueError(f"adapters: {self.optimizer.name} trains the weights themselves")
        return self

    @property
    def attended_length(self) -> int:
        """Tokens that attend to each other: of a document, or of a sequence."""
        return self.document_length or self.sequence_length

    @model_validator(mode="after")
    def _reaches_the_whole_batch(self) -> Self:
        if self.batch_ramp is not None and (why := self.batch_ramp.misses(self.global_batch_size)):
            raise ValueError(f"batch_ramp: {why}")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step."""
        return self.global_batch_size * self.sequence_length


class Prefill(Declaration):
    """Prefill: the prompts of a batch in one pass."""

    kind: Literal["prefill"] = "prefill"
    batch_size: Count
    prompt_length: Count
    precision: Precision = Precision()
    software: SoftwareStack = SoftwareStack()
    expert_load_imbalance: float = Field(default=1.0, ge=1)
    two_batch_overlap: bool = False
    """A pass is two halves: tokens of one are on their way to experts while the other computes."""
    max_time_to_first_token_s: Seconds | None = None


class Speculation(Declaration):
    """Speculative decoding: a draft proposes tokens, and one pass of the model checks them."""

    draft: ModelSpec | None = None
    """Model that proposes the tokens; None: the model's own layer of multi-token prediction."""
    drafted_tokens: Count
    """Drafted tokens of one sequence in a step."""
    acceptance: float = Field(gt=0, le=1)
    """Chance that a drafted token is accepted where those before it were; depends on the text."""


class Decode(Declaration):
    """Decode: one token for each sequence of a batch, with the KV cache of its context.

    With ``prompt_length``, whole requests: prompts pass beside the answers of others, or on
    separate workers.
    """

    kind: Literal["decode"] = "decode"
    batch_size: Count
    """Sequences in flight over the whole system."""
    context_length: Count
    """Tokens in the KV cache of each sequence; of requests, at the end of the answer."""
    prompt_length: Count | None = None
    """Tokens of a prompt, the rest of the context is the answer; None: prompts pass elsewhere."""
    disaggregated: bool = False
    """Prompts of requests pass on separate workers, which send the cache to those of decode."""
    speculation: Speculation | None = None
    precision: Precision = Precision()
    software: SoftwareStack = SoftwareStack()
    expert_load_imbalance: float = Field(default=1.0, ge=1)
    two_batch_overlap: bool = False
    """A pass is two halves: tokens of one are on their way to experts while the other computes."""
    max_time_per_output_token_s: Seconds | None = None
    max_time_to_first_token_s: Seconds | None = None
    """Highest seconds from a request to its first token."""

    @property
    def answer_length(self) -> int:
        """Tokens of an answer, where prompts are stated."""
        return self.context_length - (self.prompt_length or 0)

    @model_validator(mode="after")
    def _has_an_answer(self) -> Self:
        if self.prompt_length is not None and self.prompt_length >= self.context_length:
            raise ValueError(f"prompt_length: {self.prompt_length} leaves no answer")
        if self.prompt_length is None and self.max_time_to_first_token_s is not None:
            raise ValueError("max_time_to_first_token_s: needs a prompt_length")
        if self.disaggregated and (self.prompt_length is None or self.answer_length < 2):
            raise ValueError("disaggregated: needs a prompt_length, and an answer of two tokens")
        if self.disaggregated and self.speculation is not None:
            raise ValueError("disaggregated: drafts are not priced on separate workers")
        drafted = self.speculation.drafted_tokens if self.speculation else 0
        if drafted >= self.answer_length:
            raise ValueError(f"speculation: {drafted} tokens are all of the answer, or more")
        return self

    @property
    def mixes_prompts(self) -> bool:
        """Whether the same devices take prompts and answers."""
        return self.prompt_length is not None and not self.disaggregated


class Serves(Declaration):
    """Ways of serving that a server can start; no other way starts in it.

    ``serve/launching.py`` holds the rules that read it.
    """

    axes: tuple[AxisName, ...]
    """Axes with degrees that may be above 1; there may always be several replicas."""
    vendors: tuple[str, ...]
    """Vendors of its chips."""
    splits_experts: Literal["all_or_none", "any"] = "any"
    """Either the devices of a layer hold whole experts, or a part of each; or both at once."""
    joins_replicas: bool = False
    """Replicas of attention may share one set of experts."""
    overlaps_batches: bool = False
    """A pass may be two halves that overlap."""
    kv_cache: tuple[str, ...] = ("bf16", "fp16")
    """Types of the cache."""


class Server(Declaration):
    """A server of requests, as it runs where its users do not say otherwise."""

    name: str
    title: str = ""
    version: str = ""
    """Release of the server with these options; empty: no release."""
    replaced_by: str = ""
    """Server that has taken its place, with other kernels; empty: it is developed."""
    launches: Serves | None = None
    """Ways of serving that it can start; None: not known, and nothing is refused."""
    memory_fraction: float = Field(gt=0, le=1)
    """Share of the memory that it fills."""
    of_free_memory: bool = False
    """The share is of the memory left by weights, buffers and the largest pass, for the cache
    alone; otherwise of the device, for all of them."""
    most_sequences: Count
    """Sequences that pass together."""
    sequences_option: str = ""
    """The option that states another number of them."""
    most_pass_tokens: Count
    """Tokens that pass together; memory is reserved for this many, whether they come or not."""
    mixes_phases: bool = True
    """Prompts pass beside answers; otherwise in separate passes, for which answers wait."""
    cuts_prompts: bool = True
    """A prompt, or a rest of one, fills the rest of a pass; otherwise whole prompts pass."""
    evicts: bool
    """Sequences start before their full length has room, and some start again; otherwise a sequence
    waits until its full length has room."""
    splits_cache: bool
    """Several cores share the cache of one head of a sequence."""
    has_all_reduce: bool = True
    """It brings kernels for the all-reduce of small messages inside a host."""
    narrow_cache: bool = False
    """Narrow weights go with a cache of 8 bits."""
    narrow_cache_on: tuple[str, ...] = ()
    """Families of chips with a cache of 8 bits for narrow weights, where not all have it."""
    why: str = ""


PAGED = Server(
    name="generic", memory_fraction=0.9, most_sequences=256, most_pass_tokens=8192, evicts=True,
    splits_cache=True,
)  # fmt: skip
"""Server of requests where none is named: a paged cache, as the catalog has it under this name."""


Workload = Training | Prefill | Decode

BYTES_OF: dict[str, float] = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": 0.5,
}  # fmt: skip
"""Bytes of one number of each type."""
