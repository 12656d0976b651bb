"""Pieces of a split sequence: each rank visits all of them; gradients return to the owners.

If several axes split the sequence, their streams nest: for each piece that the first stream
brings, the next stream brings those of its members. All pieces are of equal length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.streams import Stream

SITE = "attention.core: keys and values"
Owner = tuple[int, ...]
"""Owner of a piece: its member of each stream, outermost stream first."""


def gather_pieces(
    own: Tensor, streams: Sequence[Stream], phase: Phase
) -> Iterator[tuple[Owner, Tensor]]:
    """Yield the pieces of all ranks, each once, with their owners."""
    if not streams:
        yield (), own
        return
    stream, *inner = streams
    parts, shapes = _items(own, stream)
    waiting: dict[int, Tensor] = {}
    for item, part in stream.gather(parts, shapes, SITE, phase):
        waiting[item] = part
        member = stream.rounds.home(item)
        items = range(member * stream.num_parts, (member + 1) * stream.num_parts)
        if waiting.keys() >= set(items):
            piece = torch.cat([waiting.pop(one) for one in items], dim=1)
            for owner, inner_piece in gather_pieces(piece, inner, phase):
                yield (member, *owner), inner_piece


def reduce_to_owners(
    partials: dict[Owner, Tensor], streams: Sequence[Stream], phase: Phase
) -> Tensor:
    """Return the sum over all ranks of the partials for the piece of this rank.

    The first stream carries the pieces of all members of the inner streams together.
    """
    if not streams:
        return partials[()]
    stream, *inner = streams
    tokens = next(iter(partials.values())).shape[1]
    owners = sorted({owner[1:] for owner in partials})
    sums = [
        torch.cat([partials[member, *owner] for owner in owners], dim=1)
        for member in range(stream.axis.size)
    ]
    _, shapes = _items(sums[0], stream)

    def partial(item: int) -> Tensor:
        member, part = divmod(item, stream.num_parts)
        return _items(sums[member], stream)[0][part]

    own = torch.cat(stream.scatter_sum(partial, sums[0], shapes, SITE, phase), dim=1)
    split = dict(zip(owners, own.split(tokens, dim=1), strict=True))
    return reduce_to_owners(split, inner, phase)


def _items(own: Tensor, stream: Stream) -> tuple[list[Tensor], list[torch.Size]]:
    """Return a piece cut by its tokens into the parts that travel, and the shapes of all items."""
    parts = [part.contiguous() for part in own.tensor_split(stream.num_parts, dim=1)]
    return parts, [part.shape for part in parts] * stream.axis.size
