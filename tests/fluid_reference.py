"""Max-min fair sharing in exact rational numbers: slow, simple, and written for the tests only."""

from __future__ import annotations

from fractions import Fraction


def fair_rates(capacity, routes):
    """Return the max-min fair rate of each route (a set of links), by progressive filling.

    All rates rise together; when a link is full, the flows on it stop rising.
    """
    rate = [None] * len(routes)
    while None in rate:
        shares = {}
        for link, room in enumerate(capacity):
            on_link = [flow for flow, route in enumerate(routes) if link in route]
            rising = sum(rate[flow] is None for flow in on_link)
            if rising:
                taken = sum(rate[flow] for flow in on_link if rate[flow] is not None)
                shares[link] = (room - taken) / rising
        level = min(shares.values())
        full = {link for link, share in shares.items() if share == level}
        for flow, route in enumerate(routes):
            if rate[flow] is None and full & set(route):
                rate[flow] = level
    return rate


def finish_times(capacity, routes, num_bytes, join_s):
    """Return when each flow has moved its last byte; it takes bandwidth from ``join_s`` on."""
    capacity = [Fraction(value) for value in capacity]
    left = [Fraction(value) for value in num_bytes]
    joins = [Fraction(value) for value in join_s]
    finish = [None] * len(routes)
    now = Fraction(0)
    for flow, route in enumerate(routes):
        if not route or not left[flow]:
            finish[flow] = joins[flow]
    while None in finish:
        active = [f for f, end in enumerate(finish) if end is None and joins[f] <= now]
        rates = fair_rates(capacity, [routes[flow] for flow in active])
        ends = [now + left[flow] / rate for flow, rate in zip(active, rates, strict=True)]
        coming = [joins[f] for f, end in enumerate(finish) if end is None and joins[f] > now]
        then = min(ends + coming)
        for flow, rate, end in zip(active, rates, ends, strict=True):
            left[flow] -= rate * (then - now)
            if end == then:
                finish[flow] = then
        now = then
    return [float(end) for end in finish]
