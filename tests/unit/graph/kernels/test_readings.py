"""Who reads whom, within a repetition and across."""

from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit
from meshwright.graph.kernels.workloads import hpl
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

SIZES = (64, 4, 16, 32)


def test_a_graph_that_stands_once_carries_nothing() -> None:
    graph = gpt_layer(*SIZES)
    assert graph.carried == {}
    assert len(graph.all_edges) == len(graph.edges)


def test_what_a_layer_writes_is_what_the_next_one_reads() -> None:
    graph = gpt_layer(*SIZES, repeats=3)
    last = graph.number["add2"]
    assert graph.carried == {"stream": last, "branch": last}
    across = [read for read in graph.all_edges if read.is_carried]
    assert [(read.producer, read.consumer, read.place) for read in across] == [
        (last, 0, 0), (last, 0, 1),
    ]  # fmt: skip


def test_gradients_come_from_gradients() -> None:
    graph = with_backward(gpt_layer(*SIZES, repeats=3))
    found = {name: graph.kernels[maker].name for name, maker in graph.carried.items()}
    assert found == {"stream": "add2", "branch": "add2", "add2.grad": "add0.grad"}


def test_a_part_that_is_read_has_its_own_bytes() -> None:
    """A panel of an HPL matrix is its rows by one block, not the matrix."""
    graph = hpl(64, 16)
    panel = next(read for read in graph.all_edges if graph.kernels[read.consumer].name == "factor1")
    assert panel.num_bytes == 8 * 48 * 16


def test_a_read_with_more_elements_than_were_written_counts_what_was_written() -> None:
    maker = Kernel("x", Unit.VECTOR, ("a",), (Operand("in", ("a",)),))
    reader = Kernel("y", Unit.VECTOR, ("b",), (Operand("x", ("b",)),))
    graph = DataflowGraph("g", (maker, reader), {"a": 4, "b": 8}, {"in": ("a",)}, ("y",), "a")
    assert [read.num_bytes for read in graph.all_edges] == [8.0]
