"""Time of a pass on links that background traffic shares fairly: plain functions of numbers.

A pass is a sequence of parts. In each a device computes while it sends; the next part begins when
both have ended. Background traffic, such as gradients, runs beside all parts until it has ended.
Flows on a link have equal rates, as in the simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray


def beside_background_s(
    alone_s: FloatArray, num_flows: FloatArray, background_s: FloatArray, num_background: FloatArray
) -> FloatArray:
    """Return the time of messages on each link while background traffic is in flight [s].

    Of equal rates, n flows beside k others take (n + k) / n as long. The background needs no more
    of a link than the share b / max b that it uses while its own busiest link is full, so messages
    take at most 1 / (1 - b / max b) as long. Two flows that take 2 s take 3 s beside one on its
    busiest link; where that one fills a quarter of the link, 2 / (1 - 1/4) = 2.67 s.

    Parameters
    ----------
    alone_s
        Busy time of each link without background, by part: (parts, links) [s].
    num_flows
        Messages of the part on each link, (parts, links) [1].
    background_s, num_background
        Busy time of each link by the background, and its flows on it, (links,).
    """
    used = background_s / max(float(background_s.max(initial=0.0)), 1e-300)
    left = np.maximum(1.0 - used, 1e-12)
    fair = 1.0 + num_background / np.maximum(num_flows, 1.0)
    times: FloatArray = alone_s * np.where(background_s > 0, np.minimum(fair, 1.0 / left), 1.0)
    return times


class InFlight(NamedTuple):
    """Background traffic beside a pass."""

    on_links: float
    """Share of the pass during which it shares links [1]."""
    share: float
    """Share of the pass during which it is in flight, idle links included [1]."""
    left_s: float
    """Seconds of it behind the pass, with the links to itself [s]."""


def in_flight(
    part_s: FloatArray, alone_s: FloatArray, background_s: FloatArray, wait_s: float = 0.0,
    first_s: float = 0.0,
) -> InFlight:  # fmt: skip
    """Return the part of a pass during which background traffic is in flight.

    A link that messages use for a of the t seconds of a part leaves t - a to the background, which
    needs b of it. So it is in flight for f = b / sum(t - a) of the pass, on the link with the most.
    Above 1 the rest, (1 - 1/f) b, comes behind the pass. Three parts of 4 s whose messages take 3 s
    leave 3 s: 1.5 s of background are in flight for half of the pass, and of 4 s one is left; two
    where they begin only after 4 s.

    Parameters
    ----------
    part_s
        Time of each part while background is in flight, (parts,) [s].
    alone_s
        Busy time of each link by the messages of each part, (parts, links) [s].
    background_s
        Busy time of each link by the background, (links,) [s].
    wait_s
        Further time of the background in which it uses no link [s].
    first_s
        Time of the pass until the background begins [s].
    """
    total_s = float(part_s.sum())
    free_s = np.maximum(total_s - alone_s.sum(axis=0), 1e-300)
    on_links = float((background_s / free_s).max(initial=0.0))
    share = on_links + wait_s / max(total_s, 1e-300)
    whole_s = float(background_s.max(initial=0.0)) + wait_s
    room = max(1.0 - first_s / max(total_s, 1e-300), 0.0)
    left_s = whole_s * max(0.0, 1.0 - room / max(share, 1e-300))
    return InFlight(on_links / max(share, 1.0), min(share, 1.0), left_s)


def slowdown_of_parts(total_s: float, private_s: FloatArray, compute_s: FloatArray) -> float:
    """Return the slowdown s at which parts take as long as they do: sum max(s a, c) = total.

    Where computation hides all messages, the largest slowdown that it still hides. Links of 1 s
    beside 2 s, and of 3 s beside 1 s, take 8 s at s = 2, since 2 + 6 = 8, and 5 s at s = 1.

    Parameters
    ----------
    total_s
        Time of all parts on shared links [s].
    private_s
        Time of the messages of each part on private links, more than 0 [s].
    compute_s
        Computation of each part [s].
    """
    hides = compute_s / private_s
    order = np.argsort(hides, kind="stable")
    a, c, hides = private_s[order], compute_s[order], hides[order]
    later_s = c.sum() - np.cumsum(c)
    found = (total_s - later_s) / np.cumsum(a)
    # The parts that messages limit come first; the next one still hides its messages.
    until = np.append(hides[1:], np.inf)
    return float(max(found[int(np.argmax(found <= until))], hides[0]))
