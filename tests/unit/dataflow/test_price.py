"""Seconds and memory of split kernels, by hand on a system with round numbers."""

from dataclasses import replace

import pytest
from oracles.best_time import best_time_s

from meshwright.base.errors import SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.collectives.group import make_group
from meshwright.cost.communication import level_efficiencies
from meshwright.cost.operator import matmul_compute_s
from meshwright.dataflow.answer import split_kernels
from meshwright.dataflow.layouts import PARTIAL, REPLICATED, TensorLayout, splits_of
from meshwright.dataflow.price import KernelMemory, Residency, SplitTimes, TimeWeights
from meshwright.dataflow.roofline import (
    CalibratedSystem,
    Roofline,
    fused_edges,
    product_s,
    product_shape,
)
from meshwright.dataflow.search import plan_dataflow
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import (
    Kernel,
    KernelMessage,
    MessageKind,
    Operand,
    Unit,
    Weight,
)
from meshwright.graph.kernels.workloads import hpl
from meshwright.spec.collective import CollectiveKind

SIZES = {"tokens": 4096, "in": 1024, "out": 2048}
WORD = 2.0


def layer(messages=()):
    """Return a product and the elementwise function behind it."""
    product = Kernel(
        "up", Unit.MATRIX, ("tokens", "out"), (Operand("x", ("tokens", "in")),),
        (Weight("up.weight", ("in", "out")),), flops_per_point=2.0, messages=messages,
    )  # fmt: skip
    relu = Kernel("relu", Unit.VECTOR, ("tokens", "out"), (Operand("up", ("tokens", "out")),))
    return DataflowGraph(
        "layer", (product, relu), SIZES, {"x": ("tokens", "in")}, ("relu",), "tokens"
    )


@pytest.fixture(scope="module")
def machine():
    system = load_system("8xA100")
    return CalibratedSystem(system, load_calibration(system.chip.family))


def split(kernel, dim):
    return next(way for way in splits_of(kernel) if way.dim == dim)


