"""IO dies along the rim: the rate of every die to the host, by hand and as a maximum flow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_system
from meshwright.collectives.bounds import timed_algorithms
from meshwright.collectives.group import make_group
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import IoDies
from meshwright.topology.levels import topology_of
from meshwright.topology.network import LinkSpec
from meshwright.topology.wafer import Wafer, host_link, io_bytes_per_s, one_wafer

HOST = "host: {capacity: 64 GiB, bandwidth: 100 GB/s}\n"


def with_io(tmp_path, text, like="wafer-6x8"):
    path = tmp_path / "rim.yaml"
    path.write_text(f"like: {like}\n{text}")
    return load_system(str(path))


def test_a_wafer_by_hand(tmp_path):
    """28 IO dies of 0.12 TB/s for 48 dies: 70 GB/s; 16 of them at top and bottom: 40 GB/s."""
    system = with_io(tmp_path, HOST + "io: {bandwidth: 0.12 TB/s}")
    assert io_bytes_per_s(system) == pytest.approx(70e9)
    assert host_link(system).bandwidth_bytes_per_s == pytest.approx(70e9)
    two = with_io(tmp_path, HOST + "io: {bandwidth: 0.12 TB/s, sides: [top, bottom]}")
    assert io_bytes_per_s(two) == pytest.approx(40e9)
    wide = with_io(tmp_path, HOST + "io: {bandwidth: 1 TB/s}")
    assert host_link(wide).bandwidth_bytes_per_s == 100e9


def test_facing_sides_carry_the_seam_alone(tmp_path):
    """Of two wafers only top and bottom lead to the host; 6 IO dies of 0.75 TB/s are 4.5 TB/s."""
    system = with_io(tmp_path, HOST + "io: {bandwidth: 0.75 TB/s}", "2xwafer-6x8")
    assert io_bytes_per_s(system) == pytest.approx(2 * 8 * 0.75e12 / 48)
    with pytest.raises(SpecError, match=r"6 IO dies of 0.5 TB/s do not carry the seam of 4.5 TB/s"):
        with_io(tmp_path, HOST + "io: {bandwidth: 0.5 TB/s}", "2xwafer-6x8")


@pytest.mark.parametrize(
    ("like", "text", "message"),
    [
        ("8xH100", "io: {bandwidth: 1 TB/s}", "two levels of kind mesh"),
        ("wafer-4x8", "io: {bandwidth: 1 TB/s}", "state host, or several wafers"),
        ("wafer-4x8", HOST + "io: {bandwidth: 1 TB/s, sides: [top, top]}", "each of them once"),
        ("wafer-4x8", HOST + "io: {bandwidth: 1 TB/s, sides: [north]}", "did you mean|left"),
        ("2xwafer-4x8", "io: {bandwidth: 2 TB/s, sides: [top]}", "list both"),
    ],
)
def test_io_dies_that_carry_nothing_are_refused(tmp_path, like, text, message):
    with pytest.raises(SpecError, match=message):
        with_io(tmp_path, text, like)


def most_flow(network, system):
    """Return the largest rate that all dies reach the rim with at once, as a linear program."""
    num_dies, rates = network.num_devices, network.bandwidth_bytes_per_s / 1e12
    io = np.arange(num_dies, network.num_nodes)
    # One variable for each link, one for the rate; what a die gets in and makes, it sends on.
    balance = np.zeros((num_dies, network.num_links + 1))
    for link, (a, b) in enumerate(zip(network.source, network.target, strict=True)):
        if a < num_dies:
            balance[a, link] += 1.0
        if b < num_dies:
            balance[b, link] -= 1.0
    balance[:, -1] = -1.0
    rows, columns = network.grid_shape
    side = np.repeat(["left", "right", "top", "bottom"], [rows, rows, columns, columns])
    limit = dict(zip(io.tolist(), side, strict=True))
    limits = [
        (0.0, rate if int(b) < num_dies else
         min(rate, system.io.bandwidth_bytes_per_s / 1e12) * (limit[int(b)] in system.io.sides))
        for rate, b in zip(rates, network.target, strict=True)
    ]  # fmt: skip
    goal = np.zeros(network.num_links + 1)
    goal[-1] = -1.0
    found = linprog(goal, A_eq=balance, b_eq=np.zeros(num_dies), bounds=[*limits, (0.0, None)])
    return found.x[-1] * 1e12


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(2, 4), columns=st.integers(2, 5), across=st.sampled_from([0.5, 1.0, 2.0]),
    upright=st.sampled_from([0.5, 1.0, 2.0]), io=st.sampled_from([0.1, 0.6, 3.0]),
    sides=st.sets(st.sampled_from(["left", "right", "top", "bottom"]), min_size=1),
)  # fmt: skip
def test_the_rate_is_the_maximum_flow(rows, columns, across, upright, io, sides):
    system = load_system(f"mesh-{rows}x{columns}")
    levels = [
        level.model_copy(update={"bandwidth_bytes_per_s": rate * 1e12})
        for level, rate in zip(system.levels, (across, upright), strict=True)
    ]
    dies = IoDies(bandwidth_bytes_per_s=io * 1e12, sides=tuple(sides))
    system = system.model_copy(update={"levels": tuple(levels), "io": dies})
    links = LinkSpec(upright * 1e12), LinkSpec(across * 1e12)
    network = one_wafer(Wafer((rows, columns), links)).build()
    assert topology_of(system).num_devices == network.num_devices
    assert io_bytes_per_s(system) == pytest.approx(most_flow(network, system), rel=1e-6)


def test_an_all_to_all_through_a_switch_by_hand(tmp_path):
    """Each of 8 dies sends 7/8 of 8 MB at 1 TB/s, 7 us; the middle of a 2x4 mesh carries 4 x 4
    parts of 1 MB over 2 wires of 1 TB/s, 8 us at least."""
    path = tmp_path / "switched.yaml"
    path.write_text(
        "name: switched\nchip: TEMP-die\nnum_devices: 8\nlevels:\n"
        "  - {name: switch, kind: switch, size: 8, bandwidth: 1 TB/s, latency: 0 ns}\n"
    )
    mesh = with_io(tmp_path, "levels: {columns: {bandwidth: 1 TB/s, latency: 0 ns, "
                   "message_half: 0 B}, rows: {bandwidth: 1 TB/s, latency: 0 ns, "
                   "message_half: 0 B}}", "mesh-2x4")  # fmt: skip
    switched_s, mesh_s = (
        timed_algorithms(CollectiveKind.ALL_TO_ALL, 8e6, make_group(one.levels, 1.0, 8.0))[0].time_s
        for one in (load_system(str(path)), mesh)
    )
    assert switched_s == pytest.approx(7e-6)
    assert mesh_s >= 8e-6
