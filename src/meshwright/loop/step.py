"""One step of a loop: its parts, the memory of each phase, and the formulas between both roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from meshwright.base.arrays import number_at
from meshwright.cost.communication import Collectives
from meshwright.cost.forward import forward_s
from meshwright.cost.problem import Problem
from meshwright.graph.parameters import count_parameters
from meshwright.loop.question import Park, Sharing, Work
from meshwright.loop.rollout import Engine, Rolled
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.collective import CollectiveKind
from meshwright.topology.wafer import host_link
from meshwright.train.answer import Candidate

FROZEN_BYTES = 2.0
"""Bytes of a parameter of a model that only scores."""


def reshard_bytes(weight_bytes: float, num_devices: float) -> float:
    """Return the bytes that each device receives when weights pass from training to the engine.

    Every device sees each tensor whole, bucket by bucket, and keeps its part: W (1 - 1 / n). Of
    15 GB over 8 devices 13.1 GB.

    Source: verl ``workers/fsdp_workers.py``, ``rollout_mode``; OpenRLHF, broadcast of weights.
    """
    return weight_bytes * (1.0 - 1.0 / num_devices)


def weight_bytes(problem: Problem) -> float:
    """Return the bytes of all weights as they pass to an engine [bytes]."""
    return FROZEN_BYTES * count_parameters(problem.model).num_params


def reshard_s(problem: Problem, weight_bytes: float, num_devices: int) -> float:
    """Return the seconds in which all devices gather whole weights, a layer at a time [s]."""
    strategy = stack([make_strategy(dp_shard=num_devices)])
    network = problem.network(PlanOptions().axis_order, strategy)
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    gather = collectives.time_over(CollectiveKind.ALL_GATHER, "dp_shard*cp")
    return number_at(gather.time_s(weight_bytes, float(problem.model.num_layers)))


def stale_step_s(
    rollout_s: float, train_s: float, reshard_s: float, staleness: int
) -> float:  # fmt: skip
    """Return the seconds of a step with both roles on devices of their own [s].

    Without staleness each waits for the other: R + T + W. With weights that may be some updates
    old both work at once, and the slower one sets the pace: max(R, T) + W, where R is the time of
    a batch when as many batches as the staleness share a tail. R = 60 s, T = 40 s, W = 1 s: 101 s,
    or 61 s.
    """
    if staleness == 0:
        return rollout_s + train_s + reshard_s
    return max(rollout_s, train_s) + reshard_s


@dataclass(frozen=True)
class Trainer:
    """A plan of training under the work of a loop."""

    work: Work
    problem: Problem
    candidate: Candidate

    @cached_property
    def pass_s(self) -> float:
        """Time of a forward pass over all samples of a step [s]."""
        found = self.candidate
        once_s = forward_s(self.problem, found.plan_options, found.strategy)
        return self.work.num_mini_batches * once_s

    @property
    def parts_s(self) -> dict[str, float]:
        """Time of each part of training in a step [s]."""
        update_s = self.work.num_updates * self.candidate.estimate.step_time_s
        parts = dict.fromkeys(self.work.passes, self.pass_s)
        return parts | {
            "update_s": update_s,
            "critic_update_s": update_s * self.work.models.has_critic,
        }

    def held_bytes(self, name: str) -> float:
        """Return a part of the memory of the fullest device in an update [bytes]."""
        return self.candidate.estimate.memory_parts_bytes[f"{name}_bytes"]

    @property
    def frozen_bytes(self) -> float:
        """A model that only scores, sharded as the weights are [bytes]."""
        each = self.problem.workload.optimizer.weight_bytes_per_param
        return self.held_bytes("weights") * FROZEN_BYTES / each

    @property
    def num_frozen(self) -> int:
        """Models that only score."""
        return int(self.work.models.has_reference) + int(self.work.has_reward_model)

    def residents(self, phase: str, park: Park) -> dict[str, float]:
        """Return the state of training on the fullest device in a phase [bytes].

        Parked weights come for the phases that use them, one model at a time; parked state of the
        optimizer comes for its update.
        """
        critic = float(self.work.models.has_critic)
        weights, states = self.held_bytes("weights"), self.held_bytes("states")
        others = self.num_frozen * self.frozen_bytes + critic * weights
        if park == "all":
            others, weights = 0.0, weights * (phase != "rollout")
        if park != "none":
            states, critic = states * (phase == "update"), 0.0
        return {
            "weights_bytes": weights, "states_bytes": states * (1.0 + critic),
            "other_models_bytes": others,
        }  # fmt: skip

    def hosted_bytes(self, park: Park) -> float:
        """Return the most state of training on the host, for one device [bytes].

        Weights that training offloads take the models that only score with them.
        """
        before, found = self.residents("rollout", "none"), self.candidate
        parked = sum(before.values()) - sum(self.residents("rollout", park).values())
        if found.plan_options.offload.has_weights:
            shards = found.strategy.num_devices
            parked += self.num_frozen * weight_bytes(self.problem) / shards
        return parked + found.estimate.host_bytes_per_device

    def moved_bytes(self, park: Park) -> float:
        """Return the bytes that pass between a device and its host in a step [bytes].

        State of an optimizer travels to the device and back for its updates; weights do for
        resharding, for each pass and for their updates.
        """
        if park == "none":
            return 0.0
        trained = 1.0 + float(self.work.models.has_critic)
        moved = 2.0 * trained * self.held_bytes("states")
        if park == "all":
            uses = 1.0 + trained + len([p for p in self.work.passes if p in _OF_TRAINED])
            moved += 2.0 * (uses * self.held_bytes("weights") + self.num_frozen * self.frozen_bytes)
        return moved

    def parking_s(self, park: Park) -> float | None:
        """Return the seconds of that way [s]; None: the host has no room."""
        hosted, host = self.hosted_bytes(park), host_link(self.problem.system)
        if hosted and (host is None or hosted > host.capacity_bytes):
            return None
        moved = self.moved_bytes(park)
        return moved / host.bandwidth_bytes_per_s if host is not None else 0.0


_OF_TRAINED = ("old_log_probs_s", "values_s")
"""Passes of models that are trained."""
BUCKET_BYTES = 512.0 * 2**20
"""Weights that pass to an engine at a time; a larger tensor passes whole.

