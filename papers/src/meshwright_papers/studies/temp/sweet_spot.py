"""Fig. 9: over how many dies a tensor stream is fastest, and over how many it saves energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, column, larger
from meshwright.catalog.calibration import UNCALIBRATED, load_calibration
from meshwright.cost.operator import (
    MatmulShape,
    device_rates,
    matmul_compute_s,
    whole_traffic_bytes,
)
from meshwright.cost.streaming import (
    StreamedBytes,
    StreamLinks,
    cuts_rows,
    kept_on_chip,
    link_times,
    room_parts,
    round_shape,
    stream_traffic_bytes,
)
from meshwright.spec.workload import Precision, SoftwareStack
from meshwright.streams.forms import streams
from meshwright.streams.round_model import StreamedTensor, forward_s
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    claim_lines,
    judged_range,
    studies,
)
from meshwright_papers.studies.temp.setup import ASSUMPTIONS, SOURCE, Case, model_of, wafer, work_of

HIDDEN, WORD_BYTES = 12288.0, 2.0
"""Hidden size of the square layer, that of GPT-3 175B, and bytes of a number."""
TOKENS = (2048.0, 8192.0)
MEMBERS = np.arange(1.0, 33.0)
SHOWN = (1, 2, 4, 8, 16, 32)
WHOLE_WAFER = Case("GPT-3 76B", "gpt3-76b", 2048)
PUBLISHED_FASTEST, PUBLISHED_FRUGAL, PUBLISHED_BOTH = (8.0, 16.0), (4.0, 8.0), (4.0, 16.0)
KNEE = 0.05
"""Share of the best tokens for each joule that a larger group may lose."""


CURVE_CHART = Drawing(
    "Up to which degree do tensor streams make a step faster?",
    "Throughput by the dies that share a stream; HBM of 1 TB/s, and HBM that is never slow",
    "lines", ("tokens_per_s",), "degree", colour="hbm", panels="case", apart="y",
)  # fmt: skip
BEST_CHART = Drawing(
    "Which degree of streams is best, and by what?",
    "The fastest, the most tokens/J, the largest product of both, and where speed bends",
    "dots", ("fastest", "most_tokens_per_j", "best_of_both", "knee"), "case", panels="hbm",
    across=2, measure="degree of the stream [dies]",
)  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One workload over groups of N dies."""

    what: str
    with_hbm: bool
    members: FloatArray
    tokens_per_s: FloatArray
    """Tokens per second by group size; 0 where no plan fits."""
    tokens_per_j: FloatArray

    def best(self, score: FloatArray) -> int:
        """Return the group of the highest score; of equals the smallest."""
        return int(self.members[int(score.argmax())])

    @property
    def fastest(self) -> int:
        """Group of the most tokens a second."""
        return self.best(self.tokens_per_s)

    @property
    def most_frugal(self) -> int:
        """Group of the most tokens for each joule."""
        return self.best(self.tokens_per_j)

    @property
    def best_of_both(self) -> int:
        """Group of the highest product: least energy times time."""
        return self.best(self.tokens_per_s * self.tokens_per_j)

    @property
    def knee(self) -> int:
        """Largest group that loses at most ``KNEE`` of the best tokens for each joule."""
        close = self.tokens_per_j >= (1.0 - KNEE) * self.tokens_per_j.max()
        return int(self.members[close].max())


