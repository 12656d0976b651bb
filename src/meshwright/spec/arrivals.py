"""Requests one by one, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray

ALONE = -1
"""Prefix of a request that shares none."""


@dataclass(frozen=True)
class Arrivals:
    """Requests in the order of their arrival; columns of equal length."""

    arrival_s: FloatArray
    prompt_tokens: IntArray
    answer_tokens: IntArray
    prefix: IntArray
    """Number of the prefix that the prompt begins with; ``ALONE``: none."""
    prefix_tokens: IntArray
    """Tokens of the prompt that the cache may hold under this prefix."""
    kept_tokens: IntArray
    """Tokens that the request leaves in the cache under this prefix."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int((self.prompt_tokens + self.answer_tokens).max())

    @property
    def rate_per_s(self) -> float:
        """Mean rate [1/s]: n requests leave n - 1 intervals."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span_s if span_s > 0 else float("inf")

    def of_worker(self, worker: int, workers: int) -> Arrivals:
        """Return the requests that a router sends to one of several workers.

        Requests with one prefix go to one worker, which holds it; prefixes, and requests without
        any, go to the workers in turn.
        """
        keys = np.where(self.prefix >= 0, self.prefix, -1 - np.arange(len(self)))
        _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
        turn = np.empty(len(firsts), dtype=np.int64)
        turn[np.argsort(firsts)] = np.arange(len(firsts))
        mine = turn[places.reshape(-1)] % workers == worker
        return Arrivals(**{name: values[mine] for name, values in vars(self).items()})
