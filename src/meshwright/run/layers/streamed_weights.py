"""Weights that travel over tatp while tokens stay: weight streaming of TSPP and TATP.

Member i has the tokens X_i and the rows W_i of the weight. All three products of a linear layer run
in the same pattern, with [:, j] for the columns of Y that W_j computes:

    forward          Y_i[:, j] = X_i W_j^T in the round of W_j
    backward         dX_i = sum_j dY_i[:, j] W_j, for which W travels once more
    gradient update  dW_j = sum_i dY_i[:, j]^T X_i, in sums that move to member j

Each of the three passes moves every sub-weight over N - 1 links on a line that holds, over more on
one that sends again: W of 8 x 8 makes 12 sends of 16 elements for N = 4.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.products import Product
from meshwright.run.layers.streams import Stream

F, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT


class StreamedWeights(Product):
    """The products with a weight of these rows, of which each member of a stream holds some."""

    def __init__(self, stream: Stream, rows: int) -> None:
        self.stream, self.cut = stream, stream.cuts(rows)

    def outputs(self, weight: Tensor) -> int:
        """Return the width of the output."""
        return self.cut[-1][1]

    def _pass(self, weight: Tensor, site: str, phase: Phase) -> Iterator[tuple[int, Tensor]]:
        shapes = [(stop - start, weight.shape[1]) for start, stop in self.cut]
        own = [weight[start:stop] for start, stop in self.stream.own_cuts(self.cut)]
        return self.stream.gather(own, shapes, site, phase)

    def forward(self, x: Tensor, weight: Tensor, site: str) -> Tensor:
        y = {item: x @ part.T for item, part in self._pass(weight, f"{site}: weight", F)}
        return torch.cat([y[item] for item in range(len(self.cut))], dim=-1)

    def input_gradient(self, dy: Tensor, weight: Tensor, site: str) -> Tensor:
        """Return dX_i = sum_j dY_i[:, j] W_j."""
        dx: Tensor | float = 0.0
        for item, part in self._pass(weight, f"{site}: weight", INPUT):
            start, stop = self.cut[item]
            dx = dx + dy[..., start:stop] @ part
        assert isinstance(dx, Tensor)
        return dx

    def weight_gradient(self, dy: Tensor, x: Tensor, site: str) -> Tensor:
        """Return the own rows of dW_j = sum_i dY_i[:, j]^T X_i."""
        shapes = [(stop - start, x.shape[-1]) for start, stop in self.cut]

        def partial(item: int) -> Tensor:
            start, stop = self.cut[item]
            return dy[..., start:stop].flatten(0, -2).T @ x.flatten(0, -2)

        name = f"{site}: weight gradient"
        return torch.cat(self.stream.scatter_sum(partial, x, shapes, name, WEIGHT))
