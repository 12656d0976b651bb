"""Seconds of synchronising gradients and parameters over the data-parallel axes.

A window of computation is spent once; the last bucket of gradients and the first bucket of
parameters have nothing left to hide behind, so something always stays exposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from meshwright.base.arrays import larger, positive_part, smaller
from meshwright.collectives.bounds import least_sent_bytes
from meshwright.sharding.strategy import Structure
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import OptimizerPreset


@dataclass(frozen=True)
class Transfer:
    """A collective as the fastest of some affine functions of its bytes."""

    forms: tuple[tuple[Any, Any], ...]
    """(fixed seconds, seconds for each byte) of one message, for each algorithm."""

    def time_s(self, num_bytes: Any, num_messages: Any) -> Any:
        """Return the seconds of ``num_bytes`` sent as ``num_messages`` equal collectives."""
        times = [
            num_messages * fixed_s + num_bytes * s_per_byte for fixed_s, s_per_byte in self.forms
        ]
        return reduce(smaller, times)


@dataclass(frozen=True)
class Exposure:
    """What a transfer beside computation costs: what shows of it, and what is hidden."""

    exposed_s: Any
    hidden_s: Any


def overlapped(transfer_s: Any, window_s: Any, num_buckets: Any) -> Exposure:
    """Return how much of a transfer shows when it runs beside a window of computation.

    exposed = max(transfer - window, transfer / buckets): the last bucket is complete only when
    the computation that it could hide behind has ended.

    Parameters
    ----------
    transfer_s, window_s
        Seconds of the transfer and of the computation beside it [s].
    num_buckets
        Pieces of the transfer, at least 1.

    Source: prices follow the overlap rule of bucketed gradient reduction (Li et al. 2020,
    PyTorch Distributed, section 3.2.3).
    """
    exposed = larger(transfer_s - window_s, transfer_s / num_buckets)
    return Exposure(exposed, transfer_s - exposed)


def plain(transfer_s: Any, window_s: Any = 0.0) -> Exposure:
    """Return the exposure of a transfer that nothing hides, whatever computes meanwhile."""
    return Exposure(transfer_s, transfer_s * 0.0)


def slowdown_s(hidden_s: Any, window_s: Any, sigma: Any) -> Any:
    """Return the seconds that computation loses while a transfer runs beside it.

    sigma * min(hidden, window). Source: arXiv 2507.03114, mean slowdown 18.9 %.
    """
    return sigma * smaller(hidden_s, positive_part(window_s))


def synced_bytes(
    params: Any, shards: Any, replicas: Any, num_micro_batches: Any, structure: Structure,
    optimizer: OptimizerPreset,
) -> Any:  # fmt: skip
    """Return what a rank sends at the least to synchronise parameters in a step [bytes].

    As often as the stage of ZeRO asks for it: once, or for each micro-batch.

    Parameters
    ----------
    params
        On one rank, before they are sharded [1].
    shards, replicas
        Ranks that share one copy of the state, and copies [1].
    """
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    weight_bytes = params * optimizer.gathered_weight_bytes_per_param
    stage = structure.zero_stage
    if stage == 0:
        return least_sent_bytes(CollectiveKind.ALL_REDUCE, gradient_bytes, shards * replicas)
    scattered = least_sent_bytes(CollectiveKind.REDUCE_SCATTER, gradient_bytes, shards)
    gathered = least_sent_bytes(CollectiveKind.ALL_GATHER, weight_bytes, shards)
    summed = least_sent_bytes(CollectiveKind.ALL_REDUCE, gradient_bytes / shards, replicas)
    num_scatters = num_micro_batches if stage >= 2 else 1.0
    num_gathers = num_micro_batches * (1.0 + structure.reshard_after_forward) if stage == 3 else 1.0
    return num_scatters * scattered + num_gathers * gathered + summed
