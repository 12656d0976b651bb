"""A progress bar comes late, on a terminal only, and leaves no trace before the result."""

import pytest

from meshwright.cli import main as progress
from meshwright.cli.main import Counter, show


@pytest.fixture
def clock(monkeypatch):
    """Return the seconds that a clock shows, on a terminal of 60 columns."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    monkeypatch.setenv("COLUMNS", "60")
    return seconds


def counted(clock, *, on_terminal):
    """Count things at four moments."""
    count = Counter("points", "; Ctrl-C: the results so far")
    count.on_terminal = on_terminal
    for done, seconds in enumerate((1.9, 2.1, 2.2, 2.7)):
        clock[0] = seconds
        count(done, 1000)


def test_the_bar_comes_after_two_seconds_and_is_wiped(capsys, clock):
    counted(clock, on_terminal=True)
    assert progress.ProgressBar.shown is not None
    assert progress.ProgressBar.shown.tasks[0].completed == 3
    show(["a result"], None, as_json=False)
    assert progress.ProgressBar.shown is None
    assert capsys.readouterr().out == "a result\n"
    show(["another"], None, as_json=False)
    assert capsys.readouterr().err == ""


def test_off_a_terminal_nothing_is_shown(capsys, clock):
    counted(clock, on_terminal=False)
    assert progress.ProgressBar.shown is None
    assert capsys.readouterr().err == ""
