"""The attention core with tokens split over tatp: keys and values travel past the queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.base.arrays import positive_part
from meshwright.cost.compute import Engine
from meshwright.cost.matmul import OpCost
from meshwright.cost.streamed.rounds import LayerStreams, link_times
from meshwright.streams.round_model import exchange_s, forward_s


def streamed_attention(alone: OpCost, name: str, streams: LayerStreams, engine: Engine) -> OpCost:
    """Return the attention core with what the stream of its keys and values adds.

    Backward, gradients of keys and values return behind them on a ring, after them on a line.

    Assumes: every round has the same work, as zig-zag order makes it under a causal mask.
    """
    travel, links = streams.travels.get(name), streams.links
    if travel is None:
        return alone
    members = links.num_members
    times = link_times(travel, links, engine)

    def round_hbm_s(traffic_bytes: Any, relay_s: Any) -> Any:
        return traffic_bytes / (engine.memory_bytes_per_s * members) + relay_s

    ahead = forward_s(
        members, alone.forward_s / members, times.forward_s,
        round_hbm_s(alone.forward_traffic_bytes, times.forward_relay_s),
    )  # fmt: skip
    back = exchange_s(
        members, alone.input_gradient_s / members, times.backward_item_s, times.backward_sum_s,
        round_hbm_s(alone.backward_traffic_bytes, times.backward_relay_s),
        links.num_exchange_rounds,
    )  # fmt: skip
    travels = members > 1
    return replace(
        alone,
        stream_forward_s=positive_part(ahead.total_s - alone.forward_s) * travels,
        stream_backward_s=positive_part(back.total_s - alone.input_gradient_s) * travels,
        forward_link_bytes=links.num_sends * travel.forward_bytes,
        backward_link_bytes=links.num_sends * travel.backward_bytes,
        forward_kernels=alone.forward_kernels * members,
        backward_kernels=alone.backward_kernels * members,
    )
