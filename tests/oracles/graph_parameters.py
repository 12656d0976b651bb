"""Parameters of a step counted operator by operator, to compare with the closed form."""

from __future__ import annotations

from math import prod

from meshwright.graph.op import OpGraph, weight_elements


def graph_parameters(graph: OpGraph) -> int:
    """Return the exact number of parameters; a weight that both edges name is held once."""
    total = sum(
        layer.count * weight_elements(op, layer.sizes) for layer in graph.layers for op in layer.ops
    )
    edges = {
        weight.name: prod(edge.sizes[dim] for dim in weight.dims)
        for edge in (graph.embedding, graph.head)
        for op in edge.ops
        for weight in op.weights
    }
    return total + sum(edges.values())
