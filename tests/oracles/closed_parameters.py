"""Parameters of a model in closed form from its dims, to compare with those of its operators."""

from __future__ import annotations

from meshwright.graph.recurrence import recurrence_sizes
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
    SideSpec,
)

NUM_STEPS = {"mamba2": 1, "gated_delta": 2, "kda": 1}
"""Numbers for each token and head: the time step; or the decay and the strength of writing."""
NUM_VECTORS = {"mamba2": 3, "gated_delta": 2}
"""Learned numbers of each head: decay rate, bias of the step, and the skip of a state space."""


def closed_parameters(model: ModelSpec) -> dict[str, int]:
    """Return the parameters of a model by part."""
    hidden, table = model.hidden_size, model.vocab_size * model.hidden_size
    outer_norms = int(model.final_norm) + int(model.embedding_norm)
    found = {
        "embedding": table + model.learned_positions * hidden,
        "side": side_parameters(model.side),
        "norms": outer_norms * norm_parameters(model, hidden),
        "head": table * (not model.tied_embeddings) + model.vocab_size * model.head_bias,
    }
    if model.side_table is not None:
        found["embedding"] += model.side_table[0] * model.side_table[1]
    for layer, count in zip(model.layer_kinds, model.layer_counts, strict=True):
        for part, number in layer_parts(layer, model).items():
            found[part] = found.get(part, 0) + count * number
    return found


def side_parameters(side: SideSpec | None) -> int:
    """Return the parameters of products and vectors beside the branches."""
    if side is None:
        return 0
    return sum(rows * columns for rows, columns in side.products) + side.num_vector_params


def layer_parts(layer: LayerSpec, model: ModelSpec) -> dict[str, int]:
    """Return the parameters of one layer by part."""
    hidden, experts = model.hidden_size, layer.experts
    attention, recurrence, network = layer.attention, layer.recurrence, layer.feed_forward
    norms = layer.num_norms * norm_parameters(model, hidden)
    norms += _attention_norm_parameters(attention, model) if attention else 0
    norms += _gated_norm_parameters(recurrence) if recurrence else 0
    return {
        "attention": attention_parameters(attention, hidden) if attention else 0,
        "recurrence": recurrence_parameters(recurrence, hidden) if recurrence else 0,
        "feed_forward": feed_forward_parameters(network, hidden) if network else 0,
        "experts": experts.num_experts * _expert_parameters(experts, hidden) if experts else 0,
        "shared_experts": _shared_parameters(experts, hidden) if experts else 0,
        "router": experts.num_experts * (hidden + int(experts.router_bias)) if experts else 0,
        "side": side_parameters(layer.side),
        "norms": norms,
    }


def norm_parameters(model: ModelSpec, size: int) -> int:
    """Return the parameters of one norm over a dim of ``size``."""
    return {"rms": 1, "layer_no_bias": 1, "layer": 2, "layer_unweighted": 0}[model.norm] * size


def attention_parameters(attention: AttentionSpec, hidden: int) -> int:
    """Return the parameters of the projections of one attention, and of its sinks."""
    sinks = attention.num_heads if attention.sinks else 0
    value_width = attention.num_heads * attention.value_head_size
    output = value_width * hidden + (hidden if attention.output_bias else 0)
    if attention.kind == "mla":
        return _latent_parameters(attention, hidden) + output + sinks
    # A gate is projected as wide as the queries.
    query_width = attention.num_heads * attention.head_size * (1 + attention.output_gate)
    values = 0 if attention.value_is_key else attention.value_head_size
    kv_width = attention.num_kv_heads * (attention.head_size + values)
    kv_width = 0 if attention.shares_cache else kv_width
    rows = hidden + (1 if attention.qkv_bias else 0)
    return (query_width + kv_width) * rows + output + sinks


