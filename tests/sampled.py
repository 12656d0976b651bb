"""Long campaigns: all of it in the full run, part of it in the quick one."""

import pytest


def sampled(cases, in_quick_run):
    """Return cases for ``parametrize``; those beyond the first few are marked as slow."""
    listed = list(cases)
    return [*listed[:in_quick_run], *map(_slow, listed[in_quick_run:])]


def slow_where(cases, is_slow):
    """Return cases for ``parametrize``; those for which something holds are marked as slow."""
    return [_slow(case) if is_slow(case) else case for case in cases]


def _slow(case):
    return pytest.param(case, marks=pytest.mark.slow)
