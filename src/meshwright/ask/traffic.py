"""From a question about requests that arrive at a rate to its traffic."""

from __future__ import annotations

from meshwright.ask.declared import is_traffic
from meshwright.ask.questions import Serve
from meshwright.ask.questions import Traffic as Asked
from meshwright.ask.reading import Reading
from meshwright.catalog.traces import load_trace
from meshwright.spec.arrivals import Arrivals
from meshwright.spec.declaration import declared
from meshwright.spec.traffic import Traffic

_IDLE = ("batch", "context", "max_latency", "latency", "disaggregated", "workers", "top",
         "cp", "mbs", "sp", "cp_kind", "axis_order", "speculative_model", "speculative_tokens",
         "acceptance")  # fmt: skip
"""Options of serving without effect on requests that arrive at a rate."""
_BESIDE_A_TRACE = ("trace", "percentile", "most_sequences", "most_pass_tokens", "beside")
SERVER_FIELDS = ("most_sequences", "most_pass_tokens")


def refuse_without_rate(reading: Reading, asked: Serve) -> None:
    """Keep a complaint for each option of traffic where no rate is stated."""
    if not is_traffic(asked):
        asked.refuse_idle(reading, Asked.options, "applies only with --rate or --trace")


def traffic_of(reading: Reading, asked: Serve) -> tuple[Traffic, Arrivals | None] | None:
    """Return the traffic of a question, and its requests where a file states them.

    None after a complaint.
    """
    asked.refuse_idle(reading, _IDLE, "has no effect on requests that arrive at a rate")
    if "trace" in asked.stated:
        return _of_trace(reading, asked)
    if "shared_prefix" not in asked.stated:
        asked.refuse_idle(reading, ("num_prefixes",), "needs --with shared_prefix")
    if (asked.turns or 1) == 1:
        asked.refuse_idle(reading, ("turn_interval",), "needs --with turns of 2 or more")
    for name in ("prompt", "answer"):
        if name not in asked.stated:
            reading.fault(asked.flag(name), "is needed")
    if asked.answer == 1:
        reading.fault(asked.flag("answer"), "a token comes with the prompt, none is left", "2")
    if reading.errors:
        return None
    stated = {
        "rate_per_s": asked.rate, "prompt_length": asked.prompt, "answer_length": asked.answer,
        "length_spread": asked.length_spread, "arrivals": asked.arrivals,
        "shared_prefix": asked.shared_prefix, "num_prefixes": asked.num_prefixes,
        "turns": asked.turns, "turn_interval_s": asked.turn_interval,
    }  # fmt: skip
    given = {name: value for name, value in stated.items() if value is not None}
    found = reading.value(lambda: declared(Traffic, **given))
    return None if found is None else (found, None)


def _of_trace(reading: Reading, asked: Serve) -> tuple[Traffic, Arrivals] | None:
    names = [name for name in Asked.options if name not in _BESIDE_A_TRACE]
    why = "the file of --trace states the requests"
    asked.refuse_idle(reading, ("prompt", "answer", *names), why)
    trace = reading.value(load_trace, str(asked.trace))
    if reading.errors or trace is None:
        return None
    if len(trace) < 2 or not trace.arrival_s[-1]:
        reading.fault(asked.flag("trace"), "has no two arrivals, so no rate")
        return None
    prompt, answer = (
        max(round(float(tokens.mean())), 1) for tokens in (trace.prompt_tokens, trace.answer_tokens)
    )
    found = Traffic(rate_per_s=trace.rate_per_s, prompt_length=prompt,
                    answer_length=max(answer, 2), trace=str(asked.trace))  # fmt: skip
    return found, trace
