"""FLOPs of a step, and the definitions of model FLOPs on which MFU is quoted.

A matrix product costs 2 FLOPs for each of its multiply-adds, forward, and as much again for each
of its two gradients, of its inputs and of weights that are not frozen; everything between the
products is left out, as in the literature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.base.arrays import Num, smaller, where
from meshwright.graph.op import LayerGraph, Op, OpGraph, OpKind, matmul_flops_per_row
from meshwright.graph.recompute import repeated_ops
from meshwright.graph.recurrence import Scan, repeated_scan_flops_per_token, scan_flops_per_token
from meshwright.spec.model import AttentionSpec


class ScoreCount(StrEnum):
    """Which entries of the score matrix are counted."""

    FULL = "full"
    """All s x s of them, also those that a causal mask removes."""
    CAUSAL = "causal"
    """Half of them; a window and its causal edge where there is one."""


@dataclass(frozen=True)
class StepFlops:
    """FLOPs by phase, over all devices [FLOP]; numbers or columns of shape (rows,)."""

    forward: Num
    input_gradient: Num
    weight_gradient: Num
    recompute: Num

    @property
    def model(self) -> Num:
        """FLOPs of the model, recomputation left out [FLOP]."""
        return self.forward + self.input_gradient + self.weight_gradient

    @property
    def hardware(self) -> Num:
        """Executed FLOPs, recomputation included [FLOP]."""
        return self.model + self.recompute


def visible_keys(spec: AttentionSpec, sequence_length: Num, count: ScoreCount) -> Num:
    """Return the mean number of keys for each query that is counted [tokens].

    Full: s. Causal: s/2; with a window w < s, or w keys chosen: w (1 - w / 2s), or w/2 inside
    chunks. With a stride r, s/r further entries are seen, or those that are chosen of them. Scores
    of an index are left out.
    """
    if spec.stride is not None:
        plain = spec.model_copy(update={"stride": None, "chosen_keys": None})
        joined = plain.model_copy(update={"window": spec.chosen_keys})
        beside = visible_keys(joined, sequence_length / spec.stride, count)
        return visible_keys(plain, sequence_length, count) + beside
    if count is ScoreCount.FULL:
        return sequence_length * 1.0
    if spec.most_keys is None:
        return sequence_length / 2.0
    width = smaller(float(spec.most_keys), sequence_length)
    sliding = width * (1.0 - width / (2.0 * sequence_length))
    is_cut = sequence_length > spec.most_keys
    chunked = where(is_cut, width / 2.0, sliding)
    return chunked if spec.window_kind == "chunked" else sliding


def attention_flops_per_token(spec: AttentionSpec, keys: Num) -> Num:
    """Return the forward FLOPs of the attention core for one token: 2 a (d_qk + d_v) keys [FLOP].

    Source: Narayanan et al. 2021, appendix (4 b s^2 h for d_qk = d_v = h / a).
    """
    score_size = spec.head_size + spec.rope_head_size
    return 2.0 * spec.num_heads * (score_size + spec.value_head_size) * keys


def _share_seen(count: ScoreCount) -> float:
    """Return the share of its chunk that a token of a scan sees."""
    return 1.0 if count is ScoreCount.FULL else 0.5


def op_flops_per_token(op: Op, layer: LayerGraph, sequence_length: Num, count: ScoreCount) -> Num:
    """Return the forward FLOPs of one operator for one token of the stream [FLOP]."""
    if op.kind is OpKind.ATTENTION:
        assert op.attention is not None
        keys = visible_keys(op.attention, sequence_length, count)
        return attention_flops_per_token(op.attention, keys)
    if op.kind is OpKind.RECURRENCE:
        assert op.recurrence is not None
        return scan_flops_per_token(Scan.whole(op.recurrence, sequence_length), _share_seen(count))
    if op.kind is not OpKind.MATMUL:
        return 0.0
    rows = layer.sizes["top_k"] if op.output.dims[0] == "routed_tokens" else 1
    return matmul_flops_per_row(op, layer.sizes) * rows


def layer_flops_per_token(
    layer: LayerGraph, sequence_length: Num, count: ScoreCount, kind: OpKind | None = None
) -> Num:
    """Return the forward FLOPs of one layer for one token, of all operators or one kind [FLOP]."""
    total: Num = 0.0
    for op in layer.ops:
        if kind is None or op.kind is kind:
            total = total + op_flops_per_token(op, layer, sequence_length, count)
    return total


def step_flops(
    graph: OpGraph,
    *,
    num_tokens: Num,
    sequence_length: Num,
    count: ScoreCount = ScoreCount.CAUSAL,
    recompute: str = "none",
    recompute_modules: Sequence[str] = (),
    stored_tensors: Sequence[str] = (),
    recomputed_shares: Sequence[Num] = (),
    freezes_weights: bool = False,
) -> StepFlops:
    """Return the FLOPs of one training step.

    Parameters
    ----------
    num_tokens
        Tokens of the whole step [tokens].
    sequence_length
        Tokens of one sequence [tokens].
    recompute
        ``full`` runs all layers forward again (not the logits), ``selective`` the attention core
        or ``recompute_modules``. Flash attention recomputes its scores inside the backward kernel
        in any case, and a scan the states of its chunks.
    recomputed_shares
        Share of the layers of each kind to which that applies; none: all.
    freezes_weights
        Gradients of weights are not computed: two products of a linear layer, not three.

    Source: Narayanan et al. 2021, equation 3, which this equals for a GPT with 4h inner width: 96 B
    s l h^2 (1 + s/6h + V/16lh) under full recomputation and full scores. With full scores the model
    FLOPs are 6 P T + 12 L h s T, the older convention (Chowdhery et al. 2022, PaLM, appendix B);
    with causal ones they are the FLOPs that the model needs.
    """
    products: Num = layer_flops_per_token(graph.head, sequence_length, count)
    products = products + layer_flops_per_token(graph.embedding, sequence_length, count)
    scores: Num = 0.0
    again: Num = 0.0
    shares = recomputed_shares or (1.0,) * len(graph.layers)
    for layer, share in zip(graph.layers, shares, strict=True):
        of_core = layer_flops_per_token(layer, sequence_length, count, OpKind.ATTENTION)
        of_products = layer_flops_per_token(layer, sequence_length, count, OpKind.MATMUL)
        of_scan = layer_flops_per_token(layer, sequence_length, count, OpKind.RECURRENCE)
        products = products + layer.count * of_products
        scores = scores + layer.count * (of_core + of_scan)
        # A flash kernel repeats one of the two products of the core, whatever is recomputed.
        cores = [op for op in layer.ops if op.kind is OpKind.ATTENTION]
        in_kernel = of_core * (0.0 if any(op.is_materialized_attention for op in cores) else 0.5)
        for op in layer.ops:
            if op.kind is OpKind.RECURRENCE and op.recurrence is not None:
                scan = Scan.whole(op.recurrence, sequence_length)
                in_kernel = in_kernel + repeated_scan_flops_per_token(scan, _share_seen(count))
        whole = of_core + of_scan + of_products
        repeated = {"none": 0.0, "selective": of_core, "full": whole}[recompute]
        if recompute == "selective" and (recompute_modules or stored_tensors):
            names = repeated_ops(layer, recompute_modules, stored_tensors)
            part = replace(layer, ops=tuple(op for op in layer.ops if op.name in names))
            repeated = sum(
                layer_flops_per_token(part, sequence_length, count, kind)
                for kind in (OpKind.ATTENTION, OpKind.RECURRENCE, OpKind.MATMUL)
            )
        again = again + layer.count * (share * repeated + in_kernel)
    return StepFlops(
        forward=num_tokens * (products + scores),
        input_gradient=num_tokens * (products + 2.0 * scores),
        weight_gradient=num_tokens * products * (not freezes_weights),
        recompute=num_tokens * again,
    )
