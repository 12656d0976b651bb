"""Laws of a training step: the memory of its state, its computation, its messages, its cost.

Parameters count in matrices alone; layers are those of the stage with the fewest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import ClassVar

from meshwright.audit.laws import Inequality, Laws, equal
from meshwright.audit.machine import (
    host_bytes_per_s,
    least_sum_share,
    link_bytes_per_s,
    memory_bytes_per_s,
    peak_flops_per_s,
    rent_is_paid,
)
from meshwright.audit.work import LayerWork, ModelFacts
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import BYTES_OF, Training

LAWS: Laws[TrainingFacts] = Laws()
DEVICE_AXES = ("tp", "tatp", "cp", "dp_shard", "dp_replicate", "pp")
DENSE_REPLICAS = ("dp_shard", "cp", "dp_replicate")


@dataclass(frozen=True)
class TrainingFacts(ModelFacts):
    """A candidate with the question that it answers."""

    laws: ClassVar[Laws[TrainingFacts]] = LAWS

    workload: Training
    is_placed: bool
    """Whether ranks are placed otherwise than in the order of the axes."""
    step_time_s: float
    time_parts_s: Mapping[str, float]
    interval_s: tuple[float, float] | None
    num_devices_used: int
    num_hosted: int
    """Ranks on the device of another rank, where devices of a grid are dead."""
    num_micro_batches: int
    tokens_per_s: float
    mfu: float
    """Utilisation by model FLOPs, with half of the scores [1]."""
    hfu: float
    fullest_stage: str
    memory_bytes: float
    memory_parts_bytes: Mapping[str, float]
    """Memory of the fullest device by part, where all parts together are most [bytes]."""
    memory_most_bytes: Mapping[str, float]
    """The most of each category of tensors there, at any moment of a step [bytes]."""
    host_bytes_per_device: float
    claims_to_fit: bool
    energy_j: float | None
    energy_parts_j: Mapping[str, float]
    """Energy of all devices by part [J]; with ``links_j``, the sum of the energies of single
    operations."""
    cost_usd: float | None

    @property
    def shards_weights_from(self) -> int:
        """ZeRO stage from which weights rest in shards: 2 where FSDP2 stands for it."""
        return 2 if self.workload.software.whole_in_pipelines else 3

    @property
    def zero_stage(self) -> int:
        """ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 weights too."""
        return int(self.choices["zero_stage"])

    def offloads(self, what: str) -> bool:
        """Tell whether the host holds some state: ``optimizer``, ``gradients``, ``weights``..."""
        held = {
            "none": (), "optimizer": ("optimizer",), "gradients": ("optimizer", "gradients"),
            "state": ("optimizer", "gradients", "weights"), "activations": ("activations",),
            "weights": ("weights",), "all": ("optimizer", "weights", "activations"),
        }  # fmt: skip
        kinds = held[str(self.choices["offload"])]
        if what == "gradients" and self.workload.software.shards_by_unit:
            what = "weights"  # gradients follow the weights: CPUOffloadPolicy of PyTorch
        return what in kinds

    def least_layers(self, stage: str) -> float:
        """Return the fewest layers that a stage of the pipeline can hold, in any distribution.

        Equal chunks differ by one layer at most; the ends hold fewer where the embedding or the
        head counts as layers.
        """
        stages, chunks = int(self.degrees["pp"]), int(self.degrees["num_virtual_stages"])
        number = stages * chunks
        stated = self.choices["stage_layers"]
        if len(stated) == number:
            held = [sum(stated[place::stages]) for place in range(stages)]
            return float({"first": held[0], "last": held[-1]}.get(stage, min(held)))
        of_ends = {name: int(self.choices[f"{name}_layers"]) for name in ("embedding", "head")}
        dealt = len(self.work.layers) + sum(of_ends.values())
        least = dealt // number * chunks
        if stages == 1:
            return len(self.work.layers)
        less = {"first": of_ends["embedding"], "last": of_ends["head"], "middle": 0}
        return max(0, least - less[stage])

    def on_stage(self, count: Callable[[LayerWork], float]) -> float:
        """Return the least count of the layers of the fullest stage."""
        number = self.least_layers(self.fullest_stage)
        if self.degrees["num_virtual_stages"] > 1:
            return self.work.least(count, number)
        return self.work.least_in_row(count, number, self.fullest_stage)

    def params_on_stage(self, *, is_sharded: bool, with_tables: bool = True) -> float:
        """Return the least number of parameters that a device of the fullest stage holds.

        Parameters
        ----------
        is_sharded
            Whether they are sharded over the data-parallel axes too.
        with_tables
            Whether the token table and the last product count.
        """
        split = self.degree("tp", "tatp")
        shards = self.degree("dp_shard", "cp") if is_sharded else 1.0
        dense = self.on_stage(lambda layer: layer.dense_params)
        if with_tables and not self.choices["vocabulary_parallel"]:
            is_end = self.fullest_stage != "middle"
            tables = self.work.num_tables if self.degrees["pp"] == 1 else float(is_end)
            dense += tables * self.work.table_params
        expert = self.on_stage(lambda layer: layer.expert_params)
        ranks = self.degree("ep", "etp")
        if is_sharded:
            ranks = max(ranks, self.degree("tp", "cp", "dp_shard"))
        return dense / (split * shards) + expert / (ranks * self.degrees["tatp"])

    @property
    def sequences(self) -> float:
        """Sequences of one micro-batch."""
        return self.degrees["micro_batch_size"]

    @property
    def local_tokens(self) -> float:
        """Tokens of a micro-batch on one rank of cp."""
        return self.sequences * self.workload.sequence_length / self.degrees["cp"]

    @property
    def boundary_bytes(self) -> float:
        """Activations between two layers, of one micro-batch on one device [bytes]."""
        width = self.model.hidden_size * BYTES_OF[self.workload.precision.activation]
        return self.local_tokens * width / self.degree("tp", "tatp")

    @property
    def in_flight(self) -> float:
        """Least number of micro-batches that wait for their backward pass on the fullest stage."""
        stages = self.degrees["pp"]
        behind = {"first": stages, "middle": 2.0, "last": 1.0}[self.fullest_stage]
        if self.choices["schedule"] == "gpipe":
            behind = float(self.num_micro_batches)
        return min(behind, float(self.num_micro_batches))

    @property
    def backward_share(self) -> float:
        """Least work of the backward pass over that of the forward pass.

        Frozen weights have no gradients, and the first layer passes none on.
        """
        num_layers = len(self.work.layers)
        is_frozen = self.workload.optimizer.freezes_weights
        return 1.0 - 1.0 / num_layers if is_frozen else 2.0

    @property
    def forward_s(self) -> float:
        """Time of the forward pass of the tokens of a step on all devices at the peak [s]."""
        types, length = self.workload.precision, float(self.workload.attended_length)
        wide = self.work.score_flops(length) + self.work.head_flops
        per_token = self.work.layer_flops / peak_flops_per_s(self.system, types.matmul)
        per_token += wide / peak_flops_per_s(self.system, types.activation)
        return per_token * self.workload.tokens_per_step / self.num_devices_used

    @property
    def passes_bytes(self) -> float:
        """Least bytes of weights that a device reads for one micro-batch, forward and backward."""
        weights = self.on_stage(lambda layer: layer.dense_params) / self.degree("tp", "tatp")
        word = min(self.workload.optimizer.gathered_weight_bytes_per_param, self.word_bytes)
        return 2.0 * weights * word

    def sends(self, axes: Iterable[str]) -> tuple[float, float, float]:
        """Return the members of a group, those inside a host, and the hosts that it spans.

        Ranks count along the axes in their order, innermost first, and a host holds those that
        follow each other.
        """
        inner, inside = 1.0, 1.0
        size = float(self.system.levels[0].size) if self.system.levels else 1.0
        wanted = set(axes)
        for axis in self.choices["axis_order"]:
            degree = self.degrees[axis]
            if axis in wanted:
                inside *= min(degree, max(1.0, -(-size // inner)))
            inner *= degree
        members = self.degree(*wanted)
        return members, inside, members / inside

    def summed_bytes(self, num_bytes: float, axes: Iterable[str]) -> Crossing:
        """Return the bytes that a device sends to sum a tensor over a group: scatter and gather."""
        found = self.gathered_bytes(num_bytes, axes)
        share = 2.0 * least_sum_share(self.system)
        return Crossing(share * found.all_bytes, share * found.between_hosts_bytes)

    def gathered_bytes(self, num_bytes: float, axes: Iterable[str]) -> Crossing:
        """Return the bytes that a device receives of a tensor that is sharded over its group.

        All but its own part; from other hosts each part once for all members of a host.
        """
        members, inside, hosts = self.sends(axes)
        between = 0.0 if self.is_placed else (1.0 - 1.0 / hosts) / inside
        return Crossing(num_bytes * (1.0 - 1.0 / members), num_bytes * between)

    @cached_property
    def data_parallel(self) -> Crossing:
        """Bytes sent by a device of the mean stage for gradients and parameters in a step."""
        optimizer, stage = self.workload.optimizer, self.zero_stage
        split = self.degree("tp", "tatp", "pp")
        dense = sum(layer.dense_params for layer in self.work.layers) / split
        gradients = dense * optimizer.reduced_gradient_bytes_per_param
        weights = dense * optimizer.gathered_bytes_per_param(stage)
        if optimizer.freezes_weights:
            gradients = 0.0
        if stage == 0:
            return self.summed_bytes(gradients, DENSE_REPLICAS)
        shards, replicas = ("dp_shard", "cp"), ("dp_replicate",)
        scatter = self.gathered_bytes(gradients * least_sum_share(self.system), shards)
        gather = self.gathered_bytes(weights, shards)
        many, software = float(self.num_micro_batches), self.workload.software
        is_whole = software.whole_in_pipelines and self.degrees["pp"] > 1
        gathers, scatters = 1.0, many if stage >= 2 and not is_whole else 1.0
        if stage == 3:
            is_dropped = bool(self.choices["reshard_after_forward"])
            gathers = (1.0 if is_whole else 2.0) * many if is_dropped else 1.0
            is_once = is_whole or not is_dropped or software.sums_in_last_pass
            scatters = 1.0 if is_once else many
        outer = self.summed_bytes(gradients / self.degree(*shards), replicas)
        return gather.times(gathers) + scatter.times(scatters) + outer

    @cached_property
    def tensor_parallel(self) -> Crossing:
        """Bytes sent over tp in a step by a device of the stage with fewest layers."""
        if self.degrees["tatp"] > 1:
            return Crossing(0.0, 0.0)
        layers = min(self.least_layers(stage) for stage in ("first", "middle", "last"))
        sums = self.work.least(lambda layer: layer.summed_outputs, layers)
        each = self.local_tokens * self.model.hidden_size * self.word_bytes
        passes = 1.0 + min(1.0, self.backward_share)
        return self.summed_bytes(each, ("tp",)).times(passes * sums * self.num_micro_batches)

    @cached_property
    def expert_parallel(self) -> float:
        """Bytes sent by a device to experts and back: each token at least once."""
        layers = min(self.least_layers(stage) for stage in ("first", "middle", "last"))
        with_experts = self.work.least(lambda layer: float(layer.expert_params > 0), layers)
        leaves = 1.0 - 1.0 / self.degrees["ep"]
        token_bytes = self.model.hidden_size * self.word_bytes
        tokens = self.local_tokens / self.degrees["tp"] * self.num_micro_batches
        passes = 1.0 + min(1.0, self.backward_share)
        return 2.0 * passes * leaves * token_bytes * tokens * with_experts

    @property
    def pipeline_bytes(self) -> float:
        """Bytes sent by a device at an end of the pipeline."""
        if self.degrees["pp"] == 1:
            return 0.0
        chunks = self.degrees["num_virtual_stages"]
        return self.num_micro_batches * self.boundary_bytes * chunks


@dataclass(frozen=True)
class Crossing:
    """Bytes that a device sends, and the part of them that leaves its host."""

    all_bytes: float
    between_hosts_bytes: float

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(
            self.all_bytes + other.all_bytes, self.between_hosts_bytes + other.between_hosts_bytes
        )

    def times(self, number: float) -> Crossing:
        """Return the bytes of a number of such transfers."""
        return Crossing(number * self.all_bytes, number * self.between_hosts_bytes)

    def least_s(self, system: SystemSpec) -> float:
        """Return the least time on all links of a device, or on those out of its host [s]."""
        found = [0.0]
        for sent, rate in (
            (self.all_bytes, link_bytes_per_s(system)),
            (self.between_hosts_bytes, link_bytes_per_s(system, outside_of=1)),
        ):
            if sent > 0.0 and rate > 0.0:
                found.append(sent / rate)
        return max(found)


law = LAWS.law


# ----------------------------------------------------------------------------------------- sums


LAWS.add_sum("time_is_whole", "step", "time_parts_s", "step_time_s", "s")


@law("each part of the step time is at least 0")
def time_is_positive(facts: TrainingFacts) -> Inequality:
    return Inequality(0.0, min(facts.time_parts_s.values()), "s")


LAWS.add_sum("memory_is_whole", "memory", "memory_parts_bytes", "memory_bytes", "B")


@law("the interval of the step time contains the step time")
def interval_holds_step(facts: TrainingFacts) -> Inequality | None:
    if facts.interval_s is None:
        return None
    low_s, high_s = facts.interval_s
    outside = max(low_s - facts.step_time_s, facts.step_time_s - high_s)
    return Inequality(outside, 0.0, "s")


@law("tokens per second times the step time equal the tokens of a step")
def tokens_are_made(facts: TrainingFacts) -> Inequality:
    return equal(facts.tokens_per_s * facts.step_time_s, facts.workload.tokens_per_step, "1")


@law("the micro-batches of all replicas hold at least the global batch")
def batch_is_whole(facts: TrainingFacts) -> Inequality:
    held = facts.num_micro_batches * facts.sequences * facts.degree("dp_shard", "dp_replicate")
    return Inequality(float(facts.workload.global_batch_size), held, "1")


@law("the product of the degrees equals the devices in use plus the ranks hosted by others")
def devices_are_counted(facts: TrainingFacts) -> Inequality:
    return equal(facts.degree(*DEVICE_AXES), float(facts.num_devices_used + facts.num_hosted), "1")


@law("the plan uses at most the devices of the system")
def devices_are_there(facts: TrainingFacts) -> Inequality:
    return Inequality(float(facts.num_devices_used), float(facts.system.num_devices), "1")


# --------------------------------------------------------------------------------------- memory


@law("the memory in use is at most the capacity of the device")
def device_holds(facts: TrainingFacts) -> Inequality | None:
    if not facts.claims_to_fit:
        return None
    return Inequality(facts.memory_bytes, facts.system.chip.main_memory.capacity_bytes, "B")


@law("offloaded tensors are at most the host memory of a device")
def host_holds(facts: TrainingFacts) -> Inequality | None:
    if not facts.claims_to_fit or facts.system.host is None:
        return None
    return Inequality(facts.host_bytes_per_device, facts.system.host.capacity_bytes, "B")


def _held(
    facts: TrainingFacts, what: str, first_sharded: int, bytes_per_param: float,
    *, with_tables: bool = True,
) -> Inequality:  # fmt: skip
    """Return the least bytes of a kind of state after sharding, and those on device and host."""
    least = bytes_per_param * facts.params_on_stage(
        is_sharded=facts.zero_stage >= first_sharded, with_tables=with_tables
    )
    category = "states" if what == "optimizer" else what
    held = facts.memory_most_bytes[f"{category}_bytes"]
    if facts.offloads(what):
        held += facts.host_bytes_per_device
    return Inequality(least, held, "B")


@law("the weights on a device and its host are at least its share of the parameters")
def weights_lie_somewhere(facts: TrainingFacts) -> Inequality:
    first = facts.shards_weights_from
    return _held(facts, "weights", first, facts.workload.optimizer.weight_bytes_per_param)


@law("the gradients on a device and its host are at least those of its share of the parameters")
def gradients_lie_somewhere(facts: TrainingFacts) -> Inequality:
    return _held(facts, "gradients", 2, facts.workload.optimizer.gradient_bytes_per_param)


@law("the optimizer state on a device and its host is at least that of its share of the parameters")
def state_lies_somewhere(facts: TrainingFacts) -> Inequality:
    optimizer = facts.workload.optimizer
    return _held(facts, "optimizer", 1, optimizer.state_bytes_per_param,
                 with_tables=optimizer.row_state_bytes is None)  # fmt: skip


@law("a host holds at least the weights, gradients and state that are offloaded to it")
def host_has_its_share(facts: TrainingFacts) -> Inequality:
    optimizer = facts.workload.optimizer
    kinds = (
        ("weights", facts.shards_weights_from, optimizer.weight_bytes_per_param),
        ("gradients", 2, optimizer.gradient_bytes_per_param),
        ("optimizer", 1, optimizer.state_bytes_per_param),
    )
    least = sum(
        each * facts.params_on_stage(is_sharded=facts.zero_stage >= first, with_tables=False)
        for what, first, each in kinds
        if facts.offloads(what)
    )
    return Inequality(least, facts.host_bytes_per_device, "B")


@law("a device that keeps gathered weights holds the weights of its whole stage")
def gathered_weights_stay(facts: TrainingFacts) -> Inequality | None:
    """Return both counts.

    One layer stays under ZeRO 3 that drops gathered weights, or with weights on the host.
    """
    is_sharded = facts.zero_stage >= 3 and facts.degree("dp_shard", "cp") > 1
    if not is_sharded and not facts.offloads("weights"):
        return None
    word = facts.workload.optimizer.gathered_weight_bytes_per_param
    whole = facts.params_on_stage(is_sharded=False, with_tables=False)
    if not is_sharded or facts.choices["reshard_after_forward"]:
        whole /= max(1.0, facts.least_layers(facts.fullest_stage) + 1.0)
    return Inequality(whole * word, facts.memory_most_bytes["gathered_bytes"], "B")


@law("the activations on a device and its host include at least the input of each layer in flight")
def inputs_are_kept(facts: TrainingFacts) -> Inequality:
    layers = facts.least_layers(facts.fullest_stage)
    if facts.choices["recompute"] == "full":
        layers = -(-layers // float(facts.choices["recompute_run"]))
    held = facts.memory_most_bytes["activations_bytes"] + facts.host_bytes_per_device
    return Inequality(layers * facts.boundary_bytes * facts.in_flight, held, "B")


@law("without recomputation the activations include the inputs of all matrix products in flight")
def product_inputs_are_kept(facts: TrainingFacts) -> Inequality | None:
    """Return both counts.

    They count in the narrowest type that products read: wide ones may be made again from it.
    """
    is_narrow = facts.workload.software.narrow_activation_inputs
    if facts.choices["recompute"] != "none" or facts.workload.optimizer.freezes_weights:
        return None
    word = 1.0 if is_narrow else facts.word_bytes
    elements = facts.on_stage(lambda layer: layer.product_inputs)
    each = elements * word * facts.local_tokens / facts.degree("tp", "tatp")
    held = facts.memory_most_bytes["activations_bytes"] + facts.host_bytes_per_device
    return Inequality(each * facts.in_flight, held, "B")


# ---------------------------------------------------------------------------------- computation


@law("the step takes at least its FLOPs of products and attention at the peak of all devices")
def work_is_done(facts: TrainingFacts) -> Inequality:
    least_s = facts.forward_s * (1.0 + facts.backward_share)
    names = ("compute_s", "main_memory_s", "tatp_stream_s")
    return Inequality(least_s, sum(facts.time_parts_s[name] for name in names), "s")


@law("recomputation of whole layers takes at least half of their forward pass")
def recomputation_is_done(facts: TrainingFacts) -> Inequality | None:
    if facts.choices["recompute"] != "full" or facts.choices["recompute_layers"]:
        return None
    types = facts.workload.precision
    least_s = (
        facts.work.layer_flops / peak_flops_per_s(facts.system, types.matmul)
        * facts.workload.tokens_per_step / facts.num_devices_used
    )  # fmt: skip
    return Inequality(0.5 * least_s, facts.time_parts_s["recompute_s"], "s")


@law("the step takes at least the reads of the weights in both passes of each micro-batch")
def weights_are_read(facts: TrainingFacts) -> Inequality:
    least_s = facts.num_micro_batches * facts.passes_bytes / memory_bytes_per_s(facts.system)
    if facts.backward_share < 1.0:
        least_s *= 0.5
    return Inequality(least_s, facts.step_time_s, "s")


@law("MFU equals the model FLOPs over the peak FLOPs of the step, and is at most 1")
def utilization_is_true(facts: TrainingFacts) -> Inequality:
    peak = facts.system.chip.product_flops_per_s(facts.workload.precision.matmul)
    if peak is None or facts.workload.optimizer.freezes_weights:
        return Inequality(facts.mfu, 1.0, "1")
    length = float(facts.workload.attended_length)
    flops = facts.work.layer_flops + facts.work.head_flops
    flops = 3.0 * (flops + facts.work.score_flops(length)) * facts.workload.tokens_per_step
    least = flops / (peak * facts.num_devices_used * facts.step_time_s)
    return Inequality(max(least, facts.mfu - 1.0 + least), facts.mfu, "1")


@law("the executed FLOPs are at least the model FLOPs")
def recomputation_counts(facts: TrainingFacts) -> Inequality:
    return Inequality(facts.mfu, facts.hfu, "1")


@law("the bubble is at least one forward and backward pass through the other stages")
def pipeline_fills(facts: TrainingFacts) -> Inequality | None:
    """Return both counts; a schedule that splits the backward pass fills the gap with it."""
    is_split = facts.choices["schedule"] == "zero_bubble"
    if facts.degrees["pp"] == 1 or is_split or len(facts.choices["stage_layers"]):
        return None
    layers, stages = len(facts.work.layers), facts.degrees["pp"]
    of_ends = int(facts.choices["embedding_layers"]) + int(facts.choices["head_layers"])
    most = -(-(layers + of_ends) // stages) + facts.degrees["num_virtual_stages"]
    others = max(0.0, layers - most) / layers / facts.degrees["num_virtual_stages"]
    types = facts.workload.precision
    one_s = facts.work.least(lambda layer: layer.active_params, layers) * 2.0
    one_s *= facts.sequences * facts.workload.sequence_length
    one_s /= peak_flops_per_s(facts.system, types.matmul) * facts.degree("tp", "tatp", "cp")
    least_s = one_s * (1.0 + facts.backward_share) * others
    return Inequality(least_s, facts.time_parts_s["bubble_s"], "s")


@law("the update takes at least one read and one write of the optimizer state of a device")
def state_is_updated(facts: TrainingFacts) -> Inequality | None:
    optimizer = facts.workload.optimizer
    if facts.offloads("optimizer") or optimizer.row_state_bytes is not None:
        return None
    params = facts.params_on_stage(is_sharded=facts.zero_stage >= 1, with_tables=False)
    touched = 2.0 * params * optimizer.state_bytes_per_param
    least_s = touched / memory_bytes_per_s(facts.system)
    return Inequality(least_s, facts.time_parts_s["optimizer_s"], "s")


# ---------------------------------------------------------------------------------------- links


@law("host transfers take at least the gradients to the host and the weights back")
def host_is_fed(facts: TrainingFacts) -> Inequality | None:
    """Return both counts: 16-bit gradients at least, of the shard of a device."""
    if not facts.offloads("optimizer"):
        return None
    params = facts.params_on_stage(is_sharded=facts.zero_stage >= 1, with_tables=False)
    word = min(2.0, facts.workload.optimizer.gradient_bytes_per_param)
    return Inequality(word * params / host_bytes_per_s(facts.system), facts.step_time_s, "s")


@law("offloaded state is read and written once on the host, or makes a round trip to the device")
def host_updates_state(facts: TrainingFacts) -> Inequality | None:
    """Return both counts: by the memory of the host where its rate is known."""
    optimizer, host = facts.workload.optimizer, facts.system.host
    if host is None or not facts.offloads("optimizer") or optimizer.row_state_bytes is not None:
        return None
    params = facts.params_on_stage(is_sharded=facts.zero_stage >= 1, with_tables=False)
    touched, rate = 2.0 * params * optimizer.state_bytes_per_param, inf
    if not facts.workload.software.updates_on_host:
        touched, rate = touched / 2.0, host.bandwidth_bytes_per_s
    elif host.memory_bandwidth_bytes_per_s is not None:
        rate = host.memory_bandwidth_bytes_per_s
    parts = facts.time_parts_s
    return Inequality(touched / rate, parts["offload_s"] + parts["optimizer_s"], "s")


@law("the step takes at least the bytes that a device sends over its links")
def links_carry_step(facts: TrainingFacts) -> Inequality:
    others = Crossing(facts.expert_parallel + facts.pipeline_bytes, 0.0)
    sent = facts.data_parallel + facts.tensor_parallel + others
    return Inequality(sent.least_s(facts.system), facts.step_time_s, "s")


@law("exposed synchronisation over dp takes at least its bytes over the links")
def replicas_are_synchronised(facts: TrainingFacts) -> Inequality | None:
    if facts.choices["overlap_data_parallel"]:
        return None
    return Inequality(
        facts.data_parallel.least_s(facts.system), facts.time_parts_s["dp_comm_s"], "s"
    )


@law("exposed sums over tp take at least their bytes over the links")
def tensors_are_summed(facts: TrainingFacts) -> Inequality | None:
    if facts.choices["overlap_tensor_parallel"]:
        return None
    return Inequality(
        facts.tensor_parallel.least_s(facts.system), facts.time_parts_s["tp_comm_s"], "s"
    )


@law("exposed all-to-all over ep takes at least its bytes over the links")
def tokens_reach_experts(facts: TrainingFacts) -> Inequality | None:
    if facts.choices["overlap_expert_parallel"]:
        return None
    sent = Crossing(facts.expert_parallel, 0.0)
    return Inequality(sent.least_s(facts.system), facts.time_parts_s["ep_comm_s"], "s")


@law("sends between the stages of a plain pipeline take at least their bytes over the links")
def stages_are_joined(facts: TrainingFacts) -> Inequality | None:
    if facts.choices["schedule"] == "interleaved" or facts.degrees["tatp"] > 1:
        return None
    sent = Crossing(facts.pipeline_bytes, 0.0)
    return Inequality(sent.least_s(facts.system), facts.time_parts_s["pp_comm_s"], "s")


# ----------------------------------------------------------------------------- energy and money


LAWS.add_sum("energy_is_whole", "energy", "energy_parts_j", "energy_j", "J")


@law("devices draw at least their idle power")
def idle_power_is_drawn(facts: TrainingFacts) -> Inequality | None:
    idle_w = facts.system.chip.idle_power_w
    if facts.energy_j is None or idle_w is None:
        return None
    drawn_j = facts.energy_parts_j["idle_j"]
    return Inequality(idle_w * facts.num_devices_used * facts.step_time_s, drawn_j, "J")


@law("devices draw at most their peak power")
def peak_power_is_kept(facts: TrainingFacts) -> Inequality | None:
    """Return both counts; None where energies of operations give the power."""
    peak_w = facts.system.chip.peak_power_w
    if facts.energy_j is None or peak_w is None or "links_j" in facts.energy_parts_j:
        return None
    most_w = peak_w * (1.0 + facts.system.overhead_power_fraction) * facts.num_devices_used
    return Inequality(facts.energy_j, most_w * facts.step_time_s, "J")


@law("the cost equals devices times rent times time")
def money_is_rent(facts: TrainingFacts) -> Inequality | None:
    device_s = facts.num_devices_used * facts.step_time_s
    return rent_is_paid(facts.system, facts.cost_usd, device_s)
