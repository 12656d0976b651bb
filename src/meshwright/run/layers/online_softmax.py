"""Softmax over pieces of scores that arrive one after the other.

For pieces A and B with l = log sum exp(s): l = log(exp(l_A) + exp(l_B)), and the output is the sum
of both outputs, each times exp(l_A - l) or exp(l_B - l) (Milakov and Gimelshein 2018, arXiv
1805.02867). Of scores (0, 0) and (0): l_A = log 2, l_B = 0, l = log 3, the factors 2/3 and 1/3.
"""

from __future__ import annotations

import torch
from torch import Tensor

Piece = tuple[Tensor, Tensor]
"""Output, (batch, tokens, key heads, query heads, size), and l, with the tokens last, no size."""


def masked_scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Return q k^T / sqrt(d), -inf where the mask is false."""
    scores = torch.einsum("bqkgd,btkd->bkgqt", q * q.shape[-1] ** -0.5, k)
    return scores.masked_fill_(~mask, -torch.inf)


def softmax_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(s - l), written over s, and l; 0 and -inf where the mask hides the whole piece."""
    maximum = finite(scores.amax(dim=-1))
    exps = scores.sub_(maximum[..., None]).exp_()
    total = exps.sum(dim=-1)
    return exps.div_(total.clamp(min=1.0)[..., None]), maximum + total.log()


def finite(log_sum: Tensor) -> Tensor:
    """Return l with 0 for -inf, so that exp(s - l) is 0 and not NaN."""
    return log_sum.masked_fill(log_sum == -torch.inf, 0.0)


def merged(a: Piece, b: Piece) -> Piece:
    """Return output and log-sum of two pieces together."""
    (out_a, log_a), (out_b, log_b) = a, b
    both = torch.logaddexp(log_a, log_b)
    return out_a * _factor(log_a, both) + out_b * _factor(log_b, both), both


def _factor(part: Tensor, whole: Tensor) -> Tensor:
    """Return exp(l_A - l), in the dims of the output."""
    return torch.exp(part - finite(whole)).permute(0, 3, 1, 2)[..., None]
