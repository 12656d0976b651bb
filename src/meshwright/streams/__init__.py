"""Tensor streams: who computes what in which round, who sends what, buffers, and their price."""

import sys

from meshwright.base.registry import import_siblings
from meshwright.streams.registry import streams as streams

import_siblings(sys.modules[__name__], "streams")
