"""Whatever stands in a file of a graph, the answer is a graph or a SpecError."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.catalog.graphs.files import checked, graph_of_text, graph_yaml
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec
from meshwright.graph.kernels.workloads import hpl
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

TEXTS = [graph_yaml(to_spec(gpt_layer(64, 4, 16, 32))), graph_yaml(to_spec(hpl(16, 8)))]
WORDS = [
    "0",
    "-1",
    "1e30",
    "tokens",
    "[]",
    "{}",
    "true",
    "x[y]",
    "add0",
    "~",
    "- a",
    "word: 2",
    "*",
]


@given(st.data(), st.sampled_from(TEXTS))
def test_a_file_with_slips_is_read_or_told(data, text) -> None:
    lines = text.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["drop", "twice", "change", "swap"])):
            case "drop":
                del lines[at]
            case "twice":
                lines.insert(at, lines[at])
            case "change":
                head, colon, _ = lines[at].partition(":")
                lines[at] = f"{head}{colon} {data.draw(st.sampled_from(WORDS))}"
            case "swap":
                other = data.draw(st.integers(0, len(lines) - 1))
                lines[at], lines[other] = lines[other], lines[at]
    try:
        graph = to_graph(graph_of_text("\n".join(lines)))
    except SpecError:
        return
    assert all(edge.producer < edge.consumer for edge in graph.edges)
    assert graph.flops >= 0
    if not any(kernel.messages for kernel in graph.kernels):
        checked(to_spec(with_backward(graph)))


@given(st.text(max_size=60))
def test_any_text_is_read_or_told(text) -> None:
    with suppress(SpecError):
        graph_of_text(text)
