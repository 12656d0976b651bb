"""What is on chip at once, blocks, what stays and buffers of streams, fits once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.cost.operator import BLOCKS_SHARE, MatmulShape, device_rates
from meshwright.cost.streaming import (
    KEPT_SHARE,
    StreamedBytes,
    StreamLinks,
    fit_buffers,
    kept_on_chip,
    link_times,
)
from meshwright.spec.workload import Precision, SoftwareStack
from meshwright.streams.forms import LineStream, streams
from meshwright.streams.round_model import StreamedTensor, stream_buffer_bytes

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
    st.integers(2, 32), st.booleans(),
)  # fmt: skip
def test_blocks_what_stays_and_buffers_share_the_memory_of_a_die(
    transfer, rows, inner, columns, members, may_hold
):
    shape = MatmulShape(1.0, float(rows), float(inner), float(columns))
    kept = kept_on_chip(transfer, shape, 2.0, RATES)
    blocks = RATES.core_array.sums_bytes * RATES.core_array.num_cores
    assert 2.0 * blocks == pytest.approx(BLOCKS_SHARE * SRAM)
    sub_tensor = 2.0 * inner * max(rows, columns) / members
    of_line = links(members, may_hold=may_hold)
    for stays in (kept.forward_bytes, kept.backward_bytes):
        assert stays <= KEPT_SHARE * RATES.room_bytes
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
        StreamedTensor.WEIGHTS, MatmulShape(1.0, 1e6, 1e6, 1.0), 2.0, RATES))  # fmt: skip
    assert float(np.asarray(times.forward_relay_s)) == pytest.approx(
        5.0 * 1e12 / RATES.memory_bytes_per_s
    )
