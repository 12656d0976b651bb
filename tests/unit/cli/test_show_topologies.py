"""``show topologies``, and the network of ``show system``."""

import json

import pytest

from meshwright.cli.main import main
from meshwright.topology.network import topologies


def output(capsys, *words):
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_the_table_has_a_row_for_each(capsys):
    lines = output(capsys, "topologies").splitlines()
    assert [line.split()[0] for line in lines[4:]] == list(topologies)
    assert max(map(len, lines)) <= 100
    # 4 x 4: 2 x 24 links, three hops along either side, four wires across the middle
    assert next(line for line in lines if line.split()[:1] == ["mesh"]).split() == [
        "mesh", "4x4", "48", "6", "4"
    ]  # fmt: skip


def test_a_size_that_a_topology_does_not_have(capsys):
    shown = " ".join(output(capsys, "topologies", "--devices", "15").split())
    assert "fat_tree no shape of 15" in shown


def test_data_holds_the_closed_forms(capsys):
    record = json.loads(output(capsys, "topologies", "--devices", "54", "--json"))
    assert record["num_devices"] == 54
    assert record["topologies"]["hierarchical"]["shape"] == "switch 9, switch 6"
    assert record["topologies"]["fat_tree"] == {
        "shape": "k = 6",
        "num_links": 6 * 54,
        "diameter": 6,
        "bisection_bytes_per_s": 27.0,
        "bisection_is_exact": True,
    }


@pytest.mark.parametrize("number", ["0", "-4", "10001"])
def test_too_few_and_too_many(capsys, number):
    assert main(["show", "topologies", "--devices", number]) == 2
    assert "from 1 to 10000" in capsys.readouterr().err


def test_a_system_says_what_its_network_is(capsys):
    """Six wires of 2 TB/s across the middle of 6 x 8 dies."""
    text = output(capsys, "system", "wafer-6x8")
    assert "network   164 links, 12 hops across, bisection 12 TB/s" in text
    record = json.loads(output(capsys, "system", "64xH100", "--json"))
    assert record["network"]["bisection_bytes_per_s"] == 32 * 50e9


def test_a_part_of_a_system_says_nothing_of_its_network(capsys):
    assert "hops across" not in output(capsys, "system", "60xH100")
    assert "hops across" not in output(capsys, "system", "cerebras-cs3")
