"""Lines shown below commands: they are found, compared in order, and written anew."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))

from generators import console

PAGE = """Text with 1 s.

```console
$ ./mw plan a --on b \\
      --seq 1
FITS  1 s
...
time  2 s
$ ./mw show c
```

```text
line  old
```

```text
$ not run
```
"""


def test_a_command_has_the_lines_below_it_and_in_the_block_behind():
    assert list(console.shown_calls(PAGE)) == [
        (["./mw", "plan", "a", "--on", "b", "--seq", "1"], ["FITS  1 s", "time  2 s"]),
        (["./mw", "show", "c"], ["line  old"]),
    ]


def test_lines_are_absent_where_they_differ_or_stand_in_another_order():
    shown = ["FITS  1 s", "time  2 s"]
    assert console.absent(shown, "x\nFITS  1 s  \nmore\ntime  2 s\n") == []
    assert console.absent(shown, "FITS  1.1 s\ntime  2 s\n") == shown
    assert console.absent(shown, "time  2 s\nFITS  1 s\n") == ["time  2 s"]


def test_lines_become_those_that_begin_alike_and_all_else_stays():
    screens = {"plan": "head\nFITS  3 s\n      more\ntime  4 s\n", "show": "line  new\n"}
    asked = []

    def run(words):
        asked.append(words[1])
        return screens[words[1]]

    found = console.renewed(PAGE, run)
    expected = PAGE.replace("FITS  1 s", "FITS  3 s").replace("time  2 s", "time  4 s")
    assert found == expected.replace("line  old", "line  new")
    assert asked == ["plan", "show"]
    assert console.renewed(PAGE, lambda words: "") == PAGE


def test_a_page_without_lines_runs_nothing():
    page = "```console\n$ ./mw plan a\n```\n"
    assert console.renewed(page, lambda words: 1 / 0) == page
