"""Graphs by name: of the catalog, of files, of families and of models."""

import json
from dataclasses import replace

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.graphs.files import checked, graph_record, graph_yaml
from meshwright.catalog.models import model_entry
from meshwright.dataflow.question import load_graph
from meshwright.graph.kernels.declared import to_spec
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit
from meshwright.graph.kernels.workloads import fft, hpl
from meshwright_papers.studies.dfmodel.workloads import gpt_layer


def test_every_kind_of_name_finds_its_graph(tmp_path) -> None:
    layer = gpt_layer(64, 4, 16, 32)
    path = tmp_path / "layer.yaml"
    path.write_text(graph_yaml(to_spec(layer)))
    assert load_graph(str(path)) == layer
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(model_entry("llama3-8b").config)))
    assert load_graph(str(path), tokens=64).repeats == 32
    path.write_text(json.dumps(graph_record(to_spec(layer))))
    assert load_graph(str(path)) == layer
    assert len(load_graph("DLRM-A").kernels) == 42
    assert load_graph("hpl-64x16") == hpl(64, 16)
    assert load_graph("fft-8x4") == fft(8, 4)
    assert load_graph("llama3-8b", tokens=64).repeats == 32
    assert load_graph("llama3-8b.head", tokens=64).sizes["vocab"] == 128256
    assert load_graph("deepseek-v3.layer1", tokens=64).repeats == 58
    assert len(load_graph("gpt2-124m.whole", tokens=64).kernels) == 3 + 12 * 14 + 3


def test_training_adds_the_backward_pass() -> None:
    assert len(load_graph("gpt3-175b-layer", training=True).kernels) == 44


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dlrm-b", "unknown graph 'dlrm-b'; did you mean dlrm-"),
        ("llama3-8b.tail", "unknown part of llama3-8b 'tail'"),
    ],
)
def test_names_that_are_none_are_told_with_the_near_ones(name, message) -> None:
    with pytest.raises(UnknownNameError, match=message):
        load_graph(name)


def test_a_model_of_two_kinds_of_layers_asks_which() -> None:
    with pytest.raises(SpecError, match="2 kinds of layers; name one: layer0, layer1"):
        load_graph("deepseek-v3")


@pytest.mark.parametrize("name", ["hpl-0x4", "hpl-4096", "fft-8x-1", "fft-1000000000000000x2"])
def test_members_of_a_family_have_two_counts(name) -> None:
    with pytest.raises(SpecError, match=f"'{name}' has no two whole numbers above 0"):
        load_graph(name)


def test_a_length_is_taken_by_models_only() -> None:
    assert load_graph("llama3-8b", tokens=64).sizes["tokens"] == 64
    with pytest.raises(SpecError, match="gpt3-175b-layer states its own sizes"):
        load_graph("gpt3-175b-layer", tokens=64)


def test_a_block_wider_than_its_matrix_is_told() -> None:
    with pytest.raises(SpecError, match="block: found 8"):
        load_graph("hpl-4x8")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        load_graph("nowhere.yaml")


def test_graphs_of_python_are_checked() -> None:
    layer = gpt_layer(64, 4, 16, 32)
    checked(to_spec(layer))
    with pytest.raises(SpecError, match="no kernel 'add9'"):
        checked(to_spec(replace(layer, outputs=("add9",))))


@pytest.mark.parametrize(
    ("stated", "message"),
    [({"up": "out"}, "no output 'up'"), ({"relu": "in"}, "one of: tokens, out, whole")],
)
def test_a_stated_layout_is_one_that_an_output_can_have(stated, message) -> None:
    product = Kernel("up", Unit.MATRIX, ("tokens", "out"), (Operand("x", ("tokens", "in")),))
    relu = Kernel("relu", Unit.VECTOR, ("tokens", "out"), (Operand("up", ("tokens", "out")),))
    sizes = {"tokens": 64, "in": 16, "out": 16}
    graph = DataflowGraph(
        "layer", (product, relu), sizes, {"x": ("tokens", "in")}, ("relu",), "tokens",
        output_layouts=stated,
    )  # fmt: skip
    with pytest.raises(SpecError, match=message):
        checked(to_spec(graph))
    checked(to_spec(replace(graph, output_layouts={"relu": "tokens"})))
