"""The four-case rule against dense products: what it derives is executed on simulated ranks.

Each dim of size (degree of a) x (degree of b) x rest is kept as three digits, and an axis that
splits the dim owns its digit; so axes commute, and a shard is a slice of digits.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.sharding.algebra import ShardedOperand, Sharding, matmul, reshard
from meshwright.spec.collective import CollectiveKind

DEGREES = {"a": 2, "b": 3}
REST = {"m": 1, "k": 2, "n": 1, "e": 1}
DIGITS = (*DEGREES, "rest")
RANKS = [
    dict(zip(DEGREES, c, strict=True)) for c in itertools.product(*map(range, DEGREES.values()))
]
X, W, Y = ("m", "k"), ("k", "n"), ("m", "n")


def dense(dims, rng):
    return rng.integers(-4, 5, [n for d in dims for n in (*DEGREES.values(), REST[d])]) * 1.0


def position(dims, dim, digit):
    return dims.index(dim) * len(DIGITS) + DIGITS.index(digit)


def slice_of(array, dims, dim, axis, rank):
    where = position(dims, dim, axis)
    return np.take(array, [rank[axis]], axis=where)


def shard(full, dims, layout):
    """Return the shard of each rank; a partial tensor lies whole on the first member."""
    shards = []
    for rank in RANKS:
        local = full
        for dim, axes in layout.split.items():
            for axis in axes:
                local = slice_of(local, dims, dim, axis, rank)
        shards.append(local)
    return shards


def group(rank, axis):
    """Return the indices of the ranks that differ from one along an axis only, in order."""
    return [i for i, r in enumerate(RANKS) if {**r, axis: 0} == {**rank, axis: 0}]


def run_move(move, shards, dims):
    """Execute one move on all ranks."""
    moved = []
    for index, rank in enumerate(RANKS):
        members = [shards[i] for i in group(rank, move.axis)]
        if move.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL):
            local = np.concatenate(members, axis=position(dims, move.source, move.axis))
        elif move.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER):
            local = sum(members)
        else:
            local = shards[index]
        if move.target is not None:
            local = slice_of(local, dims, move.target, move.axis, rank)
        moved.append(local)
    return moved


def run(moves, shards, dims):
    for move in moves:
        shards = run_move(move, shards, dims)
    return shards


def local_product(left, left_dims, right, right_dims, output_dims):
    number = {
        name: i for i, name in enumerate(itertools.product({*left_dims, *right_dims}, DIGITS))
    }

    def letters(dims):
        return [number[dim, digit] for dim in dims for digit in DIGITS]

    return np.einsum(left, letters(left_dims), right, letters(right_dims), letters(output_dims))


def execute(product, left, left_dims, right, right_dims, output_dims, want=None):
    """Run a product as derived: moves of the operands, local products, moves of the output."""
    left = run(product.left_moves, left, left_dims)
    right = run(product.right_moves, right, right_dims)
    made = [
        local_product(x, left_dims, w, right_dims, output_dims)
        for x, w in zip(left, right, strict=True)
    ]
    return made if want is None else run(reshard(product.local, want), made, output_dims)


@st.composite
def layouts(draw, dims):
    layout = Sharding()
    for axis in draw(st.permutations(list(DEGREES))):
        dim = draw(st.sampled_from([None, *dims]))
        layout = layout if dim is None else layout.along(axis, dim)
    return layout


def same(found, expected):
    return all(np.array_equal(f, e) for f, e in zip(found, expected, strict=True))


@st.composite
def cases(draw):
    batch = draw(st.sampled_from([(), ("e",)]))
    dims = [(*batch, *d) for d in (X, W, Y)]
    sides = {axis: draw(st.sampled_from(["left", "right"])) for axis in DEGREES}
    return dims, [draw(layouts(d)) for d in dims], sides, draw(st.integers(0, 2**32 - 1))


@given(cases())
def test_forward_and_both_gradients_equal_the_dense_product(case):
    (x_dims, w_dims, y_dims), (x_at, w_at, y_at), sides, seed = case
    rng = np.random.default_rng(seed)
    x, w, dy = (dense(dims, rng) for dims in (x_dims, w_dims, y_dims))

    def arbiter(axis, left_dim, right_dim):
        return sides[axis]

    on_x, on_w = ShardedOperand(x_dims, x_at), ShardedOperand(w_dims, w_at)
    on_y = ShardedOperand(y_dims, y_at)
    xs, ws, dys = shard(x, x_dims, x_at), shard(w, w_dims, w_at), shard(dy, y_dims, y_at)

    y = local_product(x, x_dims, w, w_dims, y_dims)
    forward = matmul(on_x, on_w, y_dims, arbiter)
    assert same(execute(forward, xs, x_dims, ws, w_dims, y_dims, y_at), shard(y, y_dims, y_at))

    dx = local_product(dy, y_dims, w, w_dims, x_dims)
    back = matmul(on_y, on_w, x_dims, arbiter)
    assert same(execute(back, dys, y_dims, ws, w_dims, x_dims, x_at), shard(dx, x_dims, x_at))

    dw = local_product(x, x_dims, dy, y_dims, w_dims)
    inner = matmul(on_x, on_y, w_dims, arbiter)
    assert same(execute(inner, xs, x_dims, dys, y_dims, w_dims, w_at), shard(dw, w_dims, w_at))


@given(layouts(X), layouts(X), st.integers(0, 2**32 - 1))
def test_resharding_moves_a_tensor_to_the_wanted_layout(have, want, seed):
    full = dense(X, np.random.default_rng(seed))
    assert same(run(reshard(have, want), shard(full, X, have), X), shard(full, X, want))


@given(layouts(X))
def test_a_tensor_that_lies_as_wanted_does_not_move(layout):
    assert reshard(layout, layout) == []


def kinds(moves):
    return [(move.kind, move.axis) for move in moves]


def test_case_1_a_free_dim_of_one_operand_needs_nothing():
    product = matmul(ShardedOperand(X, Sharding()), ShardedOperand(W, Sharding({"n": ("a",)})), Y)
    assert product.left_moves == product.right_moves == []
    assert product.local == Sharding({"n": ("a",)})


def test_case_2_a_contracted_dim_that_is_split_alone_is_gathered():
    product = matmul(ShardedOperand(X, Sharding({"k": ("a",)})), ShardedOperand(W, Sharding()), Y)
    assert kinds(product.left_moves) == [(CollectiveKind.ALL_GATHER, "a")]
    assert product.local == Sharding()


@pytest.mark.parametrize(
    ("want", "kind"),
    [
        (Sharding(), CollectiveKind.ALL_REDUCE),
        (Sharding({"m": ("a",)}), CollectiveKind.REDUCE_SCATTER),
    ],
)
def test_case_3_a_contracted_dim_that_is_split_in_both_is_reduced(want, kind):
    split = Sharding({"k": ("a",)})
    product = matmul(ShardedOperand(X, split), ShardedOperand(W, split), Y)
    assert product.local == Sharding({}, ("a",))
    assert kinds(reshard(product.local, want)) == [(kind, "a")]


@pytest.mark.parametrize(("side", "remaining"), [("left", "n"), ("right", "m")])
def test_case_4_two_free_dims_on_one_axis_are_a_structural_choice(side, remaining):
    left, right = (
        ShardedOperand(X, Sharding({"m": ("a",)})),
        ShardedOperand(W, Sharding({"n": ("a",)})),
    )
    product = matmul(left, right, Y, arbiter=lambda axis, left_dim, right_dim: side)
    moved = product.left_moves if side == "left" else product.right_moves
    assert kinds(moved) == [(CollectiveKind.ALL_GATHER, "a")]
    assert product.local == Sharding({remaining: ("a",)})


def test_leaving_out_a_derived_reduction_is_noticed():
    """The simulation tells right from wrong: unreduced partial sums differ from the product."""
    rng = np.random.default_rng(0)
    x, w = dense(X, rng), dense(W, rng)
    split = Sharding({"k": ("a",)})
    product = matmul(ShardedOperand(X, split), ShardedOperand(W, split), Y)
    found = execute(product, shard(x, X, split), X, shard(w, W, split), W, Y)
    assert not same(found, shard(local_product(x, X, w, W, Y), Y, Sharding()))
