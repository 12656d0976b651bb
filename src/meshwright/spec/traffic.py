"""Traffic: requests that arrive at a rate, with lengths, shared prefixes and turns."""

from __future__ import annotations

from math import ceil, exp, log1p, sqrt
from typing import Literal, Self

from pydantic import Field, model_validator

from meshwright.spec.declaration import Count, Declaration, Seconds

MOST_DEVIATIONS = 4.0
"""Deviations from the mean beyond which no length is drawn: one in 30,000 would be."""


class Traffic(Declaration):
    """Requests of many users, who do not wait for each other."""

    rate_per_s: float = Field(gt=0)
    """Requests a second over the whole system [1/s]."""
    prompt_length: Count
    """Mean new tokens of a prompt; of a conversation, those of a turn."""
    answer_length: Count
    """Mean tokens of an answer."""
    length_spread: float = Field(default=0.0, ge=0, le=4)
    """Standard deviation of both lengths over their means, of a log-normal distribution; 0: all
    are equal."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    """At random (Poisson), or at equal intervals."""
    shared_prefix: int = Field(default=0, ge=0)
    """First tokens of each prompt that others have too, and that may be in the cache."""
    num_prefixes: Count = 1
    """Different shared prefixes, each as frequent as the others."""
    turns: Count = 1
    """Requests of a conversation: each prompt begins with all turns before it."""
    turn_interval_s: Seconds = 60.0
    """Time from one request of a conversation to its next one [s]."""
    trace: str = ""
    """File with the requests, in place of lengths and arrivals drawn at random; empty: none."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request: drawn lengths lie below four deviations [tokens]."""
        variance = log1p(self.length_spread**2)
        most = exp(MOST_DEVIATIONS * sqrt(variance) - variance / 2.0) if variance else 1.0
        return ceil(most * (self.prompt_length + self.answer_length)) * self.turns

    @model_validator(mode="after")
    def _shares_a_part(self) -> Self:
        if self.shared_prefix > self.prompt_length:
            raise ValueError(
                f"shared_prefix: {self.shared_prefix} tokens are more than the prompt of "
                f"{self.prompt_length}"
            )
        if self.shared_prefix and self.turns > 1:
            raise ValueError("shared_prefix: conversations share their own turns, state one")
        return self
