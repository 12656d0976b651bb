"""Bytes that each member has to send, by hand: of a tensor of 8 bytes on four members."""

import pytest

from meshwright.collectives.registry import least_sent_bytes
from meshwright.spec.collective import CollectiveKind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (CollectiveKind.ALL_GATHER, 6.0), (CollectiveKind.REDUCE_SCATTER, 6.0),
        (CollectiveKind.ALL_REDUCE, 12.0), (CollectiveKind.ALL_TO_ALL, 6.0),
        (CollectiveKind.SEND, 8.0),
    ],
)  # fmt: skip
def test_what_four_members_send(kind, expected):
    assert least_sent_bytes(kind, 8.0, 4.0) == expected


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_a_member_alone_sends_nothing(kind):
    assert least_sent_bytes(kind, 8.0, 1.0) == 0.0
