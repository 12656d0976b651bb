"""Layers of each stage, as options of this program."""

from __future__ import annotations

from itertools import product
from typing import Any

from meshwright.sharding.dealing import dealt
from meshwright.sharding.strategy import lengths_text

_MOST_COUNTED = 16
"""Layers for which nobody counts an embedding or a head more."""


def stage_choices(lengths: list[int], layers: int) -> dict[str, Any] | None:
    """Return what deals layers in these lengths: counts of embedding and head, or each stage.

    None: they are not the layers of the model.
    """
    if sum(lengths) != layers or min(lengths, default=0) < 0:
        return None
    most = min(max(lengths), _MOST_COUNTED)
    for head, embedding in product(range(most + 1), repeat=2):
        if dealt(layers, len(lengths), embedding, head).tolist() == lengths:
            return {"embedding_layers": embedding, "head_layers": head} if head + embedding else {}
    return {"stage_layers": lengths_text(lengths)}
