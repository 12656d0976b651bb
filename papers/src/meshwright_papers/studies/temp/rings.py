"""Figs. 5, 7 and 8: missing rings, switching of relays, and the order of a stream."""

from __future__ import annotations

from functools import cache

import numpy as np

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.catalog.models import load_model
from meshwright.network.routing import xy_routes
from meshwright.network.traffic import Demands
from meshwright.streams.forms import streams
from meshwright.streams.round_model import round_link_s
from meshwright.train.question import training
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged,
    shown,
    studies,
)
from meshwright_papers.studies.temp.faults import mesh
from meshwright_papers.studies.temp.setup import ASSUMPTIONS, SOURCE, wafer

MEMBERS, SUB_TENSOR_BYTES = 8, 16e6
LINK_BYTES_PER_S, LATENCY_S = 2e12, 200e-9
FORMS = ("ring", "folded_ring", "stream")
SWITCHING = {"store and forward": True, "cut through": False}
PUBLISHED_HOPS, PUBLISHED_TAIL = 7, 7.0
MODEL, LENGTH, BATCH = "llama2-7b", 4096, 128
WAFERS = (("wafer-4x8", 8), ("wafer-6x8", 8), ("wafer-8x8", 8))
"""Wafers, each with the members of a stream."""
PUBLISHED_LOSS = 0.3
LONG, PUBLISHED_RATIO = 14_000, 3.0


ROUND_CHART = Drawing(
    "How long does a round of a stream take without the wrap of a ring?",
    f"{MEMBERS} dies in a line, sub-tensors of 16 MB, by how relays switch; TEMP Fig. 5",
    "bars", ("round_us",), "form", colour="switching",
)  # fmt: skip
LOSS_CHART = Drawing(
    "What do rings lose whose members are not neighbours?",
    "Share of the peak in a step, streams of eight dies; TEMP Fig. 7",
    "bars", ("naive_mfu", "placed_mfu"), "wafer", measure="utilisation of the peak (MFU)",
)  # fmt: skip


def round_s(form: str, *, stores: bool) -> float:
    """Return the time in which a stream on a line of eight dies passes a sub-tensor on [s]."""
    return float(
        round_link_s(
            SUB_TENSOR_BYTES, LINK_BYTES_PER_S, LATENCY_S, 0.0,
            num_hops=streams[form].num_hops(float(MEMBERS)), store_and_forward=stores,
        )
    )  # fmt: skip


@cache
def utilisations(wafer: str, degree: int) -> tuple[float, float] | None:
    """Return the share of the peak of naive rings in device order, and of placed streams."""
    work = training(wafer, sequence_length=LENGTH, global_batch_size=BATCH)
    fixed: dict[str, list[object]] = {"tp": [1], "cp": [1], "pp": [1], "tatp": [degree]}
    placed = compare(
        MODEL,
        wafer,
        work,
        ours="temp",
        against=(),
        allowed=fixed,
        calibration=UNCALIBRATED,
        prefers_simple=False,
    )
    ring: dict[str, list[object]] = {**fixed, "stream_form": ["ring"]}
    naive = compare(
        MODEL,
        wafer,
        work,
        ours="temp",
        against=(),
        allowed=ring,
        calibration=UNCALIBRATED,
        prefers_simple=False,
    )
    blind = next(entry for entry in naive.entries if entry.mapper == "smap")
    if blind.best is None or placed.ours.best is None:
        return None
    return blind.best.estimate.mfu_causal, placed.ours.best.estimate.mfu_causal


