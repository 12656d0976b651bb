"""Pieces of a split sequence on their way: each is yielded once, and partials for it go home.

Where several axes split the tokens, the streams nest: for every piece that the first one brings,
the next one brings those of its members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.streams import Stream

SITE = "attention.core: keys and values"
Place = tuple[int, ...]
"""Members of the streams, outermost first, that a piece of keys and values is from."""


def walk(own: Tensor, streams: Sequence[Stream], phase: Phase) -> Iterator[tuple[Place, Tensor]]:
    """Yield every piece of all members: for each that a stream brings, those of the next stream."""
    if not streams:
        yield (), own
        return
    stream, *inner = streams
    parts, shapes = _items(own, stream)
    found: dict[int, Tensor] = {}
    for item, part in stream.gather(parts, shapes, SITE, phase):
        member, _ = divmod(item, stream.num_parts)
        found[item] = part
        pieces = [found.get(member * stream.num_parts + k) for k in range(stream.num_parts)]
        whole = [piece for piece in pieces if piece is not None]
        if len(whole) == stream.num_parts:
            for k in range(stream.num_parts):
                del found[member * stream.num_parts + k]
            for place, piece in walk(torch.cat(whole, dim=1), inner, phase):
                yield (member, *place), piece


def bring_home(partials: dict[Place, Tensor], streams: Sequence[Stream], phase: Phase) -> Tensor:
    """Return the sum of all members' partials for the piece of this one: the way back.

    Over the first stream go the pieces of all members of the others together.
    """
    if not streams:
        return partials[()]
    stream, *inner = streams
    tokens = next(iter(partials.values())).shape[1]
    places = sorted({place[1:] for place in partials})
    sums = [
        torch.cat([partials[member, *place] for place in places], dim=1)
        for member in range(stream.axis.size)
    ]
    _, shapes = _items(sums[0], stream)

    def partial(item: int) -> Tensor:
        member, k = divmod(item, stream.num_parts)
        return _items(sums[member], stream)[0][k]

    own = torch.cat(stream.scatter_sum(partial, sums[0], shapes, SITE, phase), dim=1)
    return bring_home(dict(zip(places, own.split(tokens, dim=1), strict=True)), inner, phase)


def _items(own: Tensor, stream: Stream) -> tuple[list[Tensor], list[torch.Size]]:
    """Return a piece cut by its tokens into the parts that travel, and the shapes of all items."""
    parts = [part.contiguous() for part in own.tensor_split(stream.num_parts, dim=1)]
    return parts, [part.shape for part in parts] * stream.axis.size
