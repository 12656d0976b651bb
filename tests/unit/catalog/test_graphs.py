"""The format of graphs: faults with their places, and writing what can be read again."""

import json

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.graphs.files import (
    catalog_graph,
    checked,
    graph_names,
    graph_of_text,
    graph_record,
    graph_yaml,
)
from meshwright.catalog.models import load_model
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec
from meshwright.graph.kernels.models import model_graphs
from meshwright.graph.kernels.workloads import fft, hpl
from meshwright_papers.studies.dfmodel.workloads import dlrm, dlrm_a, gpt_layer, gpt_training_layer

SMALL = """
name: small
tiled: rows
word: 2 B
dims: {rows: 4, wide: 3, out: 2}
inputs:
  x: [rows, wide]
outputs: [act]
kernels:
  act:
    unit: vector
    reads:
      - fc[rows, out]
    writes: [rows, out]
  fc:
    unit: matrix
    reads:
      - x[rows, wide]
    weights:
      - fc.weight[wide, out] of 4 bytes
    writes: [rows, out]
"""
BUILT = {
    "gpt": gpt_layer(64, 4, 16, 32, repeats=3),
    "training": gpt_training_layer(64, 4, 16, 32),
    "dlrm": with_backward(dlrm_a()),
    "hpl": hpl(64, 16, grid_rows=3),
    "fft": fft(8, 4),
    "experts": model_graphs(load_model("deepseek-v3"), 64)[2],
    "embedding": model_graphs(load_model("gpt2-124m"), 64)[0],
    "head": with_backward(model_graphs(load_model("gpt2-124m"), 64)[-1]),
}


def faults(text):
    with pytest.raises(SpecError) as caught:
        graph_of_text(text)
    return [str(fault) for fault in caught.value.faults]


def changed(old, new):
    assert old in SMALL
    return SMALL.replace(old, new)


def test_kernels_may_be_in_any_order() -> None:
    graph = to_graph(graph_of_text(SMALL))
    assert [kernel.name for kernel in graph.kernels] == ["fc", "act"]
    assert graph.flops == 2 * 4 * 3 * 2 + 4 * 2
    assert graph.tensor_bytes(graph.kernels[0].weights[0]) == 4 * 3 * 2


@pytest.mark.parametrize("name", BUILT)
def test_what_is_written_is_read_again_exactly(name) -> None:
    spec = to_spec(BUILT[name], about="a test: of # signs")
    assert to_graph(checked(spec)) == BUILT[name]
    for text in (graph_yaml(spec), json.dumps(graph_record(spec))):
        assert graph_of_text(text) == spec


@pytest.mark.parametrize("name", graph_names())
def test_graphs_of_the_catalog_are_right_and_say_where_they_come_from(name) -> None:
    spec = catalog_graph(name)
    assert spec.name == name
    assert spec.about
    assert spec.sources
    assert to_spec(to_graph(spec)).kernels == spec.kernels


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("gpt3-175b-layer", gpt_layer(12288, 96, 128, 2048, repeats=96)),
        ("dlrm-a", dlrm_a()),
        (
            "dlrm-f",
            dlrm(
                128 * 512,
                tables=100,
                table_rows=12 * 10**12 // (100 * 256),
                embedding=256,
                pooling=20,
                width=490,
                bottom_layers=2,
                top_layers=5,
            ),
        ),
        ("fft-1g", fft(2**15, 2**15)),
    ],
)
def test_graphs_of_the_catalog_are_those_of_the_builders(name, built) -> None:
    found = to_graph(catalog_graph(name))
    assert (found.kernels, found.sizes) == (built.kernels, built.sizes)
    assert (found.repeats, found.word_bytes) == (built.repeats, built.word_bytes)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("rows: 4", "rows: 0", "dims.rows: must be larger than 0, found 0 (line 5)"),
        ("rows: 4", "rows: -4", "dims.rows: must be larger than 0, found -4 (line 5)"),
        ("rows: 4", "rows: 1e30", "dims.rows: expected a whole number, found 1e+30 (line 5)"),
        ("rows: 4", "rows: 4.5", "dims.rows: expected a whole number, found 4.5 (line 5)"),
        ("rows: 4", "rows: true", "dims.rows: expected a whole number, found True (line 5)"),
        ("out: 2", "out: 2, spare: 5", "dims.spare: no tensor has this dim (line 5)"),
        ("tiled: rows", "tiled: row", "tiled: no dim 'row' (line 3) (did you mean rows?)"),
        ("[act]", "[akt]", "outputs[0]: no kernel 'akt' (line 8) (did you mean act?)"),
        ("[act]", "[act]\nconstants: [y]", "constants[0]: no input 'y' (line 9) ("),
        ("[act]", "[]", "outputs: is empty: nothing would be computed (line 8)"),
        ("fc[rows, out]", "fd[rows, out]", "no kernel or input 'fd' (line 13) (did you mean fc"),
        ("fc[rows, out]", "fc[rows]", "reads 1 dims of 'fc', which has 2 (line 13) (it is fc["),
        ("fc[rows, out]", "fc[rows, wide]", "reads 3 of 'wide' where 'fc' has 2 (line 13)"),
        ("fc[rows, out]", "fc[rows, rows]", "the dim 'rows' is there twice (line 13)"),
        ("fc[rows, out]", "fc rows", "expected NAME[DIM, DIM] or NAME[DIM] of 4 bytes, found"),
        ("[wide, out] of", "[wyde, out] of", "the dim 'wyde' has no size under `dims` (line 20)"),
        ("of 4 bytes", "of 0 bytes", "expected NAME[DIM, DIM] or NAME[DIM] of 4 bytes, found"),
        ("unit: matrix", "unit: matricks", "expected one of matrix, vector, none, found 'matr"),
        ("unit: matrix", "unit: matrix\n    hole: [out]", "fc.hole: unknown field (line 17) (did"),
        ("unit: matrix", "unit: matrix\n    whole: [in]", "no dim 'in' of this kernel (line 17)"),
        ("word: 2 B", "word: 2", "word: the bare number 2 has no unit"),
        ("name: small", "name: small\nname: big", "name: the field is given twice"),
        ("name: small", "", "name: is missing"),
        ("  x: [rows, wide]", "  x: [rows, wide]\n  fc: [rows]", "is the name of a kernel too"),
        ("  x: [rows, wide]", "  x: [rows, wide]\n  y: [rows]", "inputs.y: no kernel reads it"),
        ("  x: [rows, wide]", "  x: &a [rows, wide]\n  y: *a", "the alias *a is not allowed"),
        ("  x: [rows, wide]", "  x: !!python/none [rows]", "is not allowed; files hold data"),
    ],
)
def test_each_fault_is_reported_with_its_place(old, new, fault) -> None:
    assert any(fault in told for told in faults(changed(old, new)))