def test_a_product_takes_its_waves_and_an_epilogue_its_last_write(machine):
    graph = layer()
    roofline = Roofline(graph, machine, 4)
    engine = roofline.engine
    tiles = (4096 / 4 / 128) * (2048 / 256)
    waves = -(-tiles // 108)
    expected = waves * 108 * 2 * 128 * 256 * 1024 / engine.matmul_flops_per_s
    assert roofline.kernel_s(0, "tokens") == pytest.approx(expected)
    written = WORD * 4096 / 4 * 2048
    assert roofline.kernel_s(1, "tokens") == pytest.approx(written / engine.elementwise_bytes_per_s)


def test_a_tensor_with_one_elementwise_reader_stays_on_the_chip(machine):
    graph = layer()
    (edge,) = fused_edges(graph)
    assert (edge.producer, edge.consumer) == (0, 1)
    roofline = Roofline(graph, machine, 4)
    moved = WORD * (4096 * 2048 / 4 + 4096 * 2048)
    expected = moved / roofline.engine.elementwise_bytes_per_s
    assert roofline.materialised_s(edge, ("out", None)) == pytest.approx(expected)
    # 32 elements pass in no time: what takes time is that the reader is launched by itself
    few = replace(graph, sizes=dict.fromkeys(graph.sizes, 4))
    (edge,) = fused_edges(few)
    assert Roofline(few, machine, 4).materialised_s(edge, ("out", None)) == pytest.approx(5e-6)


def test_an_output_of_a_graph_leaves_the_chip_though_one_kernel_reads_it():
    assert fused_edges(replace(layer(), outputs=("up", "relu"))) == ()


def test_products_of_activations_count_what_both_share():
    reads = (Operand("q", ("t", "h", "d")), Operand("k", ("s", "h", "d")))
    kernel = Kernel("qk", Unit.MATRIX, ("t", "h", "s"), reads)
    assert product_shape(kernel, {"t": 2, "h": 3, "d": 5, "s": 7}) == (3, 2, 5, 7)


def test_changes_take_what_the_collectives_take(machine):
    """The closed forms of the catalog's network, and one launch for each."""
    seconds = SplitTimes(layer(), machine, 4, Residency())
    efficiencies = level_efficiencies(machine.spec, machine.calibration)
    group = make_group(machine.spec.levels, 1.0, 4.0, efficiencies)
    launch_s = machine.calibration.collective_launch_s
    for have, want, kind, num_bytes in (
        (TensorLayout(0), REPLICATED, CollectiveKind.ALL_GATHER, 8e6),
        (PARTIAL, REPLICATED, CollectiveKind.ALL_REDUCE, 8e6),
        (PARTIAL, TensorLayout(1), CollectiveKind.REDUCE_SCATTER, 8e6),
        (TensorLayout(0), TensorLayout(1), CollectiveKind.ALL_TO_ALL, 2e6),
    ):
        expected = launch_s + best_time_s(kind, num_bytes, group)
        assert seconds.change_s(8e6, have, want) == pytest.approx(float(expected))
    assert seconds.change_s(8e6, REPLICATED, TensorLayout(0)) == 0.0


def test_messages_are_sent_whatever_the_split(machine):
    graph = layer((KernelMessage(MessageKind.SEND, 1e6), KernelMessage(MessageKind.BROADCAST, 1e6)))
    seconds = SplitTimes(graph, machine, 4, Residency())
    plain = SplitTimes(layer(), machine, 4, Residency()).tables(TimeWeights(0.0, 1.0))
    sent = seconds.tables(TimeWeights(0.0, 1.0))
    links = machine.links(1, 4)
    both = links.time_s(CollectiveKind.SEND, 1e6) + links.time_s(CollectiveKind.BROADCAST, 1e6)
    assert sent.costs[0] - plain.costs[0] == pytest.approx(both)


@pytest.mark.parametrize(
    ("stated", "kind"),
    [
        ({}, CollectiveKind.REDUCE_SCATTER),
        ({"up": "out"}, CollectiveKind.REDUCE_SCATTER),
        ({"up": "whole"}, CollectiveKind.ALL_REDUCE),
    ],
)
def test_what_leaves_the_graph_open_is_summed(machine, stated, kind):
    """As it may lie, in shards that a reduce-scatter makes; whole where that is stated."""
    graph = layer()
    open_end = DataflowGraph(
        "open", graph.kernels[:1], SIZES, graph.inputs, ("up",), "tokens", output_layouts=stated
    )
    tables = SplitTimes(open_end, machine, 4, Residency()).tables(TimeWeights(0.0, 1.0))
    ways = {way.dim: number for number, way in enumerate(tables.splits[0])}
    sums_s = machine.links(1, 4).time_s(kind, WORD * 4096 * 2048)
    assert tables.cost([ways["in"]]) == pytest.approx(sums_s)
    (placed,) = tables.changes([ways["in"]])
    assert (placed.producer, placed.readers, placed.leaves) == ("up", (), True)
    assert placed.change.kind is kind
    assert (tables.cost([ways["out"]]) == 0.0) is ("whole" not in stated.values())


def test_weights_and_tensors_are_held_by_their_shards():
    graph = layer()
    holdings = KernelMemory(graph, 4, Residency(layers=3))
    up = graph.kernels[0]
    assert holdings.kernel_bytes(0, split(up, "out")) == 3 * WORD * 1024 * 512 + WORD * 4096 * 512
    assert holdings.kernel_bytes(0, split(up, "in")) == 3 * WORD * 256 * 2048 + WORD * 4096 * 2048
    assert holdings.num_parameters(0, split(up, "tokens")) == 3 * 1024 * 2048


def test_training_keeps_what_the_backward_pass_reads():
    graph = with_backward(layer())
    holdings = KernelMemory(graph, 1, Residency(layers=3, passes_in_flight=2, bytes_per_param=16.0))
    whole = splits_of(graph.kernels[0])[0]
    assert holdings.kernel_bytes(0, whole) == 3 * 16 * 1024 * 2048 + 3 * 2 * WORD * 4096 * 2048
    gradient = graph.number["up.grad.weight"]
    assert holdings.kernel_bytes(gradient, splits_of(graph.kernels[gradient])[0]) == 0.0


def test_a_weight_that_lies_otherwise_for_a_gradient_is_held_twice():
    graph = with_backward(layer())
    holdings = KernelMemory(graph, 4, Residency())
    ((pair, weight),) = holdings.shared_weights
    first, second = (graph.kernels[number] for number in pair)
    assert (first.name, second.name) == ("up", "up.grad.x")

    def copy(a, b):
        return holdings.copy_bytes(pair, weight, split(first, a), split(second, b))

    assert copy("out", "out") == 0.0
    assert copy("tokens", "out") == 0.0
    assert copy("out", "in") == WORD * 256 * 2048


def test_gradients_of_weights_are_summed_once_for_all_passes(machine):
    graph = with_backward(layer())
    pair = (0, graph.number["up.grad.weight"])
    once = SplitTimes(graph, machine, 4, Residency(), num_passes=1).tables(TimeWeights(0.0, 1.0))
    often = SplitTimes(graph, machine, 4, Residency(), num_passes=10).tables(TimeWeights(0.0, 1.0))
    costs = once.pair_costs[pair].costs
    assert often.pair_costs[pair].costs == pytest.approx(costs / 10)
    ways = [{way.dim: n for n, way in enumerate(once.splits[k])} for k in pair]
    scatter_s = machine.links(1, 4).time_s(CollectiveKind.REDUCE_SCATTER, WORD * 1024 * 2048)
    assert costs[ways[0]["out"], ways[1]["tokens"]] == pytest.approx(scatter_s)
    assert costs[ways[0]["out"], ways[1]["out"]] == 0.0


def test_few_tiles_are_cut_along_their_sums(machine):
    """One tile on 108 cores: best of k parts, their FP32 sums written and read; by enumeration."""
    engine = Roofline(layer(), machine, 1).engine
    rows, inner, columns = 64, 100_352, 147
    rate, memory = engine.matmul_flops_per_s, engine.memory_bytes_per_s
    tiles = -(-rows // 128) * -(-columns // 256)

    def seconds(parts):
        waves = -(-tiles * parts // 108)
        arithmetic = waves * 108 * 2 * 128 * 256 * -(-inner // parts) / rate
        return arithmetic + (parts > 1) * 2 * 4 * parts * rows * columns / memory

    found = product_s((1, rows, inner, columns), engine)
    assert found == pytest.approx(min(map(seconds, (1, 2, 4, 8, 16, 32, 64, 108))))
    assert found < seconds(1) / 20
    assert found <= 1.02 * min(map(seconds, range(1, 217)))


def test_many_tiles_are_not_cut(machine):
    engine = Roofline(layer(), machine, 1).engine
    shape = (1, 8192, 4096, 8192)
    assert product_s(shape, engine) == matmul_compute_s(*shape, engine.matmul_flops_per_s, engine)


def test_seconds_by_kernel_sum_to_a_pass(machine):
    """What kernels take, and the collectives behind them, is a pass through the stage."""
    found = plan_dataflow(layer(), machine, allowed={"tp": (4,)}, num_passes=2)
    best = found.best
    kernels = split_kernels(layer(), best)
    total = sum(k.time_s + sum(sent.time_s for sent in k.collectives) for k in kernels)
    assert best.layers_per_stage * total == pytest.approx(best.stage_s)


def table():
    """Return a lookup of several rows for each sample and table, and a product behind it."""
    ids = Operand("ids", ("samples", "tables", "pooling"))
    rows = Weight("rows", ("tables", "entries", "width"))
    pooled = Kernel("pooled", Unit.NONE, ("samples", "tables", "width"), (ids,), (rows,))
    read = Operand("pooled", ("samples", "tables", "width"))
    held = Weight("top.weight", ("tables", "width", "out"))
    top = Kernel("top", Unit.MATRIX, ("samples", "out"), (read,), (held,), flops_per_point=2.0)
    sizes = {"samples": 4096, "tables": 8, "entries": 10**6, "width": 64, "pooling": 20, "out": 64}
    return with_backward(DataflowGraph(
        "table", (pooled, top), sizes, {"ids": ids.dims}, ("top",), "samples", constants=("ids",)
    ))  # fmt: skip


def test_rows_of_a_table_are_updated_where_they_lie(machine):
    """By hand: 4 tables of 8 on a device, 20 rows of 64 for each sample, 4 bytes of state a row."""
    graph, residency = table(), Residency(bytes_per_param=14.0, bytes_per_row=4.0)
    seconds = SplitTimes(graph, machine, 2, residency)
    pooled, gradient = (graph.number[name] for name in ("pooled", "pooled.grad.rows"))
    way = split(graph.kernels[pooled], "tables")
    entries = 4 * 10**6
    output = WORD * 4096 * 4 * 64
    held = KernelMemory(graph, 2, residency).kernel_bytes(pooled, way)
    assert held == entries * (64 * WORD + 4) + output
    assert KernelMemory(graph, 2, residency).num_parameters(pooled, way) == 0.0
    rates = Roofline(graph, machine, 2, 4.0)
    asked, ids = 4096 * 4 * 20, WORD * 4096 * 4 * 20
    rate = rates.engine.memory_bytes_per_s
    read = asked * 64 * WORD + ids + output
    assert rates.kernel_s(pooled, "tables") == pytest.approx(read / rate)
    updated = 2 * asked * (64 * WORD + 4) + ids + output
    assert rates.kernel_s(gradient, "tables") == pytest.approx(updated / rate)
    # a gradient that lies by tables is there; one by samples comes in an all-to-all, every pass
    often = SplitTimes(graph, machine, 2, residency, num_passes=10)
    costs = often.tables(TimeWeights(0.0, 1.0)).pair_costs[pooled, gradient].costs
    ways = [{one.dim: n for n, one in enumerate(seconds.splits[k])} for k in (pooled, gradient)]
    assert costs[ways[0]["tables"], ways[1]["tables"]] == 0.0
    moved = machine.links(1, 2).time_s(CollectiveKind.ALL_TO_ALL, WORD * 4096 * 8 * 64 / 2)
    assert costs[ways[0]["tables"], ways[1]["samples"]] == pytest.approx(moved)


def test_replicas_of_such_tables_are_refused(machine):
    found = plan_dataflow(table(), machine, num_passes=4, optimizer="rowwise-adagrad")
    assert found.refused["rows of tables are updated by one replica"] > 0
    assert all(plan.dp == 1 for plan in found.plans)


def test_linpack_holds_its_matrix_once():
    """On one device: the matrix, and the three panels of the first iteration; by hand."""
    size, block, word = 1024, 128, 8.0
    graph = hpl(size, block)
    memory = KernelMemory(graph, 1)
    held = sum(memory.kernel_bytes(n, splits_of(k)[0]) for n, k in enumerate(graph.kernels))
    assert held == word * (size * size + 3 * size * block)
    assert [kernel.in_place for kernel in graph.kernels] == [False] * 4 + [True] * 28


def test_linpack_fills_the_memory(machine):
    """200,000 squared in FP64 are 320 GB: eight devices of 80 GB hold them with their panels."""
    found = plan_dataflow(hpl(200_000, 4096), machine, only_best=True)
    assert 8.0 * 200_000**2 / 8 < found.best.held_bytes < machine.usable_bytes
    assert found.best.step_s > 2 / 3 * 200_000**3 / (8 * 19.5e12)


def test_what_is_written_over_has_no_gradient():
    product, relu = layer().kernels
    graph = replace(layer(), kernels=(product, replace(relu, in_place=True)))
    with pytest.raises(SpecError, match="in_place"):
        with_backward(graph)
