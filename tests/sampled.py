"""Long campaigns: all of it in the full run, the first part of it in the quick one."""

import pytest


def sampled(cases, in_quick_run):
    """Return cases for ``parametrize``; those beyond the first few are marked as slow."""
    listed = list(cases)
    return [
        *listed[:in_quick_run],
        *(pytest.param(case, marks=pytest.mark.slow) for case in listed[in_quick_run:]),
    ]
