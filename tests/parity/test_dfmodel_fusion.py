"""Eight SN10 and a GPT-3 layer: what the public runs of DFModel print (arXiv 2412.16432)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.dataflow.fusion.cores import TileShape, core_choices
from meshwright.dataflow.fusion.lattice import Branches, lattice_of, limits_of
from meshwright.dataflow.fusion.problem import (
    OWN,
    DeviceShare,
    FusionProblem,
    Tensors,
    fusion_problem,
)
from meshwright.dataflow.fusion.search import WeightedProblem, best_of, evaluate, fuse
from meshwright.graph.kernels.kernel import Unit
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, accelerator_named
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

LAYERS = 96
STREAM_BYTES = 2048 * 12288 * 2
SN10 = accelerator_named("SN10")
HEADS = ("q", "k", "v", "qk", "softmax", "drop1", "av", "proj")
SPLITS = {**dict.fromkeys(HEADS, "heads"), **dict.fromkeys(("ffn0", "gelu", "ffn1"), "ffn")}
VENDOR = (
    ("add0", "ln1", "q", "k", "v"),
    ("qk", "softmax", "drop1", "av", "proj", "drop2", "add1", "ln2"),
    ("ffn0", "gelu"),
    ("ffn1", "drop3", "add2"),
)


def problem(tp, pp, tile, rules=DFMODEL, grid=SN10.grid, *, by_kernel=False):
    """Return the layer on one of eight chips; an all-reduce runs round a ring both ways."""
    reduce_s = (tp - 1) / tp * STREAM_BYTES / SN10.link_bytes_per_s
    share = DeviceShare(
        tp=tp,
        splits=SPLITS,
        network_s={"proj": reduce_s, "ffn1": reduce_s},
        tile=tile,
        repeats=LAYERS / pp,
        send_s=STREAM_BYTES / SN10.link_bytes_per_s if pp > 1 else 0.0,
        runs_by_kernel=by_kernel,
    )
    return fusion_problem(gpt_layer(12288, 96, 128, 2048), grid, share, rules)


def samples_per_s(fusion, pp):
    return pp / (fusion.time_s * LAYERS)


def vendor(tile):
    asked = problem(8, 1, tile)
    return evaluate(asked, asked.sets_of(VENDOR))


def test_the_published_incumbent_is_the_optimum():
    found = fuse(problem(4, 2, 64))
    assert found.time_s * 1e9 == pytest.approx(7_323_254.784, rel=1e-12)
    assert (found.micro_batch, found.held_bytes, found.gap) == (60, 553_648_128, 0.0)
    assert samples_per_s(found, 2) == pytest.approx(2.844818860986619, rel=1e-12)
    assert [part.sram_bytes <= 320 * 2**20 for part in found.partitions] == [True] * 4


def test_the_layer_has_26_ideals_301_steps_and_271_partitions():
    limits = limits_of(problem(8, 1, 64))
    every = replace(limits, branches=Branches(()), sram_bytes=np.inf)
    lattice = lattice_of(every)
    assert (len(lattice.ideals), len(lattice.source)) == (26, 301)
    assert len(lattice.sets) == 271


def test_the_vendor_mapping_takes_what_its_run_prints():
    found = vendor(32)
    assert found.time_s * 1e9 == pytest.approx(6_147_651.291428571, rel=1e-12)
    assert (found.micro_batch, found.held_bytes) == (42, 390_070_272)
    assert samples_per_s(found, 1) == pytest.approx(1.694414040885861, rel=1e-12)


def test_most_of_the_gain_over_the_vendor_mapping_is_the_tile_and_the_degree():
    best = samples_per_s(fuse(problem(4, 2, 64)), 2)
    ratios = [best / samples_per_s(vendor(tile), 1) for tile in (32, 64, 128, 256)]
    assert ratios == pytest.approx([1.6789, 1.5930, 1.5501, 1.5286], abs=1e-4)


def test_gain_over_kernel_by_kernel_at_the_same_degree_and_at_its_best():
    unlimited = replace(SN10.grid, sram_bytes=np.inf)
    best = samples_per_s(fuse(problem(4, 2, 64)), 2)
    by_kernel = {
        (tp, 8 // tp): samples_per_s(
            fuse(problem(tp, 8 // tp, 2048, grid=unlimited, by_kernel=True)), 8 // tp
        )
        for tp in (8, 4, 2, 1)
    }
    assert best / by_kernel[8, 1] == pytest.approx(6.1925, abs=1e-4)
    assert max(by_kernel, key=by_kernel.get) == (1, 8)
    assert best / by_kernel[1, 8] == pytest.approx(3.07, abs=5e-3)


def test_the_sram_of_single_kernels_costs_a_little_more():
    best = samples_per_s(fuse(problem(4, 2, 64)), 2)
    found = fuse(problem(1, 8, 256, by_kernel=True))
    assert best / samples_per_s(found, 8) == pytest.approx(3.098, abs=1e-3)
    assert max(part.weight_parts for part in found.partitions) == 4


SWEEP = [
    (tp, 8 // tp, tile) for tp in (8, 4, 2, 1) for tile in (16, 32, 64, 128, 256, 512, 1024, 2048)
]


def test_the_best_of_all_degrees_and_power_of_two_tiles_is_the_published_one():
    found = best_of(WeightedProblem(problem(*case), LAYERS / case[1]) for case in SWEEP)
    assert SWEEP[found.number] == (4, 2, 64)
    assert 1 / found.weighted_s == pytest.approx(2.8448, abs=5e-5)
    assert found.bound_s == found.weighted_s
    assert found.num_fused + found.num_pruned + len(found.refused) == len(SWEEP)


def test_a_tile_that_divides_by_the_stages_of_a_core_is_faster_still():
    found = fuse(problem(4, 2, 96))
    assert samples_per_s(found, 2) == pytest.approx(2.8581, abs=1e-4)


def test_own_rules_cost_more_time_and_hold_less():
    peer, own = fuse(problem(4, 2, 64)), fuse(problem(4, 2, 64, OWN))
    assert own.time_s > peer.time_s
    assert own.held_bytes < peer.held_bytes
    assert sum(own.parts_s.values()) == pytest.approx(own.time_s, rel=1e-12)


A100_RUN = json.loads(
    (Path(__file__).parents[1] / "data" / "dfmodel_145b_kernels.json").read_text("utf-8")
)


def a100_problem():
    """Return the 41 kernels of the 145.6B run from its table: shapes, splits and reads."""
    run, grid = A100_RUN, accelerator_named("A100").grid
    tp, tiles = run["tp"], 2048 // run["tile"]
    rows = [dict(zip(run["columns"], row, strict=True)) for row in run["kernels"]]

    def cut(row, dim):
        return -(-row[dim] // tp) if row["split"] == dim else row[dim]

    outputs, shapes, held = [], [], []
    for row in rows:
        m = cut(row, "outer") * cut(row, "m")
        k, n = cut(row, "k"), cut(row, "n")
        is_sum = row["tiled"] == "k"
        tile_k, tile_n = (k // tiles, n) if is_sum else (k, n // tiles)
        unit = Unit.MATRIX if row["unit"] == "systolic" else Unit.VECTOR
        shapes.append(TileShape(m, tile_k, tile_n, unit))
        outputs.append(2.0 * m * n)
        held.append(2.0 * m * k if row["has_weight"] else 0.0)
    number = {row["name"]: place for place, row in enumerate(rows)}
    ends = np.array([[number[a], number[b]] for a, b in run["reads"]])
    reads = np.zeros((len(rows), len(rows)), bool)
    reads[ends[:, 1], ends[:, 0]] = True
    whole = np.array(outputs)[ends[:, 0]]
    network = [row["all_reduce_bytes"] * (tp - 1) / tp / 600e9 for row in rows]
    columns = {"sequence_bytes": whole, "written_bytes": whole / tiles}
    return FusionProblem(
        names=tuple(number),
        reads=reads,
        waits=np.zeros_like(reads),
        phase=np.array([row["is_backward"] for row in rows], np.int64),
        choices=tuple(core_choices(shape, grid) for shape in shapes),
        held_bytes=np.array(held),
        setup_bytes=np.array(held),
        looked_up_bytes=np.zeros(len(rows)),
        network_s=np.array(network),
        tensors=Tensors(
            ends[:, 0], ends[:, 1:], **columns,
            inside_bytes=whole[:, None] / tiles, read_bytes=whole[:, None] / tiles,
        ),
        grid=grid,
        num_tiles=tiles,
        spare_dram_bytes=np.inf,
        micro_batches=(1,),
        rules=DFMODEL,
        runs_by_kernel=True,
    )  # fmt: skip


def test_kernel_by_kernel_on_1536_a100_is_what_the_run_left_unsolved():
    found = fuse(a100_problem())
    pipeline = 1 + 7 / 96
    assert found.time_s * pipeline * 1e9 == pytest.approx(14_426_242.164, rel=1e-9)
    assert found.time_s * pipeline * 1e9 < A100_RUN["printed_ns"]