def layer_curve(tokens: float, *, with_hbm: bool) -> Curve:
    """Return a square layer, forward, its tokens split over one group of N dies.

    The smaller of inputs and weights travels on a line; the other tensor and the buffers part the
    room on chip as is fastest.
    """
    system, num = wafer(), MEMBERS
    chip, level = system.chip, system.levels[0]
    constants = load_calibration(chip.family, "uncalibrated")
    rates = device_rates(chip, Precision(), SoftwareStack(), constants)
    transfer = StreamedTensor.INPUTS if tokens < HIDDEN else StreamedTensor.WEIGHTS
    is_input = transfer is StreamedTensor.INPUTS
    whole = MatmulShape(1.0, tokens if is_input else tokens / num, HIDDEN, HIDDEN)
    if is_input:
        whole = whole._replace(columns=HIDDEN / num)
    sent = StreamedBytes(transfer, WORD_BYTES * min(tokens, HIDDEN) * HIDDEN / num)
    bandwidth = level.bandwidth_bytes_per_s * float(np.asarray(constants.fast_network_efficiency))
    line = streams["stream"]
    links = StreamLinks(
        num, bandwidth, level.latency_s, level.message_half_bytes, line.num_parts(num),
        line.num_hops(num), line.buffers(num).with_incoming, line.transfers(num) / num,
        line.num_shared_rounds(num), line.num_exchange_rounds(num), may_hold=num > 1,
    )  # fmt: skip
    shape, cuts = round_shape(whole, transfer, links), cuts_rows(whole, transfer)
    kept = kept_on_chip(transfer, shape, WORD_BYTES, room_parts(rates, links), cuts)
    times = link_times(sent, links, rates, kept)
    flops = 2.0 * tokens * HIDDEN * HIDDEN
    moved = np.where(
        num > 1,
        stream_traffic_bytes(transfer, shape, num, WORD_BYTES, rates, kept, cuts)[0],
        whole_traffic_bytes(MatmulShape(1.0, tokens, HIDDEN, HIDDEN), WORD_BYTES, rates)[0],
    )
    hbm_s = moved / rates.memory_bytes_per_s + times.forward_relay_s if with_hbm else 0.0 * num
    each_s = matmul_compute_s(*shape, rates.matmul_flops_per_s, rates)
    total_s = column(forward_s(num, each_s, times.forward_s, hbm_s).total_s)
    moved = np.broadcast_to(moved, total_s.shape)
    # Of ways that are equally fast the one of least traffic.
    fastest = np.lexsort((moved, total_s), axis=0)[0], np.arange(len(num))
    total_s, moved, sent_bytes = (
        np.broadcast_to(value, total_s.shape)[fastest]
        for value in (total_s, moved, times.forward_link_bytes)
    )
    energy_j = (
        flops * (chip.energy_j_per_flop or 0.0)
        + num * sent_bytes * (system.link_energy_j_per_byte or 0.0)
        + num**2 * moved * (chip.main_memory.energy_j_per_byte or 0.0)
        + num * (chip.idle_power_w or 0.0) * total_s
    )
    name = f"one layer, {tokens:.0f} tokens"
    return Curve(name, with_hbm, num, tokens / total_s, tokens / energy_j)


@cache
def wafer_curve(case: Case, *, with_hbm: bool) -> Curve:
    """Return the best plans of a full wafer by degree of tatp, the rest of it replicas."""
    system, rates, savings = wafer(with_hbm=with_hbm), [], []
    work = work_of(case, system)
    for degree in SHOWN:
        fixed: dict[str, list[object]] = {"tp": [1], "cp": [1], "pp": [1], "tatp": [degree]}
        found = compare(
            model_of(case),
            system,
            work,
            against=(),
            allowed=fixed,
            calibration=UNCALIBRATED,
            prefers_simple=False,
        )
        price = found.ours.best and found.ours.best.estimate
        rates.append(price.tokens_per_s if price else 0.0)
        savings.append(work.tokens_per_step / price.energy_j if price and price.energy_j else 0.0)
    members = np.array(SHOWN, dtype=float)
    name = f"{case.name}, 32 dies"
    return Curve(name, with_hbm, members, np.array(rates), np.array(savings))