Source: verl, commit 035682e, ``rollout.update_weights_bucket_megabytes``."""
KNOBS: Mapping[str, str] = {
    "rollout": "gpu_memory_utilization", "reshard": "param_offload",
    "log_probs": "log_prob_micro_batch_size_per_gpu", "update": "ppo_micro_batch_size_per_gpu",
}  # fmt: skip
"""Option of verl that first lowers the memory of each phase.

Source: verl, ``trainer/config``."""


@dataclass(frozen=True)
class Step:
    """A step of a loop: one plan of training, one engine, and the way they share the devices."""

    trainer: Trainer
    engine: Engine
    share: float
    """Share of a device that the engine fills while it rolls out [1]."""
    reshard_s: float
    parking_s: float
    park: Park
    sharing: Sharing

    @property
    def num_devices(self) -> int:
        """Devices of both roles."""
        system = self.trainer.problem.system
        others = self.engine.serving.problem.system.num_alive if self.sharing.apart else 0
        return system.num_alive + others

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Time of each part on all devices, on average over them [s]; they sum to ``total_s``."""
        train, engine = 1.0, 1.0
        if self.sharing.apart:
            train = self.trainer.problem.system.num_alive / self.num_devices
            engine = 1.0 - train
        rolled = {
            f"{name}_s": engine * getattr(self.rolled, f"{name}_s") / self.sharing.batches
            for name in ("prompts", "full", "tail")
        }
        trained = {name: train * seconds for name, seconds in self.trainer.parts_s.items()}
        parts = rolled | {"reshard_s": self.reshard_s} | trained
        parts["park_s"] = train * self.parking_s
        parts["idle_s"] = max(self.total_s - sum(parts.values()), 0.0)
        return parts

    @cached_property
    def rolled(self) -> Rolled:
        """The rollout of all batches that share a tail."""
        return self.engine.rollout(self.share, self.sharing.batches)

    @property
    def rollout_s(self) -> float:
        """Time of the rollout of one batch [s]."""
        return self.rolled.total_s / self.sharing.batches

    @property
    def train_s(self) -> float:
        """Time of all parts of training, and of its state on the way to the host and back [s]."""
        return sum(self.trainer.parts_s.values()) + self.parking_s

    @cached_property
    def total_s(self) -> float:
        """Time of the step [s]."""
        return stale_step_s(self.rollout_s, self.train_s, self.reshard_s, self.sharing.staleness)

    @cached_property
    def memory(self) -> dict[str, dict[str, float]]:
        """Memory of the fullest device in each phase, by part [bytes].

        An engine asleep keeps its buffers. While weights pass to it, it has no cache yet.
        """
        trainer, engine, model = self.trainer, self.engine, self.trainer.problem.model
        held, rolls = trainer.held_bytes, engine.memory(self.share)
        table = FROZEN_BYTES * model.vocab_size * model.hidden_size
        awake = {name: rolls[name] for name in ("engine_weights_bytes", "engine_buffers_bytes")}
        wakes = awake | {"gathered_bytes": max(BUCKET_BYTES, table)}
        asleep = {"engine_buffers_bytes": engine.buffers_bytes}
        asleep = rolls if self.sharing.keeps_engine else asleep
        resident = partial(trainer.residents, park=self.park)
        beside = {"buffers_bytes": held("buffers")}
        scores = {f"{name}_bytes": held(name) for name in ("gathered", "logits", "temporary")}
        log_probs = beside | scores
        update = dict(trainer.candidate.estimate.memory_parts_bytes)
        if self.sharing.apart:
            return {
                "rollout": rolls, "reshard": wakes, "log_probs": log_probs | resident("log_probs"),
                "update": update | resident("update"),
            }  # fmt: skip
        return {
            "rollout": rolls | beside | resident("rollout"),
            "reshard": wakes | beside | resident("reshard"),
            "log_probs": log_probs | asleep | resident("log_probs"),
            "update": update | asleep | resident("update"),
        }

    @property
    def bytes_of_phases(self) -> dict[str, float]:
        """Memory of the fullest device in each phase [bytes]."""
        return {phase: sum(parts.values()) for phase, parts in self.memory.items()}

    def lacking_bytes(self) -> float:
        """Return the bytes that the fullest phase lacks; 0: all fit."""
        capacity = self.trainer.problem.system.chip.main_memory.capacity_bytes
        return max(max(self.bytes_of_phases.values()) - capacity, 0.0)
