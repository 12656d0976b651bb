"""Tensor streams: who computes what in which round, who sends what, buffers, and their price."""

from math import inf

from meshwright.streams.forms import Cycle, FoldedRing, Line, Ring
from meshwright.streams.registry import TensorStream, streams

_FORMS: dict[str, TensorStream] = {
    "folded_ring": FoldedRing(),
    "cycle": Cycle(),
    "stream": Line(num_held=0.0),
    "hold": Line(num_held=inf),
    "ring": Ring(),
}
streams.fill(_FORMS, "streams")
