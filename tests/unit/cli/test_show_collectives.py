"""``show collectives``: the table, its data, and every fault of the options."""

import json

import pytest

from meshwright.cli.main import main


def output(capsys, *words):
    assert main(["show", "collectives", *words]) == 0
    return capsys.readouterr().out


def test_the_table_names_the_level_and_puts_the_fastest_first(capsys):
    text = output(capsys, "--on", "64xH100", "--size", "64", "MiB", "--group", "8")
    lines = text.splitlines()
    assert lines[0] == "64xH100: groups of 8, stride 1, 64.0 MiB on each member"
    assert max(map(len, lines)) <= 100
    assert any(line.split()[:1] == ["ring_all_reduce"] for line in lines)


def test_data_holds_every_kind_and_no_algorithm_beats_the_bound(capsys):
    words = ("--on", "64xH100", "--size", "1GiB", "--group", "8", "--stride", "8", "--json")
    record = json.loads(output(capsys, *words))
    assert record["num_bytes"] == 2.0**30
    assert [span["size"] for span in record["spans"]][:2] == [1.0, 8.0]
    for rows in record["collectives"].values():
        assert rows
        assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
        assert all(0 < row["bound_fraction"] <= 1 + 1e-12 for row in rows)


def test_bus_bandwidth_of_a_long_ring_is_that_of_the_links(capsys):
    """2 x 7/8 of the bytes over the time of a ring tends to what one member sends."""
    words = ("--on", "64xH100", "--size", "1TiB", "--group", "8", "--stride", "8", "--json")
    record = json.loads(output(capsys, *words))
    ring = next(r for r in record["collectives"]["all_reduce"] if r["name"] == "ring_all_reduce")
    link = record["spans"][1]["bandwidth_bytes_per_s"]
    assert ring["bus_bandwidth_bytes_per_s"] == pytest.approx(link, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--size", "3", "--group", "800"], ["--size: '3'", "800 members", "at most 64 members"]),
        (["--size", "0 B", "--group", "8"], ["--size: found '0 B', expected more than 0"]),
        (["--size", "1e30 B", "--group", "8"], ["--size: found '1e30 B', expected less than"]),
        (["--size", "1 MiB", "--group", "1"], ["--group: 1 is too small for a group"]),
        (
            ["--size", "1 MiB", "--group", "8", "--stride", "0"],
            ["--stride: found '0', expected a whole number above 0"],
        ),
    ],
)
def test_faults_of_the_options_are_told_together(capsys, words, parts):
    assert main(["show", "collectives", "--on", "64xH100", *words]) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in parts)
