"""Closed forms against network simulators that others wrote.

ASTRA-sim 4f387bc with its analytical backend (github.com/astra-sim/astra-sim): 8 members on a
switch of 450 GB/s, two hops of 0.5 us; all-to-all on 8 fully connected members with 450/7 GB/s per
pair. Times in whole nanoseconds; its all-gather counts the shard of one member.
SimGrid 3.32 (simgrid.org): all-gathers on lines and meshes at 4 TB/s and 0.2 us per hop, with the
share of one member as stated; times rounded to 10 or 100 ns. Both were run for this table.
"""

import pytest

from meshwright.collectives.bounds import bandwidth_bound_s_per_byte
from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.spec.collective import CollectiveKind

SWITCH = Group((Span(8.0, 450e9, 1e-6, 0.0, 1.0, False, False),))
PAIRS = Group((Span(8.0, 450e9, 0.5e-6, 0.0, 1.0, False, False),))
MIB = 2.0**20


def mesh(*sizes):
    return Group(tuple(Span(float(size), 4e12, 2e-7, 0.0, 0.0, True, False) for size in sizes))


@pytest.mark.parametrize(
    ("name", "group", "num_bytes", "simulated_s"),
    [
        ("ring_all_reduce", SWITCH, MIB / 16, 14267e-9),
        ("ring_all_reduce", SWITCH, MIB, 18089e-9),
        ("ring_all_reduce", SWITCH, 1024 * MIB, 4189669e-9),
        ("ring_all_gather", SWITCH, 8 * MIB, 23318e-9),
        ("ring_all_gather", SWITCH, 8 * 256 * MIB, 4182669e-9),
        ("ring_reduce_scatter", SWITCH, 16 * MIB, 39628e-9),
        ("direct_all_to_all", PAIRS, 16 * MIB, 33124e-9),
        ("direct_all_to_all", PAIRS, 1024 * MIB, 2088333e-9),
    ],
)
def test_as_simulated_by_astra_sim(name, group, num_bytes, simulated_s):
    time_s = float(collective_algorithms[name].time_s(num_bytes, group))
    assert time_s == pytest.approx(simulated_s, rel=0.0065)


@pytest.mark.parametrize(
    ("name", "group", "num_bytes", "simulated_s", "tolerance"),
    [
        ("line_all_gather", mesh(8), 8 * 16e6, 29.4e-6, 0.002),
        ("line_all_gather", mesh(8), 8 * 1e6, 3.15e-6, 0.002),
        # The form charges each phase its longer line: 14 hops instead of the 12 of a message.
        ("bucket_all_gather", mesh(8, 6), 48 * 16e6, 100.4e-6, 0.005),
        ("bucket_all_gather", mesh(8, 6), 48 * 1e6, 8.53e-6, 0.05),
    ],
)
def test_as_simulated_by_simgrid(name, group, num_bytes, simulated_s, tolerance):
    time_s = float(collective_algorithms[name].time_s(num_bytes, group))
    assert simulated_s * 0.998 <= time_s <= simulated_s * (1 + tolerance)


def test_bound_of_an_all_gather_on_a_mesh():
    """(N - 1)/N of S through the two links of a corner: 47 x 16 MB / 8 TB/s."""
    bound = bandwidth_bound_s_per_byte(CollectiveKind.ALL_GATHER, mesh(8, 6))
    assert float(bound) * 48 * 16e6 == pytest.approx(94.0e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [(3, 3, 2 / 3), (4, 4, 15 / 24), (8, 8, 63 / 112), (2, 2, 3 / 4)],
)
def test_bound_of_an_all_reduce_on_a_mesh(rows, columns, expected):
    """2 (N - 1) S bytes over the 2 E directed links of a mesh with E = 2RC - R - C edges."""
    bound = bandwidth_bound_s_per_byte(CollectiveKind.ALL_REDUCE, mesh(columns, rows))
    assert float(bound) * 4e12 == pytest.approx(expected)
