"""From the dims of a row to a model: a public one of the catalog, or one built from the dims."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.calibration.frameworks import LLM_FOUNDRY, MAXTEXT, Framework
from meshwright.calibration.refusals import Reason, RefusedError
from meshwright.calibration.rows import ModelFields, Row
from meshwright.catalog.models import known_names, load_model
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)

_CONFIGURATIONS = Path(__file__).parent / "data" / "models.json"
_SIZE_AT_END = re.compile(r"[ -]\d+b$", re.IGNORECASE)
_VARIANT = re.compile(r"-?(instruct|chat|base|hf|it|pretrain(ing)?)$", re.IGNORECASE)
_OTHER_NAMES = {f"llama{size}b": f"llama1-{size}b" for size in (7, 13, 33, 65)}
"""The first models of the name were published without a number."""


def model_of(row: Row, framework: Framework) -> ModelSpec:
    """Return the model of a row.

    A public model by its name is taken from the catalog where all stated dims agree with it: it
    knows what rows cannot say (latent attention, windows, first dense layers). Any other model is
    built from its dims: gated networks as Llama has them, others as GPT.

    Raises
    ------
    RefusedError
        When dims are neither stated nor known by name.
    """
    stated = row.model
    known = _catalog_model(stated.name or "")
    if known is not None and _agrees(known, stated):
        changes = {} if stated.vocab is None else {"vocab_size": stated.vocab}
        if known.learned_positions and stated.seq:
            changes["learned_positions"] = max(known.learned_positions, stated.seq)
        return known.model_copy(update=changes)
    needed = {"layers": stated.layers, "hidden": stated.hidden, "heads": stated.heads}
    missing = [name for name, value in (needed | {"vocab": stated.vocab}).items() if not value]
    if missing:
        raise RefusedError(Reason.DIMS, f"{', '.join(missing)} of {stated.name or 'the model'}")
    return _built(stated, framework)


def completed(stated: ModelFields) -> ModelFields:
    """Return stated dims with those of the public configuration of that name, where they agree."""
    known = public_dims(stated.name or "")
    if any(getattr(stated, name) not in (None, value) for name, value in known.items()):
        return stated
    missing = {name: value for name, value in known.items() if getattr(stated, name) is None}
    return replace(stated, **missing)


def public_dims(name: str) -> dict[str, Any]:
    """Return the dims of a public training configuration by its name, with their source left out.

    They are no models of the catalog: nobody published weights of them.
    """
    known = _configurations()
    found = known.get(_known_as(name, known) or "", {})
    return {key: value for key, value in found.items() if key != "dims_source"}


@cache
def _configurations() -> dict[str, dict[str, Any]]:
    content = json.loads(_CONFIGURATIONS.read_text(encoding="utf-8"))
    return {_plain(name): dims for name, dims in content.items()}


@cache
def _catalog_names() -> dict[str, str]:
    """Return names and aliases without owner and variant, each with one that the catalog knows."""
    known = {_plain(_VARIANT.sub("", name.rpartition("/")[2])): name for name in known_names()}
    return _OTHER_NAMES | known


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _catalog_model(name: str) -> ModelSpec | None:
    """Return the public model of a name, where no configuration of its own has that name."""
    names = _catalog_names()
    known = None if _plain(name) in _configurations() else _known_as(name, names)
    return load_model(names[known]) if known else None


def _known_as(name: str, known: Container[str]) -> str | None:
    """Return what a name is known as; its size may follow one that has none, its owner precede."""
    bare = _VARIANT.sub("", name.rpartition("/")[2])
    candidates = (_plain(bare), _plain(_SIZE_AT_END.sub("", bare)))
    return next((candidate for candidate in candidates if candidate in known), None)


def _agrees(model: ModelSpec, stated: ModelFields) -> bool:
    """Return whether no stated dim contradicts a public model; the vocabulary may be padded."""
    attentions = [kind.attention for kind in model.layer_kinds]
    experts = [kind.experts for kind in model.layer_kinds if kind.experts]
    pairs = (
        (stated.layers, {model.num_layers}),
        (stated.hidden, {model.hidden_size}),
        (stated.heads, {attention.num_heads for attention in attentions}),
        (stated.kv_heads, {attention.num_kv_heads for attention in attentions}),
        (stated.n_experts, {expert.num_experts for expert in experts} | {0}),
        (stated.topk, {expert.top_k for expert in experts} | {0}),
    )
    return all(value is None or value in known for value, known in pairs)


def _built(stated: ModelFields, framework: Framework) -> ModelSpec:
    """Return a model of stated dims."""
    assert stated.layers is not None
    assert stated.hidden is not None
    assert stated.vocab is not None
    is_gpt = not _is_gated(stated)
    is_mpt = is_gpt and framework is LLM_FOUNDRY
    has_table = stated.position == "learned" or (is_gpt and framework is not MAXTEXT)
    bias = is_gpt and not is_mpt and framework is not MAXTEXT
    dense = LayerSpec(attention=_attention(stated, bias=bias), feed_forward=_network(stated, bias))
    first = min(stated.first_dense_layers or 0, stated.layers)
    kinds: tuple[LayerSpec, ...] = (dense,)
    pattern = (0,) * stated.layers
    if stated.n_experts:
        sparse = LayerSpec(attention=_attention(stated, bias=bias), experts=_experts(stated))
        kinds = (dense, sparse) if first else (sparse,)
        pattern = (0,) * first + (len(kinds) - 1,) * (stated.layers - first)
    return ModelSpec(
        name=stated.name or "unnamed",
        architecture="built from stated dims",
        hidden_size=stated.hidden,
        vocab_size=stated.vocab,
        layer_kinds=kinds,
        layer_pattern=pattern,
        norm="layer_no_bias" if is_mpt else "layer" if bias else "rms",
        learned_positions=(stated.seq or 0) if has_table else 0,
        tied_embeddings=is_gpt and framework is not MAXTEXT,
    )


def _is_gated(stated: ModelFields) -> bool:
    """Return whether the network has a gate: as stated, else where its width suggests it."""
    if stated.ffn_gated is not None:
        return stated.ffn_gated
    plain_width = 4 * (stated.hidden or 0)
    return bool(stated.n_experts) or stated.ffn not in (None, plain_width)


def _attention(stated: ModelFields, *, bias: bool) -> AttentionSpec:
    heads = stated.heads
    assert heads is not None
    assert stated.hidden is not None
    head_size = stated.head_dim or stated.hidden // heads
    kv_heads = stated.kv_heads or heads
    if heads % kv_heads:
        raise RefusedError(Reason.DIMS, f"{kv_heads} key heads do not divide {heads} heads")
    return AttentionSpec(
        num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, value_head_size=head_size,
        qkv_bias=bias, output_bias=bias,
    )  # fmt: skip


def _network(stated: ModelFields, bias: bool) -> FeedForwardSpec:
    assert stated.hidden
    return FeedForwardSpec(
        ffn_size=stated.ffn or 4 * stated.hidden, gated=_is_gated(stated), bias=bias
    )


def _experts(stated: ModelFields) -> ExpertSpec:
    width = stated.moe_ffn or stated.ffn
    if not (stated.n_experts and stated.topk and width):
        raise RefusedError(Reason.DIMS, f"experts of {stated.name}")
    return ExpertSpec(
        num_experts=stated.n_experts, top_k=stated.topk, ffn_size=width, gated=_is_gated(stated),
        shared_ffn_size=(stated.shared_experts or 0) * width,
    )  # fmt: skip
