"""Causal grouped-query attention on split sequences: keys and values travel (ring attention).

    forward   o = sum_j exp(s_j - l) v_j with s_j = q k_j^T / sqrt(d), l = log sum_j exp(s_j), for
              pieces j that arrive one after the other; each rank keeps q, o and l of its tokens
    backward  k_j, v_j travel once more; p_j = exp(s_j - l), dv_j = p_j^T do,
              ds_j = p_j (do v_j^T - o do) / sqrt(d), dq += ds_j k_j, dk_j = ds_j^T q: accumulators
              of dk_j and dv_j walk home

Over cp the pieces go round a ring (Liu et al. 2023, arXiv 2310.01889), over tatp by the form of its
stream. With k key heads of size d, b s 2 k d elements travel forward, and twice as many backward:
2 x 16 for b = 1, s = 4, k = 1, d = 4 forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.pieces import Place, bring_home, walk
from meshwright.run.layers.streams import Stream


class _Attention(torch.autograd.Function):
    """Queries are (batch, tokens, key heads, query heads of each, size), keys lack the fourth."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, streams: Sequence[Stream],
                sees: Callable[[Place], Tensor]) -> Tensor:  # fmt: skip
        out, log_sum = None, None
        for place, kv in walk(torch.cat([k, v], dim=-1), streams, Phase.FORWARD):
            k_j, v_j = kv.split([k.shape[-1], v.shape[-1]], dim=-1)
            scores = _scores(q, k_j, sees(place))
            own = scores.logsumexp(dim=-1)
            made = torch.einsum("bkgqt,btkd->bqkgd", _powers(scores, own), v_j)
            if out is None:
                out, log_sum = made, own
            else:
                both = torch.logaddexp(log_sum, own)
                out = out * _share(log_sum, both) + made * _share(own, both)
                log_sum = both
        assert out is not None
        out = out.contiguous()  # so that the layer behind keeps no second copy
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.of = (streams, sees)
        return out

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        streams, sees = ctx.of
        delta = (out * do).sum(dim=-1).permute(0, 2, 3, 1)
        dq, partials = torch.zeros_like(q), {}
        for place, kv in walk(torch.cat([k, v], dim=-1), streams, Phase.INPUT_GRADIENT):
            k_j, v_j = kv.split([k.shape[-1], v.shape[-1]], dim=-1)
            p = _powers(_scores(q, k_j, sees(place)), log_sum)
            ds = p * (torch.einsum("bqkgd,btkd->bkgqt", do, v_j) - delta[..., None])
            ds = ds * q.shape[-1] ** -0.5
            dq += torch.einsum("bkgqt,btkd->bqkgd", ds, k_j)
            dk = torch.einsum("bkgqt,bqkgd->btkd", ds, q)
            dv = torch.einsum("bkgqt,bqkgd->btkd", p, do)
            partials[place] = torch.cat([dk, dv], dim=-1)
        dk, dv = bring_home(partials, streams, Phase.INPUT_GRADIENT).split(
            [k.shape[-1], v.shape[-1]], dim=-1
        )
        return dq, dk, dv, None, None


def _scores(q: Tensor, k: Tensor, sees: Tensor) -> Tensor:
    scores = torch.einsum("bqkgd,btkd->bkgqt", q, k) * q.shape[-1] ** -0.5
    return scores.masked_fill(~sees, -torch.inf)


def _powers(scores: Tensor, log_sum: Tensor) -> Tensor:
    """Return exp(s - l), 0 for tokens that see nothing of the piece."""
    return torch.exp(scores - log_sum.masked_fill(log_sum == -torch.inf, 0.0)[..., None])


def _share(part: Tensor, whole: Tensor) -> Tensor:
    shares = torch.exp(part - whole.masked_fill(whole == -torch.inf, 0.0))
    return shares.permute(0, 3, 1, 2)[..., None]


def attention(
    q: Tensor, k: Tensor, v: Tensor, streams: Sequence[Stream], sees: Callable[[Place], Tensor]
) -> Tensor:
    """Return the heads; q is (batch, tokens, heads, size), k and v with fewer heads.

    ``sees`` tells which tokens of the piece from a place each query attends to: (queries, keys).
    """
    grouped = q.unflatten(2, (k.shape[2], -1))
    return _Attention.apply(grouped, k, v, streams, sees).flatten(2, 3)
