"""Dispatch of tokens to their experts, and combination of the results, by kernels made for it.

The faster of two modes is priced. Low latency: each copy of a token goes straight to the device of
its expert. Throughput: a token goes to a host once, and from there to the devices that hold its
experts; fewer bytes between hosts, more steps.

All-to-all on grids is in :mod:`meshwright.collectives`.
Source: DeepSeek-AI, DeepEP (github.com/deepseek-ai/DeepEP), low-latency and normal kernels.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from meshwright.base.arrays import Num, larger, smaller
from meshwright.collectives.group import Group
from meshwright.cost.communication import copies_per_host
from meshwright.spec.calibration import ServingConstantsOf
from meshwright.spec.model import ExpertSpec


def dispatch_s(
    tokens: Num, token_bytes: Num, experts: ExpertSpec, links: Group[Num],
    constants: ServingConstantsOf[Num],
) -> Num:  # fmt: skip
    """Return the seconds of dispatch of the tokens of a device, or of combination.

    In the faster mode; 0 where a device has all experts.
    """
    devices: Num = reduce(np.multiply, [span.size for span in links.spans])
    return smaller(*modes_s(tokens, token_bytes, experts, links, constants)) * (devices > 1.0)


def modes_s(
    tokens: Num, token_bytes: Num, experts: ExpertSpec, links: Group[Num],
    constants: ServingConstantsOf[Num],
) -> tuple[Num, Num]:  # fmt: skip
    """Return the seconds of dispatch, or of combination, with low latency and for throughput.

    With k experts of a token, a devices in a host, n hosts and H of them with experts of a token,
    a device sends for each token

        low latency   k (n - 1) / n between hosts,   k (a - 1) / (a n) inside,
        throughput    H (n - 1) / n between hosts,   (a - 1) n (1 - (1 - 1/(a n))^k) inside

    copies; where the router takes experts from some groups of hosts, the latter n counts those.
    Both kinds of links work at once, so that the slower one counts. Example: k = 8 on one host of
    8: 7 copies with low latency, 7 (1 - (7/8)^8) = 4.6 else.

    Parameters
    ----------
    tokens
        Tokens of the device.
    token_bytes
        Bytes of one copy.

    Assumes: an even router.
    Valid for: 1 to 4 hosts for throughput, to 8 for low latency; more of them are extrapolated.
    """
    inner, *outer = links.spans
    hosts: Num = reduce(np.multiply, [span.size for span in outer], 1.0 + 0.0 * inner.size)
    reached = experts.top_k / copies_per_host(hosts, experts)
    chosen = float(experts.top_k)
    beyond, beside = (hosts - 1.0) / hosts, (inner.size - 1.0) / inner.size
    chosen_from = smaller(hosts, experts.top_groups * larger(hosts / experts.num_groups, 1.0))
    devices = larger(inner.size * chosen_from, 1.0 + 1e-9)
    missed = np.exp(chosen * np.log1p(-1.0 / devices))
    throughput_inside = (inner.size - 1.0) * chosen_from * (1.0 - missed)
    turns = np.log2(hosts)
    times = []
    for start_s, turn_s, between, inside in (
        (
            constants.low_latency_start_s,
            constants.low_latency_turn_s,
            chosen,
            chosen * beside / hosts,
        ),
        (constants.throughput_start_s, constants.throughput_turn_s, reached, throughput_inside),
    ):
        sent_s = inside / (inner.bandwidth_bytes_per_s * constants.dispatch_inner_share)
        for span in outer:
            rate = span.bandwidth_bytes_per_s * constants.dispatch_outer_share
            sent_s = larger(sent_s, between * beyond / rate * (span.size > 1.0))
        times.append(start_s + turn_s * turns + tokens * token_bytes * sent_s)
    return times[0], times[1]
