"""What is to be served: model, system, prefill or decode, with what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.base.arrays import Num
from meshwright.cost.operator import DeviceRates
from meshwright.cost.problem import ProblemOf
from meshwright.graph.op import LayerGraph, OpKind
from meshwright.serve.operators import PassShape
from meshwright.spec.calibration import NEUTRAL, ServingConstantsOf
from meshwright.spec.workload import BYTES_OF, Decode, Prefill

_KEPT_PROPERTIES = ("graph", "pieces", "head", "_shardings", "rates", "efficiencies")
"""Cached properties that no constant of serving changes."""


@dataclass(frozen=True)
class ServingProblem(ProblemOf[Prefill | Decode]):
    """Prefill or decode to be priced."""

    constants: ServingConstantsOf[Num] = NEUTRAL
    """Of the server and of the kernels that it runs."""

    def with_constants(self, constants: ServingConstantsOf[Num]) -> ServingProblem:
        """Return the problem under other constants of serving; what they do not change is kept."""
        changed = replace(self, constants=constants)
        vars(changed).update(
            {name: known for name, known in vars(self).items() if name in _KEPT_PROPERTIES}
        )
        return changed

    def rates_at(self, speed_factor: float) -> DeviceRates:
        """Return what a device does in a second; routing is part of the kernels of the experts."""
        return replace(super().rates_at(speed_factor), expert_passes=1.0)

    @property
    def collective_start_s(self) -> Num:
        """Start of a collective inside a pass [s]."""
        return self.calibration.collective_launch_s * self.constants.collective_start_share

    @property
    def is_decode(self) -> bool:
        """Whether each sequence brings one token to the cache of its context."""
        return isinstance(self.workload, Decode)

    @property
    def pass_length(self) -> int:
        """New tokens of one sequence: its prompt, or one."""
        return 1 if isinstance(self.workload, Decode) else self.workload.prompt_length

    @property
    def cached_length(self) -> int:
        """Tokens of one sequence in the cache at the end of a pass, as they are stored."""
        work = self.workload
        return work.context_length if isinstance(work, Decode) else work.prompt_length

    @property
    def max_latency_s(self) -> float | None:
        """Longest time to the first token, or per output token, that is allowed [s]."""
        work = self.workload
        if isinstance(work, Decode):
            return work.max_time_per_output_token_s
        return work.max_time_to_first_token_s

    @cached_property
    def shape(self) -> PassShape:
        """The pass through the layers."""
        precision = self.workload.precision
        return PassShape(
            new_tokens=float(self.pass_length),
            past_tokens=float(self.cached_length) if self.is_decode else 0.0,
            weight_word_bytes=BYTES_OF[precision.weight],
            cache_word_bytes=BYTES_OF[precision.kv_cache],
            kept_tokens=float(self.cached_length),
            constants=self.constants,
        )

    @cached_property
    def head(self) -> LayerGraph:
        """Final norm and logits; nothing is compared with a label."""
        whole = self.graph.head
        return replace(whole, ops=tuple(op for op in whole.ops if op.kind is not OpKind.LOSS))

    @cached_property
    def pieces(self) -> tuple[LayerGraph, ...]:
        """The kinds of layers, then the embedding, then the head."""
        return (*self.graph.layers, self.graph.embedding, self.head)

    def is_head(self, index: int) -> bool:
        """Return whether a piece is the head, which sees the last token of a sequence only."""
        return index == len(self.pieces) - 1


def group_counts(most: int) -> list[int]:
    """Return the numbers of groups in a pipeline: all up to 8, powers of two, and the most.

    The most is pp: more groups than stages only wait for each other, so that larger groups are
    never slower.
    """
    powers = {1 << power for power in range(most.bit_length())}
    return sorted({*range(1, min(most, 8) + 1), *powers, most})
