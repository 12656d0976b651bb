"""Collectives of libraries inside one node, and dispatch to experts, by measured curves."""

from __future__ import annotations

from meshwright.base.arrays import Num, larger, smaller, where
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.kernels.curves import CollectiveCurve, DispatchCurve
from meshwright_papers.kernels.formulas.blend import blended


def library_collective_s(
    kind: CollectiveKind, num_bytes: Num, ranks: Num, *, link_bytes_per_s: float,
    curve: CollectiveCurve,
) -> Num:  # fmt: skip
    """Return the seconds of a collective over the ranks of one node [s].

    The fastest of protocols, each a time to start, one for each further rank, and the bytes that
    each rank sends over the share of its links that the protocol reaches: words with flags (of an
    all-reduce whole buffers, S (n - 1) bytes), lines with flags, large pieces. All-reduce may also
    add in the switch: S (n + 1) / n bytes. Above a limit a library leaves all to large pieces.

    Parameters
    ----------
    num_bytes
        The whole buffer [bytes]; of send and receive the message.
    link_bytes_per_s
        One direction of all links of a device [bytes/s].

    Source: three protocols and the switch as in NCCL's table of tunings.
    """
    is_sum = kind is CollectiveKind.ALL_REDUCE
    sent = (2.0 if is_sum else 1.0) * num_bytes * (ranks - 1.0) / ranks
    if kind is CollectiveKind.SEND:
        sent = num_bytes
    rate: Num = link_bytes_per_s / (ranks / 2.0) ** curve.crowding
    once = num_bytes * (ranks - 1.0) if is_sum else sent
    small_s = smaller(
        once / (curve.flag_share * rate),
        curve.line_s + sent / (curve.line_share * rate),
    )
    bulk_s = sent / (curve.bulk_share * rate)
    if is_sum:
        added = num_bytes * (ranks + 1.0) / ranks
        bulk_s = smaller(bulk_s, added / (curve.switch_share * rate))
    bulk_s = curve.bulk_s + bulk_s
    moved_s = where(num_bytes < curve.limit_bytes, smaller(small_s, bulk_s), bulk_s)
    started_s = curve.launch_s + curve.hop_s * (ranks - 1.0)
    return larger(started_s + moved_s, curve.host_s)


def dispatch_s(
    tokens: Num, token_bytes: Num, destinations: Num, *, cores: Num, link_bytes_per_s: float,
    curve: DispatchCurve,
) -> Num:  # fmt: skip
    """Return the seconds of sending tokens to, or back from, the ranks of their experts [s].

    The cores assigned to it and the network work at the same time.

    Parameters
    ----------
    destinations
        Ranks, or nodes, that a token goes to: copies that cross the network.
    cores
        Cores assigned to it; 0: all that are needed.
    """
    sent = tokens * token_bytes * destinations
    network_s = sent / (curve.network_share * link_bytes_per_s)
    copied_s = sent / (curve.core_bytes_per_s * where(cores > 0, cores, 1.0))
    busy_s = where(cores > 0, blended(network_s, copied_s, curve.blend), network_s)
    return curve.launch_s + curve.token_s * tokens + busy_s
