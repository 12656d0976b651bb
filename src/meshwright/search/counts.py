"""How a space was covered: priced, refused by a named rule, or left out by a proven bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Counts:
    """Numbers of candidates by what became of them; they sum to the size of the space."""

    priced: int = 0
    """Priced in full."""
    does_not_fit: int = 0
    """Their memory was priced, and is more than there is."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused by a rule, by its name; a candidate is counted under the first rule it breaks."""
    pruned_by_memory: int = 0
    """Whole families whose smallest member needs more memory than there is."""
    pruned_by_bound: int = 0
    """Families whose lower bound on time lies beyond the best plans."""
    dominated: int = 0
    """The same plan with less on the device, although it fits as it is: offload only slows."""

    @property
    def total(self) -> int:
        """Size of the space."""
        pruned = self.pruned_by_memory + self.pruned_by_bound
        named = sum(self.refused.values())
        return self.priced + self.does_not_fit + named + pruned + self.dominated

    @property
    def summary(self) -> str:
        """How the space was covered, in one line."""
        refused = sum(self.refused.values())
        return (
            f"{self.total:,} candidates: {self.priced:,} priced, {refused:,} refused by rule, "
            f"{self.does_not_fit + self.pruned_by_memory:,} over memory, "
            f"{self.pruned_by_bound:,} beyond the bound, "
            f"{self.dominated:,} dominated"
        )


@dataclass(frozen=True)
class Coverage:
    """How the space was covered; the numbers sum to ``num_candidates``."""

    num_candidates: int
    num_priced: int
    num_refused: Mapping[str, int]
    """By the rule that refused them."""
    num_over_memory: int
    num_beyond_bound: int
    num_dominated: int
    is_complete: bool
    """False after an interrupt: the best so far, with a gap."""
    lower_bound_s: float
    gap: float
    elapsed_s: float
