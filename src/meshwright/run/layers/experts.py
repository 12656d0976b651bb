"""A mixture of experts split over ep: all-to-alls take rows to their experts and back.

    rows      k copies of each token of this rank, one for each expert that the router chose,
              sorted by expert
    forward   all-to-all(rows), products of the experts, all-to-all back; ``model.Experts`` adds the
              k outputs of a token, weighted by the router
    backward  the gradients of the rows take the same two ways

With an even load E = T k h in each of the four all-to-alls, for the T = b s / N tokens of a rank:
64 elements for k = 4, of which 48 leave it. No row is dropped, whatever the load.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.graph.op import Phase
from meshwright.run.mesh import Axis


class _SendRows(torch.autograd.Function):
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


def dispatch_and_combine(bank: nn.Module, ep: Axis, rows: Tensor, expert_of: Tensor) -> Tensor:
    """Return the outputs of the experts for rows that are sorted by expert.

    ``bank`` computes the outputs of rows with the experts of this rank.
    """
    own = len(bank.up)
    counts = torch.bincount(expert_of, minlength=own * ep.size).view(ep.size, own)
    receive_counts = _exchanged_counts(counts, ep)
    sends, receives = counts.sum(dim=1).tolist(), receive_counts.sum(dim=1).tolist()
    received = _SendRows.apply(rows, ep, sends, receives, "experts.dispatch")
    # Rows come by rank, then by expert; each expert takes its rows of all ranks.
    experts = torch.arange(own, device=rows.device).repeat(ep.size)
    outputs = bank(received, experts.repeat_interleave(receive_counts.flatten()))
    return _SendRows.apply(outputs, ep, receives, sends, "experts.combine")


def _exchanged_counts(counts: Tensor, ep: Axis) -> Tensor:
    """Return the rows that each rank sends to each expert here; the derivation has no such call."""
    if ep.size == 1:
        return counts
    received = torch.empty_like(counts)
    with ep.recorder.saying(ep.name, "", Phase.FORWARD, is_counted=False):
        torch.distributed.all_to_all_single(received, counts, group=ep.group)
    return received
