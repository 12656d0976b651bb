"""Assertions on plans that were run for real."""

import time


def assert_right(found):
    """Assert that a run equals the dense model, and its sends those derived and enumerated."""
    assert found.is_checked
    assert found.loss_error <= found.tolerance
    assert found.gradient_error <= found.tolerance, found.worst_weight
    assert [entry for entry in found.sent if not entry.is_equal] == []
    assert found.wrong_passes == 0
    assert found.is_right


def find_a_busy_port(late_s, rank, where, tell):
    """Fail as the first process does where another run listens, and as the others do then."""
    if rank == 0:
        time.sleep(late_s)
    raise RuntimeError(f"EADDRINUSE at {where}" if rank == 0 else "Connection closed by peer")
