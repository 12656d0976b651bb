"""The kinds of collectives of a group of devices."""

from __future__ import annotations

from enum import StrEnum


class CollectiveKind(StrEnum):
    """Kind of a collective. Bytes are those of the full tensor on one rank.

    Full means: before a reduction, after a gather, all parts that one rank sends in an all-to-all
    (its own included), the message of a broadcast or a send.
    """

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND = "send"
