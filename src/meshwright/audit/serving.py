"""Laws of serving: memory of caches and weights, and the work of tokens.

A pass of decode reads all weights that its tokens use, and the cache of each of its sequences; a
request takes the work of its prompt and of its answer, on any devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.audit.laws import Facts, Inequality, Laws, equal
from meshwright.audit.machine import (
    least_sum_share,
    link_bytes_per_s,
    memory_bytes_per_s,
    peak_flops_per_s,
    rent_is_paid,
)
from meshwright.audit.work import ModelFacts
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import BYTES_OF, Decode, Prefill

LAWS: Laws[ServingFacts] = Laws()
OF_DEPLOYMENTS: Laws[DeploymentFacts] = Laws()
MILLION = 1.0e6


@dataclass(frozen=True)
class ServingFacts(ModelFacts):
    """A way of serving with the question that it answers."""

    laws: ClassVar[Laws[ServingFacts]] = LAWS

    workload: Prefill | Decode
    num_groups: int
    latency_s: float
    time_parts_s: Mapping[str, float]
    first_token_s: float | None
    tokens_per_s: float
    tokens_per_s_per_user: float
    sequences_in_flight: float
    most_sequences: float
    num_devices_used: int
    fullest_stage: str
    memory_bytes: float
    memory_parts_bytes: Mapping[str, float]
    memory_capacity_bytes: float
    energy_j_per_million_tokens: float | None
    energy_is_of_operations: bool
    cost_usd_per_million_tokens: float | None

    @property
    def least_layers(self) -> int:
        """Least layers of a stage: equal stages differ by one."""
        return len(self.work.layers) // int(self.degrees["pp"])

    @property
    def decode(self) -> Decode | None:
        """The workload, where tokens are generated one by one."""
        return self.workload if isinstance(self.workload, Decode) else None

    @property
    def has_prompts(self) -> bool:
        """Whether prefill shares the devices with decode."""
        return self.decode is not None and self.decode.mixes_prompts

    @property
    def pass_tokens(self) -> float:
        """Tokens of one sequence in a pass."""
        return 1.0 if isinstance(self.workload, Decode) else float(self.workload.prompt_length)

    @property
    def tokens_per_step(self) -> float:
        """Most output tokens that a pass yields for each of its sequences."""
        drafts = None if self.decode is None else self.decode.speculation
        return 1.0 if drafts is None else 1.0 + drafts.drafted_tokens

    @property
    def cached_tokens(self) -> float:
        """Least cached tokens that a pass of decode reads for each sequence."""
        if self.decode is None:
            return 0.0
        return float(self.decode.prompt_length or self.decode.context_length)

    @property
    def token_s(self) -> float:
        """Time of the products of one token in all layers on one device at the peak [s]."""
        types = self.workload.precision
        return self.work.layer_flops / peak_flops_per_s(self.system, types.matmul)

    @property
    def head_s(self) -> float:
        """Time of the last product of one token on one device at the peak [s]."""
        types = self.workload.precision
        return self.work.head_flops / peak_flops_per_s(self.system, types.activation)

    def prompt_s(self, tokens: float) -> float:
        """Return the time of the pass of a prompt on one device at the peak [s]."""
        types = self.workload.precision
        scores = self.work.score_flops(tokens) / peak_flops_per_s(self.system, types.activation)
        return tokens * (self.token_s + scores) + self.head_s

    def cache_bytes(self, tokens: float) -> float:
        """Return the cache of a sequence on one rank of tp and cp, all layers [bytes]."""
        elements = self.work.cache_elements(tokens, self.degrees["tp"])
        return elements * BYTES_OF[self.workload.precision.kv_cache] / self.degrees["cp"]

    @property
    def weights_bytes(self) -> float:
        """Weights read in one pass by the devices of a sequence, one rank of each stage [bytes].

        Of the routed experts, only those of one token.
        """
        split = self.degree("tp", "cp")
        dense = sum(layer.dense_params for layer in self.work.layers) / self.degrees["tp"]
        expert = sum(layer.routed_share * layer.expert_params for layer in self.work.layers)
        ranks = max(self.degree("ep", "etp"), split)
        return (dense + expert / ranks) * self.workload.precision.weight_bytes

    @property
    def summed_bytes(self) -> float:
        """Bytes sent by a rank of tp in one pass of one group: sums of the dense branches."""
        tp = self.degrees["tp"]
        sums = sum(layer.summed_outputs for layer in self.work.layers)
        tokens = self.degrees["micro_batch_size"] * self.pass_tokens / self.degrees["cp"]
        each = tokens * self.model.hidden_size * self.word_bytes
        return 2.0 * least_sum_share(self.system) * (1.0 - 1.0 / tp) * sums * each


law = LAWS.law


# ----------------------------------------------------------------------------------------- sums


LAWS.add_sum("time_is_whole", "time", "time_parts_s", "latency_s", "s")


@law("each part of the time is at least 0")
def time_is_positive(facts: ServingFacts) -> Inequality:
    return Inequality(0.0, min(facts.time_parts_s.values()), "s")


LAWS.add_sum("memory_is_whole", "memory", "memory_parts_bytes", "memory_bytes", "B")


@law("the product of the degrees equals the devices in use: at most those of the system")
def devices_are_counted(facts: ServingFacts) -> Inequality:
    used = facts.degree("tp", "cp", "dp_shard", "dp_replicate", "pp")
    if used != facts.num_devices_used:
        return equal(used, float(facts.num_devices_used), "1")
    return Inequality(used, float(facts.system.num_devices), "1")


@law("sequences in flight equal the sequences finished in a second times the latency of each")
def sequences_flow(facts: ServingFacts) -> Inequality | None:
    """Return both counts; source: Little 1961.

    A whole request stays until its first token, and for each token after it.
    """
    if facts.decode is None:
        return None
    there_s = facts.latency_s
    if facts.first_token_s is not None:
        answer = facts.decode.answer_length
        there_s = (facts.first_token_s + (answer - 1.0) * facts.latency_s) / answer
    return equal(facts.tokens_per_s * there_s, facts.sequences_in_flight, "1")


# --------------------------------------------------------------------------------------- memory


@law("the memory in use is at most the capacity of the device")
def device_holds(facts: ServingFacts) -> Inequality:
    return Inequality(facts.memory_bytes, facts.memory_capacity_bytes, "B")


@law("the caches of the sequences in flight fit the memory of the device")
def sequences_have_room(facts: ServingFacts) -> Inequality | None:
    if facts.decode is None:
        return None
    return Inequality(facts.sequences_in_flight, facts.most_sequences, "1")


@law("the weights on a device are at least its share of the parameters")
def weights_lie_somewhere(facts: ServingFacts) -> Inequality:
    layers, word = facts.least_layers, facts.workload.precision.weight_bytes
    dense = facts.work.least(lambda layer: layer.dense_params, layers) / facts.degrees["tp"]
    expert = facts.work.least(lambda layer: layer.expert_params, layers)
    least = (dense + expert / facts.degree("ep", "etp")) * word
    return Inequality(least, facts.memory_parts_bytes["weights_bytes"], "B")


@law("the cache on a device holds at least the context of all its sequences")
def cache_lies_somewhere(facts: ServingFacts) -> Inequality | None:
    """Return both counts; stages differ by a layer."""
    if facts.decode is None:
        return None
    layers = len(facts.work.layers)
    tokens = float(facts.decode.prompt_length or facts.decode.context_length)
    share = facts.least_layers / layers if len(set(facts.work.layers)) == 1 else 0.0
    if facts.degrees["pp"] == 1:
        share = 1.0
    sequences = facts.sequences_in_flight / facts.degree("dp_shard", "dp_replicate")
    least = facts.cache_bytes(tokens) * share * sequences
    return Inequality(least, facts.memory_parts_bytes["kv_cache_bytes"], "B")


# ---------------------------------------------------------------------------------- computation


@law("a token takes at least one read of the weights and caches of its pass")
def weights_are_read(facts: ServingFacts) -> Inequality | None:
    if facts.decode is None:
        return None
    caches = facts.cache_bytes(facts.cached_tokens) * facts.degrees["micro_batch_size"]
    if facts.has_prompts:
        caches = 0.0
    read_s = (facts.weights_bytes + caches) / memory_bytes_per_s(facts.system)
    return Inequality(read_s / facts.tokens_per_step, facts.latency_s, "s")


@law("a pass takes at least the FLOPs of its matrix products at the peak of its devices")
def pass_is_done(facts: ServingFacts) -> Inequality:
    sequences = facts.degrees["micro_batch_size"]
    one_s = facts.prompt_s(facts.pass_tokens) if facts.decode is None else facts.token_s
    if facts.has_prompts:
        sequences = 1.0
    least_s = one_s * sequences / facts.degree("tp", "cp")
    return Inequality(least_s, facts.latency_s, "s")


@law("the tokens of a second need at most the peak FLOPs of the devices in use")
def tokens_are_done(facts: ServingFacts) -> Inequality:
    """Return both counts: busy seconds in one second.

    In whole requests each answer takes the work of its prompt too.
    """
    work, decode = facts.workload, facts.decode
    if decode is None:
        length = float(work.prompt_length or 1)
        each_s = facts.prompt_s(length) / length
    else:
        each_s = facts.token_s + facts.head_s
        if facts.has_prompts and decode.prompt_length is not None:
            each_s += facts.prompt_s(float(decode.prompt_length)) / decode.answer_length
    return Inequality(facts.tokens_per_s * each_s, float(facts.num_devices_used), "s")


@law("the time to first token is at least the pass of the prompt")
def first_token_waits(facts: ServingFacts) -> Inequality | None:
    if facts.first_token_s is None or facts.decode is None or not facts.decode.prompt_length:
        return None
    least_s = facts.prompt_s(float(facts.decode.prompt_length)) / facts.degree("tp", "cp")
    return Inequality(least_s, facts.first_token_s, "s")


@law("tokens per second per user equal the tokens of a pass over its latency")
def users_wait(facts: ServingFacts) -> Inequality:
    return equal(facts.tokens_per_s_per_user * facts.latency_s, facts.pass_tokens, "1")


# ---------------------------------------------------------------------------------------- links


@law("sums over tp take at least their bytes over the links")
def tensors_are_summed(facts: ServingFacts) -> Inequality | None:
    rate = link_bytes_per_s(facts.system)
    if facts.degrees["tp"] == 1 or not rate or facts.has_prompts:
        return None
    least_s = facts.summed_bytes / facts.tokens_per_step / rate
    return Inequality(least_s, facts.time_parts_s["tp_comm_s"], "s")


@law("sends between stages take at least their bytes over the links")
def stages_are_joined(facts: ServingFacts) -> Inequality | None:
    rate, stages = link_bytes_per_s(facts.system), facts.degrees["pp"]
    if stages == 1 or not rate or facts.has_prompts:
        return None
    tokens = facts.degrees["micro_batch_size"] * facts.pass_tokens / facts.degree("tp", "cp")
    sent = (stages - 1.0) * tokens * facts.model.hidden_size * facts.word_bytes
    least_s = sent / facts.tokens_per_step / rate
    return Inequality(least_s, facts.time_parts_s["pp_comm_s"], "s")


# ----------------------------------------------------------------------------- energy and money


@law("devices draw at least their idle power")
def idle_power_is_drawn(facts: ServingFacts) -> Inequality | None:
    """Return both counts in one second."""
    idle_w, energy_j = facts.system.chip.idle_power_w, facts.energy_j_per_million_tokens
    if energy_j is None or idle_w is None:
        return None
    drawn_j = energy_j * facts.tokens_per_s / MILLION
    return Inequality(idle_w * facts.num_devices_used, drawn_j, "J")


@law("devices draw at most their peak power")
def peak_power_is_kept(facts: ServingFacts) -> Inequality | None:
    """Return both counts in one second; None where energies of operations give the power."""
    peak_w, energy_j = facts.system.chip.peak_power_w, facts.energy_j_per_million_tokens
    if energy_j is None or peak_w is None or facts.energy_is_of_operations:
        return None
    most_w = peak_w * (1.0 + facts.system.overhead_power_fraction) * facts.num_devices_used
    return Inequality(energy_j * facts.tokens_per_s / MILLION, most_w, "J")


@law("the cost equals devices times rent times time")
def money_is_rent(facts: ServingFacts) -> Inequality | None:
    device_s = MILLION / facts.tokens_per_s * facts.num_devices_used
    return rent_is_paid(facts.system, facts.cost_usd_per_million_tokens, device_s)


# ---------------------------------------------------------------------- prefill apart from decode


@dataclass(frozen=True)
class DeploymentFacts(Facts):
    """Workers of prefill beside workers of decode."""

    laws: ClassVar[Laws[DeploymentFacts]] = OF_DEPLOYMENTS

    system: SystemSpec
    workload: Decode
    prefill: ServingFacts
    """Workload and price of one worker."""
    decode: ServingFacts
    num_prefill: int
    num_decode: int
    requests_per_s: float
    tokens_per_s: float
    latency_s: float
    sequences_in_flight: float
    first_token_s: float
    first_token_parts_s: Mapping[str, float]
    num_devices_used: int
    cost_usd_per_million_tokens: float | None


between = OF_DEPLOYMENTS.law


OF_DEPLOYMENTS.add_sum(
    "first_token_is_whole", "time to the first token", "first_token_parts_s", "first_token_s", "s"
)


@between("workers are on devices of their own, and there are as many")
def workers_are_counted(facts: DeploymentFacts) -> Inequality:
    used = facts.num_prefill * facts.prefill.num_devices_used
    used += facts.num_decode * facts.decode.num_devices_used
    if used != facts.num_devices_used:
        return equal(float(used), float(facts.num_devices_used), "1")
    return Inequality(float(used), float(facts.system.num_devices), "1")


@between("output tokens are requests times their answers")
def answers_are_whole(facts: DeploymentFacts) -> Inequality:
    answers = facts.requests_per_s * facts.workload.answer_length
    return equal(facts.tokens_per_s, answers, "1")


@between("prompts are no more than workers of prefill pass")
def prompts_pass(facts: DeploymentFacts) -> Inequality:
    """Return both counts: tokens in one second."""
    most = facts.num_prefill * facts.prefill.tokens_per_s
    return Inequality(facts.requests_per_s * (facts.workload.prompt_length or 0), most, "1")


@between("answers grow no faster than workers of decode make tokens")
def answers_grow(facts: DeploymentFacts) -> Inequality:
    """Return both counts: sequences; the first token comes with the prompt."""
    most = facts.num_decode * facts.decode.most_sequences
    in_flight = facts.requests_per_s * (facts.workload.answer_length - 1.0) * facts.latency_s
    return Inequality(max(in_flight, facts.sequences_in_flight), most, "1")


@between("requests take the FLOPs of prompt and answer at the peak of their workers")
def requests_are_done(facts: DeploymentFacts) -> Inequality:
    """Return both counts: busy seconds in one second, of the busier kind of workers."""
    prompt_s = facts.prefill.prompt_s(float(facts.workload.prompt_length or 0))
    answer_s = (facts.workload.answer_length - 1.0) * facts.decode.token_s
    busy = [
        facts.requests_per_s * prompt_s / (facts.num_prefill * facts.prefill.num_devices_used),
        facts.requests_per_s * answer_s / (facts.num_decode * facts.decode.num_devices_used),
    ]
    return Inequality(max(busy), 1.0, "s")


@between("caches of prompts pass the links of the workers of prefill")
def caches_move(facts: DeploymentFacts) -> Inequality | None:
    """Return both counts: bytes in one second."""
    rate = link_bytes_per_s(facts.system)
    if not rate:
        return None
    tokens = float(facts.workload.prompt_length or 0)
    word = BYTES_OF[facts.workload.precision.kv_cache]
    moved = facts.requests_per_s * facts.prefill.work.cache_elements(tokens) * word
    most = rate * facts.num_prefill * facts.prefill.num_devices_used
    return Inequality(moved, most, "B")


@between("money is devices times rent times time")
def workers_are_rented(facts: DeploymentFacts) -> Inequality | None:
    device_s = MILLION / facts.tokens_per_s * facts.num_devices_used
    return rent_is_paid(facts.system, facts.cost_usd_per_million_tokens, device_s)
