"""Models of the catalog as kernels: parameters and FLOPs agree with the operator graph."""

from itertools import pairwise
from math import ceil

import pytest
from oracles.graph_parameters import graph_parameters
from sampled import one_in, sampled

from meshwright.base.errors import SpecError
from meshwright.catalog.graphs.files import checked
from meshwright.catalog.models import load_model, model_names
from meshwright.dataflow.layouts import splits_of
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_spec
from meshwright.graph.kernels.graph import chained
from meshwright.graph.kernels.kernel import Unit
from meshwright.graph.kernels.models import model_graphs
from meshwright.graph.op import OpKind, matmul_flops_per_row
from meshwright.graph.transformer import build_graph

TOKENS = 256


def split_over(graph, name, dim):
    kernel = graph.kernels[graph.number[name]]
    return next(split for split in splits_of(kernel) if split.dim == dim)


@pytest.mark.parametrize("name", one_in(4, model_names()))
def test_parameters_are_those_of_the_operator_graph(name) -> None:
    model = load_model(name)
    parts = model_graphs(model, TOKENS)
    tied = sum(part.num_parameters for part in parts)
    if model.tied_embeddings:
        tied -= model.vocab_size * model.hidden_size
    assert tied == graph_parameters(build_graph(model))


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b", "deepseek-v3", "gpt-oss-20b"])
def test_flops_of_linear_layers_are_those_of_the_operator_graph(name) -> None:
    model = load_model(name)
    for layer, graph in zip(
        build_graph(model).layers, model_graphs(model, TOKENS)[1:-1], strict=True
    ):
        top_k, experts = layer.sizes.get("top_k", 1), layer.sizes.get("experts", 1)
        rows = {"tokens": TOKENS, "routed_tokens": ceil(TOKENS * top_k / experts) * experts}
        linear = sum(
            rows[op.inputs[0].dims[0]] * matmul_flops_per_row(op, layer.sizes)
            for op in layer.ops
            if op.kind is OpKind.MATMUL
        )
        found = sum(
            k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX and k.weights
        )
        assert found == pytest.approx(linear, rel=1e-12)
        assert graph.repeats == layer.count


def test_llama_block_has_its_kernels_and_attention_its_flops() -> None:
    graph = model_graphs(load_model("llama3-8b"), TOKENS)[1]
    names = [kernel.name for kernel in graph.kernels]
    assert len(names) == 16
    scores = graph.kernels[graph.number["attention.core.scores"]]
    assert scores.flops(graph.sizes) == 2 * 32 * 128 * TOKENS**2


def test_key_heads_split_from_projection_to_output_without_a_layout_change() -> None:
    graph = model_graphs(load_model("llama3-8b"), TOKENS)[1]
    chain = ["attention.query", "attention.rotary.query", "attention.core.scores"]
    chain += ["attention.core.probabilities", "attention.heads", "attention.output"]
    for before, after in pairwise(chain):
        left = split_over(graph, before, "kv_heads").writes
        assert split_over(graph, after, "kv_heads").reads[0] == left
    assert split_over(graph, "attention.output", "kv_heads").writes.is_partial


def test_gate_and_up_split_together() -> None:
    graph = model_graphs(load_model("llama3-8b"), TOKENS)[1]
    left = split_over(graph, "feed_forward.up", "ffn").writes
    assert split_over(graph, "feed_forward.activation", "ffn").reads == (left,)


def test_tokens_and_experts_meet_in_an_all_to_all_there_and_back() -> None:
    graph = model_graphs(load_model("gpt-oss-20b"), TOKENS)[1]
    sent = split_over(graph, "experts.rows", "slots").writes
    wanted = split_over(graph, "experts.up", "experts").reads[0]
    assert (sent.place, wanted.place) == (1, 0)
    made = split_over(graph, "experts.down", "experts").writes
    back = split_over(graph, "experts.combine.rows", "tokens").reads[0]
    assert (made.place, back.place) == (0, 1)


def test_gradients_of_experts_go_back_to_all_tokens_by_the_same_exchange() -> None:
    graph = with_backward(model_graphs(load_model("gpt-oss-20b"), TOKENS)[1])
    back = graph.kernels[graph.number["experts.rows.grad.experts.norm.output"]]
    assert back.dims == ("tokens", "hidden")
    made = split_over(graph, "experts.up.grad.experts.rows", "experts").writes
    assert made.place == 0
    assert split_over(graph, back.name, "tokens").reads[0].place == 1


def test_room_of_experts_grows_with_their_capacity() -> None:
    model = load_model("gpt-oss-20b")
    sizes = [model_graphs(model, TOKENS, expert_capacity=c)[1].sizes["slots"] for c in (1.0, 1.25)]
    assert sizes == [TOKENS * 4 // 32, TOKENS * 5 // 32]


@pytest.mark.parametrize("name", sampled(model_names(), 20))
def test_every_layer_has_a_backward_pass(name) -> None:
    for graph in model_graphs(load_model(name), TOKENS):
        training = with_backward(graph)
        checked(to_spec(training))
        assert all(edge.producer < edge.consumer for edge in training.edges)
        assert training.num_parameters == graph.num_parameters


def test_a_whole_model_is_its_parts_one_behind_the_other() -> None:
    model = load_model("gpt2-124m")
    parts = model_graphs(model, TOKENS)
    whole = chained("gpt2", parts)
    assert len(whole.kernels) == sum(part.repeats * len(part.kernels) for part in parts)
    assert whole.flops == pytest.approx(sum(part.flops for part in parts))
    assert whole.num_parameters == graph_parameters(build_graph(model))
    assert len([edge for edge in whole.edges if edge.producer >= edge.consumer]) == 0


def test_parts_that_do_not_fit_are_refused_all_at_once() -> None:
    first, second = (model_graphs(load_model(name), 64)[1] for name in ("llama3-8b", "llama3-70b"))
    with pytest.raises(SpecError, match=r"parts\[1\].hidden: has 8192 here and 4096 before"):
        chained("both", (first, second))
