"""The backward pass: what can be counted by hand, and the einsum rule on small graphs."""

from collections import Counter

import pytest

from meshwright.base.errors import SpecError
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight
from meshwright.graph.op import Phase
from meshwright_papers.studies.dfmodel.workloads import gpt_layer, gpt_training_layer

LAYER = gpt_layer(64, 4, 16, 32)


def kernel_of(graph, name):
    return graph.kernels[graph.number[name]]


def test_training_layer_has_the_kernels_and_tensors_of_dfmodel() -> None:
    graph = gpt_training_layer(12288, 96, 128, 2048)
    phases = Counter(kernel.phase for kernel in graph.kernels)
    assert phases == {Phase.FORWARD: 18, Phase.INPUT_GRADIENT: 17, Phase.WEIGHT_GRADIENT: 6}
    assert len(graph.edges) == 53


def test_whole_layer_has_the_norm_two_more_sums_and_the_saved_tensors() -> None:
    graph = with_backward(LAYER)
    assert len(graph.kernels) == 41 + 3
    # 7 saved by vectors; 3 parts of the sum at ln1, and its norm; 2 parts of the sum at add0
    assert len(graph.edges) == 53 + 7 + 3 + 1 + 2
    assert graph.outputs[1] == "add0.grad"


def test_products_cost_three_times_their_forward_pass() -> None:
    def products(graph):
        return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)

    assert products(with_backward(LAYER)) == 3 * products(LAYER)


def test_weights_are_held_once_and_every_one_has_a_gradient_of_its_dims() -> None:
    graph = with_backward(LAYER)
    assert graph.num_parameters == LAYER.num_parameters
    gradients = [k.dims for k in graph.kernels if k.phase is Phase.WEIGHT_GRADIENT]
    weights = [weight.dims for k in LAYER.kernels for weight in k.weights]
    assert sorted(gradients) == sorted(weights)


def test_weight_gradients_sum_over_tokens() -> None:
    assert kernel_of(with_backward(LAYER), "ffn0.grad.weight").contracted == ("tokens",)


def test_every_kernel_comes_after_what_it_reads() -> None:
    graph = with_backward(LAYER)
    assert all(edge.producer < edge.consumer for edge in graph.edges)


def test_sum_hands_its_gradient_on_and_product_does_not() -> None:
    dims = ("rows",)
    reads = (Operand("x", dims), Operand("y", dims))
    for is_sum, made in ((True, 0), (False, 2)):
        kernel = Kernel("join", Unit.VECTOR, dims, reads, is_sum=is_sum)
        graph = with_backward(
            DataflowGraph("g", (kernel,), {"rows": 4}, {"x": dims, "y": dims}, ("join",), "rows")
        )
        assert len(graph.kernels) == 1 + made


def test_data_gets_no_gradient_but_the_weights_behind_it_do() -> None:
    held = (Weight("fc.weight", ("wide", "out")),)
    kernel = Kernel(
        "fc", Unit.MATRIX, ("rows", "out"), (Operand("x", ("rows", "wide")),), held,
        flops_per_point=2.0,
    )  # fmt: skip
    sizes = {"rows": 4, "wide": 3, "out": 2}
    inputs = {"x": ("rows", "wide")}
    graph = DataflowGraph("g", (kernel,), sizes, inputs, ("fc",), "rows", constants=("x",))
    made = [k.name for k in with_backward(graph).kernels]
    assert made == ["fc", "fc.grad.weight"]


def test_bias_of_a_product_is_summed_and_the_weight_keeps_out_of_it() -> None:
    held = (Weight("fc.weight", ("wide", "out")), Weight("fc.bias", ("out",)))
    read = Operand("x", ("rows", "wide"))
    kernel = Kernel("fc", Unit.MATRIX, ("rows", "out"), (read,), held, flops_per_point=2.0)
    sizes = {"rows": 4, "wide": 3, "out": 2}
    graph = with_backward(
        DataflowGraph("g", (kernel,), sizes, {"x": ("rows", "wide")}, ("fc",), "rows")
    )
    bias = kernel_of(graph, "fc.grad.bias")
    assert (bias.dims, bias.contracted, bias.unit) == (("out",), ("rows",), Unit.VECTOR)
    assert kernel_of(graph, "fc.grad.x").weights == held[:1]


def test_lookup_keeps_one_gradient_for_each_row_it_read() -> None:
    table = Weight("table", ("rows", "width"))
    kernel = Kernel(
        "lookup", Unit.NONE, ("samples", "width"), (Operand("ids", ("samples",)),), (table,)
    )
    sizes = {"samples": 4, "rows": 10**9, "width": 8}
    graph = with_backward(
        DataflowGraph("g", (kernel,), sizes, {"ids": ("samples",)}, ("lookup",), "samples")
    )
    assert kernel_of(graph, "lookup.grad.table").dims == ("samples", "width")
    assert len(graph.kernels) == 2


@pytest.mark.parametrize(
    ("unit", "made"),
    [
        (Unit.NONE, ["cut", "cut.grad.x"]),
        (Unit.VECTOR, ["cut", "cut.grad.x", "cut.grad.x.back"]),
    ],
)
def test_the_gradient_of_a_part_goes_back_into_the_whole(unit, made) -> None:
    kernel = Kernel("cut", unit, ("part",), (Operand("x", ("part",)),))
    sizes = {"rows": 8, "part": 2}
    graph = with_backward(DataflowGraph("g", (kernel,), sizes, {"x": ("rows",)}, ("cut",), "rows"))
    assert [k.name for k in graph.kernels] == made
    assert graph.kernels[-1].dims == ("rows",)


def test_a_graph_that_has_gradients_is_refused() -> None:
    with pytest.raises(SpecError, match="not a kernel of a forward pass"):
        with_backward(with_backward(LAYER))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SpecError, match="no kernel 'add9'"):
        with_backward(LAYER, prologue={"add9"})
