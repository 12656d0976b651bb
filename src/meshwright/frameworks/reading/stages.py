"""Layers of each stage, as options of this program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from meshwright.frameworks.reading.given import Options
from meshwright.sharding.dealing import dealt
from meshwright.sharding.strategy import lengths_text

_MOST_COUNTED = 16
"""Most layers that an embedding or a head counts as."""


def stage_choices(lengths: list[int], layers: int) -> Options | None:
    """Return the options that deal layers in these lengths: embedding and head, or each stage.

    None: there are none, one is negative, or their sum is not the layers of the model.
    """
    if sum(lengths) != layers or min(lengths, default=-1) < 0:
        return None
    most = min(max(lengths), _MOST_COUNTED)
    for head, embedding in product(range(most + 1), repeat=2):
        if dealt(layers, len(lengths), embedding, head).tolist() == lengths:
            return {"embedding_layers": embedding, "head_layers": head} if head + embedding else {}
    return {"stage_layers": lengths_text(lengths)}


def lengths_of(text: str) -> list[int]:
    """Return lengths that are written as a sum of runs: the inverse of ``lengths_text``."""
    runs = (run.partition("*") for run in text.split("+"))
    return [int(length) for length, _, count in runs for _ in range(int(count or 1))]


def pipeline_layout(lengths: Sequence[int]) -> str:
    """Return the stages in Megatron's letters: E embedding, t layer, L loss, | between stages."""
    stages = [f"t*{length}" if length else "" for length in lengths]
    return "|".join([f"E{stages[0]}", *stages[1:-1], f"{stages[-1]}L"])