@studies.register("temp-sweet-spot")
class SweetSpot:
    """A layer over more and more dies, and a full wafer in groups of more and more dies."""

    title = "TEMP Fig. 9: speed and tokens for each joule by the degree of streams"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Price both with and without the time of the main memory."""
        layers = [layer_curve(s, with_hbm=hbm) for s in TOKENS for hbm in (True, False)]
        wafers = [wafer_curve(WHOLE_WAFER, with_hbm=hbm) for hbm in (True, False)]
        curves = [*layers, *wafers]
        names = ("case", "hbm", "degree", "tokens_per_s", "tokens_per_j")
        rows = tuple(row for curve in curves for row in _rows(curve))
        tables = (
            Table("fig9", names, rows, CURVE_CHART),
            Table("fig9_best", ("case", "hbm", "fastest", "most_tokens_per_j", "best_of_both",
                                "knee"), tuple(_best_row(c) for c in curves), BEST_CHART),
        )  # fmt: skip
        claims = (*_layer_claims(layers), *_wafer_claims(wafers))
        lines = [f"{'best degree':<26} {'HBM':<10} {'fastest':>8} {'tokens/J':>9} {'both':>5} "
                 f"{'knee':>5}"]  # fmt: skip
        lines += [f"{row[0]:<26} {row[1]:<10} {row[2]:>8} {row[3]:>9} {row[4]:>5} {row[5]:>5}"
                  for row in map(_best_row, curves)]  # fmt: skip
        return StudyResult(
            machine=wafer(),
            lines=(*lines, "", *claim_lines(claims)),
            data={table.name: table.records for table in tables},
            tables=tables,
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; one layer: 12288 x 12288, forward, on one line of N dies, "
            "the smaller tensor travels, products by the arrays of a die; 32 dies: tatp N "
            "with dp 32 / N, micro-batches searched; both: most tokens a second times tokens for "
            f"each joule; knee: the largest N within {KNEE:.0%} of the most tokens for each joule",
        )


def _rows(curve: Curve) -> Iterator[tuple[Any, ...]]:
    for degree in SHOWN:
        index = int(np.flatnonzero(curve.members == degree)[0])
        rate, saving = float(curve.tokens_per_s[index]), float(curve.tokens_per_j[index])
        yield curve.what, _memory(curve), degree, rate or None, saving or None


def _best_row(curve: Curve) -> tuple[Any, ...]:
    return (curve.what, _memory(curve), curve.fastest, curve.most_frugal, curve.best_of_both,
            curve.knee)  # fmt: skip


def _memory(curve: Curve) -> str:
    return "1 TB/s" if curve.with_hbm else "never slow"


def _claim(
    figure: str, what: str, published: tuple[float, float], status: str, curves: Sequence[Curve],
    best: Callable[[Curve], int], why: str,
) -> Claim:  # fmt: skip
    """Return whether the best degree of all curves lies where the paper sees it."""
    found = [best(curve) for curve in curves]
    ours = ", ".join(
        f"{degree} ({curve.what}{'' if curve.with_hbm else ', HBM never slow'})"
        for degree, curve in zip(found, curves, strict=True)
    )
    verdict = judged_range(min(found), max(found), published)
    return Claim(figure, what, "{:.0f} to {:.0f}".format(*published), status, ours, verdict, why)


def _layer_claims(curves: Sequence[Curve]) -> list[Claim]:
    """Return the claims of the paper on one layer over N dies, beside our figures."""
    best = ", ".join(f"{c.fastest} for {c.what.partition(', ')[2]}" for c in curves if c.with_hbm)
    return [
        _claim("Fig. 9", "fastest degree, one layer over N dies", PUBLISHED_FASTEST, "seed",
               curves, lambda c: c.fastest,
               f"the best degree follows the tokens, which the paper does not state: {best}"),
        _claim("Fig. 9", "degree of the most tokens for each joule, one layer over N dies",
               PUBLISHED_FRUGAL, "seed", curves, lambda c: c.most_frugal,
               "computing costs the same at any degree, and links and idle dies cost more with "
               "each die; only memory traffic that a larger group avoids can pay for it"),
        _claim("Fig. 9", f"largest degree within {KNEE:.0%} of the most tokens for each joule",
               PUBLISHED_FRUGAL, "seed", curves, lambda c: c.knee,
               "links and idle dies cost more with each die"),
        _claim("Fig. 9", "best trade-off, one layer over N dies", PUBLISHED_BOTH, "seed",
               curves, lambda c: c.best_of_both,
               "time falls faster than energy grows up to larger groups"),
    ]  # fmt: skip


def _wafer_claims(curves: Sequence[Curve]) -> list[Claim]:
    """Return the claims of the paper on a full wafer, beside our figures."""
    known = larger(curves[0].tokens_per_s, 1.0)
    lost = 1.0 - float(known[[SHOWN.index(8), SHOWN.index(16)]].max() / known.max())
    why = (
        "on a full wafer the tokens of a die are fixed, so the degree cancels out of what hides a "
        "stream; what stays in SRAM, memory and the sums over replicas decide; with HBM the better "
        f"of 8 and 16 is {lost:.1%} from the best"
    )
    return [
        _claim("Takeaway 1", "fastest degree on a full wafer", PUBLISHED_FASTEST, "seed",
               curves, lambda c: c.fastest, why),
        _claim("Takeaway 1", "degree of the most tokens for each joule on a full wafer",
               PUBLISHED_FASTEST, "seed", curves, lambda c: c.most_frugal, why),
    ]  # fmt: skip
