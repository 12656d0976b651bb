"""The GPT layer as kernels: what can be counted by hand."""

from meshwright_papers.studies.dfmodel.workloads import gpt_layer


def test_gpt_layer_has_the_kernels_and_tensors_of_dfmodel() -> None:
    graph = gpt_layer(12288, 96, 128, 2048)
    assert (len(graph.kernels), len(graph.edges)) == (18, 21)


def test_weights_are_twelve_times_the_square_of_the_width() -> None:
    assert gpt_layer(64, 4, 16, 32, repeats=3).num_parameters == 3 * 12 * 64**2


def test_work_of_products_is_two_flops_for_each_weight_and_token() -> None:
    graph = gpt_layer(64, 4, 16, 32)
    products = {k.name: k.flops(graph.sizes) for k in graph.kernels if k.weights}
    assert sum(products.values()) == 2 * 32 * graph.num_parameters


def test_contracted_dims_are_those_that_the_output_lacks() -> None:
    graph = gpt_layer(64, 4, 16, 32)
    by_name = {kernel.name: kernel for kernel in graph.kernels}
    assert by_name["av"].contracted == ("keys",)
    assert by_name["proj"].contracted == ("heads", "head_dim")
    assert by_name["softmax"].contracted == ()
