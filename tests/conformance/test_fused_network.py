"""Fusion is charged the network of the unfused price: on every graph, and for all that is sent."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.catalog.graphs.files import graph_names
from meshwright.dataflow.fusion.fuse import fused_stage_time
from meshwright.dataflow.price import EXPOSED, NETWORK_ONLY, Residency, SplitTimes, TimeWeights
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.dataflow.search import calibrated_system
from meshwright.dataflow.sharding import GraphSharding, choose_sharding
from meshwright.dataflow.stages import StageWork
from meshwright.graph.kernels.backward import gradient_name, with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.workloads import hpl
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.studies.dfmodel.workloads import dlrm_a, gpt_layer

PASSES, LAYERS, DEGREE = 6, 3, 4
MACHINE, GPUS = calibrated_system("8xSN10"), calibrated_system("8xA100")
"""Chips that fuse, and others that have rates for wider numbers too."""
COMPUTED = TimeWeights(network=0.0)
SMALL = gpt_layer(1024, 8, 128, 256, repeats=LAYERS)
GRAPHS = {
    **{name: load_graph(name) for name in graph_names()},
    "small": SMALL,
    "small, training": with_backward(SMALL),
    "dlrm-a, training": with_backward(dlrm_a()),
    "hpl": hpl(512, 64, grid_columns=8, word_bytes=2.0),
}


def works(
    graph: DataflowGraph, machine: CalibratedSystem = MACHINE
) -> Iterator[tuple[StageWork, SplitTimes]]:
    """Yield stages whose ways are good where both count, and where one counts most."""
    seconds = SplitTimes(graph, machine, DEGREE, Residency(), PASSES)
    for weights in (EXPOSED, TimeWeights(1.0, 0.001), TimeWeights(0.001, 1.0)):
        sharding = choose_sharding(seconds.tables(weights))
        assert sharding is not None
        network = seconds.tables(NETWORK_ONLY)
        yield StageWork(graph, DEGREE, sharding, network, LAYERS, PASSES), seconds


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_share_out_all_that_the_unfused_price_adds_to_computation(name):
    for work, seconds in works(GRAPHS[name], GPUS):
        exposed, computed = (
            seconds.tables(weights).cost(work.sharding.ways) for weights in (EXPOSED, COMPUTED)
        )
        network_s = sum(work.network_s.values())
        assert network_s == pytest.approx(exposed - computed, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    "graph",
    [SMALL, pytest.param(with_backward(SMALL), marks=pytest.mark.slow)],
    ids=["forward", "training"],
)
def test_where_nothing_else_takes_time_a_fused_stage_takes_its_network(graph):
    chip = MACHINE.spec.chip
    memories = [m.model_copy(update={"bandwidth_bytes_per_s": 1e30}) for m in chip.memories]
    quick = chip.model_copy(
        update={"matmul_flops_per_s": {"bf16": 1e30}, "memories": tuple(memories)}
    )
    stage_time = fused_stage_time(
        CalibratedSystem(
            MACHINE.spec.model_copy(update={"chip": quick}),
            replace(MACHINE.calibration, launch_s=0.0),
        )
    )
    for work, _ in works(graph):
        assert stage_time.price(work).time_s == pytest.approx(LAYERS * sum(work.network_s.values()))


def test_gradients_that_are_open_sums_are_added_up_once_a_step():
    """Split over tokens, every device holds all weights and a part of each gradient."""
    graph = with_backward(SMALL)
    seconds = SplitTimes(graph, MACHINE, DEGREE, Residency(), PASSES)
    work = StageWork(
        graph, DEGREE, over_tokens(seconds), seconds.tables(NETWORK_ONLY), LAYERS, PASSES
    )
    for kernel in graph.kernels:
        for weight in kernel.weights:
            name = gradient_name(kernel, weight)
            if name in graph.number:
                num_bytes = graph.tensor_bytes(graph.kernels[graph.number[name]])
                sum_s = seconds.links.time_s(CollectiveKind.ALL_REDUCE, num_bytes)
                assert work.network_s[name] == pytest.approx(sum_s / PASSES)


def test_messages_are_charged_to_the_kernels_that_send_them():
    work, seconds = next(works(GRAPHS["hpl"]))
    kinds = {"send": CollectiveKind.SEND, "broadcast": CollectiveKind.BROADCAST}
    sending = [kernel for kernel in GRAPHS["hpl"].kernels if kernel.messages]
    assert sending
    for kernel in sending:
        sent_s = sum(
            seconds.links.time_s(kinds[m.kind.value], m.num_bytes) for m in kernel.messages
        )
        assert work.network_s[kernel.name] >= sent_s > 0.0


def over_tokens(seconds: SplitTimes) -> GraphSharding:
    """Return the ways in which every kernel is split over tokens, or else not at all."""
    ways = [
        next((n for n, split in enumerate(splits) if split.dim == "tokens"), 0)
        for splits in seconds.splits
    ]
    return GraphSharding(seconds.tables(), tuple(ways), 0.0, 0.0, 0.0)
