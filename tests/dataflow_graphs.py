"""Small random dataflow graphs and their tables, for proofs by trying everything."""

from dataclasses import replace

import numpy as np

from meshwright.dataflow.price import volume_tables
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight

SIZE = 16


def random_graph(seed, num_kernels, repeats=1):
    """Return kernels of all kinds that read one or two tensors of those before them."""
    rng = np.random.default_rng(seed)
    tensors = ["in"]
    kernels = []
    for number in range(num_kernels):
        recent = tensors[-3:]
        sources = list(rng.choice(recent, size=min(len(recent), int(rng.integers(1, 3)))))
        kernels.append(_kernel(f"k{number}", rng, sources))
        tensors.append(f"k{number}")
    return DataflowGraph(
        name=f"random-{seed}",
        kernels=tuple(kernels),
        sizes=dict.fromkeys("tabc", SIZE),
        inputs={"in": ("t", "a")},
        outputs=(kernels[-1].name,),
        tiled="t",
        repeats=repeats,
    )


def _kernel(name, rng, sources):
    same = tuple(Operand(source, ("t", "a")) for source in sources)
    kind = rng.integers(5)
    if kind == 0:
        return Kernel(name, Unit.VECTOR, ("t", "a"), same, is_sum=bool(rng.integers(2)))
    if kind == 1:
        return Kernel(name, Unit.VECTOR, ("t", "a"), same, whole=frozenset({"a"}))
    if kind == 2:
        weight = Weight(f"{name}.weight", ("a", "b"))
        return Kernel(name, Unit.MATRIX, ("t", "b"), same[:1], (weight,), flops_per_point=2.0)
    if kind == 3:
        reads = (same[0], Operand(sources[-1], ("c", "a")))
        return Kernel(name, Unit.MATRIX, ("t", "c"), reads, flops_per_point=2.0)
    return Kernel(name, Unit.NONE, ("a", "t"), (Operand(sources[0], ("a", "t")),))


def random_tables(seed, num_kernels, repeats=1, degree=4, of=lambda graph: graph):
    """Return the ways of a random graph in ring bytes, each with a random cost of its own."""
    rng = np.random.default_rng([seed, 1])
    tables = volume_tables(of(random_graph(seed, num_kernels, repeats)), degree)
    scale = 2.0 * SIZE * SIZE
    costs = tuple(scale * rng.random(len(ways)) for ways in tables.splits)
    held = tuple(rng.integers(0, 100, len(ways)).astype(float) for ways in tables.splits)
    return replace(tables, costs=costs, held_bytes=held)


def mlp(batch):
    """Return two products in a row."""
    row, wide = ("batch", "hidden"), ("batch", "wide")
    kernels = (_product("up", wide, "x", row), _product("down", row, "up", wide))
    sizes = {"batch": batch, "hidden": 1024, "wide": 4096}
    return DataflowGraph("mlp", kernels, sizes, {"x": row}, ("down",), "batch")


def mixer(side):
    """Return three products of one size that no split passes without a move between devices."""
    kernels = (
        _product("up", ("tokens", "wide"), "x", ("tokens", "hidden")),
        _product("mix", ("mixed", "wide"), "up", ("tokens", "wide")),
        _product("down", ("mixed", "hidden"), "mix", ("mixed", "wide")),
    )
    sizes = dict.fromkeys(("tokens", "mixed", "wide", "hidden"), side)
    inputs = {"x": ("tokens", "hidden")}
    return DataflowGraph("mixer", kernels, sizes, inputs, ("down",), "tokens")


def _product(name, dims, source, read):
    """Return a product with a weight of the dims that only one of its tensors has."""
    held = Weight(
        f"{name}.weight", tuple(dim for dim in (*read, *dims) if (dim in read) != (dim in dims))
    )
    return Kernel(name, Unit.MATRIX, dims, (Operand(source, read),), (held,), flops_per_point=2.0)
