"""Choices with prices on the nodes and edges of a graph: the cheapest ones, with a proof."""
