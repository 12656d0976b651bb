"""A mixture of experts whose experts are split over ep: an all-to-all there, and one back.

    rows = the k choices of each token, in the order of the experts
    forward   all-to-all(rows) to the ranks of their experts, products there, all-to-all back, and
              each token adds its k rows
    backward  the gradients of the rows go the same two ways

With b sequences of s tokens, width h and k choices, each all-to-all takes b s k h elements of a
rank: 64 for b = 1, s = 4, h = 8, k = 2. No row is dropped, whatever the load of an expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.graph.op import Phase
from meshwright.run.mesh import Axis


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ep: Axis, sends: list[int], receives: list[int],
                site: str) -> Tensor:  # fmt: skip
        ctx.of = (ep, sends, receives, site)
        return ep.exchange(rows, sends, receives, f"{site}: rows", Phase.FORWARD)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ep, sends, receives, site = ctx.of
        name = f"{site}: row gradients"
        back = ep.exchange(gradient, receives, sends, name, Phase.INPUT_GRADIENT)
        return back, None, None, None, None


def visit(bank: nn.Module, ep: Axis, rows: Tensor, expert_of: Tensor) -> Tensor:
    """Return the outputs of the experts for rows, which come in the order of the experts.

    ``bank`` makes rows with the experts of this rank.
    """
    own = len(bank.up)
    counts = torch.bincount(expert_of, minlength=own * ep.size).view(ep.size, own)
    coming = counts
    if ep.size > 1:
        coming = torch.empty_like(counts)
        with ep.recorder.saying(ep.name, "", Phase.FORWARD, is_counted=False):
            torch.distributed.all_to_all_single(coming, counts, group=ep.group)
    sends, receives = counts.sum(dim=1).tolist(), coming.sum(dim=1).tolist()
    there = _Exchange.apply(rows, ep, sends, receives, "experts.dispatch")
    # Rows come by rank, then by expert; each expert takes its rows of all ranks.
    experts = torch.arange(own, device=rows.device).repeat(ep.size)
    made = bank(there, experts.repeat_interleave(coming.flatten()))
    return _Exchange.apply(made, ep, receives, sends, "experts.combine")
