"""From a row of requests at a rate to its times: the answer of ``serve --rate`` beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.calibration.prediction import Prediction, refused_or
from meshwright.calibration.rows import Reason, RefusedError, Row
from meshwright.search.intervals import E2E
from meshwright.serve.traffic.answer import Times, TrafficPlan
from meshwright.serve.traffic.fleet import serve_traffic
from meshwright.spec.traffic import Traffic
from meshwright.spec.workload import Decode, SoftwareStack

END_TO_END, LATE_END = E2E, "end to end, p99"
TTFT_AT_RATE, TPOT_AT_RATE = "TTFT at a rate", "TPOT at a rate"


def answer_of(row: Row, calibration: str) -> TrafficPlan:
    """Return the answer of the command for a row: one worker on all of its chips.

    Raises
    ------
    RefusedError
        With the reason, when it makes no question.
    """
    row.check()
    asked, system = row.traffic, row.system.spec()
    if asked is None or not row.prompt_tokens or not row.answer_tokens:
        raise RefusedError(Reason.LENGTHS, f"{row.prompt_tokens} and {row.answer_tokens} tokens")
    work = Decode(
        batch_size=1, prompt_length=row.prompt_tokens,
        context_length=row.prompt_tokens + row.answer_tokens,
        precision=row.precision.precision(system.chip), software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    traffic = Traffic(
        rate_per_s=asked.rate_per_s, arrivals=asked.arrivals, prompt_length=row.prompt_tokens,
        answer_length=row.answer_tokens, num_prefixes=asked.num_prompts or 1,
        shared_prefix=row.prompt_tokens if asked.num_prompts else 0,
    )  # fmt: skip
    options = {name: getattr(asked, name) for name in ("most_sequences", "most_pass_tokens")}
    return serve_traffic(
        row.model.spec(), [system], work, traffic, percentile=50.0,
        allowed={"dp": (1,), **{name: (value,) for name, value in row.strategy.stated.items()}},
        server=row.framework or "generic", calibration=calibration,
        memory_share=asked.memory_share,
        server_options={name: value for name, value in options.items() if value is not None},
    )  # fmt: skip


def times_of(row: Row, calibration: str) -> dict[str, Prediction]:
    """Return the prediction of each time that a row states, as tokens a second."""
    best, found = answer_of(row, calibration).best, row.measured
    answer, prompt = float(row.answer_tokens or 1), float(row.prompt_tokens or 1)
    stated = {
        END_TO_END: (found.e2e_ms, best.e2e, best.e2e.mean_s, answer),
        LATE_END: (found.e2e_p99_ms, best.e2e, best.e2e.p99_s, answer),
        TTFT_AT_RATE: (found.ttft_ms, best.ttft, best.ttft.mean_s, prompt),
        TPOT_AT_RATE: (found.tpot_ms, best.tpot, best.tpot.mean_s, 1.0),
    }
    return {
        name: Prediction(
            row, predicted_tokens_per_s=tokens / time_s, measured_tokens_per_s=1e3 * tokens / ms,
            has_room=True, interval=_rates(times, time_s, tokens),
        )
        for name, (ms, times, time_s, tokens) in stated.items()
        if ms is not None
    }  # fmt: skip


def _rates(times: Times, time_s: float, tokens: float) -> tuple[float, float] | None:
    """Return the ends of the interval of a time as rates; as wide as that of the percentile."""
    if times.interval_s is None:
        return None
    fast, slow = (end_s / times.asked_s * time_s for end_s in times.interval_s)
    return tokens / slow, tokens / fast


def predict_traffic(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of the end-to-end time of each row, or the reason for none."""

    def predicted(row: Row) -> Prediction:
        times = times_of(row, calibration)
        return replace(times[END_TO_END], times=times)

    return [refused_or(predicted, row) for row in rows]
