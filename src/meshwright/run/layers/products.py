"""The three products of a linear layer, Y = X W^T, on a rank: with weights that rest or travel.

Forward Y = X W^T, backward dX = dY W, gradient update dW = dY^T X: Eq. (1) of TEMP. Under weight
streaming the rows of W (columns of Y) are cut over tatp, and all three run in the same pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from meshwright.graph.op import Phase
from meshwright.run.layers.streams import Stream

F, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Return dY^T X, summed over all tokens."""
    return dy.flatten(0, -2).T @ x.flatten(0, -2)


class Resident:
    """Weights that rest on their rank."""

    def outputs(self, weight: Tensor) -> int:
        """Return the width of the output."""
        return len(weight)

    def forward(self, x: Tensor, weight: Tensor, site: str) -> Tensor:
        return x @ weight.T

    def input_gradient(self, dy: Tensor, weight: Tensor, site: str) -> Tensor:
        """Return dX = dY W."""
        return dy @ weight

    def weight_gradient(self, dy: Tensor, x: Tensor, site: str) -> Tensor:
        """Return dW = dY^T X."""
        return weight_gradient(dy, x)


class StreamedWeights:
    """Weights whose rows travel over tatp, with tokens that stay: weight streaming of TSPP.

    Y[:, j] = X_i W_j^T in the round in which W_j is at member i; dX_i = sum_j dY_i[:, j] W_j, with
    the weights streamed once more; dW_j = sum_i dY_i[:, j]^T X_i, in accumulators that walk home.
    A pass moves N - 1 times each sub-weight: N (N - 1) sub-weights on a line that holds.
    """

    def __init__(self, stream: Stream, rows: int) -> None:
        self.stream, self.cut = stream, stream.cuts(rows)

    def outputs(self, weight: Tensor) -> int:
        """Return the width of the output."""
        return self.cut[-1][1]

    def _pass(self, weight: Tensor, site: str, phase: Phase) -> Iterator[tuple[int, Tensor]]:
        shapes = [(stop - start, weight.shape[1]) for start, stop in self.cut]
        own = [weight[start:stop] for start, stop in self.stream.own(self.cut)]
        return self.stream.gather(own, shapes, site, phase)

    def forward(self, x: Tensor, weight: Tensor, site: str) -> Tensor:
        made = {item: x @ part.T for item, part in self._pass(weight, f"{site}: weight", F)}
        return torch.cat([made[item] for item in range(len(self.cut))], dim=-1)

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
            return weight_gradient(dy[..., start:stop], x)

        name = f"{site}: weight gradient"
        return torch.cat(self.stream.scatter_sum(partial, x, shapes, name, WEIGHT))


Product: TypeAlias = Resident | StreamedWeights


class SplitLinear(nn.Module):
    """A linear layer of which this rank holds a part; a bias is added where the output rests.

    ``function`` is ``Column`` or ``Row``, ``of`` are its tokens, its product and its site.
    ``outputs`` are the widths of several outputs: of queries, keys and values.
    """

    def __init__(self, function: Any, weight: Tensor, bias: Tensor | None, of: tuple[Any, ...],
                 outputs: Sequence[int] | None = None) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.function, self.of, self.outputs = function, of, outputs

    def forward(self, x: Tensor) -> Any:
        made = self.function.apply(x, self.weight, *self.of)
        made = made if self.bias is None else made + self.bias
        return made if self.outputs is None else made.split(list(self.outputs), dim=-1)
