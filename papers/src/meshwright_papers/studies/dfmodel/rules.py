"""A layer on a design under the rules of DFModel (Ko et al. 2024, arXiv 2412.16432), beside ours.

Cores are those that the published runs enter, memories and links those of the point. There each
dimension of the network serves one of tp, pp and dp whole, an all-reduce on a ring takes half of
its usual time, nothing has latency, and memories and links run at their full rate. GPUs and TPUs
run kernel by kernel, without a limit on the bytes held on the chip. Weights are read once for all
sequences that pass at a time; their number is the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from math import inf

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.answer import Fusion
from meshwright.dataflow.fusion.cores import CoreGrid, MemoryTier
from meshwright.dataflow.fusion.fuse import problem_of
from meshwright.dataflow.fusion.question import FusionQuestion, Target, tiles_of
from meshwright.dataflow.fusion.search import WeightedProblem, best_of
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.spec.system import SystemSpec
from meshwright_papers.studies.dfmodel.networks import (
    DimKind,
    NetworkDim,
    network_dims,
    price_units,
)
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, accelerator_named

TP, PP, DP = range(3)
BY_KERNEL: Mapping[str, str] = {"A100": "A100", "H100": "H100", "TPU-v4": "TPUv4"}
FUSED: Mapping[str, str] = {"SN10": "SN10", "SN30": "SN30", "WSE-2": "WSE-2"}
"""Chips of the published runs by their names here."""


def all_reduce_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of an all-reduce: (n - 1)/n S/B, 2 S/(n B) where fully connected [s]."""
    n = dim.size
    share = 2.0 / n if dim.kind is DimKind.FULL else (n - 1) / n
    return share * num_bytes / dim.bandwidth_bytes_per_s


def send_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of a message to a neighbour: S/B [s]."""
    return num_bytes / dim.bandwidth_bytes_per_s


def peer_price_units(graph: DataflowGraph, system: SystemSpec, num_passes: int) -> float:
    """Return the price of a design in the peer's units, whatever it computes."""
    return price_units(system)


def peer_passes_per_s(graph: DataflowGraph, system: SystemSpec, num_passes: int) -> float | None:
    """Return the most passes in a second under the peer's rules.

    None where they are not defined: for a graph that does not repeat or makes gradients, words of
    other than two bytes, a chip of no published run, and where nothing fits.
    """
    is_forward = all(kernel.phase is Phase.FORWARD for kernel in graph.kernels)
    name = system.chip.name
    is_known = name in BY_KERNEL or name in FUSED
    if graph.repeats == 1 or not is_forward or graph.number_bytes != 2.0 or not is_known:
        return None
    grid, by_kernel = _grid(system), name in BY_KERNEL
    dims = network_dims(system)
    rates: list[float] = []
    for roles in permutations(range(3), len(dims)):
        by_role = dict(zip(roles, dims, strict=True))
        tp, pp, dp = (by_role[role].size if role in by_role else 1 for role in (TP, PP, DP))
        if pp > graph.repeats or dp > num_passes:
            continue
        link = _link_bytes_per_s(by_role.get(TP) or dims[0])
        question = FusionQuestion(
            graph, Target(name, grid, link), tp, pp, rules=DFMODEL, micro_batch=1,
            tile=graph.sizes[graph.tiled] if by_kernel else None, runs_by_kernel=by_kernel,
        )  # fmt: skip
        try:
            found = _fused(question)
        except InfeasibleError:
            continue
        rates += [
            _rate(found, question, dp, num_passes, together)
            for together in _together(found, num_passes, dp)
        ]
    return max(rates, default=None)


def _fused(question: FusionQuestion) -> Fusion:
    """Return the best partitions, over all tiles where none is given."""
    tiles = tiles_of(question.graph) if question.tile is None else [question.tile]
    return best_of([WeightedProblem(problem_of(question, tile)) for tile in tiles]).fusion


def _together(found: Fusion, num_passes: int, dp: int) -> Iterator[int]:
    """Yield powers of two of sequences that pass at a time: memory holds their tensors."""
    size = 1
    while size * dp <= num_passes and size * found.held_bytes <= found.problem.spare_dram_bytes:
        yield size
        size *= 2


def _rate(
    found: Fusion, question: FusionQuestion, dp: int, num_passes: int, together: int
) -> float:
    """Return passes in a second: weights come once for those that pass together."""
    setup_s = found.problem.total_setup_s
    layer_s = max(found.time_s - setup_s * (1.0 - 1.0 / together), found.problem.send_s)
    waits = 1.0 + (question.pp - 1) * dp * together / num_passes
    return dp / (layer_s * question.repeats * waits)


def _grid(system: SystemSpec) -> CoreGrid:
    """Return the cores of the published runs with the memory of a system."""
    name, memory = system.chip.name, system.chip.main_memory
    grid = accelerator_named({**BY_KERNEL, **FUSED}[name]).grid
    return replace(
        grid,
        sram_bytes=inf if name in BY_KERNEL else grid.sram_bytes,
        outside=(MemoryTier(memory.capacity_bytes, memory.bandwidth_bytes_per_s or 0.0),),
    )


def _link_bytes_per_s(dim: NetworkDim) -> float:
    """Return the link of a ring that sums as fast as a dimension does there [bytes/s].

    (n - 1)/n S/B on a ring and a switch, 2 S/(n B) where all are joined.
    """
    is_full = dim.kind is DimKind.FULL and dim.size > 1
    return dim.bandwidth_bytes_per_s * ((dim.size - 1) / 2.0 if is_full else 1.0)
