"""The all-reduce of a pass: by hand, where it applies, and beside the one of a library."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.collectives.group import Group, Span
from meshwright.serve.all_reduce import PassCollectives, all_reduce_s
from meshwright.serve.serve import serving_problem
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import Decode

KERNELS = replace(NEUTRAL, one_shot_start_s=4e-6, two_shot_start_s=1e-5, shot_link_share=0.5)
PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)


def links(in_host, hosts=1.0):
    """Return links of 400 GB/s inside a host, with no latency of their own."""
    one = np.ones(1)

    def span(size, rate):
        return Span(size * one, rate * one, 0.0 * one, 0.0 * one, one, False, False)

    return Group((span(in_host, 400e9), span(hosts, 50e9)))


def test_small_messages_are_read_whole_and_large_ones_in_parts():
    """Of 8 devices each reads 7 messages of 16 KiB, or twice 7/8 of one of 4 MiB, at 200 GB/s."""
    small, large = 16 * 1024, 4 * 2**20
    assert all_reduce_s(small, links(8), KERNELS) == pytest.approx(4e-6 + 7 * small / 200e9)
    assert all_reduce_s(large, links(8), KERNELS) == pytest.approx(1e-5 + 1.75 * large / 200e9)


def test_kernels_reach_no_other_host_and_need_two_devices():
    assert np.isinf(all_reduce_s(1e4, links(8, 2.0), KERNELS))
    assert np.isinf(all_reduce_s(1e4, links(1), KERNELS))
    assert np.isinf(all_reduce_s(1e4, links(8), NEUTRAL))


def times(tp, constants, num_bytes, on="16xH100", kind=CollectiveKind.ALL_REDUCE):
    """Return the time of one collective over tp."""
    work = Decode(batch_size=8, context_length=1024)
    problem = serving_problem("llama3-8b", on, work, "vllm", "uncalibrated")
    network = problem.network(PLAIN.axis_order, stack([make_strategy(tp=tp)]))
    return PassCollectives(network, 1e-5, constants).time_s(kind, "tp", num_bytes)[0]


def test_the_faster_of_kernels_and_library_counts():
    quick = replace(KERNELS, shot_link_share=1.0)
    for num_bytes in (1e3, 1e5, 1e7, 1e9):
        library_s, both_s = (times(8, one, num_bytes) for one in (NEUTRAL, quick))
        kernel_s = float(all_reduce_s(num_bytes, Group(links(8).spans[:1]), quick)[0])
        assert both_s <= library_s
        assert both_s < library_s or kernel_s > 0.8 * library_s
    assert times(8, quick, 1e3) < 0.5 * times(8, NEUTRAL, 1e3)
    assert times(16, quick, 1e3) == times(16, NEUTRAL, 1e3)
    gather = {"kind": CollectiveKind.ALL_GATHER}
    assert times(8, quick, 1e3, **gather) == times(8, NEUTRAL, 1e3, **gather)


def test_a_library_at_half_of_its_rate_takes_twice_as_long_inside_a_host():
    slow = replace(NEUTRAL, collective_rate_share=0.5)
    whole_s, half_s = (times(8, one, 1e10) for one in (NEUTRAL, slow))
    assert half_s == pytest.approx(2.0 * whole_s, rel=0.01)


def test_a_grid_has_no_such_kernels():
    on = {"on": "16xTPU-v5p"}
    assert times(8, KERNELS, 1e3, **on) == times(8, NEUTRAL, 1e3, **on)
