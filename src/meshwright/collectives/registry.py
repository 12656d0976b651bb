"""What a collective algorithm is, and the registry that holds them.

An algorithm has two faces: ``affine`` is its closed form for one group or a column of groups,
``transfers`` lists what is sent, for a simulation and for the proof that both agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meshwright.base.arrays import FloatArray, N, where
from meshwright.base.registry import Registry
from meshwright.collectives.group import Group, group_size
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Transfer:
    """One message from one member of a group to another.

    It may start when the sender holds all of its chunks, that is when every transfer of an earlier
    step that brings one of them to the sender has arrived. Each lane of a sender is a link that
    sends one message at a time. The messages of a channel leave in the order of their steps (and
    within a step as listed); among the channels of a link the earliest step that is ready goes
    first. Members are numbered with the innermost span running fastest; a number of
    ``group_size`` is the switch.
    """

    step: int
    source: int
    destination: int
    num_bytes: float
    chunks: tuple[int, ...]
    """Equal pieces of the data, ``num_chunks`` in all."""
    level: int = 0
    """Index of the span that the message crosses."""
    lane: int = 0
    """Which way out of the sender into that level: the direction on a grid, a share of a port."""
    share: float = 1.0
    """Part of the bandwidth of the span that the lane has."""
    channel: int = 0
    reduces: bool = False
    """The receiver adds what arrives to what it has, instead of keeping it."""
    kept: tuple[int, ...] = ()
    """Those of the chunks that are final: the receiver keeps them though the message reduces."""


class Algorithm(ABC):
    """One way to do one kind of collective.

    Bytes are those of the full tensor on one rank (see :class:`CollectiveKind`). A message of m
    bytes occupies its sender for (m + message_half_bytes) / bandwidth and arrives a latency later,
    so every time is affine in the bytes.
    """

    kind: CollectiveKind
    replay_slack: float = 0.0
    """How far the closed form may lie above the replay of the transfers, relative to it [1].

    0 for lock-step algorithms; more where messages overlap that the form charges one by one.
    """

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether some group on spans of these kinds could use it, whatever its sizes."""
        return True

    @abstractmethod
    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return (fixed_s, seconds_per_byte); (infinity, 0) where it does not apply."""

    @abstractmethod
    def num_chunks(self, group: Group[float]) -> int:
        """Return the number of equal pieces into which ``transfers`` cuts the data.

        Chunks are numbered by owner: the k-th n-th part of them belongs to member k (in an
        all-reduce, which leaves all with everything, their order says nothing). In an
        all-to-all they are those that one member sends, numbered by destination, and the chunk c
        of member i is called i * num_chunks + c.
        """

    @abstractmethod
    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield every message; only for a group where the algorithm applies."""

    def traffic(self, group: Group[float]) -> FloatArray:
        """Return what the messages carry in all, in any order: (messages, 4).

        Source, destination, share of the bytes of the full tensor on one rank, and level.
        """
        listed = self.transfers(1.0, group)
        return np.array([(t.source, t.destination, t.num_bytes, t.level) for t in listed])

    def time_s(self, num_bytes: N, group: Group[N]) -> N:
        """Return the time of the collective [s]; infinity where it does not apply."""
        fixed_s, seconds_per_byte = self.affine(group)
        return fixed_s + num_bytes * seconds_per_byte

    def applies(self, group: Group[float]) -> bool:
        """Return whether the algorithm can run on this group."""
        return bool(np.isfinite(self.affine(group)[0]))


collective_algorithms: Registry[Algorithm] = Registry("collective algorithm")

AlgorithmType = TypeVar("AlgorithmType", bound=type[Algorithm])


def collective(name: str, **parameters: Any) -> Callable[[AlgorithmType], AlgorithmType]:
    """Return a decorator that registers an instance of a class, made with these parameters."""

    def add(algorithm: AlgorithmType) -> AlgorithmType:
        collective_algorithms.register(name)(algorithm(**parameters))
        return algorithm

    return add


def where_it_applies(applies: Any, group: Group[N], fixed_s: N, seconds_per_byte: N) -> tuple[N, N]:
    """Return the affine form with (infinity, 0) where it does not apply and 0 for one member."""
    alone = group_size(group) == 1.0
    return (
        where(alone, 0.0, where(applies, fixed_s, np.inf)),
        where(alone | np.logical_not(applies), 0.0, seconds_per_byte),
    )
