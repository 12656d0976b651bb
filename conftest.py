"""Settings of all tests: examples have no deadline, as machines under load are slow.

A law is tried on 25 drawn examples by day, and on 500 by night. A run ends with the tests that took
more CPU time than one should.
"""

import os
import time
from collections.abc import Generator
from contextlib import suppress

import pytest

with suppress(ImportError):  # tests of frameworks and in a browser do without it
    from hypothesis import settings

    settings.register_profile("meshwright", deadline=None, max_examples=25)
    settings.register_profile("nightly", deadline=None, max_examples=500)
    settings.load_profile("meshwright")

os.environ.setdefault("COLUMNS", "100")  # screens are as wide under any terminal

pytest_plugins = ["kept_answers"]

MOST_CPU_S = 2.0
"""Twice the second that a test may take: the first one of a process imports and compiles."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Keep the CPU time of a test with its report."""
    started_s = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", time.process_time() - started_s))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that are to be smaller or to be marked as slow."""
    reports = terminalreporter.stats.get("passed", [])
    used = {report.nodeid: dict(report.user_properties).get("cpu_s", 0.0) for report in reports
            if "slow" not in report.keywords}  # fmt: skip
    for name, cpu_s in sorted(used.items(), key=lambda item: -item[1]):
        if cpu_s > MOST_CPU_S:
            terminalreporter.write_line(f"{cpu_s:.1f} CPU s: {name}")
