"""Decode on the mesh of cores of a chip: weights stay, inputs and sums move along its lines.

A product y = x W cuts the rows of W over one dim of the mesh and its columns over the other. Its
inputs lie on every core of a line, its partial sums are added along the other lines and go back to
all of their cores: the inputs of the next product, which is cut the other way round. Nothing is
transposed between two products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.base.arrays import Num, ceil_div, larger, positive_part
from meshwright.cost.operator import ACCUMULATOR_BYTES, DeviceRates, matmul_shape
from meshwright.graph.op import LayerGraph, Op, OpKind
from meshwright.serve.operators import PassShape, experts_at_work, forward_cost, mean_keys_seen
from meshwright.sharding.local_sizes import LocalLayer
from meshwright.spec.system import CoreMesh


def line_s(num_cores: Num, num_bytes: Num, mesh: CoreMesh) -> tuple[Num, Num]:
    """Return the hops of a sum along a line of cores, and the words behind its first one [s].

    Both ends send towards the middle, where the sum goes back to them word by word. Of n cores and
    w words of u bytes, over links of B bytes/s and hops of a seconds,

        2 floor(n / 2) a   and   (w - 1) u / B.

    Five cores, 12 bytes in words of 4, hops of 1 ns, links of 4 GB/s: 4 ns and 2 ns.

    Assumes: both directions of a link work at once; a core adds a word while it passes.
    """
    words = larger(ceil_div(num_bytes, mesh.word_bytes), 1.0)
    hops = 2.0 * (num_cores // 2.0)
    word_s = mesh.word_bytes / mesh.link_bytes_per_s
    return hops * mesh.hop_s, (words - 1.0) * word_s * (num_cores > 1)


class Word(NamedTuple):
    """One word on one link of a line."""

    source: int
    target: int
    word: int
    sent_s: float
    is_sum: bool
    """On the way back from the middle."""


def line_words(num_cores: int, num_words: int, mesh: CoreMesh) -> Iterator[Word]:
    """Yield each word of a sum along a line on each link that it crosses, as :func:`line_s`.

    The middle is core n // 2. Core k words away from its end waits for k hops; the shorter side
    starts one hop late where n is even, so that both arrive together.
    """
    middle = num_cores // 2
    word_s = mesh.word_bytes / mesh.link_bytes_per_s
    for word in range(num_words):
        for core in range(num_cores):
            distance = abs(core - middle)
            if not distance:
                continue
            nearer = core + (1 if core < middle else -1)
            inward_s = (middle - distance) * mesh.hop_s + word * word_s
            yield Word(core, nearer, word, inward_s, is_sum=False)
            outward_s = (middle + distance - 1) * mesh.hop_s + word * word_s
            yield Word(nearer, core, word, outward_s, is_sum=True)


def product_words(num_values: int, side: int, mesh: CoreMesh) -> Iterator[tuple[int, Word]]:
    """Yield the words of a product on the whole mesh, each with the line that it moves along.

    Partial sums of ``num_values`` outputs, a word each, lie evenly on the lines; those of line k
    are added by all of its cores.

    Parameters
    ----------
    side
        Dim of the mesh along which the lines lie.
    """
    cores, lines = (mesh.rows, mesh.columns)[:: 1 if side == 0 else -1]
    for line in range(lines):
        held = len(range(line, num_values, lines))
        for word in line_words(cores, held, mesh):
            yield line, word


@dataclass(frozen=True)
class LineSum:
    """A sum along lines of the mesh that waits for the one before."""

    num_cores: Num
    """Cores of a line."""
    num_bytes: Num
    """Partial sums of one core [bytes]."""


def sums_of(
    op: Op, side: int, layer: LocalLayer, shape: PassShape, mesh: CoreMesh
) -> list[LineSum]:  # fmt: skip
    """Return the sums along lines that an operator waits for, one after another.

    Parameters
    ----------
    side
        Dim of the mesh, 0 or 1, along which the elements of the input lie; the other one holds
        copies.
    """
    sides = (float(mesh.rows), float(mesh.columns))
    along, across = sides[side], sides[1 - side]
    if op.kind is OpKind.MATMUL:
        count, rows, _, columns = matmul_shape(op, layer)
        if op.is_grouped:
            count, rows = experts_at_work(layer)
        sums = count * rows * ceil_div(columns, across)
        return [LineSum(along, ACCUMULATOR_BYTES * sums)]
    rows = layer.rows_of(op)
    if op.kind is OpKind.EMBEDDING:
        return [LineSum(along, ACCUMULATOR_BYTES * rows * ceil_div(layer.width(op.output), across))]
    if op.attention is None:
        waits = bool(op.contracted) or op.kind is OpKind.ROUTE
        return [LineSum(along, ACCUMULATOR_BYTES * rows)] if waits else []
    # Elements of a head lie along one dim, cached tokens along the other.
    heads = layer.size("query_heads")
    keys = ceil_div(
        mean_keys_seen(shape.new_tokens, shape.past_tokens, op.attention.most_keys), across
    )
    held = rows * ceil_div(heads, along)
    values = rows * ceil_div(heads * float(op.attention.value_head_size), along)
    return [
        LineSum(larger(along // heads, 1.0), ACCUMULATOR_BYTES * held * keys),
        LineSum(across, ACCUMULATOR_BYTES * held),
        LineSum(across, ACCUMULATOR_BYTES * values),
    ]


def mesh_s(
    layer: LayerGraph, local: LocalLayer, rates: DeviceRates, shape: PassShape, mesh: CoreMesh
) -> Num:
    """Return the time that links of the mesh add to a layer: its longest chain of sums [s].

    A sum takes all of its hops; its words pass while the operator computes, and what is longer
    than that counts. An operator with inputs along different dims waits for one of them to turn.
    """
    done: dict[str, tuple[Num, int]] = {}
    longest: Num = 0.0
    for op in layer.ops:
        inputs = [done.get(tensor.name, (0.0, 0)) for tensor in op.inputs]
        side = inputs[0][1] if inputs else 0
        reached: Num = 0.0
        for before_s, _ in inputs:
            reached = larger(reached, before_s)
        turned = [
            local.width(tensor)
            for tensor, (_, other) in zip(op.inputs, inputs, strict=True)
            if other != side
        ]
        if turned:
            num_bytes = rates.activation_bytes * local.rows_of(op) * sum(turned)
            hops_s, words_s = line_s(mesh.rows + mesh.columns, num_bytes / mesh.rows, mesh)
            reached = reached + hops_s + words_s
        sums = sums_of(op, side, local, shape, mesh)
        if sums:
            times = [line_s(one.num_cores, one.num_bytes, mesh) for one in sums]
            busy_s = forward_cost(op, local, rates, shape).busy_s
            words_s = sum(words for _, words in times)
            reached = reached + sum(hops for hops, _ in times) + positive_part(words_s - busy_s)
        turns = op.kind is OpKind.MATMUL
        done |= {tensor.name: (reached, 1 - side if turns else side) for tensor in op.outputs}
        longest = larger(longest, reached)
    return longest
