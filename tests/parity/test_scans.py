"""The arithmetic of scans: chunked algorithms are right, and their products are counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.scans import by_chunk, by_token, drawn

from meshwright.catalog.models import load_model
from meshwright.graph.flops import ScoreCount, step_flops
from meshwright.graph.recurrence import Scan, repeated_scan_flops_per_token, scan_flops_per_token
from meshwright.graph.transformer import build_graph
from meshwright.spec.model import RecurrenceSpec


def spec_of(kind, groups=2, shared=2, chunk=4, state=3, head=5):
    return RecurrenceSpec(
        kind=kind, num_heads=groups * shared, head_size=head, num_groups=groups, state_size=state,
        conv_size=4, chunk_size=chunk,
    )  # fmt: skip


@given(
    st.sampled_from(["mamba2", "gated_delta"]), st.integers(1, 3), st.integers(1, 3),
    st.integers(1, 8), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4),
    st.integers(0, 10**6),
)  # fmt: skip
def test_chunks_give_the_recurrence_in_the_flops_that_are_counted(
    kind, groups, shared, chunk, state, head, chunks, seed
):
    spec = spec_of(kind, groups, shared, chunk, state, head)
    tokens = chunk * chunks
    numbers = drawn(seed, tokens, spec)
    output, flops = by_chunk(spec, *numbers)
    np.testing.assert_allclose(output, by_token(spec, *numbers), rtol=1e-8, atol=1e-10)
    counted = tokens * scan_flops_per_token(Scan.whole(spec, float(tokens)))
    assert counted == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize("name", ["mamba2-2.7b", "mamba-codestral-7b"])
@pytest.mark.parametrize("count", list(ScoreCount))
def test_flops_of_state_spaces_are_linear_in_the_length(name, count):
    graph = build_graph(load_model(name))
    lengths = np.array([256.0, 512.0, 4096.0, 131_072.0])
    flops = step_flops(graph, num_tokens=lengths, sequence_length=lengths, count=count)
    per_token = flops.model / lengths
    assert per_token == pytest.approx(per_token[0], rel=1e-12)


def test_only_the_attention_of_a_hybrid_grows_with_the_length():
    # Nemotron-H 8B: 4 of 52 layers, 32 heads of 128; 3 x 4 x 32 x 128 FLOP a key and token.
    graph = build_graph(load_model("nemotron-h-8b"))
    short, long = (
        step_flops(graph, num_tokens=1.0, sequence_length=length, count=ScoreCount.FULL).model
        for length in (1024.0, 2048.0)
    )
    assert long - short == pytest.approx(4 * 12 * 32 * 128 * 1024)


def test_scan_of_mamba_2_by_hand():
    # 80 heads of 64, one group of 128, chunks of 256, all of them seen:
    # scores 2 x 256 x 128, values 2 x 256 x 5120, states 4 x 5120 x 128, handing on 2 x 5120 / 2.
    (spec,) = load_model("mamba2-2.7b").recurrences
    scan = Scan.whole(spec, 8192.0)
    assert scan_flops_per_token(scan) == 65_536 + 2_621_440 + 2_621_440 + 5_120
    assert repeated_scan_flops_per_token(scan) == 65_536 + 1_310_720 + 5_120


def test_scan_of_the_gated_delta_rule_by_hand():
    # 32 heads of 128, keys of 128, chunks of 64: three products with keys, two with values of
    # 2 x 64 x 4096 each, three with the state of 2 x 4096 x 128, the inverse 32 x 64 x 64 / 3.
    (spec,) = load_model("qwen3-next-80b-a3b").recurrences
    scan = Scan.whole(spec, 8192.0)
    wide, state = 2 * 64 * 4096, 2 * 4096 * 128
    expected = 5 * wide + 3 * state + 32 * 64 * 64 / 3 + state / 64
    assert scan_flops_per_token(scan) == pytest.approx(expected)
    assert repeated_scan_flops_per_token(scan) == 3 * wide + 2 * state + state / 64


def test_a_sequence_shorter_than_a_chunk_is_one_chunk():
    spec = spec_of("mamba2", chunk=64)
    assert scan_flops_per_token(Scan.whole(spec, 16.0)) == scan_flops_per_token(
        Scan.whole(spec_of("mamba2", chunk=16), 1e6)
    )
