"""The program of one rank: computation, collectives and messages, with what each waits for.

Nodes carry the numbers of the nodes whose results they need. Bytes follow the convention of
:class:`~meshwright.spec.collective.CollectiveKind`: those of the full tensor on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels that run one after another on a device."""

    number: int
    name: str
    num_ops: int = 0
    """FLOPs [FLOP]; 0 for work that only moves data."""
    tensor_bytes: int = 0
    """Bytes that cross the main memory [bytes]."""
    duration_us: int = 0
    """Time without launches, in whole microseconds [us]."""
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group that this rank belongs to."""

    number: int
    name: str
    kind: CollectiveKind
    num_bytes: int
    """The full tensor on one rank [bytes]."""
    group_size: int
    group: int | None = None
    """Name of the group; None: all ranks."""
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a message: a send where the rank is its source, a receive where it is not.

    Both ends name the same source, destination, tag and size.
    """

    number: int
    name: str
    source: int
    destination: int
    num_bytes: int
    tag: int
    is_send: bool
    needs: tuple[int, ...] = ()


Node = Compute | Collective | Message

Groups = Mapping[int, tuple[int, ...]]
"""Ranks of each group by its name."""
