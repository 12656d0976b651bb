"""Wires that differ from their level: repaired lanes, error correction, width by side of a die."""

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_system
from meshwright.network.placed_collectives import placed_algorithms
from meshwright.network.routing import shortest_routes
from meshwright.network.traffic import Demands
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import NetworkLevel
from meshwright.topology.levels import corrected_links, network_of
from meshwright.topology.network import share_of_lanes


def square(tmp_path, text="", columns="1 TB/s", rows="1 TB/s", size="2x2"):
    """Return a mesh of dies with bare links, 0-1 and 2-3 along columns, 0-2 and 1-3 along rows."""
    bare = "latency: 15 ns, message_half: 0 B, num_lanes: 64, num_spare_lanes: 4"
    path = tmp_path / "square.yaml"
    path.write_text(
        f"like: mesh-{size}\nlevels:\n"
        f"  columns: {{bandwidth: {columns}, {bare}}}\n"
        f"  rows: {{bandwidth: {rows}, {bare}}}\n{text}"
    )
    return load_system(str(path))


def all_reduce_s(system, devices, num_bytes, name="ring_all_reduce"):
    """Return the simulated seconds of an all-reduce among some devices."""
    timed = placed_algorithms(CollectiveKind.ALL_REDUCE, num_bytes, devices, network_of(system))
    return next(one.time_s for one in timed if one.name == name)


def test_lanes_by_hand():
    assert share_of_lanes(64, None, 16) == 0.75
    assert share_of_lanes(64, 4, 4) == 1.0
    assert share_of_lanes(64, 4, 20) == 0.75
    assert share_of_lanes(64, 4, 68) == share_of_lanes(64, 4, 70) == 0.0


def test_half_as_wide_along_one_side(tmp_path):
    """Two steps of 2 MB each: 15 ns + 2 us over 1 TB/s, 15 ns + 4 us over half of it."""
    system = square(tmp_path, rows="0.5 TB/s")
    assert all_reduce_s(system, (0, 1), 4e6) == pytest.approx(4.03e-6)
    assert all_reduce_s(system, (0, 2), 4e6) == pytest.approx(8.03e-6)


def test_a_ring_with_one_corrected_link(tmp_path):
    """Its link carries three parts of 1 byte there and three back, one after the other: each takes
    210 ns and 1 ps, in place of 15 ns and 1 ps."""
    bare = all_reduce_s(square(tmp_path), (0, 1, 3, 2), 4.0)
    assert bare == pytest.approx(6 * 15e-9 + 6e-12, rel=1e-9)
    corrected = square(tmp_path, "corrected_links: [[1, 0]]")
    found = all_reduce_s(corrected, (0, 1, 3, 2), 4.0)
    assert found == pytest.approx(6 * 210e-9 + 6e-12, rel=1e-9)


def test_a_repaired_link_keeps_the_share_of_its_lanes(tmp_path):
    """20 of 64 lanes and 4 spares: three quarters; 2 MB take 2.667 us."""
    repaired = square(tmp_path, "failed_lanes: [[0, 1, 20], [0, 2, 4]]")
    assert all_reduce_s(repaired, (0, 1), 4e6) == pytest.approx(2 * (15e-9 + 2e6 / 0.75e12))
    assert all_reduce_s(repaired, (0, 2), 4e6) == pytest.approx(4.03e-6)


def test_routes_of_least_latency_avoid_a_corrected_link(tmp_path):
    """0-1 takes 210 ns; 0-2-3-1 three times 15 ns."""
    network = network_of(square(tmp_path, "corrected_links: [[0, 1]]"))
    columns = (np.array(column) for column in ([0], [1], [1.0], [0], [0]))
    routes = shortest_routes(network, Demands(*columns))
    assert network.target[routes.of(0)].tolist() == [2, 3, 1]
    assert routes.latency_s(network)[0] == pytest.approx(45e-9)


def test_links_beyond_their_reach_are_corrected_in_every_price(tmp_path):
    path = tmp_path / "wide.yaml"
    path.write_text("like: wafer-4x8\nlevels: {rows: {pitch: 60 mm, latency: 15 ns}}\n")
    system = load_system(str(path))
    network = network_of(system)
    assert system.levels[1].hop_latency_s == pytest.approx(210e-9)
    assert system.levels[0].hop_latency_s == pytest.approx(200e-9)
    along_rows = corrected_links(network, system)
    assert set(network.level[along_rows].tolist()) == {1}
    assert len(along_rows) == 2 * 3 * 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("failed_lanes: [[0, 3, 2]]", r"failed_lanes\[0\]: devices 0 and 3 have no link"),
        ("failed_lanes: [[0, 1, 68]]", r"68 of 64 lanes and 4 spares \(list \[0, 1\] under dead"),
        ("failed_lanes: [[0, 1, 2]]\nslow_links: [[1, 0, 0.5]]", r"failed_lanes\[0\].*listed"),
        ("corrected_links: [[0, 1], [1, 0]]", r"corrected_links\[1\].*state it once"),
        ("corrected_links: [[0, 4]]", "corrected_links: no device 4 of 4"),
        ("failed_lanes: [[0, 1, 0]]", "must be larger than 0"),
    ],
)
def test_wires_that_cannot_be_are_refused(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        network_of(square(tmp_path, text))


def test_lanes_must_be_known():
    system = load_system("mesh-2x2").model_copy(update={"failed_lanes": ((0, 1, 3),)})
    with pytest.raises(SpecError, match="level columns does not state the lanes of its links"):
        network_of(system)
    link = {"name": "x", "size": 8, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0}
    with pytest.raises(ValueError, match="num_lanes: are of the links of a mesh"):
        NetworkLevel(**link, num_lanes=4)
    with pytest.raises(ValueError, match="is needed beside num_spare_lanes"):
        NetworkLevel(**link, kind="mesh", num_spare_lanes=4)


def test_check_names_wires_that_are_not_there(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("like: wafer-4x8\nfailed_lanes: [[0, 9, 2], [0, 1, 3]]\n")
    asked = {"seq": 2048, "global_batch": 64, "tatp": 4, "dp": 4}
    found = mw.check("gpt3-6.7b", on=str(path), **asked)
    assert [fault.rule for fault in found.faults] == ["failed_lanes[0]", "failed_lanes[1]"]
