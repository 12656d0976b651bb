"""The links of a tensor stream, and how long the sub-tensors of an operator take on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import larger, where
from meshwright.cost.compute import Engine
from meshwright.cost.streamed.travels import Travel
from meshwright.streams.round_model import (
    num_chunks_to_fit,
    relay_bytes,
    round_link_s,
    stream_buffer_bytes,
)

MOST_CHUNKS = 64.0
"""Chunks of a sub-tensor beyond which it is relayed through the main memory instead."""


@dataclass(frozen=True)
class StreamLinks:
    """The links between neighbours of a tensor stream, and the form of it; columns."""

    num_members: Any
    bandwidth_bytes_per_s: Any
    latency_s: Any
    message_half_bytes: Any
    num_parts: Any
    """Directions in which pieces of a sub-tensor travel at once: 2 on a cycle."""
    num_hops: Any
    """Links between members that are neighbours in the stream."""
    num_buffers: Any
    """Sub-tensors of others that a member holds and receives."""
    num_sends: Any
    """Sub-tensors that each member sends in a pass, whatever the links that a send crosses."""
    num_shared_rounds: Any
    """Backward rounds in which a link carries a sub-tensor and an accumulator."""
    num_exchange_rounds: Any
    """Rounds of backward attention."""


@dataclass(frozen=True)
class LayerStreams:
    """All that streams in one layer."""

    links: StreamLinks
    travels: Mapping[str, Travel]
    """By the name of the operator."""
    rows: LayerStreams | None = None
    """What travels over tp in the same rounds, where both tensors stream."""


@dataclass(frozen=True)
class LinkTimes:
    """What the sub-tensors of a round take, on their link and in the main memory [s]."""

    forward_s: Any
    backward_item_s: Any
    backward_sum_s: Any
    forward_relay_s: Any
    """In the main memory, where sub-tensors are relayed through it; else 0."""
    backward_relay_s: Any


def link_times(travel: Travel, links: StreamLinks, engine: Engine) -> LinkTimes:
    """Return the times of one operator.

    Sub-tensors that do not fit on chip are relayed in chunks; without on-chip memory for even
    that, through the main memory.
    """
    members = links.num_members
    most = larger(travel.forward_bytes, travel.backward_bytes)
    buffers = stream_buffer_bytes(most, links.num_buffers)
    chunks = num_chunks_to_fit(buffers, engine.stream_sram_bytes, 0.0 * buffers)
    relays = (chunks > MOST_CHUNKS) & (members > 1)
    chunks = where(chunks > MOST_CHUNKS, 1.0, chunks)

    def link_s(num_bytes: Any) -> Any:
        passed_s = round_link_s(
            num_bytes, links.bandwidth_bytes_per_s, links.latency_s, links.message_half_bytes,
            num_hops=links.num_hops, num_parts=links.num_parts, num_chunks=chunks,
        )  # fmt: skip
        return where(num_bytes > 0, passed_s, 0.0)

    def relay_s(num_bytes: Any) -> Any:
        moved = relay_bytes(num_bytes, members, links.num_parts)
        return where(relays, moved / engine.memory_bytes_per_s, 0.0)

    return LinkTimes(
        forward_s=link_s(travel.forward_bytes),
        backward_item_s=link_s(travel.backward_item_bytes),
        backward_sum_s=link_s(travel.backward_sum_bytes),
        forward_relay_s=relay_s(travel.forward_bytes),
        backward_relay_s=relay_s(travel.backward_bytes),
    )
