"""Tokens that rest split over tp and are needed whole: sequence parallelism.

    gather       all-gather over the tokens before a product, if they rest split
    scatter_sum  reduce-scatter over the tokens behind a product; all-reduce if they do not

Column and row ask for tokens item by item, because ``streamed_tokens`` brings them so. Here all
tokens are one item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.mesh import Axis

DIM = 1
"""Dim of the tokens of an activation: (batch, tokens, width)."""
Places: TypeAlias = Tensor | slice
ALL = slice(None)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch on the ranks of tp."""

    tp: Axis
    splits: bool
    """Whether they rest split over tp: sequence parallelism."""

    @property
    def degree(self) -> int:
        """Ranks over which the tokens of a layer rest split."""
        return self.tp.size if self.splits else 1

    def gather(self, x: Tensor, site: str, phase: Phase) -> Iterator[tuple[Tensor, Places]]:
        """Yield the tokens of all ranks, item by item, with their places."""
        yield self.gathered(x, site, phase), ALL

    def scatter_sum(
        self, partial: Callable[[Places], Tensor], x: Tensor, width: int, site: str, phase: Phase
    ) -> Tensor:
        """Return the tokens that rest here of the sum over all ranks of their partials.

        ``partial`` computes one of a width for some places among the whole tokens of ``x``.
        """
        return self.reduced(partial(ALL), site, phase)

    def gathered(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        """Return the tokens of all ranks of tp."""
        return self.tp.gather(x, DIM, site, phase) if self.splits else x

    def reduced(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        """Return the sum over tp, of the tokens that rest here."""
        if self.splits:
            return self.tp.scatter_sum(x, DIM, site, phase)
        return self.tp.sum(x, site, phase)
