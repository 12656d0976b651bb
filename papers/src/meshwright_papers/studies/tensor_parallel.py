"""The collectives and activations of a tensor-parallel block, derived and not listed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from meshwright.base.units import format_bytes
from meshwright.catalog.models import load_model
from meshwright.graph.op import LayerGraph, Phase
from meshwright.graph.transformer import build_graph
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.local_sizes import local_elements, saved_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, make_strategy
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.studies.study import StudyResult, studies

MODEL, SEQUENCE_LENGTH, DEGREE = "gpt3-175b", 2048, 8
WORD_BYTES = 2.0
RING_ROUNDS = {
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
}
"""Times that a ring sends (t - 1) / t of the full tensor."""
ROWS = (("TP", False), ("TP + SP", True))
ACTIVATIONS = (
    ("one device", 1, False, Recompute.NONE),
    ("TP", DEGREE, False, Recompute.NONE),
    ("TP + SP", DEGREE, True, Recompute.NONE),
    ("TP, selective recomputation", DEGREE, False, Recompute.SELECTIVE),
    ("TP + SP, selective recomputation", DEGREE, True, Recompute.SELECTIVE),
    ("TP, full recomputation", DEGREE, False, Recompute.FULL),
)


@dataclass(frozen=True)
class Row:
    """One way through a block: its collectives, and the bytes that a ring sends on each rank."""

    scheme: str
    direction: str
    calls: dict[str, int]
    ring_bytes: float
    """Bytes sent by one rank for one micro-batch."""
    sites: tuple[str, ...]


@studies.register("tensor-parallel")
class TensorParallel:
    """Two all-reduces each way, or two gathers and two scatters of equal volume."""

    title = "collectives and activation bytes of a block under TP and TP + SP"
    source = "Korthikanti et al. 2022 (arXiv 2205.05198), sections 3 and 4"

    @staticmethod
    def run() -> StudyResult:
        """Derive both tables."""
        layer = block()
        rows = [row for scheme, sp in ROWS for row in rows_of(layer, scheme, sp)]
        sizes = [(name, kept_bytes(layer, t, sp, r)) for name, t, sp, r in ACTIVATIONS]
        data: dict[str, Any] = {
            "collectives": [{**vars(row), "sites": list(row.sites)} for row in rows],
            "activation_bytes": dict(sizes),
        }
        return StudyResult((*collective_lines(rows), "", *activation_lines(sizes)), data)


def block() -> LayerGraph:
    """Return a GPT block with dropout and a materialised score matrix."""
    return build_graph(load_model(MODEL), dropout=True, flash_attention=False).layers[0]


def rows_of(layer: LayerGraph, scheme: str, sequence_parallel: bool) -> list[Row]:
    """Return the collectives of one scheme over tp: forward, backward, and repeated gathers.

    Sums of small gradients once per step are left out, as in the published table.
    """
    plan_options = PlanOptions(sequence_parallel=sequence_parallel, zero_stage=0)
    calls = [call for call in derive_calls(layer, plan_options, {"tp"}) if not call.per_step]
    forward = [call for call in calls if call.phase is Phase.FORWARD]
    backward = [c for c in calls if c.phase is not Phase.FORWARD and not c.is_regather]
    again = [call for call in calls if call.is_regather]
    parts = (("forward", forward), ("backward", backward), ("backward, gathered again", again))
    return [_row(layer, scheme, name, part) for name, part in parts if part]


def _row(layer: LayerGraph, scheme: str, direction: str, calls: list[CollectiveCall]) -> Row:
    strategy = make_strategy(tp=DEGREE)
    sizes = layer.bind(float(SEQUENCE_LENGTH), float(SEQUENCE_LENGTH))
    sent = sum(
        RING_ROUNDS[call.kind]
        * WORD_BYTES
        * float(local_elements(call.tensor, call.split, sizes, strategy))
        for call in calls
    )
    counts = Counter(str(call.kind) for call in calls)
    sites = tuple(call.site for call in calls)
    return Row(scheme, direction, dict(counts), sent * (DEGREE - 1) / DEGREE, sites)


def kept_bytes(layer: LayerGraph, tp: int, sequence_parallel: bool, recompute: Recompute) -> int:
    """Return the activations that one micro-batch of one sequence leaves in a block [bytes]."""
    plan_options = PlanOptions(
        sequence_parallel=sequence_parallel, recompute=recompute, zero_stage=0
    )
    strategy = make_strategy(tp=tp)
    sizes = layer.bind(float(SEQUENCE_LENGTH), float(SEQUENCE_LENGTH))
    total = 0.0
    for entry in saved_elements(layer, plan_options):
        word = WORD_BYTES if entry.word_bytes is None else entry.word_bytes
        total += word * float(local_elements(entry.tensor, entry.split, sizes, strategy))
    return round(total)


def collective_lines(rows: list[Row]) -> list[str]:
    """Return the table of collectives."""
    lines = [
        f"collectives of one {MODEL} block over tp {DEGREE}, derived from shardings "
        f"(1 x {SEQUENCE_LENGTH} tokens)",
        f"  {'scheme':<8} {'direction':<25} {'calls':<36} {'ring sends':>11}",
    ]
    for row in rows:
        calls = " + ".join(f"{number} {kind}" for kind, number in row.calls.items())
        lines.append(
            f"  {row.scheme:<8} {row.direction:<25} {calls:<36} {format_bytes(row.ring_bytes):>11}"
        )
    return lines


def activation_lines(sizes: list[tuple[str, int]]) -> list[str]:
    """Return the table of activations."""
    lines = [f"activations kept by one {MODEL} block for the backward pass, one sequence"]
    return lines + [f"  {name:<34} {size:>14,} bytes" for name, size in sizes]
