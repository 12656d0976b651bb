"""Tensor streams: who computes what in which round, who sends what."""
