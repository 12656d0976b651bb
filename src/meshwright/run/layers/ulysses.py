"""Ulysses: all-to-alls around attention exchange split tokens for split heads, and back.

    x_r (all heads, tokens of rank r)  ->  y_r (heads of rank r, all tokens);  backward: the inverse

E = (b s / N) H d for H heads of size d, of which each rank sends (N - 1) / N: 64 and 48 for 4 heads
of size 8. Attention makes four exchanges forward (queries, keys, values, output) and four backward
(Jacobs et al. 2023, arXiv 2309.14509). N divides the heads; key heads are repeated until it does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.mesh import Axis

TOKENS, HEADS = 1, 2
"""Dims of (batch, tokens, heads, size)."""


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cp: Axis, split: int, join: int, site: str) -> Tensor:
        ctx.of = (cp, split, join, site)
        return exchanged(x, cp, split, join, f"{site}: input", Phase.FORWARD)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cp, split, join, site = ctx.of
        dx = exchanged(gradient, cp, join, split, f"{site}: input gradient", Phase.INPUT_GRADIENT)
        return dx, None, None, None, None


def exchanged(x: Tensor, cp: Axis, split: int, join: int, site: str, phase: Phase) -> Tensor:
    """Return x with one dim split over the ranks and another one joined."""
    parts = torch.stack([part.contiguous() for part in x.chunk(cp.size, dim=split)])
    ones = [1] * cp.size
    return torch.cat(list(cp.exchange(parts, ones, ones, site, phase)), dim=join)


def tokens_to_heads(x: Tensor, cp: Axis, site: str) -> Tensor:
    """Return all tokens of the heads of this rank; x is (batch, tokens, heads, size)."""
    return x if cp.size == 1 else _Exchange.apply(x, cp, HEADS, TOKENS, site)


def heads_to_tokens(x: Tensor, cp: Axis, site: str) -> Tensor:
    """Return all heads of the tokens of this rank."""
    return x if cp.size == 1 else _Exchange.apply(x, cp, TOKENS, HEADS, site)
