"""Tensor streams: computation and messages of each member by round, buffers, and their price."""

from math import inf

from meshwright.streams.forms import Cycle, Line, Ring, TensorStream, streams

_FORMS: dict[str, TensorStream] = {
    "folded_ring": Ring(is_folded=True),
    "cycle": Cycle(),
    "stream": Line(num_held=0.0),
    "hold": Line(num_held=inf),
    "ring": Ring(),
}
streams.fill(_FORMS, "streams")
