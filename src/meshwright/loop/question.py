"""The question of a loop: its algorithm, the sizes of a step, and how roles share the devices."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

from meshwright.base.errors import Fault, SpecError
from meshwright.loop.lengths import AnswerLengths

AlgorithmName = Literal["grpo", "ppo", "rloo", "dapo"]
Park = Literal["none", "optimizer", "all"]
"""State of training in host memory while other phases run: none, that of the optimizer, or weights
and models that only score as well."""
PARKS: tuple[Park, ...] = ("none", "optimizer", "all")


class Algorithm(NamedTuple):
    """Models that an algorithm needs beside the policy."""

    has_reference: bool
    """A frozen copy of the policy, for the KL penalty."""
    has_critic: bool
    """A model of values, trained beside the policy."""


ALGORITHMS: dict[AlgorithmName, Algorithm] = {
    "grpo": Algorithm(has_reference=True, has_critic=False),
    "ppo": Algorithm(has_reference=True, has_critic=True),
    "rloo": Algorithm(has_reference=True, has_critic=False),
    "dapo": Algorithm(has_reference=False, has_critic=False),
}
"""Source: Schulman et al. 2017 (PPO), Shao et al. 2024 (GRPO, section 4.1), Ahmadian et al. 2024
(RLOO), Yu et al. 2025 (DAPO, section 2.3: no KL penalty)."""


class Rows(NamedTuple):
    """Samples of a mini-batch as sequences of training."""

    number: int
    length: int
    """Tokens of a sequence."""
    document_length: int | None
    """Tokens of a sample that attend to each other; None: a sequence is one sample."""


@dataclass(frozen=True)
class Work:
    """The work of one step of a loop."""

    algorithm: AlgorithmName
    prompts: int
    """Prompts of a step."""
    samples: int
    """Answers to each prompt."""
    prompt: int
    """Tokens of a prompt."""
    lengths: AnswerLengths
    mini_batch: int
    """Prompts of an update."""
    epochs: int
    """Times that the samples of a step are trained on."""
    has_reward_model: bool
    """A model as large as the policy scores the answers; otherwise a rule does, in no time."""

    @property
    def num_samples(self) -> int:
        """Samples of a step: prompts with an answer."""
        return self.prompts * self.samples

    @property
    def num_mini_batches(self) -> int:
        """Mini-batches into which the samples of a step are cut."""
        return self.prompts // self.mini_batch

    @property
    def num_updates(self) -> int:
        """Updates of the weights in a step."""
        return self.epochs * self.num_mini_batches

    @property
    def models(self) -> Algorithm:
        """Models that the algorithm needs beside the policy."""
        return ALGORITHMS[self.algorithm]

    @property
    def passes(self) -> tuple[str, ...]:
        """Forward passes over all samples, by the name of their part."""
        named = {
            "old_log_probs_s": True, "reference_s": self.models.has_reference,
            "values_s": self.models.has_critic, "rewards_s": self.has_reward_model,
        }  # fmt: skip
        return tuple(name for name, is_made in named.items() if is_made)

    @property
    def tokens(self) -> float:
        """Tokens of all samples of a step, prompts included."""
        return self.num_samples * (self.prompt + self.lengths.mean)

    @property
    def rows(self) -> Rows:
        """Sequences of training of a mini-batch, which pack whole samples.

        Each is at least as long as the longest sample and all are equally long: n samples of mean
        length l fill q = n l / (p + longest) of them, rounded down to three leading binary digits
        so that devices may share them. Samples attend within themselves: of unequal ones as much as
        equal ones of the mean square over the mean.

        Example: 512 samples of 1,024 + 1,024 tokens, none above 1,024 + 7,168, fill 128 sequences
        of 8,192 tokens.
        """
        number, mean = self.mini_batch * self.samples, self.prompt + self.lengths.mean
        if self.lengths.are_equal:
            return Rows(number, round(mean), None)
        most = max(int(number * mean / (self.prompt + self.lengths.longest)), 1)
        few = most >> (cut := max(most.bit_length() - 3, 0)) << cut
        length = ceil(number * mean / few)
        square = self.prompt**2 + 2.0 * self.prompt * self.lengths.mean + self.lengths.mean_square
        return Rows(few, length, min(round(square / mean), length))


@dataclass(frozen=True)
class Sharing:
    """The roles on the devices: one after another on all, or beside each other."""

    apart: bool = False
    """Rollouts on devices of their own."""
    staleness: int = 0
    """Updates by which the weights of a rollout may be behind, where it has its own devices."""
    train_devices: int | None = None
    """Devices of training where roles are apart; None: the best number."""
    engine_tp: int | None = None
    """Devices that split each layer in rollouts; None: the best number."""
    memory_share: float | None = None
    """Share of a device that the engine fills while it rolls out; None: as much as is free."""
    park: Park | None = None
    """State in host memory while other phases run; None: the fastest choice that fits."""
    keeps_engine: bool = False
    """Weights and cache of the engine stay on the devices in the other phases."""

    @property
    def batches(self) -> int:
        """Batches that are rolled out together, and share one tail."""
        return max(self.staleness, 1)

    @property
    def parks(self) -> tuple[Park, ...]:
        """State in host memory that is tried, the fastest choice first."""
        return (self.park,) if self.park else PARKS


def check_work(work: Work) -> None:
    """Refuse sizes that contradict each other, all at once.

    Raises
    ------
    SpecError
        Each with the nearest legal value.
    """
    faults = []
    if work.prompts % work.mini_batch:
        parts = [n for n in range(1, work.prompts + 1) if work.prompts % n == 0]
        nearest = min(parts, key=lambda n: abs(n - work.mini_batch))
        message = f"{work.mini_batch} prompts of an update do not divide {work.prompts}"
        faults.append(Fault("--mini-batch", message, f"{nearest}"))
    if work.lengths.mean > work.lengths.longest:
        message = f"the mean answer of {work.lengths.mean:g} tokens is longer"
        faults.append(Fault("--longest-answer", message, f"at least {work.lengths.mean:g}"))
    if work.algorithm in ("grpo", "rloo", "dapo") and work.samples < 2:
        message = f"{work.algorithm} compares the answers to one prompt, 1 has nothing beside it"
        faults.append(Fault("--samples", message, "8, or --algorithm ppo"))
    if faults:
        raise SpecError(faults)
