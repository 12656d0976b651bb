"""Seconds of single kernels: limits, counts by hand, one number as a row of a column."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.systems import load_chip
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.kernels.curves import (
    CollectiveCurve,
    ContextCurve,
    DecodeCurve,
    DispatchCurve,
    ElementwiseCurve,
    ExpertsCurve,
    GemmCurve,
    NarrowGemmCurve,
    kernel_device,
)
from meshwright_papers.kernels.formulas.attention import (
    context_s,
    decode_s,
    plain_heads,
    scores_of,
    share_of_dim,
)
from meshwright_papers.kernels.formulas.blend import blended
from meshwright_papers.kernels.formulas.elementwise import elementwise_s
from meshwright_papers.kernels.formulas.experts import (
    ExpertShape,
    ExpertWords,
    experts_s,
    load_factor,
    loads_of,
)
from meshwright_papers.kernels.formulas.gemm import gemm_s
from meshwright_papers.kernels.formulas.latent import expanded_heads, latent_heads
from meshwright_papers.kernels.formulas.library_collectives import dispatch_s, library_collective_s

H100 = kernel_device(load_chip("H100"))
PEAK = H100.peak_flops_per_s("bf16")
SIZES = st.integers(1, 2**15)


def gemm(rows, columns, inner, curve=None, **more):
    return gemm_s(
        rows, columns, inner, word_bytes=2.0, peak_flops_per_s=PEAK, device=H100,
        curve=curve or GemmCurve(), **more,
    )  # fmt: skip


def context(batch, tokens, heads, window=0.0, curve=None):
    return context_s(
        batch, tokens, heads, window=window, cache_word_bytes=2.0, peak_flops_per_s=PEAK,
        device=H100, curve=curve or ContextCurve(),
    )  # fmt: skip


def decode(batch, tokens, heads, window=0.0, curve=None):
    return decode_s(
        batch, tokens, heads, window=window, cache_word_bytes=2.0, peak_flops_per_s=PEAK,
        device=H100, curve=curve or DecodeCurve(),
    )  # fmt: skip


def expert_shape(tokens=4096.0, exponent=0.0, expert_parts=1.0):
    return ExpertShape(tokens, 7168.0, 2048.0, 8.0, 256.0, 1.0, expert_parts, 1.0, exponent)


def experts(shape, curve=None):
    return experts_s(
        shape, words=ExpertWords(2.0, 2.0), peak_flops_per_s=PEAK, device=H100,
        curve=curve or ExpertsCurve(),
    )  # fmt: skip


def test_two_limits_add_up_or_the_slower_decides():
    assert blended(3.0, 4.0, 1.0) == 7.0
    assert blended(3.0, 4.0, 2.0) == 5.0
    assert blended(3.0, 4.0, 200.0) == pytest.approx(4.0)


@given(SIZES, SIZES, SIZES)
def test_no_product_beats_peak_memory_or_launch(rows, columns, inner):
    curve = GemmCurve()
    found = gemm(float(rows), float(columns), float(inner))
    assert found >= curve.launch_s
    assert found >= 2.0 * rows * columns * inner / PEAK
    assert found >= 2.0 * columns * inner / H100.memory_bytes_per_s


@given(SIZES, SIZES, SIZES)
def test_more_rows_of_whole_eights_never_take_less(rows, columns, inner):
    few, more = gemm(8.0 * rows, columns, inner), gemm(16.0 * rows, columns, inner)
    assert more >= few * (1.0 - 1e-12)


def test_a_number_is_a_row_of_a_column():
    rows = np.array([1.0, 7.0, 300.0, 4096.0])
    column = gemm(rows, 4096.0, 5120.0)
    assert column.tolist() == [gemm(row, 4096.0, 5120.0) for row in rows.tolist()]
    heads = plain_heads(32.0, 8.0, 128.0)
    prompts = context(4.0, rows, heads)
    assert prompts.tolist() == [context(4.0, row, heads) for row in rows.tolist()]
    answers = decode(4.0, rows + 1, heads)
    assert answers.tolist() == [decode(4.0, row + 1, heads) for row in rows.tolist()]
    shape = expert_shape(rows, np.full(4, 1.2), np.full(4, 8.0))
    assert experts(shape).tolist() == pytest.approx([
        experts(expert_shape(row, 1.2, 8.0)) for row in rows.tolist()
    ])  # fmt: skip


def test_a_whole_wave_of_large_tiles_by_hand():
    """132 tiles of 256 x 256 fill an H100 once."""
    curve = GemmCurve(
        rate_share=1.0, core_bytes_per_s=2e12, launch_s=1e-6, tile_s=1e-8, blend=30.0, sag=1e-3
    )
    inner = 65536.0
    alone = 2.0 * 256**2 * inner / (PEAK / 132) + 1e-8
    alone *= 1.0 + 1e-3 * alone / (alone + 1e-3)
    wave = gemm(256.0 * 11, 256.0 * 12, inner, curve)
    assert wave == pytest.approx(alone + 1e-6, rel=1e-6)
    more = gemm(256.0 * 11 + 8, 256.0 * 12, inner, curve)  # smaller tiles fit it better
    assert 1.02 * wave < more < 1.5 * wave


def test_a_product_with_few_tiles_is_cut_along_its_inner_size():
    dear = gemm(64.0, 64.0, 65536.0, GemmCurve(split_s=1e-3))
    assert gemm(64.0, 64.0, 65536.0, GemmCurve(split_s=1e-8)) < 0.2 * dear


def test_weights_in_the_cache_are_read_faster_and_only_if_all_copies_fit():
    cold = gemm(8.0, 2048.0, 2048.0)
    assert gemm(8.0, 2048.0, 2048.0, weight_copies=1.0) < cold
    assert gemm(8.0, 2048.0, 2048.0, weight_copies=100.0) == cold


def test_several_products_are_one_kernel():
    one = gemm(64.0, 512.0, 128.0)
    assert gemm(64.0, 512.0, 128.0, products=16.0) < 16.0 * one


def test_narrow_operands_are_cast_row_by_row():
    def narrow(curve):
        return gemm_s(
            4096.0, 64.0, 64.0, word_bytes=1.0, peak_flops_per_s=2.0 * PEAK, device=H100,
            curve=curve,
        )  # fmt: skip

    slow, fast = NarrowGemmCurve(cast_row_s=1e-8), NarrowGemmCurve(cast_row_s=1e-10)
    assert narrow(slow) - narrow(fast) == pytest.approx(4096 * 9.9e-9)


@given(st.integers(1, 60), st.integers(0, 60))
def test_scores_are_counted_one_by_one(tokens, window):
    seen = sum(min(i, window or tokens) for i in range(1, tokens + 1))
    assert scores_of(float(tokens), float(window)) == seen


def test_a_window_saves_what_the_kernel_skips():
    heads = plain_heads(32.0, 8.0, 128.0)
    whole = context(1.0, 32768.0, heads)
    assert context(1.0, 32768.0, heads, 128.0) < 0.2 * whole
    blind = ContextCurve(window_share=0.01)
    assert context(1.0, 32768.0, heads, 128.0, blind) > 0.9 * context(
        1.0, 32768.0, heads, curve=blind
    )
    assert decode(64.0, 32768.0, heads, 128.0) < 0.2 * decode(64.0, 32768.0, heads)


def test_heads_of_odd_sizes_have_rates_of_their_own():
    found = share_of_dim(np.array([64.0, 128.0, 192.0, 256.0, 512.0]), 0.5, 0.25)
    assert found.tolist() == [1.0, 1.0, 0.5, 1.0, 0.25]


def test_a_large_cache_is_read_once_at_the_rate_of_the_memory():
    heads, curve = plain_heads(32.0, 8.0, 128.0), DecodeCurve(core_bytes_per_s=1e12)
    num_bytes = 256 * 8 * 32768 * 2 * 128 * 2
    found = decode(256.0, 32768.0, heads, curve=curve)
    assert found == pytest.approx(num_bytes / (0.85 * H100.memory_bytes_per_s), rel=0.1)


def test_a_long_sequence_is_cut_where_cores_are_left():
    heads = plain_heads(8.0, 1.0, 128.0)
    one, many = decode(1.0, 65536.0, heads), decode(132.0, 65536.0, heads)
    assert many > 5.0 * one
    whole = decode(1.0, 65536.0, plain_heads(1.0, 1.0, 128.0), curve=DecodeCurve(plain_split=1e-3))
    assert whole > 10.0 * one
    assert decode(1.0, 65536.0, heads, curve=DecodeCurve(group_split=1e-3)) > 10.0 * one
    latent = latent_heads(128.0)
    small, large = (
        decode(256.0, 64.0, latent, curve=DecodeCurve(group_tile=tile)) for tile in (16.0, 64.0)
    )
    assert small > large


def test_latent_heads_share_one_latent_and_prompts_expand_it():
    shared, own = latent_heads(128.0), expanded_heads(128.0)
    assert (shared.keys, shared.cached, shared.score_dim, shared.value_dim) == (1, 576, 576, 512)
    assert own.keys * own.cached == 576
    assert (own.score_dim, own.value_dim) == (192, 128)


@given(st.integers(1, 10**5), st.sampled_from([0.0, 1.01, 1.2]))
def test_loads_of_experts_keep_their_mean_and_no_expert_gets_more_than_all_tokens(tokens, exponent):
    loads = loads_of(expert_shape(float(tokens), exponent))
    assert loads.mean() == pytest.approx(tokens * 8 / 256, rel=0.03)
    assert loads.max() <= tokens
    if exponent == 0.0:
        assert np.ptp(loads) == pytest.approx(0.0, abs=1e-9)


def test_the_busiest_rank_has_the_mean_or_more_and_less_than_its_busiest_expert():
    loads = loads_of(expert_shape(4096.0, 1.2))
    assert load_factor(loads, 256.0, 1.0, 1.0) == 1.0
    factors = [load_factor(loads, 256.0 / ranks, float(ranks), 1.0) for ranks in (2, 8, 64, 256)]
    assert factors == sorted(factors)
    assert factors[-1] <= loads.max() / loads.mean()


def test_few_tokens_read_only_the_experts_that_they_hit():
    curve = ExpertsCurve(cache_factor=1.0, blend=30.0)
    weights = 3 * 7168 * 2048 * 2 / (curve.memory_share * H100.memory_bytes_per_s)
    one, all_of_them = (experts(expert_shape(tokens), curve) for tokens in (1.0, 64.0))
    assert one == pytest.approx(8 * weights, rel=0.2)
    assert all_of_them == pytest.approx(256 * weights, rel=0.05)


def test_the_fastest_protocol_counts():
    curve = CollectiveCurve(
        host_s=1e-7, launch_s=4e-6, hop_s=1e-6, flag_share=0.1, line_s=3e-6, line_share=0.5,
        bulk_s=2e-5, bulk_share=0.8, switch_share=0.1, crowding=1e-9,
    )  # fmt: skip

    def time_s(num_bytes, kind=CollectiveKind.ALL_REDUCE):
        return library_collective_s(kind, num_bytes, 8.0, link_bytes_per_s=450e9, curve=curve)

    assert time_s(0.0) == pytest.approx(11e-6)
    assert time_s(1e3) == pytest.approx(11e-6 + 7e3 / 45e9)
    assert time_s(1e9) == pytest.approx(11e-6 + 2e-5 + 1.75e9 / 360e9)
    assert time_s(1e6) == pytest.approx(11e-6 + 3e-6 + 1.75e6 / 225e9)
    gathered = time_s(1e9, CollectiveKind.ALL_GATHER)
    assert gathered == pytest.approx(11e-6 + 2e-5 + 0.875e9 / 360e9)
    assert time_s(1e9, CollectiveKind.SEND) == pytest.approx(11e-6 + 2e-5 + 1e9 / 360e9)


def test_a_switch_that_adds_sends_each_byte_once():
    curve = CollectiveCurve(
        host_s=1e-7,
        launch_s=4e-6,
        hop_s=1e-8,
        bulk_s=1e-8,
        bulk_share=0.5,
        switch_share=0.8,
        crowding=1e-9,
    )
    found = library_collective_s(
        CollectiveKind.ALL_REDUCE, 1e9, 8.0, link_bytes_per_s=450e9, curve=curve
    )
    assert found == pytest.approx(1.125e9 / 360e9, rel=0.01)


def test_cards_that_share_a_root_have_less_each():
    def time_s(crowding, ranks):
        curve = CollectiveCurve(crowding=crowding)
        return library_collective_s(
            CollectiveKind.ALL_GATHER, 1e10, ranks, link_bytes_per_s=50e9, curve=curve
        )

    assert time_s(1.0, 2.0) == time_s(1e-9, 2.0)
    assert time_s(1.0, 8.0) == pytest.approx(4.0 * time_s(1e-9, 8.0), rel=0.01)


def test_a_host_that_launches_late_is_waited_for():
    late = CollectiveCurve(host_s=4e-5)
    assert library_collective_s(
        CollectiveKind.ALL_REDUCE, 1e3, 8.0, link_bytes_per_s=450e9, curve=late
    ) == pytest.approx(4e-5)


def test_above_its_limit_a_library_leaves_all_to_large_pieces():
    curve = CollectiveCurve(limit_bytes=2.0**20, bulk_s=1e-4)
    below, above = (
        library_collective_s(
            CollectiveKind.ALL_REDUCE, size, 2.0, link_bytes_per_s=450e9, curve=curve
        )
        for size in (2.0**20 - 1, 2.0**20)
    )
    assert above - below > 5e-5


def test_experts_pass_over_rows_of_others_and_slow_down_on_ragged_shards():
    far = expert_shape(8192.0, expert_parts=64.0)
    blind, sparing = (experts(far, ExpertsCurve(foreign_share=f)) for f in (1.0, 1e-3))
    assert blind > 2.0 * sparing
    even, ragged = (
        experts(ExpertShape(64.0, 2048.0, width, 8.0, 64.0, 1.0, 1.0, 1.0, 0.0))
        for width in (768.0, 760.0)
    )
    assert ragged > 1.05 * even


def test_heads_under_a_window_may_be_computed_apart():
    heads = plain_heads(64.0, 8.0, 128.0)
    together, apart = (
        decode(256.0, 4096.0, heads, 128.0, DecodeCurve(windows_group=group)) for group in (1, 0)
    )
    assert apart > 2.0 * together
    assert decode(256.0, 4096.0, heads) == decode(
        256.0, 4096.0, heads, curve=DecodeCurve(windows_group=0.0)
    )


def test_dispatch_is_limited_by_its_cores_or_by_the_network():
    def time_s(cores):
        return dispatch_s(
            4096.0, 7168.0, 6.0, cores=cores, link_bytes_per_s=450e9, curve=DispatchCurve()
        )

    assert time_s(4.0) > 2.0 * time_s(24.0)
    assert time_s(0.0) < time_s(1e6) * (1.0 + 1e-9)


def test_a_small_tensor_comes_from_the_cache():
    curve = ElementwiseCurve(launch_s=1e-6, memory_share=0.8, cache_factor=2.0, row_s=1e-13)
    memory = 0.8 * H100.memory_bytes_per_s
    large = elementwise_s(1.0, 1e9, device=H100, curve=curve)
    small = elementwise_s(1.0, 1e6, device=H100, curve=curve)
    assert large == pytest.approx(1e-6 + 1e9 / memory)
    assert small == pytest.approx(1e-6 + 1e6 / (2.0 * memory))


def test_a_type_that_a_chip_lacks_runs_at_the_rate_of_16_bits():
    device = kernel_device(load_chip("A100"))
    assert device.peak_flops_per_s("fp8") == device.peak_flops_per_s("bf16") == 312e12
    assert math.isclose(H100.peak_flops_per_s("fp8"), 1979e12)
