"""Why our model and the peer differ: parts of both breakdowns, paired, each with its mechanism.

Each function returns terms that sum to the whole difference, ours less theirs; a reason names the
largest of them. Nothing here knows a point by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

EDGES = "embedding and logits"
TILES = "tile waves"
ROOFLINE = "roofline"
ATTENTION = "attention core"
ELEMENTWISE = "norms and additions"
RECOMPUTE = "recomputation"
ADDITIONS = "additions of reductions"
COLLECTIVES = "tensor collectives"
OVERLAP = "tensor overlap"
SENDS = "sends"
BUBBLE = "bubble"
GRADIENT_SUM = "gradient sum"
UPDATE = "optimizer step"
OFFLOAD = "offload"
STATE = "weights and optimizer"
GRADIENTS = "gradients"
KEPT = "kept activations"
CHECKPOINTS = "checkpoints"
IN_FLIGHT = "micro-batches in flight"
TRANSIENT = "block at work"
CACHE = "key-value cache"

MECHANISMS: Mapping[str, str] = {
    EDGES: "ours has embedding, positions, final norm, logits and loss; theirs is blocks only",
    TILES: "linear layers: ours whole waves of tiles on all cores at the top efficiency; theirs an "
    "efficiency step by the size of the product",
    ROOFLINE: "linear layers: ours the larger of arithmetic and memory; theirs their sum",
    ATTENTION: "ours two products at the top efficiency and passes over the scores at the memory "
    "rate; theirs products, softmax and mask, each by size step, arithmetic plus memory",
    ELEMENTWISE: "ours their memory traffic; theirs vector arithmetic plus traffic, by size step",
    RECOMPUTE: "the forward differences of blocks (tile waves, roofline, attention core) once more",
    ADDITIONS: "ours inside the collective; theirs vector arithmetic and traffic beside it",
    COLLECTIVES: "ours the best of ring, tree and others: bytes (n - 1) / n and a latency for each "
    "hop, gathers repeated for the backward pass run beside it; theirs scale (1 + offset / n) of "
    "the tier (1.5 for a gather inside an A100 host, 1 for any outside) and one latency",
    OVERLAP: "ours a quarter of the products hides a decomposed collective, one piece shows; "
    "theirs each transfer hides behind the tiles of its own product",
    SENDS: "ours whole activations without sequence parallelism, and interleaved sends show only "
    "while the pipeline fills and drains; theirs each send of each chunk shows, split over tensor "
    "ranks where reductions are split",
    BUBBLE: "one micro-batch through the other stages: the differences of one micro-batch, and "
    "ours also what the edge stages have more",
    GRADIENT_SUM: "ours a ring of 2 (n - 1) / n bytes in one bucket for each layer, hidden under "
    "the backward pass of the last micro-batch where it overlaps; theirs the bytes once outside a "
    "host, hidden under the backward passes of pp micro-batches, chunk by chunk",
    UPDATE: "ours 28 bytes of traffic for each FP16 parameter; theirs 12 bytes and 11 FLOP",
    OFFLOAD: "ours one layer of each transfer shows; theirs only what exceeds the block's time",
    STATE: "shards and residents of weights and optimizer state (ours: two whole layers gathered)",
    GRADIENTS: "ours ZeRO-1 and offload leave whole gradients on the device; theirs shards or "
    "offloads them with the optimizer, and has one block in FP32",
    KEPT: "ours what Korthikanti et al. 2022 count, sequence-parallel inputs gathered again; "
    "theirs the inputs of each of its layers, gathered ones kept unless told otherwise, residual "
    "and activation inputs shared or fused",
    CHECKPOINTS: "ours the input of a layer, split over tp with sequence parallelism; theirs the "
    "whole input",
    IN_FLIGHT: "micro-batches alive on the fullest stage: ours from the order of the schedule, "
    "theirs pp (1 + (pp - 1) / (v pp))",
    TRANSIENT: "ours the largest operator, or the recomputed layer; theirs all inputs of a block "
    "and all gradients of its outputs",
    CACHE: "ours keeps keys and values of the prompt; theirs does not",
}  # fmt: skip

Terms = Sequence[tuple[str, float]]
SHOWN = 0.01
"""Terms below this share of the peer's number are not shown."""
MOST = 3


@dataclass(frozen=True)
class Breakdown:
    """Parts of a step or of a memory, by mechanism; a part may hold several at once."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self.parts.values())


def terms_between(ours: Breakdown, theirs: Breakdown) -> Terms:
    """Return the differences by mechanism, the largest first."""
    names = [name for name in MECHANISMS if name in ours.parts or name in theirs.parts]
    terms = [(name, ours.parts.get(name, 0.0) - theirs.parts.get(name, 0.0)) for name in names]
    return sorted(terms, key=lambda term: -abs(term[1]))


def reason_of(what: str, terms: Terms, theirs: float) -> str:
    """Return the largest terms in words: ``time: roofline -6 %, bubble -1 %``."""
    shares = [(name, amount / theirs) for name, amount in terms]
    shown = [(n, s) for n, s in shares if abs(s) >= SHOWN][:MOST] or shares[:1]
    return f"{what}: " + ", ".join(f"{name} {share:+.1%}" for name, share in shown)


def number(value: Any) -> float:
    """Return a number, or the only entry of a column."""
    return float(np.asarray(value, dtype=float).reshape(-1)[0])


def numbers(record: Any) -> dict[str, float]:
    """Return the fields of a record of columns of one row."""
    return {entry.name: number(getattr(record, entry.name)) for entry in fields(record)}
