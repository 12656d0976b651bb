"""Causal grouped-query attention on split sequences: keys and values travel (ring attention).

    forward   s_j = q k_j^T / sqrt(d), l = log sum_j exp(s_j), o = sum_j exp(s_j - l) v_j for the
              pieces j, which arrive one after the other
    backward  k_j and v_j travel once more: p_j = exp(s_j - l), delta = rowsum(o * do),
              ds_j = p_j (do v_j^T - delta) / sqrt(d), dq += ds_j k_j;
              dk_j = ds_j^T q and dv_j = p_j^T do move to the owner of piece j and are summed there

Each rank keeps q, k, v, o and l of its own tokens. A piece that the causal mask hides whole is
computed all the same. The partial sums dk_j, dv_j of all pieces are kept until the walk ends.

Over cp the pieces go round a ring (Liu et al. 2023, arXiv 2310.01889), over tatp by the form of its
stream. With H key heads of size d, E = b s 2 H d: 64 elements forward for one head of size 4, and
twice 64 backward. On a ring a rank sends (N - 1) / N of each: 48.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.online_softmax import finite, masked_scores, merged, softmax_of
from meshwright.run.layers.pieces import Owner, gather_pieces, reduce_to_owners
from meshwright.run.layers.streams import Stream

MaskOf = Callable[[Owner], Tensor]
"""Mask of the queries of this rank and the keys of a piece: (queries, keys)."""


class _Attention(torch.autograd.Function):
    """q is (batch, tokens, key heads, query heads of each, size), k and v lack the fourth dim."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, streams: Sequence[Stream],
                mask_of: MaskOf) -> Tensor:  # fmt: skip
        found = None
        for owner, kv in gather_pieces(torch.cat([k, v], dim=-1), streams, Phase.FORWARD):
            k_j, v_j = kv.split([k.shape[-1], v.shape[-1]], dim=-1)
            p, own = softmax_of(masked_scores(q, k_j, mask_of(owner)))
            heads = torch.einsum("bkgqt,btkd->bqkgd", p, v_j)
            found = (heads, own) if found is None else merged(found, (heads, own))
        assert found is not None
        out, log_sum = found
        out = out.contiguous()  # so that the layer behind keeps no second copy
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.of = (streams, mask_of)
        return out

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        streams, mask_of = ctx.of
        do_scaled = do * q.shape[-1] ** -0.5
        delta = (out * do_scaled).sum(dim=-1).permute(0, 2, 3, 1)
        dq, partials, phase = torch.zeros_like(q), {}, Phase.INPUT_GRADIENT
        for owner, kv in gather_pieces(torch.cat([k, v], dim=-1), streams, phase):
            k_j, v_j = kv.split([k.shape[-1], v.shape[-1]], dim=-1)
            p = masked_scores(q, k_j, mask_of(owner)).sub_(finite(log_sum)[..., None]).exp_()
            ds = torch.einsum("bqkgd,btkd->bkgqt", do_scaled, v_j)
            ds = ds.sub_(delta[..., None]).mul_(p)
            dq += torch.einsum("bkgqt,btkd->bqkgd", ds, k_j)
            dk = torch.einsum("bkgqt,bqkgd->btkd", ds, q)
            dv = torch.einsum("bkgqt,bqkgd->btkd", p, do)
            partials[owner] = torch.cat([dk, dv], dim=-1)
        dkv = reduce_to_owners(partials, streams, phase)
        return dq, *dkv.split([k.shape[-1], v.shape[-1]], dim=-1), None, None


def attention(
    q: Tensor, k: Tensor, v: Tensor, streams: Sequence[Stream], mask_of: MaskOf
) -> Tensor:
    """Return the heads; q is (batch, tokens, heads, size), k and v with fewer heads."""
    grouped = q.unflatten(2, (k.shape[2], -1))
    return _Attention.apply(grouped, k, v, streams, mask_of).flatten(2, 3)
