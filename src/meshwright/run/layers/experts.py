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
from meshwright.run.layers.elementwise import gate
from meshwright.run.mesh import Axis
from meshwright.spec.model import ExpertSpec


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


class Bank(nn.Module):
    """The experts of one rank of ep: (experts, outputs, inputs)."""

    def __init__(self, up: Tensor, down: Tensor, *, is_gated: bool) -> None:
        super().__init__()
        self.up, self.down, self.is_gated = nn.Parameter(up), nn.Parameter(down), is_gated

    def forward(self, rows: Tensor, expert_of: Tensor) -> Tensor:
        made = torch.zeros_like(rows)
        for expert, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            mine = (expert_of == expert).nonzero()[:, 0]
            inner = gate(rows[mine] @ up.T, is_gated=self.is_gated)
            made = made.index_copy(0, mine, inner @ down.T)
        return made


class SplitExperts(nn.Module):
    """The router, the way of the rows, and the experts of this rank; tokens at rest in and out."""

    def __init__(self, spec: ExpertSpec, router: nn.Module, bank: Bank, ep: Axis,
                 shared: nn.Module | None, shared_gate: nn.Module | None) -> None:  # fmt: skip
        super().__init__()
        self.spec, self.ep, self.router, self.bank = spec, ep, router, bank
        self.shared, self.shared_gate = shared, shared_gate

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scores, experts = self.router(rows).topk(self.spec.top_k, dim=-1)
        weights = scores.softmax(dim=-1).flatten()
        order = experts.flatten().argsort(stable=True)
        token = order // self.spec.top_k
        made = self._visit(rows[token], experts.flatten()) * weights[order, None]
        summed = torch.zeros_like(rows).index_add(0, token, made).view_as(x)
        if self.shared is None:
            return summed
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(self.shared_gate(x))
        return summed + shared

    def _visit(self, rows: Tensor, experts: Tensor) -> Tensor:
        """Return the outputs of the experts for rows, which come in the order of the experts."""
        ep, own = self.ep, self.spec.num_experts // self.ep.size
        counts = torch.bincount(experts, minlength=self.spec.num_experts).view(ep.size, own)
        coming = counts
        if ep.size > 1:
            coming = torch.empty_like(counts)
            with ep.recorder.saying(ep.name, "", Phase.FORWARD, is_counted=False):
                torch.distributed.all_to_all_single(coming, counts, group=ep.group)
        sends, receives = counts.sum(dim=1).tolist(), coming.sum(dim=1).tolist()
        there = _Exchange.apply(rows, ep, sends, receives, "experts.dispatch")
        # Rows come by rank, then by expert; each expert takes its rows of all ranks.
        expert_of = (
            torch.arange(own, device=rows.device)
            .repeat(ep.size)
            .repeat_interleave(coming.flatten())
        )
        made = self.bank(there, expert_of)
        return _Exchange.apply(made, ep, receives, sends, "experts.combine")
