"""The module of a split linear layer: its part of the weight, and its bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


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