def test_a_kernel_that_is_stated_twice_is_a_fault() -> None:
    again = "  fc:\n    unit: none\n    writes: [rows]\n"
    assert any("kernels.fc: the field is given twice" in told for told in faults(SMALL + again))


def test_a_cycle_is_reported_by_its_kernels() -> None:
    text = changed("- x[rows, wide]", "- x[rows, wide]\n      - act[rows, out]")
    assert any("act: is in a cycle: act reads fc reads act (line" in told for told in faults(text))


def test_a_kernel_that_reads_itself_is_refused() -> None:
    text = changed("- fc[rows, out]", "- fc[rows, out]\n      - act[rows, out]")
    assert any("is in a cycle: act reads act" in told for told in faults(text))


def test_a_result_that_nothing_reads_is_a_fault() -> None:
    lost = SMALL + "  lost:\n    unit: none\n    reads: ['x[rows, wide]']\n    writes: [rows]\n"
    assert faults(lost) == [
        "kernels.lost: nothing reads its result, and it is not an output (line 22)"
        " (add it to `outputs`, or take it out)"
    ]


def test_a_weight_of_two_sizes_is_refused() -> None:
    text = changed("- fc[rows, out]", "- fc[rows, out]\n    weights:\n      - fc.weight[out]")
    assert any("'fc.weight' has 6 elements here and 2 in 'act'" in told for told in faults(text))


def test_all_faults_are_reported_at_once() -> None:
    text = changed("rows: 4", "rows: 0").replace("fc[rows, out]", "fc[rows]")
    text = text.replace("unit: matrix", "unit: matricks").replace("tiled: rows", "tiled: row")
    assert len(faults(text)) == 4


def test_only_a_move_may_read_more_than_there_is() -> None:
    text = changed("writes: [rows, out]\n  fc", "writes: [rows, wide]\n  fc")
    text = text.replace("fc[rows, out]", "fc[rows, wide]")
    assert len(faults(text)) == 1
    assert to_graph(graph_of_text(text.replace("unit: vector", "unit: none")))


def test_graphs_built_in_python_are_checked_in_the_same_words() -> None:
    spec = to_spec(gpt_layer(64, 4, 16, 32)).model_copy(update={"tiled": "token"})
    with pytest.raises(SpecError, match=r"gpt-layer: tiled: no dim 'token' \(did you mean tok"):
        checked(spec)


@pytest.mark.parametrize("name", ["true", "null", "12", "1e5", "a b"])
def test_names_that_yaml_would_guess_at_are_quoted_or_refused(name) -> None:
    spec = graph_of_text(SMALL).model_copy(update={"about": name})
    assert graph_of_text(graph_yaml(spec)).about == name
