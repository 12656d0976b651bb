"""Shapes, buffers, DRAM and seconds of partitions that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.dataflow.fusion.cores import (
    CoreGrid,
    MemoryTier,
    TileShape,
    passing_dims,
    tile_shape,
)
from meshwright.dataflow.fusion.price import PartitionTimes, price_partitions
from meshwright.dataflow.fusion.problem import OWN, DeviceShare, fusion_problem
from meshwright.dataflow.fusion.search import evaluate, fuse
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL
from meshwright_papers.studies.dfmodel.workloads import gpt_layer, gpt_training_layer

GRID = CoreGrid(
    num_cores=8, array_rows=4, array_columns=4, frequency_hz=1e9, sram_bytes=4000.0,
    outside=(MemoryTier(1e6, 1e9),),
)  # fmt: skip
ROW, WIDE = ("tokens", "hidden"), ("tokens", "ffn")


def network(**changed):
    """Two products with a function between them: 32 tokens, width 8, inner width 16, 2 bytes."""
    first, second = Weight("w0", ("hidden", "ffn")), Weight("w1", ("ffn", "hidden"))
    kernels = (
        Kernel("up", Unit.MATRIX, WIDE, (Operand("x", ROW),), (first,)),
        Kernel("act", Unit.VECTOR, WIDE, (Operand("up", WIDE),)),
        Kernel("down", Unit.MATRIX, ROW, (Operand("act", WIDE),), (second,)),
    )
    sizes = {"tokens": 32, "hidden": 8, "ffn": 16}
    graph = DataflowGraph("network", kernels, sizes, {"x": ROW}, ("down",), "tokens")
    return replace(graph, **changed)


def priced(sets, rules=DFMODEL, grid=GRID, graph=None, **share):
    problem = fusion_problem(graph or network(), grid, DeviceShare(tile=8, **share), rules)
    return price_partitions(problem, problem.sets_of(sets))


def test_shapes_of_a_product_a_function_and_a_weight_gradient():
    graph = gpt_training_layer(64, 4, 16, 32)
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    sizes, passing = {**graph.sizes, "tokens": 8}, passing_dims(graph, 16)
    assert tile_shape(kernels["q"], sizes, passing) == TileShape(64, 64, 8, Unit.MATRIX)
    assert tile_shape(kernels["qk"], sizes, passing) == TileShape(4 * 32, 16, 8, Unit.MATRIX)
    assert tile_shape(kernels["softmax"], sizes, passing) == TileShape(128, 1, 8, Unit.VECTOR)
    gradient = tile_shape(kernels["q.grad.weight"], sizes, passing)
    assert gradient.inner == 8
    assert gradient.rows * gradient.columns == 64 * 64


def test_buffers_and_traffic_of_a_whole_graph_under_the_rules_of_the_peer():
    whole = priced([("up", "act", "down")])
    # weights 2 x 256 B; two tensors of 8 x 16 x 2 = 256 B a tile, each in two buffers
    assert whole.sram_bytes.tolist() == [512 + 4 * 256]
    assert whole.moved_bytes.tolist() == [0]


def test_a_tensor_that_crosses_counts_at_both_ends():
    parts = priced([("up",), ("act", "down")])
    assert parts.sram_bytes.tolist() == [256 + 2 * 256, 256 + 2 * 256 + 2 * 256]
    assert parts.moved_bytes.tolist() == [4 * 256, 4 * 256]
    assert parts.dram_s == pytest.approx([1024e-9, 1024e-9])
    assert parts.held_bytes.tolist() == [256, 256]


def test_kernel_by_kernel_has_one_buffer():
    parts = priced([("up",), ("act",), ("down",)], runs_by_kernel=True)
    assert parts.sram_bytes.tolist() == [256 + 256, 2 * 256, 256 + 256]


def test_own_rules_count_what_enters_and_leaves():
    whole = priced([("up", "act", "down")], OWN)
    # x in and down out: tiles of 8 x 8 x 2 = 128 B in two buffers, four tiles each way
    assert whole.sram_bytes.tolist() == [512 + 4 * 256 + 4 * 128]
    assert whole.moved_bytes.tolist() == [8 * 128]


def test_computation_is_that_of_the_slowest_kernel_on_its_cores():
    parts = priced([("up", "act", "down")])
    # up: 16 x 8 outputs are 4 x 2 arrays of 8 cycles; down: 2 x 2 arrays of 16; act: 4 of 8
    # 4 + 2 + 2 cores: up in 16, act in 16, down in 32 cycles; no division does better
    assert parts.tile_cycles.tolist() == [32]
    assert parts.compute_s == pytest.approx([4 * 32e-9])


def test_filling_a_row_of_three_kernels_takes_two_tiles_more():
    parts = priced([("up", "act", "down")], OWN)
    assert parts.fill_s == pytest.approx(2 * parts.busy_s / 4)


def test_a_partition_takes_at_least_its_launch():
    whole = priced([("up", "act", "down")], OWN, replace(GRID, launch_s=5e-6))
    # 8 tiles of 128 B in and out at 1 GB/s are 1024 ns, two tiles of four more fill, weights 512 ns
    assert whole.run_s(1) == pytest.approx([1536e-9])
    assert whole.spaced_s(1) == pytest.approx([5e-6])
    # for five sequences: 1024 + 512 / 5 ns each, more than 5000 / 5
    assert whole.spaced_s(5) == pytest.approx([1126.4e-9])


def test_launches_join_partitions():
    """A launch for each of three partitions is longer than what the three take."""
    problem = fusion_problem(network(), GRID, DeviceShare(tile=8, micro_batches=(1,)), OWN)
    alone = evaluate(problem, problem.sets_of([("up",), ("act",), ("down",)]))
    launched = replace(problem, grid=replace(GRID, launch_s=5e-6))
    three = evaluate(launched, launched.sets_of([("up",), ("act",), ("down",)]))
    assert alone.time_s < three.time_s == pytest.approx(3 * 5e-6)
    best = fuse(launched)
    assert best.time_s == pytest.approx(5e-6)
    assert [part.limit for part in best.partitions] == ["launch"]
    assert best.parts_s["exposed_launch_s"] == pytest.approx(5e-6 - 512e-9 - 1024e-9 * 1.5)


def test_a_split_dim_divides_weights_and_tensors():
    parts = priced([("up",), ("act", "down")], tp=2, splits=dict.fromkeys(network().number, "ffn"))
    assert parts.sram_bytes.tolist() == [128 + 2 * 128, 128 + 2 * 128 + 2 * 128]


def test_weights_that_do_not_fit_come_in_parts_and_inputs_are_read_again():
    small = replace(GRID, sram_bytes=640.0)
    parts = priced([("up",), ("act",), ("down",)], OWN, small)
    # up: 256 of weights beside 2 x 128 in and 2 x 256 out; 768 B of buffers alone are too many
    assert parts.fits.tolist() == [False, False, False]
    roomy = priced([("up",), ("act",), ("down",)], OWN, replace(GRID, sram_bytes=900.0))
    assert roomy.weight_parts.tolist() == [2, 1, 2]
    assert roomy.moved_bytes.tolist() == [2 * 512 + 1024, 2048, 2 * 1024 + 512]
    peer = priced([("up",), ("act",), ("down",)], DFMODEL, replace(GRID, sram_bytes=600.0))
    assert peer.weight_parts.tolist()[0] == 3
    assert peer.moved_bytes.tolist()[0] == 1024


def test_keys_are_held_whole_under_own_rules():
    graph = gpt_layer(64, 4, 16, 32)
    grid = replace(GRID, sram_bytes=1e9)
    peer, own = (
        priced([("k", "qk")], rules, grid, graph).sram_bytes[0] for rules in (DFMODEL, OWN)
    )
    problem = fusion_problem(graph, grid, DeviceShare(tile=8), OWN)
    at = [t for t, w in enumerate(problem.tensors.writer) if w == problem.names.index("k")]
    assert problem.tensors.inside_bytes[at, 0].tolist() == [2 * 32 * 64 * 2]
    assert own > peer


def test_weight_gradients_are_held_like_weights():
    graph = gpt_training_layer(64, 4, 16, 32)
    problem = fusion_problem(graph, GRID, DeviceShare(tile=8), OWN)
    at = problem.names.index("q.grad.weight")
    assert problem.held_bytes[at] == 64 * 64 * 2
    assert problem.setup_bytes[at] == 2 * 64 * 64 * 2
    peer = fusion_problem(graph, GRID, DeviceShare(tile=8), DFMODEL)
    assert peer.held_bytes[at] == 0


def test_the_micro_batch_is_what_dram_holds():
    # setup 512 ns; two partitions move 2048 B a sequence, one none at all
    problem = fusion_problem(network(), GRID, DeviceShare(tile=8), DFMODEL)
    split = evaluate(problem, problem.sets_of([("up",), ("act", "down")]))
    assert split.micro_batch == (1_000_000 - 512) // 2048
    assert split.parts_s["exposed_setup_s"] == pytest.approx(512e-9 / split.micro_batch)
    assert sum(split.parts_s.values()) == pytest.approx(split.time_s, rel=1e-12)
    given = fusion_problem(network(), GRID, DeviceShare(tile=8, micro_batches=(3,)), DFMODEL)
    assert fuse(given).micro_batch == 3


def test_the_next_stage_cannot_be_reached_faster_than_a_send():
    found = fuse(fusion_problem(network(), GRID, DeviceShare(tile=8, send_s=1.0), DFMODEL))
    assert (found.time_s, found.gap) == (1.0, 0.0)
    assert sum(found.parts_s.values()) == pytest.approx(1.0, rel=1e-12)


def test_partitions_that_cannot_run_are_refused_with_all_faults():
    problem = fusion_problem(network(), GRID, DeviceShare(tile=8), DFMODEL)
    with pytest.raises(SpecError, match="2 faults") as caught:
        evaluate(problem, problem.sets_of([("up",), ("up",), ("down",)]))
    assert [fault.path for fault in caught.value.faults] == ["partitions.up", "partitions.act"]
    with pytest.raises(SpecError, match="act: runs before or with up"):
        evaluate(problem, problem.sets_of([("act",), ("up", "down")]))


def test_what_does_not_fit_says_what_it_needs():
    with pytest.raises(InfeasibleError, match=r"SRAM of 300 B is too small: .* a shorter tile"):
        fuse(
            fusion_problem(network(), replace(GRID, sram_bytes=300.0), DeviceShare(tile=8), DFMODEL)
        )
    tight = replace(GRID, outside=(MemoryTier(600.0, 1e9),), sram_bytes=1100.0)
    with pytest.raises(InfeasibleError, match="DRAM has 88 B left after the weights"):
        fuse(fusion_problem(network(), tight, DeviceShare(tile=8), DFMODEL))
    tighter = replace(tight, outside=(MemoryTier(500.0, 1e9),))
    with pytest.raises(InfeasibleError, match="weights alone exceed the DRAM of 500 B: more chips"):
        fuse(fusion_problem(network(), tighter, DeviceShare(tile=8), DFMODEL))


def test_members_are_in_the_order_of_the_kernels():
    problem = fusion_problem(network(), GRID, DeviceShare(tile=8), DFMODEL)
    assert np.array_equal(problem.sets_of([("down", "up")]), [[True, False, True]])


def test_sets_that_cannot_fit_leave_the_prices_of_all_others_as_they_are():
    tight = replace(GRID, sram_bytes=1500.0)
    problem = fusion_problem(network(), tight, DeviceShare(tile=8), OWN)
    sets = (np.arange(1, 8)[:, None] >> np.arange(3) & 1).astype(bool)
    together = price_partitions(problem, sets)
    apart = [price_partitions(problem, row[None]) for row in sets]
    roomy = price_partitions(replace(problem, grid=replace(tight, sram_bytes=1e6)), sets)
    assert together.fits.tolist() == [bool(one.fits[0]) for one in apart]
    assert together.fits.tolist() == ((roomy.sram_bytes <= 1500.0) | (sets.sum(1) == 1)).tolist()
    assert 0 < together.fits.sum() < len(sets)
    for column in ("compute_s", "dram_s", "sram_bytes", "moved_bytes"):
        several = together.fits & (sets.sum(axis=1) > 1)
        expected = getattr(roomy, column)[several].tolist()
        assert getattr(together, column)[several].tolist() == expected


def test_weights_come_while_the_partition_before_them_runs():
    # the set loads for 3 us, runs for 10, uses the DRAM for 4 and leaves room for 5; the one before
    # it ended at 20 us, and weights could load from 18 us on
    times = PartitionTimes(*np.array([[10.0], [3.0], [4.0], [5.0]]), launch_s=0.0)
    assert [time.item() for time in times.after(20.0, 18.0)] == [21.0, 31.0, 26.0]
    # launched 15 us after that end; the DRAM is free from 25 us on
    late = replace(times, launch_s=15.0, room_s=np.array([50.0]))
    assert [time.item() for time in late.after(20.0, 18.0)] == [21.0, 35.0, 25.0]


def test_weights_beyond_the_dram_come_at_the_pace_of_the_memory_behind_it():
    grid = replace(GRID, outside=(MemoryTier(80e9, 2e12), MemoryTier(1e12, 0.1e12)))
    assert grid.weight_byte_s(1e9, 4e9) == pytest.approx(2.5e-12)
    assert grid.weight_byte_s(0.0, 4e9) == pytest.approx(0.5e-12)


def test_a_stream_ends_with_whole_micro_batches_in_all_stages():
    problem = fusion_problem(network(), GRID, DeviceShare(tile=8, num_passes=100, num_stages=2))
    assert problem.ramp(16) == pytest.approx((7 + 1) * 16 / 100)
    assert problem.tried_micro_batches == tuple((n, n) for n in (50, 25, 15, 8, 4, 2, 1))
    endless = fusion_problem(network(), GRID, DeviceShare(tile=8))
    assert endless.ramp(16) == 1.0


def test_without_dram_weights_and_tensors_stay_in_the_sram():
    # two products of 8 x 16 weights of 2 bytes, 512 bytes, three repetitions; buffers of the tiles
    # are 1536 bytes (see above), what enters and leaves 512 bytes each
    grid = replace(GRID, outside=(), sram_bytes_per_s=1e12, sram_bytes=4096.0)
    problem = fusion_problem(network(), grid, DeviceShare(tile=8, repeats=3.0))
    assert problem.resident_bytes == 3 * 512
    assert problem.grid.sram_bytes == 4096 - 3 * 512
    found = fuse(problem)
    assert found.parts_s["exposed_setup_s"] == 0.0
    with pytest.raises(InfeasibleError, match=r"no DRAM: all weights stay in its SRAM of 4\.0 KiB"):
        fuse(fusion_problem(network(), grid, DeviceShare(tile=8, repeats=8.0)))


def test_one_pass_alone_waits_for_whole_tensors():
    # the second product reads every token of the first at once: its tiles run once more
    problem = fusion_problem(network(), GRID, DeviceShare(tile=8, for_latency=True))
    waits = replace(problem, waits=problem.reads)
    sets = problem.sets_of([("up", "act", "down")])
    once, thrice = evaluate(problem, sets), evaluate(waits, sets)
    assert thrice.parts_s["wait_s"] == pytest.approx(2 * once.partitions[0].busy_s)
    assert thrice.time_s - once.time_s == pytest.approx(2 * once.partitions[0].busy_s)
