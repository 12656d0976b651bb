"""Vocabulary-parallel cross-entropy: logits stay split over the ranks that hold their columns.

    m = max(l), z = sum exp(l - m), t = l[target] - m; loss = log z - t
    forward   three all-reduces of one number a token: the maximum, z, and t, which one rank has
    backward  dl = softmax(l) - one-hot(target): nothing is sent

The logits of b sequences of s tokens over V words would be b s V elements; this sends 3 b s for
each axis: 12 for b = 1, s = 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.mesh import Axis

F = Phase.FORWARD


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, first: int, axes: Sequence[Axis]
    ) -> Tensor:
        most = logits.amax(dim=-1)
        for axis in axes:
            most = axis.largest(most, "head.loss: maximum", F)
        powers = torch.exp(logits - most[..., None])
        total = powers.sum(dim=-1)
        for axis in axes:
            total = axis.sum(total, "head.loss: sum_of_exponentials", F)
        local = targets - first
        is_mine = (local >= 0) & (local < logits.shape[-1])
        place = (local * is_mine)[..., None]
        aimed = (logits.gather(-1, place)[..., 0] - most) * is_mine
        for axis in axes:
            aimed = axis.sum(aimed, "head.loss: target_logit", F)
        ctx.save_for_backward(powers / total[..., None], place, is_mine)
        return total.log() - aimed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shares, place, is_mine = ctx.saved_tensors
        dl = shares.scatter_add(-1, place, -is_mine[..., None].to(shares.dtype))
        return dl * gradient[..., None], None, None, None


def cross_entropy(logits: Tensor, targets: Tensor, first: int, axes: Sequence[Axis]) -> Tensor:
    """Return the loss of each token.

    Parameters
    ----------
    first
        Word of the first column of these logits.
    axes
        Axes that share the vocabulary.
    """
    return _CrossEntropy.apply(logits, targets, first, axes)
