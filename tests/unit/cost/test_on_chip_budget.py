"""What is on chip at once, blocks, what stays and buffers of streams, fits once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.cost.operator import BLOCKS_SHARE, MatmulShape, device_rates, least_operand_bytes
from meshwright.cost.streaming import (
    SPLITS,
    StreamedBytes,
    StreamLinks,
    cuts_rows,
    fit_buffers,
    kept_on_chip,
    link_times,
    round_shape,
    stream_traffic_bytes,
)
from meshwright.spec.workload import Precision, SoftwareStack
from meshwright.streams.forms import LineStream, streams
from meshwright.streams.round_model import (
    StreamedTensor,
    round_traffic_bytes,
    stream_buffer_bytes,
)

WAFER = load_system("wafer-4x8")
RATES = device_rates(
    WAFER.chip, Precision(), SoftwareStack(), load_calibration("temp-die", "uncalibrated")
)
SRAM = WAFER.chip.memories[0].capacity_bytes
TRANSFERS = st.sampled_from([StreamedTensor.WEIGHTS, StreamedTensor.INPUTS, StreamedTensor.SUMS])


def links(members, form="stream", *, may_hold=True):
    """Return links of 2 TB/s, 200 ns and half-messages of 4 MB between members of a stream."""
    kind, level, n = streams[form], WAFER.levels[0], float(members)
    return StreamLinks(
        n, level.bandwidth_bytes_per_s, level.latency_s, level.message_half_bytes,
        kind.num_parts(n), kind.num_hops(n), kind.buffers(n).with_incoming,
        kind.transfers(n) / n, kind.num_shared_rounds(n), kind.num_exchange_rounds(n), may_hold,
    )  # fmt: skip


@given(
    TRANSFERS, st.integers(1, 1 << 16), st.integers(1, 1 << 15), st.integers(1, 1 << 15),
    st.integers(2, 32), st.booleans(), st.sampled_from(SPLITS), st.booleans(),
)  # fmt: skip
def test_blocks_what_stays_and_buffers_share_the_memory_of_a_die(
    transfer, rows, inner, columns, members, may_hold, split, cuts_inner
):
    shape = MatmulShape(1.0, float(rows), float(inner), float(columns))
    room = split * RATES.room_bytes
    kept = kept_on_chip(transfer, shape, 2.0, room, cuts_inner)
    blocks = RATES.core_array.sums_bytes * RATES.core_array.num_cores
    assert 2.0 * blocks == pytest.approx(BLOCKS_SHARE * SRAM)
    sub_tensor = 2.0 * inner * max(rows, columns) / members
    of_line = links(members, may_hold=may_hold)
    for stays in (kept.forward_bytes, kept.backward_bytes):
        assert stays <= room * (1 + 1e-12)
        fit = fit_buffers(sub_tensor, of_line, RATES.room_bytes - stays)
        if fit.relays:
            continue
        knobs = [0.0] if not may_hold else list(range((members + 1) // 2 + 1))
        held = next(h for h in knobs if LineStream(h).transfers(float(members)) / members
                    == pytest.approx(fit.num_sends))  # fmt: skip
        buffers = stream_buffer_bytes(
            sub_tensor, LineStream(held).buffers(float(members)).with_incoming, 0.0, fit.num_chunks
        )
        assert 2.0 * blocks + stays + buffers <= SRAM * (1 + 1e-12)


def test_copies_are_held_where_they_fit_and_sent_again_where_not():
    """Of 16 members hold needs 9 sub-tensors of room, stream 6 (T = 3): 60 MB hold 9 of 6 MB."""
    hold, stream = streams["hold"], streams["stream"]
    assert hold.buffers(16.0).with_incoming == 9
    assert stream.buffers(16.0).with_incoming == 4
    roomy, tight, cut = (fit_buffers(m, links(16), 60e6) for m in (6e6, 15e6, 20e6))
    assert roomy.num_sends == hold.transfers(16.0) / 16
    assert roomy.num_shared_rounds == 0
    assert tight.num_sends == stream.transfers(16.0) / 16
    assert tight.num_chunks == 1
    assert cut.num_chunks == 2
    fixed = fit_buffers(6e6, links(16, may_hold=False), 60e6)
    assert fixed.num_sends == stream.transfers(16.0) / 16


def test_a_stream_without_room_goes_through_the_main_memory():
    sent = StreamedBytes(StreamedTensor.WEIGHTS, 1e12)
    times = link_times(sent, links(8), RATES, kept_on_chip(
        StreamedTensor.WEIGHTS, MatmulShape(1.0, 1e6, 1e6, 1.0), 2.0, 0.0))  # fmt: skip
    assert float(np.asarray(times.forward_relay_s)) == pytest.approx(
        5.0 * 1e12 / RATES.memory_bytes_per_s
    )


SHAPE = MatmulShape(1.0, 1024.0, 8192.0, 2048.0)
"""A round of 12: inputs of 16.8 MB, their sums 33.6 MB, outputs of 4.2 MB, weights of 33.6 MB."""


def test_what_does_not_stay_moves_in_each_round():
    """By hand, of 16 MiB of inputs half in 8 MiB: 8 MiB (1 + 1 / 12) a round, 104 MiB in 12."""
    assert 12 * round_traffic_bytes(16.0, 0.5, 12.0) == 16 * 0.5 + 12 * 16 * 0.5
    kept = kept_on_chip(StreamedTensor.WEIGHTS, SHAPE, 2.0, 8.0 * 2**20)
    assert (kept.forward_share, kept.backward_share, kept.sums_share) == (0.5, 0.0, 0.25)
    moved = stream_traffic_bytes(StreamedTensor.WEIGHTS, SHAPE, 12.0, 2.0, RATES, kept)
    x, w, y = 16.0 * 2**20, 32.0 * 2**20, 4.0 * 2**20
    assert 12 * moved[0] == pytest.approx(w + 6.5 * x + 12 * y)
    # Sums of inputs, 4 x as long as 2-byte inputs in both directions, where they do not stay.
    assert 12 * moved[1] == pytest.approx(w + x + 11 * 0.75 * 4 * x + 12 * y)
    assert 12 * moved[2] == pytest.approx(4 * w + 12 * x + 12 * y)


def test_rows_of_a_weight_are_cut_where_outputs_are_narrower():
    """Outputs, not inputs, are then used by all rounds: half of 32 MiB of sums stays in 16 MiB."""
    whole = MatmulShape(1.0, 1024.0, 12 * 8192.0, 8192.0)
    assert cuts_rows(whole, StreamedTensor.WEIGHTS)
    assert not cuts_rows(whole._replace(columns=12 * 8192.0 + 1), StreamedTensor.WEIGHTS)
    shape = round_shape(whole, StreamedTensor.WEIGHTS, links(12))
    assert (shape.inner, shape.columns) == (8192.0, 8192.0)
    kept = kept_on_chip(StreamedTensor.WEIGHTS, shape, 2.0, 16.0 * 2**20, True)
    assert (kept.forward_share, kept.backward_share, kept.backward_bytes) == (0.5, 1.0, 16 * 2**20)
    forward, to_input, to_weight = stream_traffic_bytes(
        StreamedTensor.WEIGHTS, shape, 12.0, 2.0, RATES, kept, True
    )
    x = y = 16.0 * 2**20
    w = 128.0 * 2**20
    assert 12 * forward == pytest.approx(w + y + 11 * 0.5 * 4 * y + 12 * x)
    assert 12 * to_input == pytest.approx(w + y + 12 * x)
    assert 12 * to_weight == pytest.approx(4 * w + y + 12 * x)


@given(
    TRANSFERS, st.integers(1, 1 << 16), st.integers(1, 1 << 15), st.integers(1, 1 << 15),
    st.integers(2, 32), st.booleans(), st.floats(0.0, 1e9), st.floats(0.0, 1e7),
)  # fmt: skip
def test_more_room_moves_less_and_a_little_more_a_little_less(
    transfer, rows, inner, columns, members, cuts_inner, room, more
):
    shape = MatmulShape(1.0, float(rows), float(inner), float(columns))

    def moved(room_bytes):
        kept = kept_on_chip(transfer, shape, 2.0, room_bytes, cuts_inner)
        num = float(members)
        return np.array(
            stream_traffic_bytes(transfer, shape, num, 2.0, RATES, kept, cuts_inner), float
        )

    less, roomy = moved(room), moved(room + more)
    assert np.all(roomy <= less * (1 + 1e-12))
    # A byte on chip saves one that is read in a round, of sums one read and one written.
    assert np.all(less - roomy <= 2.0 * more + 1e-9 * less)


@given(
    st.integers(1, 1 << 15), st.integers(1, 1 << 15), st.integers(1, 1 << 15),
    st.floats(1e4, 1e9), st.floats(1.0, 4.0),
)  # fmt: skip
def test_operands_of_one_product_are_read_less_beside_more_room(rows, inner, columns, room, times):
    few, many = (least_operand_bytes(rows, inner, columns, 2.0, r) for r in (room, times * room))
    once = 2.0 * inner * (rows + columns)
    assert once * (1 - 1e-12) <= many <= few * (1 + 1e-12)
    assert few <= times * many * (1 + 1e-12), "a jump"


def test_a_product_larger_than_the_room_is_read_in_parts_or_blocks():
    """The numbers of its docstring: parts 3 x 128 MiB beside 64 MiB; blocks beside 2 MiB."""
    operand = 2.0 * 8192 * 8192
    assert least_operand_bytes(8192.0, 8192.0, 8192.0, 2.0, 2.0**26) == 3 * operand
    side = np.sqrt(2.0**21 / 4)
    assert least_operand_bytes(8192.0, 8192.0, 8192.0, 2.0, 2.0**21) == pytest.approx(
        2 * operand * 8192 / side
    )
