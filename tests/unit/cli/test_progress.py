"""How a long search tells how it goes, and leaves no trace of it before the result."""

import pytest

from meshwright.cli import progress
from meshwright.cli.output import show
from meshwright.cli.progress import Counter


@pytest.fixture
def clock(monkeypatch):
    """Return the seconds that a clock shows, on a terminal of 60 columns."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    monkeypatch.setenv("COLUMNS", "60")
    return seconds


def counted(clock, *, on_terminal):
    """Count things at four moments."""
    count = Counter("points", "; " + "x" * 80)
    count.pace.on_terminal = on_terminal
    for done, seconds in enumerate((1.9, 2.1, 2.2, 2.7)):
        clock[0] = seconds
        count(done, 1000)


def test_the_first_line_comes_after_two_seconds_and_is_wiped(capsys, clock):
    counted(clock, on_terminal=True)
    lines = capsys.readouterr().err.split("\r")[1:]
    assert [line.split()[0] for line in lines] == ["1", "3"]
    assert {len(line) for line in lines} == {59}
    show(["a result"], None, as_json=False)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("a result\n", f"\r{'':59}\r")
    show(["another"], None, as_json=False)
    assert capsys.readouterr().err == ""


def test_off_a_terminal_nothing_is_told(capsys, clock):
    counted(clock, on_terminal=False)
    assert capsys.readouterr().err == ""
