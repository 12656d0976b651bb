"""The three matrix products of a linear layer, Y = X W^T, on one rank: Eq. (1) of TEMP.

    forward          Y = X W^T
    backward         dX = dY W
    gradient update  dW = dY^T X, summed over all tokens

``Product`` sends nothing, because its weight is on the rank. ``streamed_weights`` has the same
three products with a weight whose rows are streamed.
"""

from __future__ import annotations

from torch import Tensor


class Product:
    """The products with a weight that is on the rank."""

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
        return dy.flatten(0, -2).T @ x.flatten(0, -2)
