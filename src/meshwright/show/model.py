"""A model as data: counts, dims, layers, operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from meshwright.graph.flops import ScoreCount, attention_flops_per_token, op_flops_per_token
from meshwright.graph.op import LayerGraph, Op, OpGraph, OpKind, weight_elements
from meshwright.graph.parameters import (
    COUNT_CONVENTIONS,
    count_parameters,
    kv_cache_bytes_per_token,
    recurrent_state_bytes,
    windowed_kv_cache_bytes_per_token,
)
from meshwright.spec.model import ModelSpec

KV_WORD_BYTES: Final = 2.0
"""The cache is stated for 16-bit words."""
_LEFT_OUT = {
    "name", "architecture", "layer_kinds", "layer_pattern", "weight_format", "conventions",
    "source",
}  # fmt: skip
"""Fields of a model that are not among its dims."""


@dataclass(frozen=True)
class ShownOperator:
    """An operator of a layer, with its FLOPs in the forward pass."""

    place: str
    num_layers: int
    name: str
    kind: str
    dims: Mapping[str, Sequence[str]]
    """Named dims of inputs and outputs."""
    num_params: int
    forward_flops_per_token: float
    forward_flops_per_token_and_key: float
    """FLOPs of one token for each key that it sees."""


@dataclass(frozen=True)
class ShownModel:
    """Counts, dims, layers and operators of a model."""

    name: str
    architecture: str
    source: str
    num_params: int
    num_active_params: int
    num_prediction_params: int
    num_repeated_head_params: int
    kv_cache_bytes_per_token: float
    windowed_kv_cache_bytes_per_token: float
    recurrent_state_bytes: float
    kv_word_bytes: float
    params_by_part: Mapping[str, int]
    dims: Mapping[str, Any]
    layers: Sequence[Mapping[str, Any]]
    """Number, parameters and declaration of each kind of layer."""
    layer_pattern: Sequence[int]
    conventions: Sequence[str]
    operators: Sequence[ShownOperator]


def shown_model(model: ModelSpec, graph: OpGraph) -> ShownModel:
    """Return the counts, dims, layers and operators of a model."""
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
    return ShownModel(
        name=model.name,
        architecture=model.architecture,
        source=model.source,
        num_params=counts.num_params,
        num_active_params=counts.num_active_params,
        num_prediction_params=counts.prediction,
        num_repeated_head_params=counts.repeated_head,
        kv_cache_bytes_per_token=kv_cache_bytes_per_token(model, KV_WORD_BYTES),
        windowed_kv_cache_bytes_per_token=windowed_kv_cache_bytes_per_token(model, KV_WORD_BYTES),
        recurrent_state_bytes=recurrent_state_bytes(model, KV_WORD_BYTES),
        kv_word_bytes=KV_WORD_BYTES,
        params_by_part=counts.parts,
        dims={"num_layers": model.num_layers} | model.model_dump(exclude=_LEFT_OUT),
        layers=[
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
        layer_pattern=list(model.layer_pattern),
        conventions=[*model.conventions, *COUNT_CONVENTIONS, *notes],
        operators=[record for place, layer in places for record in _records(place, layer, graph)],
    )


def _records(place: str, layer: LayerGraph, graph: OpGraph) -> Iterator[ShownOperator]:
    for op in layer.ops:
        yield ShownOperator(
            place, layer.count, op.name, str(op.kind), _op_dims(op, layer),
            _own_params(op, layer, graph), *_flops(op, layer),
        )  # fmt: skip


def _flops(op: Op, layer: LayerGraph) -> tuple[float, float]:
    """Return the forward FLOPs of one token; those of the attention core scale with the keys seen.

    Chunks of a scan are full.
    """
    if op.kind is OpKind.ATTENTION and op.attention is not None:
        return 0.0, float(attention_flops_per_token(op.attention, 1.0))
    length = float(op.recurrence.chunk_size) if op.recurrence is not None else 1.0
    return float(op_flops_per_token(op, layer, length, ScoreCount.FULL)), 0.0


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
