"""DLRM, HPL and FFT as kernels: published counts, and the exchanges that their layouts ask for."""

from itertools import product
from math import log2

import pytest

from meshwright.base.errors import SpecError
from meshwright.dataflow.layouts import PARTIAL, REPLICATED, splits_of
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.kernel import MessageKind, Unit, num_elements
from meshwright.graph.kernels.workloads import TWIDDLE_FLOPS, fft, hpl
from meshwright.graph.op import Phase
from meshwright_papers.studies.dfmodel.workloads import dlrm_a


def kernel_of(graph, name):
    return graph.kernels[graph.number[name]]


def split_over(graph, name, dim):
    return next(split for split in splits_of(kernel_of(graph, name)) if split.dim == dim)


def fewest_exchanges(graph):
    """Return the fewest layout changes where every kernel is split and inputs lie as wanted."""
    choices = [
        [split for split in splits_of(kernel) if split.dim is not None] for kernel in graph.kernels
    ]
    return min(
        sum(picked[e.producer].writes != picked[e.consumer].reads[e.place] for e in graph.edges)
        for picked in product(*choices)
    )


def test_tables_of_dlrm_a_hold_the_published_parameters() -> None:
    graph = dlrm_a()
    (table,) = kernel_of(graph, "pooled").weights
    assert num_elements(table.dims, graph.sizes) == 792_999_970_200
    assert graph.num_parameters == 792_999_970_200 + 20 * 3375**2


def test_layers_of_dlrm_cost_two_flops_for_each_weight_and_sample() -> None:
    graph = dlrm_a(samples=512)
    products = sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)
    assert products == 2 * 512 * 20 * 3375**2


def test_tables_and_samples_of_dlrm_meet_in_an_all_to_all() -> None:
    graph = dlrm_a()
    left = split_over(graph, "pooled", "tables").writes
    needed = split_over(graph, "interaction", "samples").reads[1]
    assert (left.place, needed.place) == (1, 0)


def test_gradient_of_dlrm_meets_its_tables_in_the_all_to_all_back() -> None:
    graph = with_backward(dlrm_a())
    left = split_over(graph, "interaction.grad.pooled", "samples").writes
    needed = split_over(graph, "pooled.grad.tables", "tables").reads[0]
    assert (left.place, needed.place) == (0, 1)
    weights = [k for k in graph.kernels if k.phase is Phase.WEIGHT_GRADIENT]
    assert len(weights) == 21
    assert "bottom0.grad.dense" not in graph.number


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16])
def test_flops_of_hpl_approach_two_thirds_of_the_cube(block) -> None:
    size = 256
    share = block / size
    # sums of squares and of numbers, written out
    by_hand = 2 * size**3 / 3 * (1 + 3 * share + 2 * share**2)
    assert hpl(size, block).flops == pytest.approx(by_hand, rel=1e-12)


def test_iteration_of_hpl_sends_pivots_panel_and_swapped_rows() -> None:
    graph = hpl(16384, 1024, grid_rows=1, grid_columns=8, word_bytes=2.0)
    assert len(graph.kernels) == 4 * 16
    sent = [m for kernel in graph.kernels[4:8] for m in kernel.messages]
    side = 16384 - 1024
    assert [message.num_bytes / 2 / 1024 for message in sent] == [1024, side, side / 8]
    assert sent[1].kind is MessageKind.BROADCAST


def test_blocks_of_hpl_fit_the_matrix() -> None:
    with pytest.raises(SpecError, match="block: found 5"):
        hpl(4, 5)
    with pytest.raises(SpecError, match=r"found 1 .from 15259 to the size"):
        hpl(10**9, 1)
    assert len(hpl(10, 4).kernels) == 4 * 3


def test_messages_have_no_gradient() -> None:
    with pytest.raises(SpecError, match="sends messages"):
        with_backward(hpl(8, 4))


def test_fft_takes_five_flops_for_each_point_and_halving() -> None:
    graph = fft(256, 1024)
    points = 256 * 1024
    assert graph.flops == pytest.approx(points * (5 * log2(points) + TWIDDLE_FLOPS))
    assert graph.tensor_bytes(graph.kernels[0]) == 16 * points


@pytest.mark.parametrize(("ordered", "exchanges"), [(True, 3), (False, 1)])
def test_transposes_of_fft_follow_from_its_layouts(ordered, exchanges) -> None:
    assert fewest_exchanges(fft(8, 4, ordered=ordered)) == exchanges


def test_a_transform_is_not_split_along_its_length() -> None:
    splits = splits_of(kernel_of(fft(8, 4), "transform-rows"))
    assert [split.dim for split in splits] == [None, "rows"]


def test_products_split_over_a_summed_dim_leave_partial_sums_and_moves_do_not_split_there() -> None:
    graph = dlrm_a()
    assert split_over(graph, "top0", "in").writes == PARTIAL
    assert "pooling" not in [split.dim for split in splits_of(kernel_of(graph, "pooled"))]
    assert splits_of(kernel_of(graph, "pooled"))[0].writes == REPLICATED
