"""Which links of a wafer are too long: dies of 24.99 mm x 33.25 mm, at most 50 mm."""

import numpy as np
import pytest

from meshwright.topology.network import (
    MAX_INTERPOSER_LINK_M,
    LinkSpec,
    Wires,
    assemble,
    link_length_m,
    too_long_links,
    with_error_correction,
)
from meshwright.topology.wafer import IO_DEPTH_M, Wafer, one_wafer, wafers_in_a_row

LINK = LinkSpec(2e12, 200e-9)
DIES = Wafer((6, 8), (LINK, LINK))


def joined(*pairs):
    """Return the dies of the wafer with these wires only."""
    first, second = np.array(pairs).T
    return assemble(
        48,
        [Wires(first, second, LINK)],
        one_wafer(DIES).build().position_m[:48],
        devices_forward=True,
    )


@pytest.mark.parametrize(
    ("pair", "length_mm", "is_too_long"),
    [
        ((0, 1), 24.99, False),
        ((0, 8), 33.25, False),
        ((0, 2), 49.98, False),
        ((0, 9), 58.24, True),  # a diagonal
        ((0, 16), 66.5, True),
        ((0, 7), 174.93, True),  # what would close a row to a ring
    ],
)
def test_wires_run_along_rows_and_columns(pair, length_mm, is_too_long):
    network = joined(pair)
    assert link_length_m(network) == pytest.approx(length_mm * 1e-3)
    assert list(too_long_links(network, [MAX_INTERPOSER_LINK_M])) == [0, 1] * is_too_long


def test_a_wafer_has_no_link_that_is_too_long():
    assert not len(too_long_links(one_wafer(DIES).build(), [MAX_INTERPOSER_LINK_M] * 2))


def test_cables_between_wafers_may_be_longer():
    network = wafers_in_a_row(2, DIES, LINK).build()
    assert not len(too_long_links(network, [MAX_INTERPOSER_LINK_M, MAX_INTERPOSER_LINK_M, None]))


def test_error_correction_makes_a_link_slower_and_never_faster():
    network = joined((0, 1), (0, 7))
    corrected = with_error_correction(network, np.array([2, 3]))
    assert list(corrected.latency_s) == [200e-9] * 2 + [210e-9] * 2
    slow = with_error_correction(corrected, np.array([0]))
    assert slow.latency_s[0] == 210e-9
    assert list(network.latency_s) == [200e-9] * 4


def test_the_wafer_fits_its_substrate():
    """215 mm x 215 mm with the IO dies at the edges."""
    position_m = one_wafer(DIES).build().position_m
    extent_m = position_m.max(axis=0) - position_m.min(axis=0) + IO_DEPTH_M
    assert (extent_m <= 0.2151).all()
    assert (extent_m > 0.21).all()
