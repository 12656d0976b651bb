"""Where tensors lie: the layout of each activation at rest and of each weight, from the axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from meshwright.graph.op import Op, OpKind, Tensor
from meshwright.sharding.algebra import Arbiter, Operand, Product, Sharding, Side, matmul
from meshwright.sharding.axes_all import Axis, axes
from meshwright.sharding.strategy import PlanOptions

_Chooser = Callable[[Axis, Tensor, PlanOptions], str | None]


@lru_cache(maxsize=8192)
def activation_sharding(tensor: Tensor, structure: PlanOptions) -> Sharding:
    """Return how an activation lies between operators, and how it is kept for the backward pass."""
    return _collected(tensor, structure, lambda axis, t, s: axis.activation_dim(t, s))


@lru_cache(maxsize=8192)
def weight_sharding(weight: Tensor, structure: PlanOptions) -> Sharding:
    """Return how a weight lies, data-parallel sharding left out."""
    return _collected(weight, structure, lambda axis, t, s: axis.weight_dim(t, s))


def _collected(tensor: Tensor, structure: PlanOptions, choose: _Chooser) -> Sharding:
    split: dict[str, tuple[str, ...]] = {}
    for name in axes:
        dim = choose(axes[name], tensor, structure)
        if dim is not None:
            split[dim] = (*split.get(dim, ()), name)
    return Sharding(split)


def logical_dims(tensor: Tensor) -> tuple[str, ...]:
    """Return the dims of a tensor, with the experts by which routed rows are grouped."""
    grouped = "routed_tokens" in tensor.dims and "experts" not in tensor.dims
    return ("experts", *tensor.dims) if grouped else tensor.dims


def as_operand(tensor: Tensor, layout: Sharding) -> Operand:
    """Return an activation as one side of a product."""
    return Operand(logical_dims(tensor), layout)


def matrices(op: Op) -> list[tuple[Tensor, Tensor]]:
    """Return each weight matrix of a product with the output that it makes."""
    of_rank_two = [w for w in op.weights if len([d for d in w.dims if d != "experts"]) == 2]
    return list(zip(of_rank_two, op.outputs, strict=True))


def vectors(op: Op) -> list[tuple[Tensor, Tensor]]:
    """Return each weight that is not multiplied, with an output that carries its gradient."""
    if op.kind not in (OpKind.MATMUL, OpKind.EMBEDDING):
        if len(op.weights) == len(op.outputs):
            return list(zip(op.weights, op.outputs, strict=True))
        return [(weight, op.output) for weight in op.weights]
    multiplied = {weight.name for weight, _ in matrices(op)}
    left = [weight for weight in op.weights if weight.name not in multiplied]
    by_dim = {output.dims[-1]: output for output in op.outputs}
    return [(weight, by_dim[weight.dims[-1]]) for weight in left]


def arbiter(structure: PlanOptions, *, weight_side: Side = "right") -> Arbiter:
    """Return the structural choice of the four-case rule for a product with a weight."""

    def choose(axis: str, left_dim: str, right_dim: str) -> Side:
        weight_dim = right_dim if weight_side == "right" else left_dim
        choice = axes[axis].operand_to_gather(weight_dim, structure)
        if weight_side == "right":
            return choice
        return "left" if choice == "right" else "right"

    return choose


def source_layout(op: Op, structure: PlanOptions) -> Sharding:
    """Return the layout of the activation that a product reads, at rest.

    A lookup is a product with one-hot rows, which every rank makes for its part of the table.
    """
    source = op.inputs[0]
    if op.kind is not OpKind.EMBEDDING:
        return activation_sharding(source, structure)
    table = weight_sharding(op.weights[0], structure)
    rows = activation_sharding(source, structure)
    free = tuple(a for a in rows.split.get("tokens", ()) if a not in table.axes)
    return Sharding({"tokens": free, **table.split})


def source_operand(op: Op, structure: PlanOptions) -> Operand:
    """Return the activation that a product reads as its left side."""
    layout = source_layout(op, structure)
    if op.kind is OpKind.EMBEDDING:
        return Operand((*op.inputs[0].dims, *op.contracted), layout)
    return as_operand(op.inputs[0], layout)


def forward_products(op: Op, structure: PlanOptions) -> list[tuple[Tensor, Tensor, Product]]:
    """Return, for each weight matrix of an operator: weight, output, and the product it needs."""
    left = source_operand(op, structure)
    return [
        (
            weight,
            output,
            matmul(
                left,
                Operand(weight.dims, weight_sharding(weight, structure)),
                logical_dims(output),
                arbiter=arbiter(structure),
            ),
        )
        for weight, output in matrices(op)
    ]
