"""A model as a record for programs and as text for people: counts, dims, layers, operators."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from meshwright.base.arrays import Num
from meshwright.graph.flops import ScoreCount, attention_flops_per_token, op_flops_per_token
from meshwright.graph.op import LayerGraph, Op, OpGraph, OpKind, weight_elements
from meshwright.graph.parameters import (
    COUNT_CONVENTIONS,
    count_parameters,
    kv_cache_bytes_per_token,
    recurrent_state_bytes,
    windowed_kv_cache_bytes_per_token,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec, RecurrenceSpec
from meshwright.view.screen import screen_width

KV_WORD_BYTES: Final = 2.0
"""The cache is stated for 16-bit words."""
_LEFT_OUT = {
    "name", "architecture", "layer_kinds", "layer_pattern", "weight_format", "conventions",
    "source",
}  # fmt: skip
"""Fields of a model that are not among its dims."""


def model_record(model: ModelSpec, graph: OpGraph) -> dict[str, Any]:
    """Return everything that ``show model`` prints, under documented names with units."""
    counts = count_parameters(model)
    notes = []
    if counts.repeated_head:
        notes.append(
            f"a checkpoint that stores the tied head too holds {counts.repeated_head:,} more"
        )
    if counts.prediction:
        notes.append(f"prediction layers hold {counts.prediction:,} more, in no total")
    places = [("embedding", graph.embedding)]
    places += [(f"layer kind {place}", layer) for place, layer in enumerate(graph.layers)]
    places.append(("head", graph.head))
    return {
        "name": model.name,
        "architecture": model.architecture,
        "source": model.source,
        "num_params": counts.num_params,
        "num_active_params": counts.num_active_params,
        "num_prediction_params": counts.prediction,
        "num_repeated_head_params": counts.repeated_head,
        "kv_cache_bytes_per_token": kv_cache_bytes_per_token(model, KV_WORD_BYTES),
        "windowed_kv_cache_bytes_per_token": windowed_kv_cache_bytes_per_token(
            model, KV_WORD_BYTES
        ),
        "recurrent_state_bytes": recurrent_state_bytes(model, KV_WORD_BYTES),
        "kv_word_bytes": KV_WORD_BYTES,
        "params_by_part": counts.parts(),
        "dims": {"num_layers": model.num_layers} | model.model_dump(exclude=_LEFT_OUT),
        "layers": [
            {
                "num_layers": number,
                "num_params": params.num_params,
                "num_active_params": params.num_active_params,
            }
            | kind.model_dump(exclude_none=True)
            for kind, number, params in zip(
                model.layer_kinds, counts.layer_counts, counts.layer_kinds, strict=True
            )
        ],
        "layer_pattern": list(model.layer_pattern),
        "conventions": [*model.conventions, *COUNT_CONVENTIONS, *notes],
        "operators": [
            record for place, layer in places for record in _records(place, layer, graph)
        ],
    }


def _records(place: str, layer: LayerGraph, graph: OpGraph) -> Iterator[dict[str, Any]]:
    for op in layer.ops:
        yield {
            "place": place,
            "num_layers": layer.count,
            "name": op.name,
            "kind": str(op.kind),
            "dims": _op_dims(op, layer),
            "num_params": _own_params(op, layer, graph),
            **_flops(op, layer),
        }


def _flops(op: Op, layer: LayerGraph) -> dict[str, Num]:
    """Return the forward FLOPs of one token; those of the attention core scale with the keys seen.

    Chunks of a scan are full.
    """
    per_token: Num
    per_key: Num
    if op.kind is OpKind.ATTENTION and op.attention is not None:
        per_token, per_key = 0.0, attention_flops_per_token(op.attention, 1.0)
    else:
        length = float(op.recurrence.chunk_size) if op.recurrence is not None else 1.0
        per_token, per_key = op_flops_per_token(op, layer, length, ScoreCount.FULL), 0.0
    return {"forward_flops_per_token": per_token, "forward_flops_per_token_and_key": per_key}


def _own_params(op: Op, layer: LayerGraph, graph: OpGraph) -> int:
    """Return the parameters of an operator, without a table that the embedding holds already."""
    if op in graph.embedding.ops:
        return weight_elements(op, layer.sizes)
    held = {weight.name for first in graph.embedding.ops for weight in first.weights}
    own = tuple(weight for weight in op.weights if weight.name not in held)
    return weight_elements(replace(op, weights=own), layer.sizes)


def _op_dims(op: Op, layer: LayerGraph) -> dict[str, list[str]]:
    """Return the named dims of inputs and outputs; sizes follow the names that have one."""

    def written(dims: tuple[str, ...]) -> str:
        return " x ".join(
            f"{dim}={layer.sizes[dim]}" if dim in layer.sizes else dim for dim in dims
        )

    return {
        "inputs": [written(tensor.dims) for tensor in op.inputs],
        "outputs": [written(tensor.dims) for tensor in op.outputs],
    }


def model_lines(model: ModelSpec, record: dict[str, Any]) -> Iterator[str]:
    """Yield the text of a record, at most 100 columns wide where names allow it."""
    yield f"{record['name']}  ({record['architecture']})"
    yield from _labelled("parameters", _billions(record["num_params"]))
    if record["num_active_params"] != record["num_params"]:
        yield from _labelled("active", _billions(record["num_active_params"]))
    yield from _labelled("kv cache", _cache_text(record))
    if record["recurrent_state_bytes"]:
        text = f"{record['recurrent_state_bytes']:,.0f} bytes per sequence, states in FP32"
        yield from _labelled("states", text)
    dims = record["dims"]
    shown = ("num_layers", "hidden_size", "vocab_size", "max_sequence_length")
    yield from _labelled("dims", _listed({name: dims[name] for name in shown}))
    yield from _labelled("parts", _listed(record["params_by_part"]))
    for place, (kind, row) in enumerate(zip(model.layer_kinds, record["layers"], strict=True)):
        text = f"{row['num_layers']} x {row['num_params']:,}: {_described(kind)}"
        yield from _labelled(f"layer kind {place}", text)
    yield from _operator_lines(record["operators"])
    yield "conventions"
    for line in record["conventions"]:
        yield from textwrap.wrap(
            line, screen_width(), initial_indent="  - ", subsequent_indent="    ",
            break_on_hyphens=False,
        )  # fmt: skip
    yield from textwrap.wrap(
        f"source: {record['source']}", screen_width(), subsequent_indent="    "
    )


def _labelled(label: str, text: str) -> list[str]:
    """Return a label and its text, broken to the width of the screen."""
    return textwrap.wrap(
        text,
        screen_width(),
        initial_indent=f"  {label:<14}  ",
        subsequent_indent=" " * 18,
        break_on_hyphens=False,
    )


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in values.items() if value)


def _cache_text(record: dict[str, Any]) -> str:
    """Return the cache of one token, and the part in layers with a window."""
    cache = f"{record['kv_cache_bytes_per_token']:,.0f}"
    windowed = record["windowed_kv_cache_bytes_per_token"]
    text = f"{cache} bytes per token, words of {KV_WORD_BYTES:.0f} bytes"
    if windowed:
        text += f"; {windowed:,.0f} of them in layers that keep no more than a window"
    return text


def _billions(count: int) -> str:
    return f"{count:,}  ({count / 1e9:.4g} billion)"


def _described(kind: LayerSpec) -> str:
    """Return one kind of layer in words."""
    parts = []
    if kind.attention is not None:
        parts.append(_attention_described(kind.attention))
    if kind.recurrence is not None:
        parts.append(_recurrence_described(kind.recurrence))
    if (network := kind.feed_forward) is not None:
        parts.append(f"{'gated ' if network.gated else ''}feed-forward {network.ffn_size}")
    if (experts := kind.experts) is not None:
        shared = f", shared {experts.shared_ffn_size}" if experts.shared_ffn_size else ""
        chosen = f"{experts.top_k} of {experts.num_experts} experts of {experts.ffn_size}"
        parts.append(f"{chosen}{shared}")
    text = "; ".join(parts)
    after = "" if kind.norms_before else " on the branches"
    return f"{text}; {kind.num_norms} norm{'s' * (kind.num_norms > 1)}{after}"


def _recurrence_described(recurrence: RecurrenceSpec) -> str:
    name = {"mamba2": "Mamba 2", "gated_delta": "gated delta rule"}[recurrence.kind]
    heads = f"{recurrence.num_heads} heads of {recurrence.head_size}"
    groups = f"{recurrence.num_groups} group{'s' * (recurrence.num_groups > 1)}"
    return (
        f"{name}, {heads}, states of {recurrence.state_size}, {groups}, "
        f"chunks of {recurrence.chunk_size}"
    )


def _attention_described(attention: AttentionSpec) -> str:
    if attention.kind == "mla":
        text = f"latent attention, {attention.num_heads} heads, cached rank {attention.kv_rank}"
    else:
        heads = f"{attention.num_heads} heads of {attention.head_size}"
        text = f"{heads} on {attention.num_kv_heads} key-value heads"
    text += ", gated" if attention.output_gate else ""
    if attention.window is not None:
        text += f", {attention.window_kind} window {attention.window}"
    return text


def _operator_lines(operators: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the operator table; FLOPs are of the forward pass for one token."""
    yield "operators (forward FLOP for each token; attention: for each key it sees)"
    yield f"  {'name':<28}{'kind':<12}{'count':>5} {'parameters':>14} {'FLOP/token':>14}  per token"
    place = ""
    for row in operators:
        if row["place"] != place:
            place = row["place"]
            yield f"  {place}"
        per_key = row["forward_flops_per_token_and_key"]
        flops = f"{per_key:,.0f} /key" if per_key else f"{row['forward_flops_per_token']:,.0f}"
        head = (
            f"    {row['name']:<26}{row['kind']:<12}{row['num_layers']:>5}"
            f" {row['num_params']:>14,} {flops:>14}  "
        )
        first, *others = (
            output.removeprefix("routed_").removeprefix("tokens x ")
            for output in row["dims"]["outputs"]
        )
        yield head + first
        yield from (" " * len(head) + output for output in others)
