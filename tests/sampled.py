"""Long campaigns: part of each in the default run, the rest in the nightly one."""

import pytest


def sampled(cases, number):
    """Return cases for ``parametrize``; those beyond the first few are marked as slow."""
    listed = list(cases)
    return [*listed[:number], *map(_slow, listed[number:])]


def one_in(number, cases):
    """Return cases for ``parametrize``; all but every n-th are marked as slow."""
    return [case if place % number == 0 else _slow(case) for place, case in enumerate(cases)]


def slow_where(cases, is_slow):
    """Return cases for ``parametrize``; those for which something holds are marked as slow."""
    return [_slow(case) if is_slow(case) else case for case in cases]


def _slow(case):
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    return pytest.param(case, marks=pytest.mark.slow)
