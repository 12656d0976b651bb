"""Layers cut into stages that fit a level of memory: price, search, answer, report."""
