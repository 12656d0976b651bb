"""What families share: the head size, windows, rows of layers, and the finished model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.catalog.huggingface.fields import (
    MOST_LAYERS,
    Fields,
    Key,
    count,
    count_or_none,
    flag,
    texts_or_none,
)
from meshwright.spec.model import LayerSpec, ModelSpec

WINDOWED_LAYERS = ("full_attention", "sliding_attention")

CORE_KEYS: dict[str, Key] = {
    "hidden_size": count(),
    "num_hidden_layers": count(most=MOST_LAYERS),
    "num_attention_heads": count(),
    "vocab_size": count(),
    "max_position_embeddings": count_or_none(),
}
"""Fields that nearly each configuration states under these names."""

GROUPED_KEYS: dict[str, Key] = CORE_KEYS | {
    "intermediate_size": count(),
    "num_key_value_heads": count(same_as="num_attention_heads"),
    "head_dim": count_or_none(),
    "tie_word_embeddings": flag(False),
}
"""Fields of models with grouped key and value heads; ``head_dim`` absent: hidden / heads."""

STATED_KV_KEYS: dict[str, Key] = GROUPED_KEYS | {"num_key_value_heads": count()}
"""The same for classes whose default is a number that fits one published model only."""

WINDOW_KEYS: dict[str, Key] = {"layer_types": texts_or_none(*WINDOWED_LAYERS)}


def read_head_size(
    fields: Fields,
    *,
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    stated: str = "head_dim",
) -> int:
    """Return the stated head size, or hidden over heads, which must then divide."""
    head_size = fields.count_or_none(stated) if stated else None
    if head_size is not None:
        return head_size
    fields.divides(heads, hidden)
    return max(1, fields.count(hidden) // fields.count(heads))


def read_kv_heads(fields: Fields, heads: str = "num_attention_heads") -> int:
    """Return the key and value heads, which must divide the query heads."""
    fields.divides("num_key_value_heads", heads)
    return fields.count("num_key_value_heads")


def read_layer_types(fields: Fields, default: Sequence[str]) -> list[str]:
    """Return the kind of attention of each layer: as stated, or by the rule of the family."""
    stated = fields.texts_or_none("layer_types")
    if stated is None:
        return list(default)
    fields.require(
        len(stated) == len(default),
        "layer_types",
        f"lists {len(stated)} layers, but num_hidden_layers is {len(default)}",
    )
    return stated


def require_top_k(fields: Fields, chosen: str, experts: str) -> None:
    """Record a fault where more experts are chosen than there are."""
    fields.require(
        fields.count(chosen) <= fields.count(experts),
        chosen,
        f"chooses {fields.count(chosen)} of only {fields.count(experts)} experts ({experts})",
    )


def build_model(
    fields: Fields,
    layers: Sequence[LayerSpec],
    *,
    hidden: str = "hidden_size",
    notes: Sequence[str] = (),
    **rest: Any,
) -> ModelSpec:
    """Return the model of a row of layers; raises all faults that the family has recorded."""
    fields.finish()
    kinds = tuple(dict.fromkeys(layers))
    index = {kind: place for place, kind in enumerate(kinds)}
    tied = fields.flag("tie_word_embeddings") if "tied_embeddings" not in rest else None
    if tied is not None:
        rest["tied_embeddings"] = tied
    return ModelSpec(
        name=fields.family,
        architecture=fields.family,
        hidden_size=fields.count(hidden),
        vocab_size=fields.count("vocab_size"),
        layer_kinds=kinds,
        layer_pattern=tuple(index[layer] for layer in layers),
        conventions=(_head_note(rest["tied_embeddings"]), *notes, *_default_notes(fields)),
        **rest,
    )


def _head_note(tied: bool) -> str:
    if tied:
        return "tied head: logits share the embedding, which is counted once"
    return "separate head: counted in addition to the embedding"


def _default_notes(fields: Fields) -> tuple[str, ...]:
    """Return which fields are not stated, and what holds instead."""
    taken = [f"{name} = {_written(v)}" for name, v in fields.defaults.items() if v is not None]
    derived = [name for name, value in fields.defaults.items() if value is None]
    lines = []
    if taken:
        lines.append(f"not stated, default of the configuration class: {', '.join(taken)}")
    if derived:
        lines.append(f"not stated, so derived by the rule of the family: {', '.join(derived)}")
    return tuple(lines)


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
