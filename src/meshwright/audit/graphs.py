"""Laws of any computation over devices, fused on a chip, or cut into stages that fit a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.audit.laws import Facts, Inequality, Laws, equal
from meshwright.audit.machine import least_sum_share, link_bytes_per_s, memory_bytes_per_s
from meshwright.audit.work import ModelWork
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import BYTES_OF, Decode, OptimizerPreset, Prefill, Training

LAWS: Laws[GraphFacts] = Laws()
OF_FUSIONS: Laws[FusionFacts] = Laws()
OF_PARTITIONS: Laws[PartitionFacts] = Laws()


@dataclass(frozen=True)
class KernelFacts:
    """FLOPs, bytes and time of a kernel, over all devices that share it."""

    name: str
    flops: float
    """FLOPs of products; 0 for a kernel limited by memory."""
    weight_bytes: float
    """Weights that a product reads; 0 for a lookup, which reads single rows."""
    ends_bytes: float
    """Tensors of the kernel that enter or leave the graph; for a move, the bytes that it writes."""
    is_launched: bool
    """Whether the kernel has its own launch, and is not the end of another one."""
    time_s: float
    """Time of one pass, by itself."""


@dataclass(frozen=True)
class GraphFacts(Facts):
    """A plan of a graph with the question that it answers."""

    laws: ClassVar[Laws[GraphFacts]] = LAWS

    system: SystemSpec
    kernels: tuple[KernelFacts, ...]
    runs_by_kernel: bool
    """Whether kernels run one after the other, each with its own time."""
    peak_flops_per_s: float
    launch_s: float
    """Least time from one kernel to the next; 0 where one launch starts several."""
    usable_bytes: float
    num_params: float
    """Parameters of one repetition."""
    param_bytes: float
    """Bytes of all weights of one repetition."""
    optimizer: OptimizerPreset | None
    """Optimizer in training; None otherwise."""
    repeats: int
    asked_passes: int
    tp: int
    pp: int
    dp: int
    layers: int
    num_passes: int
    stage_s: float
    step_s: float
    parts_s: Mapping[str, float]
    held_bytes: float
    lower_bound_s: float

    @property
    def cut(self) -> int:
        """Stages that share the kernels of one repetition."""
        return self.pp if self.repeats == 1 else 1


law = LAWS.law


@law("the passes of all replicas are at least the passes of the question")
def passes_are_made(facts: GraphFacts) -> Inequality:
    return Inequality(float(facts.asked_passes), float(facts.num_passes * facts.dp), "1")


@law("the stages hold at least all repetitions of the graph")
def repetitions_are_held(facts: GraphFacts) -> Inequality:
    """Return both counts; in a cut graph, each stage holds a part of the only repetition."""
    return Inequality(float(facts.repeats), float(facts.layers * facts.pp), "1")


@law("the plan uses at most the devices of the system")
def devices_are_there(facts: GraphFacts) -> Inequality:
    used = float(facts.tp * facts.pp * facts.dp)
    return Inequality(used, float(facts.system.num_devices), "1")


@law("the step takes at least the FLOPs of its matrix products at the peak of all devices")
def work_is_done(facts: GraphFacts) -> Inequality:
    flops = sum(kernel.flops for kernel in facts.kernels) * facts.repeats * facts.asked_passes
    used = facts.tp * facts.pp * facts.dp
    return Inequality(flops / (used * facts.peak_flops_per_s), facts.step_s, "s")


@law("a stage takes at least the FLOPs of its repetitions at the peak of its devices")
def stage_is_done(facts: GraphFacts) -> Inequality:
    """Return both counts; in a cut graph, the slowest stage has at least the mean."""
    flops = sum(kernel.flops for kernel in facts.kernels) * facts.layers / facts.cut
    return Inequality(flops / (facts.tp * facts.peak_flops_per_s), facts.stage_s, "s")


@law("a kernel takes at least its launch, its arithmetic, its weights and its compulsory traffic")
def kernels_take_time(facts: GraphFacts) -> Inequality | None:
    """Return the counts of the kernel that comes nearest to breaking the law."""
    if not facts.runs_by_kernel:
        return None
    memory = memory_bytes_per_s(facts.system) * facts.tp
    counts = [
        (
            max(
                kernel.flops / (facts.tp * facts.peak_flops_per_s),
                (kernel.weight_bytes + kernel.ends_bytes) / memory,
                facts.launch_s if kernel.is_launched else 0.0,
            ),
            kernel.time_s,
        )
        for kernel in facts.kernels
    ]
    least_s, time_s = max(counts, key=lambda pair: pair[0] - pair[1], default=(0.0, 0.0))
    return Inequality(least_s, time_s, "s")


@law("the fullest device holds at least its share of the weights, gradients and optimizer state")
def weights_lie_somewhere(facts: GraphFacts) -> Inequality:
    """Return both counts; in a cut graph, the fullest stage has at least the mean."""
    each = facts.param_bytes
    if (preset := facts.optimizer) is not None and preset.row_state_bytes is None:
        held = preset.weight_bytes_per_param + preset.gradient_bytes_per_param
        each = facts.num_params * (held + preset.state_bytes_per_param)
    least = each * facts.layers / (facts.tp * facts.cut)
    return Inequality(least, facts.held_bytes, "B")


@law("the memory in use is at most the capacity of the device")
def device_holds(facts: GraphFacts) -> Inequality:
    return Inequality(facts.held_bytes, facts.usable_bytes, "B")


@law(
    "synchronisation of gradients takes at least their bytes over the links, less what a pass hides"
)
def gradients_are_summed(facts: GraphFacts) -> Inequality | None:
    """Return both counts; a pass hides no more than its time, and never the last bucket.

    A bucket is at least the gradients of one kernel.
    """
    preset, rate = facts.optimizer, link_bytes_per_s(facts.system)
    if preset is None or facts.dp == 1 or not rate or preset.row_state_bytes is not None:
        return None
    params = facts.num_params * facts.layers / facts.tp
    sent = 2.0 * least_sum_share(facts.system) * (1.0 - 1.0 / facts.dp) * params
    least_s = sent * preset.reduced_gradient_bytes_per_param / rate
    last_s = least_s / (facts.layers * len(facts.kernels))
    return Inequality(max(least_s - facts.stage_s, last_s), facts.parts_s["gradient_sums_s"], "s")


@law("the update takes at least one read and one write of the optimizer state of a device")
def state_is_updated(facts: GraphFacts) -> Inequality | None:
    preset = facts.optimizer
    if preset is None or preset.row_state_bytes is not None:
        return None
    touched = 2.0 * preset.state_bytes_per_param * facts.num_params * facts.layers / facts.tp
    least_s = touched / memory_bytes_per_s(facts.system)
    return Inequality(least_s, facts.parts_s["update_s"], "s")


@law("the lower bound of the search is at most the step time found")
def bound_is_below(facts: GraphFacts) -> Inequality:
    return Inequality(facts.lower_bound_s, facts.step_s, "s")


# ------------------------------------------------------------------------------- fused on a chip


@dataclass(frozen=True)
class PartFacts:
    """Kernels on a chip at the same time, for one sequence."""

    cores: int
    flops: float
    """FLOPs of its products, over all chips that share it."""
    time_s: float
    compute_s: float
    dram_s: float
    setup_s: float
    sram_bytes: float
    moved_bytes: float


@dataclass(frozen=True)
class FusionFacts(Facts):
    """Partitions of a graph on a chip."""

    laws: ClassVar[Laws[FusionFacts]] = OF_FUSIONS

    flops_per_s: float
    num_cores: int
    sram_bytes: float
    dram_bytes: float
    dram_bytes_per_s: float
    launch_s: float
    """Least time from one partition to the next."""
    weight_bytes: float
    """Weights of one repetition that are loaded."""
    ends_bytes: float
    """Tensors that enter and leave the graph with each sequence."""
    moves_ends: bool
    """Whether the tensors of the ends pass through DRAM."""
    repeats: int
    """Repetitions on one chip."""
    all_repeats: int
    tp: int
    micro_batch: int
    parts: tuple[PartFacts, ...]
    held_bytes: float
    time_s: float
    latency_s: float | None
    """Latency of a single sequence through all repetitions; None: a stream of them."""
    parts_s: Mapping[str, float]
    bound_s: float


fused = OF_FUSIONS.law


OF_FUSIONS.add_sum("fusion_is_whole", "time", "parts_s", "time_s", "s")


@fused("products take their FLOPs at the peak of the chips")
def chips_work(facts: FusionFacts) -> Inequality:
    least_s = sum(part.flops for part in facts.parts) / (facts.tp * facts.flops_per_s)
    return Inequality(least_s, facts.time_s, "s")


@fused("a partition takes at least its launch, for all sequences of a micro-batch")
def partitions_are_launched(facts: FusionFacts) -> Inequality:
    """Return the counts of the shortest partition."""
    shortest_s = min(part.time_s for part in facts.parts)
    return Inequality(facts.launch_s, facts.micro_batch * shortest_s, "s")


@fused("a pass that is alone takes what each partition takes at least, one after the other")
def a_pass_takes_its_partitions(facts: FusionFacts) -> Inequality | None:
    """Return both counts: launch, or products, or tensors from DRAM; or all weights."""
    if facts.latency_s is None:
        return None
    least_s = sum(
        max(
            facts.launch_s,
            part.flops / (facts.tp * facts.flops_per_s),
            part.moved_bytes / facts.dram_bytes_per_s,
        )
        for part in facts.parts
    )
    loads_s = facts.weight_bytes / (facts.tp * facts.dram_bytes_per_s)
    return Inequality(facts.all_repeats * max(least_s, loads_s), facts.latency_s, "s")


@fused("what a partition moves passes the DRAM within its time")
def tensors_pass_dram(facts: FusionFacts) -> Inequality:
    """Return the counts of the partition that comes nearest to breaking the law."""
    counts = [(part.moved_bytes / facts.dram_bytes_per_s, part.time_s) for part in facts.parts]
    return Inequality(*max(counts, key=lambda pair: pair[0] - pair[1]), "s")


@fused("what enters and leaves the graph is moved")
def ends_are_moved(facts: FusionFacts) -> Inequality | None:
    if not facts.moves_ends:
        return None
    moved = sum(part.moved_bytes for part in facts.parts)
    return Inequality(facts.ends_bytes / facts.tp, moved, "B")


@fused("weights are read once for each micro-batch")
def weights_are_loaded(facts: FusionFacts) -> Inequality:
    """Return both counts, in the time of a micro-batch."""
    loaded_s = sum(part.setup_s for part in facts.parts) * facts.micro_batch
    least_s = facts.weight_bytes / (facts.tp * facts.dram_bytes_per_s)
    return Inequality(least_s, loaded_s, "s")


@fused("a partition fits the SRAM and the cores of the chip")
def partitions_fit(facts: FusionFacts) -> Inequality:
    if (cores := max(part.cores for part in facts.parts)) > facts.num_cores:
        return Inequality(float(cores), float(facts.num_cores), "1")
    return Inequality(max(part.sram_bytes for part in facts.parts), facts.sram_bytes, "B")


@fused("DRAM holds weights, and tensors of all sequences of a micro-batch")
def dram_holds(facts: FusionFacts) -> Inequality:
    weights = facts.weight_bytes * facts.repeats / facts.tp
    return Inequality(weights + facts.micro_batch * facts.held_bytes, facts.dram_bytes, "B")


@fused("the bound of the search is no slower than what it found")
def fusion_bound_is_below(facts: FusionFacts) -> Inequality:
    return Inequality(facts.bound_s, facts.time_s, "s")


# ------------------------------------------------------------------------ layers cut into stages


@dataclass(frozen=True)
class StageFacts:
    """Bytes and time of each device of a stage."""

    weights_bytes: float
    held_bytes: float
    room_bytes: float
    work_s: float | None


@dataclass(frozen=True)
class PartitionFacts(Facts):
    """A model cut into stages with the question that it answers."""

    laws: ClassVar[Laws[PartitionFacts]] = OF_PARTITIONS

    model: ModelSpec
    system: SystemSpec
    workload: Training | Prefill | Decode
    stages: tuple[StageFacts, ...]
    tensor_degree: int
    expert_degree: int
    replicas: int
    num_devices_used: int
    claims_to_fit: bool
    peak_flops_per_s: float
    latency_s: float | None
    time_parts_s: Mapping[str, float]
    tokens_per_s: float | None

    @property
    def work(self) -> ModelWork:
        """Counts of the model."""
        return ModelWork(self.model)

    @property
    def word_bytes(self) -> float:
        """Bytes of one element of a weight."""
        if isinstance(self.workload, Training):
            return self.workload.optimizer.weight_bytes_per_param
        types = self.workload.precision
        return min(types.weight_bytes, BYTES_OF[types.activation])


cut = OF_PARTITIONS.law


@cut("stages of all replicas are on devices of their own, and there are as many")
def stages_have_devices(facts: PartitionFacts) -> Inequality | None:
    if not facts.claims_to_fit:
        return None
    used = len(facts.stages) * facts.tensor_degree * facts.replicas
    if used != facts.num_devices_used:
        return equal(float(used), float(facts.num_devices_used), "1")
    return Inequality(float(used), float(facts.system.num_devices), "1")


@cut("the memory of a device holds its stage")
def stages_fit(facts: PartitionFacts) -> Inequality | None:
    """Return the counts of the fullest stage."""
    if not facts.stages:
        return None
    fullest = max(facts.stages, key=lambda stage: stage.held_bytes - stage.room_bytes)
    return Inequality(fullest.held_bytes, fullest.room_bytes, "B")


@cut("weights of all stages are at least the parameters of the layers")
def layers_lie_somewhere(facts: PartitionFacts) -> Inequality | None:
    """Return both counts, of one replica."""
    if not facts.stages:
        return None
    layers, ranks = facts.work.layers, max(facts.tensor_degree, facts.expert_degree)
    params = sum(layer.dense_params / facts.tensor_degree for layer in layers)
    params += sum(layer.expert_params / ranks for layer in layers)
    held = sum(stage.weights_bytes for stage in facts.stages)
    return Inequality(params * facts.word_bytes, held, "B")


OF_PARTITIONS.add_sum("cut_is_whole", "time", "time_parts_s", "latency_s", "s")


@cut("tokens per second take their FLOPs at the peak of all devices")
def tokens_are_done(facts: PartitionFacts) -> Inequality | None:
    """Return both counts: FLOPs of one second."""
    if facts.tokens_per_s is None:
        return None
    passes = 3.0 if isinstance(facts.workload, Training) else 1.0
    if isinstance(facts.workload, Training) and facts.workload.optimizer.freezes_weights:
        passes = 2.0 - 1.0 / len(facts.work.layers)
    done = facts.tokens_per_s * facts.work.layer_flops * passes
    return Inequality(done / facts.peak_flops_per_s, float(facts.num_devices_used), "s")
