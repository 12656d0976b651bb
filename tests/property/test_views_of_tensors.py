"""Reshapes and transposes fold into factors: every element is where NumPy has it."""

from contextlib import suppress
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.graphs.rules import calls as make
from meshwright.catalog.graphs.rules import products
from meshwright.catalog.graphs.tracing import GraphBuilder, UnevenError
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.kernel import num_elements

shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


def elements(value):
    """Return where each element of a view lies in the tensor that was made, in the view's order."""
    factors = [factor for axis in value.axes for factor in axis]
    stored = [factor for place in value.places for factor in place]
    found = []
    for index in product(*(range(factor.size) for factor in factors)):
        at = dict(zip(factors, index, strict=True))
        flat = 0
        for factor in stored:
            flat = flat * factor.size + at[factor]
        found.append(flat)
    return found


def other_shape(draw, size):
    """Return a random shape of so many elements."""
    shape = []
    while size > 1:
        part = draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0]))
        shape.append(part)
        size //= part
    ones = draw(st.integers(0, 2))
    return [*shape, *[1] * ones] if draw(st.booleans()) else [*[1] * ones, *shape]


@given(st.data(), shapes)
def test_views_are_those_of_numpy(data, shape) -> None:
    value = GraphBuilder(2.0).input("x", shape, 2.0)
    array = np.arange(prod(shape)).reshape(shape)
    for _ in range(3):
        order = data.draw(st.permutations(range(len(value.axes))))
        value, array = value.permuted(order), array.transpose(order)
        wanted = other_shape(data.draw, array.size)
        with suppress(UnevenError):
            value, array = value.reshaped(wanted), array.reshape(wanted)
        assert value.shape == array.shape
        assert elements(value) == array.reshape(-1).tolist()


@given(st.data(), shapes)
def test_kernels_on_views_read_every_place_whole(data, shape) -> None:
    to = GraphBuilder(2.0)
    x = to.input("x", [*shape, 2], 2.0)
    view = x.permuted(data.draw(st.permutations(range(len(shape) + 1))))
    with suppress(UnevenError):
        view = view.reshaped(other_shape(data.draw, prod(shape) * 2))
    out = make.elementwise(to, "f", [view])
    graph = to_graph(to.graph("g", [out], origin="here"))
    (read,) = graph.kernels[0].inputs
    assert num_elements(read.dims, graph.sizes) == prod(shape) * 2
    assert num_elements(graph.kernels[0].dims, graph.sizes) == prod(shape) * 2
    assert len(read.dims) == len(graph.inputs["x"])


def test_a_reshape_that_cuts_a_factor_unevenly_is_no_view() -> None:
    to = GraphBuilder(2.0)
    x = to.input("x", [6, 4], 2.0).permuted((1, 0))
    with pytest.raises(UnevenError, match="against"):
        x.reshaped([6, 4])
    copied = make.reshaped(to, "copy", x, [6, 4])
    assert copied.shape == (6, 4)
    assert to.kernels["copy"].unit == "none"


def test_a_product_of_a_tensor_with_itself_has_two_names_for_its_rows() -> None:
    to = GraphBuilder(2.0)
    x = to.input("x", [8, 4], 2.0, ("rows", "width"))
    scores = products.matmul(to, "scores", x, x.permuted((1, 0)))
    graph = to_graph(to.graph("g", [scores], origin="here"))
    assert graph.kernels[0].dims == ("rows", "rows_2")
    assert [read.dims for read in graph.kernels[0].inputs] == [
        ("rows", "width"), ("rows_2", "width")
    ]  # fmt: skip
    assert graph.flops == 2 * 8 * 8 * 4


def test_heads_that_share_keys_read_them_once() -> None:
    to = GraphBuilder(2.0)
    q = to.input("q", [8, 5, 16], 2.0, ("heads", "tokens", "width"))
    k, v = (to.input(name, [2, 7, 16], 2.0, ("kv", "keys", "width")) for name in "kv")
    out = products.attention(to, "attend", q, k, v)
    graph = to_graph(to.graph("g", [out], origin="here"))
    scores, softmax, values = graph.kernels
    assert scores.inputs[0].dims == ("q.heads*queries_per_key", "tokens", "width")
    assert scores.inputs[1].dims == ("q.heads", "keys", "width")
    assert softmax.whole == frozenset({"keys"})
    assert values.flops(graph.sizes) == scores.flops(graph.sizes) == 2 * 8 * 5 * 7 * 16


def test_axes_that_do_not_fit_are_refused() -> None:
    to = GraphBuilder(2.0)
    left, right = to.input("a", [4, 3], 2.0), to.input("b", [5, 2], 2.0)
    with pytest.raises(UnevenError, match="5 and 3 elements along one axis"):
        products.matmul(to, "m", left, right)
