"""What a group sees of the levels, derived by hand."""

import numpy as np
import pytest

from meshwright.collectives.group import group_size, make_group
from meshwright.spec.system import NetworkLevel


def level(size, kind="switch", bandwidth=50e9, latency_s=1e-6, **more):
    return NetworkLevel(
        name=kind, size=size, kind=kind, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s,
        **more,
    )  # fmt: skip


NVLINK = level(8, bandwidth=25e9, links_per_device=18.0)
RAILS = level(8, latency_s=5e-6, rail_optimized=True, oversubscription=2.0)
HOSTS = (NVLINK, RAILS)
WAFER = (level(8, "mesh", 1e12, 2e-7), level(6, "mesh", 1e12, 2e-7))


def sizes(group):
    return [float(span.size) for span in group.spans]


@pytest.mark.parametrize(
    ("stride", "degree", "expected"),
    [
        (1.0, 8.0, [8, 1]),  # one host
        (1.0, 64.0, [8, 8]),  # all
        (8.0, 8.0, [1, 8]),  # the same place in each host
        (4.0, 16.0, [2, 8]),  # places 0 and 4 of each host
        (2.0, 4.0, [4, 1]),
        (16.0, 2.0, [1, 2]),
        (1.0, 1.0, [1, 1]),
        (1.0, 16.0, [8, 2]),
    ],
)
def test_spans_where_the_numbers_divide(stride, degree, expected):
    assert sizes(make_group(HOSTS, stride, degree)) == expected


@pytest.mark.parametrize(
    ("stride", "degree", "expected"),
    [
        # Members 6..11 of the second group of six lie in two hosts; only pairs surely share one.
        (1.0, 6.0, [2, 3]),
        # Blocks of 12 do not divide a host of 8, blocks of 4 do.
        (1.0, 12.0, [4, 3]),
        # 0 and 3 share a host, 6 and 9 do not.
        (3.0, 2.0, [1, 2]),
    ],
)
def test_members_that_may_lie_outside_count_outside(stride, degree, expected):
    assert sizes(make_group(HOSTS, stride, degree)) == expected


def test_the_last_level_with_members_holds_what_is_left():
    """One host of 8 in a rack of one: a group of 6 has nowhere else to be."""
    assert sizes(make_group((NVLINK, level(1)), 1.0, 6.0)) == [6, 1]


def test_a_member_sends_with_all_its_links_into_a_switch():
    group = make_group(HOSTS, 1.0, 8.0)
    assert group.spans[0].bandwidth_bytes_per_s == 18 * 25e9
    half_a_nic = make_group((NVLINK, level(8, links_per_device=0.5)), 8.0, 8.0)
    assert half_a_nic.spans[1].bandwidth_bytes_per_s == 25e9


@pytest.mark.parametrize(("stride", "expected"), [(8.0, 50e9), (16.0, 50e9), (4.0, 25e9)])
def test_groups_at_equal_places_of_their_hosts_ride_their_rails(stride, expected):
    assert make_group(HOSTS, stride, 4.0).spans[1].bandwidth_bytes_per_s == expected


def test_without_rails_everybody_pays_the_spine():
    tree = (NVLINK, level(8, oversubscription=4.0))
    assert make_group(tree, 8.0, 8.0).spans[1].bandwidth_bytes_per_s == 50e9 / 4


def test_interleaved_groups_share_the_links_of_a_grid_dimension():
    """Members 0, 2, 4, 6 of a row: two groups per link, two hops per message."""
    row = make_group(WAFER, 2.0, 4.0).spans[0]
    assert (row.size, row.bandwidth_bytes_per_s, row.latency_s) == (4, 0.5e12, 4e-7)


def test_stride_inside_the_second_dimension_counts_in_its_own_steps():
    """Stride 16 on rows of 8 is every second row; stride 8 is every row, each on its own links."""
    every_second = make_group(WAFER, 16.0, 3.0).spans[1]
    assert (every_second.size, every_second.bandwidth_bytes_per_s) == (3, 0.5e12)
    every = make_group(WAFER, 8.0, 6.0).spans[1]
    assert (every.size, every.bandwidth_bytes_per_s, every.latency_s) == (6, 1e12, 2e-7)


def test_whole_rows_and_columns_keep_their_links():
    group = make_group(WAFER, 1.0, 48.0)
    assert sizes(group) == [8, 6]
    assert [span.bandwidth_bytes_per_s for span in group.spans] == [1e12, 1e12]


def test_misaligned_neighbours_on_a_grid_pay_the_longest_line_and_all_hops():
    """Six in rows of 8 wrap around the rows: 4 messages on a link, 7 + 5 hops at most."""
    outer = make_group(WAFER, 1.0, 6.0).spans[1]
    assert (outer.size, outer.bandwidth_bytes_per_s) == (3, 1e12 / 4)
    assert outer.latency_s == pytest.approx(12 * 2e-7)


@pytest.mark.parametrize(
    ("kind", "stride", "degree", "closes"),
    [
        ("torus", 1.0, 8.0, 1.0),  # the whole dimension
        ("torus", 1.0, 4.0, 0.0),  # a part has no wrap
        ("torus", 2.0, 4.0, 0.0),  # strided: counted without
        ("mesh", 1.0, 8.0, 0.0),
        ("switch", 1.0, 4.0, 1.0),
        ("fully_connected", 2.0, 4.0, 1.0),
    ],
)
def test_only_a_whole_torus_dimension_or_a_switch_closes(kind, stride, degree, closes):
    assert make_group((level(8, kind), level(4)), stride, degree).spans[0].closes == closes


def test_efficiency_scales_the_bandwidth_of_its_level():
    group = make_group(HOSTS, 8.0, 8.0, efficiency=(0.5, 0.8))
    assert group.spans[0].bandwidth_bytes_per_s == 0.5 * 450e9
    assert group.spans[1].bandwidth_bytes_per_s == 0.8 * 50e9


def test_every_field_of_a_column_has_one_value_per_row():
    column = make_group(WAFER, np.array([1.0, 8.0, 2.0]), np.array([8.0, 6.0, 3.0]))
    for span in column.spans:
        for name in ("size", "bandwidth_bytes_per_s", "latency_s", "message_half_bytes", "closes"):
            assert getattr(span, name).shape == (3,)
    assert group_size(column).tolist() == [8.0, 6.0, 3.0]


def test_efficiency_may_differ_from_row_to_row():
    shares = np.array([0.5, 0.25])
    column = make_group(WAFER, np.array([1.0, 1.0]), np.array([8.0, 6.0]), (shares, shares))
    assert column.spans[0].bandwidth_bytes_per_s.tolist() == [0.5e12, 0.25e12]
    assert column.spans[1].bandwidth_bytes_per_s[1] == 0.25e12 / 4