def _latent_parameters(attention: AttentionSpec, hidden: int) -> int:
    """Return the parameters of the query, key and value factors of latent attention.

    hidden (r_q + r_kv + d_rope) + n (r_q (d + d_rope) + r_kv (d + d_v)); without a query rank the
    queries take hidden n (d + d_rope). A bias is on the two factors that read the hidden dim.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; ``DeepseekV3Attention``.
    """
    kv_rank, query_rank = attention.kv_rank or 0, attention.query_rank
    query_width = attention.num_heads * (attention.head_size + attention.rope_head_size)
    key_value_width = attention.num_heads * (attention.head_size + attention.value_head_size)
    rows = hidden + (1 if attention.qkv_bias else 0)
    queries = hidden * query_width
    if query_rank is not None:
        queries = rows * query_rank + query_rank * query_width
    # An index has queries of its own, one key, and a weight for each of its heads.
    heads, size = attention.index_heads, attention.index_head_size
    index = (query_rank or hidden) * heads * size + hidden * (size + heads)
    latent = rows * (kv_rank + attention.rope_head_size) + kv_rank * key_value_width
    return queries + index + latent


def _attention_norm_parameters(attention: AttentionSpec, model: ModelSpec) -> int:
    """Return the parameters of norms on queries, keys and the factors of latent attention."""
    size = (attention.query_rank or 0) + (attention.kv_rank or 0)
    if attention.qk_norm == "head":
        size += (1 if attention.shares_cache else 2) * attention.head_size
    elif attention.qk_norm == "full":
        size += (attention.num_heads + attention.num_kv_heads) * attention.head_size
    return norm_parameters(model, size) + 2 * attention.index_head_size


def recurrence_parameters(recurrence: RecurrenceSpec, hidden: int) -> int:
    """Return the parameters of a recurrence, its norm left out.

    (h + b) (2 d + 2 G N + m H) of the input, with m numbers for each head, (k + b_c) (d + 2 G N) of
    the convolution, the vectors of each head, and d h + b h of the output; d = H P.

    Source: ``Mamba2Mixer``, ``Qwen3NextGatedDeltaNet``.
    """
    sizes = recurrence_sizes(recurrence)
    inner, heads = sizes["inner"], sizes["inner_heads"]
    bias = int(recurrence.bias)
    if recurrence.kind == "short_conv":
        taps = inner * (recurrence.conv_size + recurrence.conv_bias)
        return 3 * inner * (hidden + bias) + taps + inner * hidden + hidden * bias
    if recurrence.kind == "kda":
        # q, k, v, convolutions, two gates of low rank, write, decay and its bias, output
        rank, keys = recurrence.gate_rank, sizes["state_key"]
        mixed = inner + 2 * keys
        gates = rank * (2 * hidden + inner + keys)
        return (
            mixed * (hidden + recurrence.conv_size)
            + gates
            + heads * (hidden + 1)
            + keys
            + (inner * hidden)
        )
    channels = inner + 2 * sizes["state_key"]
    columns = inner + channels + NUM_STEPS[recurrence.kind] * heads
    convolution = channels * (recurrence.conv_size + recurrence.conv_bias)
    output = inner * hidden + hidden * recurrence.bias
    vectors = NUM_VECTORS[recurrence.kind] * heads
    return columns * (hidden + recurrence.bias) + convolution + vectors + output


def _gated_norm_parameters(recurrence: RecurrenceSpec) -> int:
    """Return the parameters of the norm of a recurrence: of all heads, or shared by them."""
    sizes = recurrence_sizes(recurrence)
    if recurrence.kind == "short_conv" or not recurrence.output_norm:
        return 0
    return sizes["inner" if recurrence.kind == "mamba2" else "inner_head_size"]


def feed_forward_parameters(feed_forward: FeedForwardSpec, hidden: int) -> int:
    """Return the parameters of a dense network: up (and gate) and down, with biases."""
    return _network(hidden, feed_forward.ffn_size, feed_forward.gated, feed_forward.bias)


def _network(hidden: int, ffn_size: int, gated: bool, bias: bool) -> int:
    columns = (2 if gated else 1) * ffn_size
    return hidden * (columns + ffn_size) + (columns + hidden if bias else 0)


def _expert_parameters(experts: ExpertSpec, hidden: int) -> int:
    """Return the parameters of one routed expert."""
    return _network(hidden, experts.ffn_size, experts.gated, experts.bias)


def _shared_parameters(experts: ExpertSpec, hidden: int) -> int:
    """Return the parameters of the shared experts together, and of their gate."""
    if not experts.shared_ffn_size:
        return 0
    gate = hidden if experts.shared_gate else 0
    return _network(hidden, experts.shared_ffn_size, experts.gated, experts.bias) + gate
