"""Tensor streams: computation and messages of each member by round, buffers, and their price."""

from math import inf

from meshwright.streams.forms import CycleStream, LineStream, RingStream, TensorStream, streams

_FORMS: dict[str, TensorStream] = {
    "folded_ring": RingStream(is_folded=True),
    "cycle": CycleStream(),
    "stream": LineStream(num_held=0.0),
    "hold": LineStream(num_held=inf),
    "ring": RingStream(),
}
streams.fill(_FORMS, "streams")
