"""Vocabulary-parallel cross-entropy: logits stay split over the ranks that computed them.

    m = max_v l_v, z = sum_v exp(l_v - m), t = l_target - m, loss = log z - t
    forward   three all-reduces of one number per token: m, z, and t, which one rank has
    backward  dl = (softmax(l) - one-hot(target)) dloss: sends nothing, the softmax is kept

Every rank has all tokens, because the head is a column-parallel layer. E = b s for each all-reduce
over each axis: 3 x 8 elements, where the logits of a vocabulary of V have b s V.
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
        maximum = logits.amax(dim=-1)
        for axis in axes:
            maximum = axis.largest(maximum, "head.loss: maximum", F)
        exps = (logits - maximum[..., None]).exp_()
        sum_exp = exps.sum(dim=-1)
        for axis in axes:
            sum_exp = axis.sum(sum_exp, "head.loss: sum_of_exponentials", F)
        local = targets - first
        is_mine = (local >= 0) & (local < logits.shape[-1])
        column = (local * is_mine)[..., None]
        target = (logits.gather(-1, column)[..., 0] - maximum) * is_mine
        for axis in axes:
            target = axis.sum(target, "head.loss: target_logit", F)
        ctx.save_for_backward(exps.div_(sum_exp[..., None]), column, is_mine)
        return sum_exp.log() - target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        softmax, column, is_mine = ctx.saved_tensors
        dl = softmax.scatter_add(-1, column, -is_mine[..., None].to(softmax.dtype))
        return dl.mul_(gradient[..., None]), None, None, None


def cross_entropy(logits: Tensor, targets: Tensor, first: int, axes: Sequence[Axis]) -> Tensor:
    """Return the loss of each token.

    Parameters
    ----------
    first
        Token id of the first column of these logits.
    axes
        Axes that split the vocabulary.
    """
    return _CrossEntropy.apply(logits, targets, first, axes)
