"""Collectives among any devices: by hand on a ring, as the closed form on a line, above bounds."""

import json
import random

import pytest

from meshwright.catalog.systems import load_system
from meshwright.cli.main import main
from meshwright.collectives.bounds import timed_algorithms
from meshwright.collectives.group import is_block, make_group
from meshwright.network.placed_collectives import placed_algorithms, placed_bound_s, tour
from meshwright.spec.collective import CollectiveKind
from meshwright.topology.levels import network_of

WAFER = load_system("wafer-6x8")
NETWORK = network_of(WAFER)
SIZE = 64.0 * 2**20
KINDS = [kind for kind in CollectiveKind if kind is not CollectiveKind.SEND]


def times_s(kind, devices, network=NETWORK, size=SIZE):
    return {row.name: row.time_s for row in placed_algorithms(kind, size, devices, network)}


def test_a_ring_of_four_dies_by_hand():
    """Three rounds of a quarter each, over links of their own."""
    link = WAFER.levels[0]
    a_round = (SIZE / 4 + link.message_half_bytes) / link.bandwidth_bytes_per_s + link.latency_s
    found = times_s(CollectiveKind.ALL_GATHER, (0, 1, 8, 9))
    assert found["ring_all_gather"] == pytest.approx(3 * a_round, rel=1e-9)
    assert times_s(CollectiveKind.ALL_GATHER, (8, 1, 9, 0)) == found


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_a_line_takes_its_closed_form(kind):
    name = f"line_{kind}"
    closed = {row.name: row.time_s for row in timed_algorithms(
        kind, SIZE, make_group(WAFER.levels, 1.0, 8.0)
    )}  # fmt: skip
    assert times_s(kind, range(8))[name] == pytest.approx(closed[name], rel=0.03)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_faster_than_its_bound(seed):
    chance = random.Random(seed)
    name = chance.choice(["wafer-6x8", "tpu-v5p-4x4x4", "16xH100"])
    network = network_of(load_system(name))
    devices = chance.sample(range(16), chance.randint(2, 7))
    size = chance.choice([8.0, 1e5, 1e8])
    for kind in KINDS:
        bound_s = placed_bound_s(kind, size, devices, network)
        found = times_s(kind, devices, network, size)
        assert found
        assert min(found.values()) >= bound_s * (1 - 1e-12) > 0


def test_a_tour_visits_each_device_once():
    """Two rows of three, listed in turn: 0 1 2 on the way, 10 9 8 back."""
    found = tour((0, 10, 1, 8, 2, 9), NETWORK).tolist()
    assert found in ([0, 1, 2, 10, 9, 8], [0, 8, 9, 10, 2, 1])


@pytest.mark.parametrize(
    ("stride", "size", "is_one"),
    [(1, 8, True), (1, 16, True), (8, 6, True), (2, 4, True), (16, 3, True), (4, 4, True),
     (9, 5, False), (6, 8, False), (3, 3, False), (1, 12, False)],
)  # fmt: skip
def test_blocks_of_a_grid(stride, size, is_one):
    """Of 8 columns and 6 rows: rows, columns, every second; diagonals and what wraps are none."""
    assert is_block((8, 6), stride, size) is is_one


def asked(capsys, *words):
    status = main(["show", "collectives", "--on", "wafer-6x8", "--size", "64MiB", *words])
    return status, capsys.readouterr()


def test_the_command_plays_what_is_no_block(capsys):
    status, shown = asked(capsys, "--group", "5", "--stride", "9", "--json")
    found = json.loads(shown.out)
    assert status == 0
    assert (found["fidelity"], found["devices"]) == ("simulated", [0, 9, 18, 27, 36])
    status, shown = asked(capsys, "--group", "0,9,18,27,36", "--json")
    assert json.loads(shown.out)["collectives"] == found["collectives"]
    status, shown = asked(capsys, "--group", "8", "--json")
    assert json.loads(shown.out)["fidelity"] == "closed_form"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--group", "0,1,99"), "device 99; the system has 48 (0 to 47)"),
        (("--group", "3,3"), "device 3 is named twice"),
        (("--group", "0,x"), "'x' is not a number of a device (such as 8, or 0,1,2,8)"),
        (("--group", "0,1", "--stride", "2"), "a list of devices has no stride"),
        (("--group", "1"), "1 is too small for a group; at least 2 members"),
    ],
)
def test_wrong_groups_are_told(capsys, words, complaint):
    status, shown = asked(capsys, *words)
    assert status == 2
    assert complaint in shown.err
