"""Whatever is read or asked ends with 0, 2 or 3, without a traceback, in time and in memory."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from fuzz.campaign import bad_ends


def test_damaged_inputs_of_a_sample_end_as_they_may(tmp_path):
    kinds: Counter[str] = Counter()
    assert list(bad_ends(tmp_path, 0, 40, kinds)) == []
    assert kinds.total() == 40


@pytest.mark.slow
def test_damaged_inputs_end_as_they_may(tmp_path):
    """Seeds from ``FUZZED_FROM`` on, as many as ``FUZZED``."""
    first, number = (int(os.environ.get(n, d)) for n, d in (("FUZZED_FROM", 0), ("FUZZED", 10**5)))
    assert list(bad_ends(tmp_path, first, first + number, Counter())) == []
