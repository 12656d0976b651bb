"""Forward floating-point operations of one token, for each operator: what ``show model`` lists.

Counted are matrix products and the attention core, two for each multiply and add; norms,
activation functions and other elementwise operators count as none.
"""

from __future__ import annotations

from meshwright.graph.op import LayerGraph, Op, OpKind, matmul_flops_per_row
from meshwright.spec.model import AttentionSpec


def token_flops(op: Op, layer: LayerGraph) -> float:
    """Return the forward FLOPs of one token in an operator, the attention core left out [FLOP].

    Rows of routed experts count ``top_k`` times for each token.
    """
    if op.kind is not OpKind.MATMUL:
        return 0.0
    rows = layer.sizes["top_k"] if "routed_tokens" in op.output.dims else 1
    return rows * matmul_flops_per_row(op, layer.sizes)


def token_key_flops(attention: AttentionSpec) -> float:
    """Return the forward FLOPs of the attention core for one token and one key it sees [FLOP].

    2 n (d + d_rope) for the score and 2 n d_v for the weighted sum of values.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), appendix: 4 B s^2 h with n d = n d_v = h.
    """
    sizes = attention.head_size + attention.rope_head_size + attention.value_head_size
    return 2.0 * attention.num_heads * sizes
