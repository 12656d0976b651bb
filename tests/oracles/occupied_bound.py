"""A tighter lower bound of collectives that counts what each message costs on top of its bytes."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.arrays import Num, larger
from meshwright.collectives.bounds import bandwidth_bound_s_per_byte, latency_bound_s
from meshwright.collectives.group import Group, message_s
from meshwright.spec.collective import CollectiveKind


def occupied_lower_bound_s(kind: CollectiveKind, num_bytes: Num, group: Group[Num]) -> Num:
    """Return a bound that counts the messages as well [s]; 0 for a group of one.

    Whole messages are sent on from member to member, each at the cost of m_half / B on top of its
    bytes. So every hop of the farthest way costs that and a latency; and each link of a cut carries
    at least one message, the last of which arrives a latency after its last byte has left.
    """
    charged = Group(tuple(replace(span, latency_s=message_s(span)) for span in group.spans))
    bandwidth_s = num_bytes * bandwidth_bound_s_per_byte(kind, group)
    one_s = latency_bound_s(CollectiveKind.SEND, charged)
    return larger(bandwidth_s + one_s, latency_bound_s(kind, charged))