@studies.register("temp-rings")
class Rings:
    """Cost of a missing ring for a round and a step; and the order in which dies consume."""

    title = "TEMP Figs. 5, 7 and 8: missing rings, how relays switch, order of a stream"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Time a round by form and switching, and search naive and placed streams."""
        rounds = tuple(
            (form, name, 1e6 * round_s(form, stores=stores),
             round_s(form, stores=stores) / round_s("stream", stores=stores))
            for name, stores in SWITCHING.items()
            for form in FORMS
        )  # fmt: skip
        losses = tuple(
            (wafer, degree, *found, 1.0 - found[0] / found[1])
            for wafer, degree in WAFERS
            if (found := utilisations(wafer, degree))
        )
        tables = (
            Table("fig5_rounds", ("form", "switching", "round_us", "over_stream"), rounds,
                  ROUND_CHART),
            Table("fig7_utilisation", ("wafer", "degree", "naive_mfu", "placed_mfu", "loss"),
                  losses, LOSS_CHART),
        )  # fmt: skip
        claims = (*_round_claims(), _loss_claim([row[-1] for row in losses]), *_order_claims())
        return StudyResult(
            machine=wafer(),
            lines=(
                f"{'form':<12} {'relays':<18} {'round us':>9} {'over stream':>12}",
                *(f"{a:<12} {b:<18} {c:>9.2f} {d:>12.2f}" for a, b, c, d in rounds),
                "",
                *claim_lines(claims),
            ),
            data={table.name: table.records for table in tables},
            tables=tables,
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; rounds: eight dies in a line, sub-tensors of 16 MB, no "
            f"occupation by messages; Fig. 7c: {load_model(MODEL).name}, rings in the order of "
            "device numbers against streams in blocks, degree fixed, micro-batches searched",
        )


def _round_claims() -> tuple[Claim, ...]:
    """Return the claims of the paper on the wrap of a ring, beside our figures."""
    hops = int(streams["ring"].num_hops(float(MEMBERS)))
    tails = {
        name: round_s("ring", stores=stores) / round_s("stream", stores=stores)
        for name, stores in SWITCHING.items()
    }
    return (
        Claim("Fig. 5a", "hops of the wrap of a ring of eight dies in a line",
              str(PUBLISHED_HOPS), "seed", str(hops), judged(hops, PUBLISHED_HOPS),
              "the wrap crosses the whole line"),
        *(Claim("Fig. 5a", f"tail latency of that ring where relays {name}", f"{PUBLISHED_TAIL}x",
                "seed", f"{shown(tail)}x", judged(tail, PUBLISHED_TAIL),
                "only latencies add up over the hops: a wrap whose messages cut through takes the "
                "idle direction of the line, so the claim needs relays that store")
          for name, tail in tails.items()),
        Claim("Fig. 5b", "latency of two messages that share a link, over that alone", "",
              "missing", f"{shown(shared_link_times())}x", Verdict.NOT_PUBLISHED, ""),
    )  # fmt: skip


def shared_link_times() -> float:
    """Return the messages over the busiest link while 0 sends to 2 and 1 to 3 in a row."""
    network = mesh(2, 4)
    demands = Demands(
        np.array([0, 1]), np.array([2, 3]), np.ones(2), np.arange(2), np.zeros(2, int)
    )
    routes, _ = xy_routes(network, demands)
    return float(routes.link_load_bytes(demands.num_bytes, network).max())


def _loss_claim(losses: list[float]) -> Claim:
    """Return the claim on the dies lost to broken rings, beside our figure."""
    worst = max(losses, default=0.0)
    return Claim(
        "Fig. 7c", "use of the dies lost to groups without a ring, larger wafers",
        f"over {PUBLISHED_LOSS:.0%}", "seed", ", ".join(f"{loss:.0%}" for loss in losses),
        Verdict.AGREES if worst > PUBLISHED_LOSS else Verdict.DIFFERS,
        "micro-batches are searched for the naive rings too, and hide much of their wraps",
    )  # fmt: skip


def _order_claims() -> tuple[Claim, ...]:
    """Return the claims of the paper on the order of a stream on four dies, beside ours."""
    uses = streams["stream"].uses(4)
    second = [f"W{items[0]}" for items in uses[1]]
    last = [f"W{members[3][0]}" for members in uses]
    layer = load_model(MODEL).hidden_size
    ratio = LONG / layer
    return (
        Claim("Fig. 8", "weights that four dies use in round 1", "W1, W2, W1, W2",
              "second-hand", ", ".join(second),
              Verdict.AGREES if second == ["W1", "W2", "W1", "W2"] else Verdict.DIFFERS,
              "another order of the right half"),
        Claim("Fig. 8", "weights that the last of four dies uses, in order", "W3, W2, W1, W0",
              "seed", ", ".join(last),
              Verdict.AGREES if last == ["W3", "W2", "W1", "W0"] else Verdict.DIFFERS,
              "another order of the right half"),
        Claim("Section V", "activations over weights of a square layer, Llama2 7B, 14k tokens",
              f"{PUBLISHED_RATIO}x", "seed", f"{shown(ratio)}x", judged(ratio, PUBLISHED_RATIO),
              "tokens over the width of the layer"),
    )  # fmt: skip
