"""The module of a split linear layer: the weight and the bias of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class SplitLinear(nn.Module):
    """A linear layer split over ranks; each rank adds the bias to the outputs that it returns.

    ``function`` is ``Column`` or ``Row``; ``of`` has its tokens, its product and its site.
    ``outputs`` are the widths of several outputs, such as queries, keys and values: they share one
    gather of X.
    """

    def __init__(self, function: Any, weight: Tensor, bias: Tensor | None, of: tuple[Any, ...],
                 outputs: Sequence[int] | None = None) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.function, self.of, self.outputs = function, of, outputs

    def forward(self, x: Tensor) -> Any:
        y = self.function.apply(x, self.weight, *self.of)
        y = y if self.bias is None else y + self.bias
        if self.outputs is None:
            return y
        # A view of one output would keep all of them for the backward pass.
        return [output.contiguous() for output in y.split(list(self.outputs), dim=-1)]
