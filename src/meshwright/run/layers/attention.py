"""Causal grouped-query attention on split sequences: keys and values travel (ring attention).

    forward   o = sum_j exp(s_j - l) v_j with s_j = q k_j^T / sqrt(d), l = log sum_j exp(s_j), for
              pieces j that arrive one after the other; each rank keeps q, o and l of its tokens
    backward  k_j, v_j travel once more; p_j = exp(s_j - l), dv_j = p_j^T do,
              ds_j = p_j (do v_j^T - o do), dq += ds_j k_j, dk_j = ds_j^T q: accumulators of dk_j
              and dv_j walk home

Over cp the pieces go round a ring (Liu et al. 2023, arXiv 2310.01889), over tatp by the form of its
stream. With k key heads of size d, b s 2 k d elements travel forward, and twice as many backward:
2 x 16 for b = 1, s = 4, k = 1, d = 4 forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.streams import Stream

SITE = "attention.core: keys and values"
Place = tuple[int, ...]
"""Members of the streams, outermost first, that a piece of keys and values is from."""


def walk(own: Tensor, streams: Sequence[Stream], phase: Phase) -> Iterator[tuple[Place, Tensor]]:
    """Yield every piece of all members: for each that a stream brings, those of the next stream."""
    if not streams:
        yield (), own
        return
    stream, *inner = streams
    parts, shapes = _items(own, stream)
    found: dict[int, Tensor] = {}
    for item, part in stream.gather(parts, shapes, SITE, phase):
        member, _ = divmod(item, stream.num_parts)
        found[item] = part
        pieces = [found.get(member * stream.num_parts + k) for k in range(stream.num_parts)]
        whole = [piece for piece in pieces if piece is not None]
        if len(whole) == stream.num_parts:
            for k in range(stream.num_parts):
                del found[member * stream.num_parts + k]
            for place, piece in walk(torch.cat(whole, dim=1), inner, phase):
                yield (member, *place), piece


def bring_home(partials: dict[Place, Tensor], streams: Sequence[Stream], phase: Phase) -> Tensor:
    """Return the sum of all members' partials for the piece of this one: the way back.

    Over the first stream go the pieces of all members of the others together.
    """
    if not streams:
        return partials[()]
    stream, *inner = streams
    tokens = next(iter(partials.values())).shape[1]
    places = sorted({place[1:] for place in partials})
    sums = [
        torch.cat([partials[member, *place] for place in places], dim=1)
        for member in range(stream.axis.size)
    ]
    _, shapes = _items(sums[0], stream)

    def partial(item: int) -> Tensor:
        member, k = divmod(item, stream.num_parts)
        return _items(sums[member], stream)[0][k]

    own = torch.cat(stream.scatter_sum(partial, sums[0], shapes, SITE, phase), dim=1)
    return bring_home(dict(zip(places, own.split(tokens, dim=1), strict=True)), inner, phase)


def _items(own: Tensor, stream: Stream) -> tuple[list[Tensor], list[torch.Size]]:
    """Return a piece cut by its tokens into the parts that travel, and the shapes of all items."""
    parts = [part.contiguous() for part in own.tensor_split(stream.num_parts, dim=1)]
    return parts, [part.shape for part in parts] * stream.axis.size


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
