"""What ``--on`` accepts and what it answers otherwise."""

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.systems import chip_names, find_chip, load_chip, load_system


def shape(text):
    return [(level.kind, level.size) for level in load_system(text).levels]


def test_64xh100_is_eight_hosts():
    system = load_system("64xH100")
    assert (system.name, system.num_devices, system.chip.name) == ("64xH100", 64, "H100")
    nvlink, infiniband = system.levels
    assert (nvlink.size, infiniband.size) == (8, 8)
    # 18 links of 25 GB/s are 450 GB/s in one direction; one 400 Gbit/s adapter is 50 GB/s.
    assert nvlink.bandwidth_bytes_per_s * nvlink.links_per_device == 450e9
    assert infiniband.bandwidth_bytes_per_s == 50e9
    assert infiniband.rail_optimized
    assert nvlink.in_network_reduction
    assert not infiniband.in_network_reduction


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("1xH100", []),
        ("8xH100", [("switch", 8)]),
        ("8XH100", [("switch", 8)]),
        ("60xA100", [("switch", 8), ("switch", 8)]),
        ("131072xH100", [("switch", 8), ("switch", 16384)]),
        ("64xV100", [("switch", 16), ("switch", 4)]),
        ("144xGB200", [("switch", 72), ("switch", 2)]),
        ("8xTrainium2", [("torus", 4), ("mesh", 2)]),
        ("wafer", [("mesh", 8), ("mesh", 6)]),
        ("wafer-6x8", [("mesh", 8), ("mesh", 6)]),
        ("wafer-4x8", [("mesh", 8), ("mesh", 4)]),
        ("wafer-6x9", [("mesh", 9), ("mesh", 6)]),
        ("48xTEMP-die", [("mesh", 8), ("mesh", 6)]),
        ("1xwafer-6x8", [("mesh", 8), ("mesh", 6)]),
        ("2xwafer-6x8", [("mesh", 8), ("mesh", 6), ("mesh", 2)]),
        ("4XWafer-4x8", [("mesh", 8), ("mesh", 4), ("mesh", 4)]),
        ("108xTEMP-die", [("mesh", 9), ("mesh", 6), ("mesh", 2)]),
        ("2xtpu-v5e-4x8", [("mesh", 8), ("mesh", 4), ("switch", 2)]),
        ("60xtemp-die", [("mesh", 10), ("mesh", 6)]),
        ("80xtemp-die", [("mesh", 10), ("mesh", 8)]),
        ("gb200-nvl72", [("switch", 72)]),
        ("2x4xRTX4090", [("switch", 4), ("switch", 2)]),
        ("16X1xL4", [("switch", 16)]),
        ("1x4xH100", [("switch", 4)]),
        ("2x8xH100", [("switch", 8), ("switch", 2)]),
        ("DGX-H100", [("switch", 8)]),
    ],
)
def test_accepted(text, levels):
    assert shape(text) == levels


@pytest.mark.parametrize("text", ["2xwafer-6x8", "6xwafer-4x8"])
def test_wafers_share_one_seam(text):
    """4.5 TB/s in one direction between two wafers of any shape."""
    columns, rows, seam = load_system(text).levels
    share_bytes_per_s = seam.bandwidth_bytes_per_s * seam.links_per_device
    assert share_bytes_per_s * columns.size * rows.size == pytest.approx(4.5e12)
    assert load_system(text).name == text


def test_devices_may_leave_the_last_host_partly_empty():
    system = load_system("60xH100")
    assert system.num_devices == 60
    assert [level.size for level in system.levels] == [8, 8]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("64 H100", "did you mean 64xH100?"),
        ("64-h100", "did you mean 64xH100?"),
        ("64H100", "did you mean 64xH100?"),
        ("64*H100", "did you mean 64xH100?"),
        ("0xH100", "at least 1"),
        ("64xH1000", "did you mean H100"),
        ("H100", "such as 8xH100"),
        ("200000xH100", "room for 131072"),
        ("64xdgx-h100", "64xH100 means"),
        ("8xH100-96GB", "no standard system"),
        ("RTX 4090", "such as 8xRTX-4090"),
        ("8xRTX-4080", "did you mean RTX-4090"),
        ("6x8", "forms:"),
        ("2x4x8", "forms:"),
        ("2x9xH100", "from 1 to 8"),
        ("2x0xH100", "from 1 to 8"),
        ("0x4xH100", "at least 1"),
        ("2x4xH1000", "did you mean H100"),
        ("2x4xTPU-v5e", "such as 8xTPU-v5e"),
        ("2x36xGB200", "no hosts of a number of devices to choose"),
        ("2x4xH100-96GB", "no standard system"),
        ("wafre-6x8", "did you mean wafer-6x8"),
        ("wafer-6x80", "at most 64x64"),
        ("wafer-0x8", "no shape 0x8"),
        ("dgx-h100-2x4", "has no shape"),
        ("53xTEMP-die", "next sizes: 50 (5x10) or 54 (6x9)"),
        ("200xTEMP-die", "next sizes: 100 (10x10)"),
        ("17xwafer-6x8", "from 1 to 16"),
        ("0xwafer-6x8", "from 1 to 16"),
        ("2xwafer-1x8", "only one"),
        ("2xdojo-tile-5x5", "only one"),
        ("2xwafer-6x80", "at most 64x64"),
        ("2xwafer", "2xTEMP-die means"),
        ("64", "forms:"),
        ("", "forms:"),
        ("-3xH100", "forms:"),
        ("99999999999999999999xH100", "forms:"),
    ],
)
def test_refused_with_the_nearest_fix(text, part):
    with pytest.raises((SpecError, UnknownNameError)) as raised:
        load_system(text)
    assert part in str(raised.value)


@pytest.mark.parametrize("chip", ["RTX-4090", "RTX-3090", "RTX-A6000", "L4", "T4"])
def test_cards_stand_eight_to_a_host_and_share_its_adapter(chip):
    assert shape(f"1x{chip}") == []
    assert shape(f"2x{chip}") == [("switch", 2)]
    system = load_system(f"16x{chip}")
    pcie, ethernet = system.levels
    assert (pcie.size, ethernet.size) == (8, 2)
    # PCIe 4 (of the T4: 3) on 16 lanes; 100 Gb/s of a host over its eight cards.
    pcie_bytes_per_s = 15.8e9 if chip == "T4" else 31.5e9
    assert pcie.bandwidth_bytes_per_s * pcie.links_per_device == pcie_bytes_per_s
    assert 8 * ethernet.bandwidth_bytes_per_s * ethernet.links_per_device == 12.5e9


@pytest.mark.parametrize(
    ("text", "links"),
    # One adapter of a host for 8 cards; one for each H100; eight for sixteen V100.
    [
        ("2x4xRTX4090", 1 / 4), ("2x2xL4", 1 / 2), ("2x1xL4", 1.0), ("2x4xH100", 1.0),
        ("2x4xV100", 0.5), ("2x1xV100", 1.0),
    ],
)  # fmt: skip
def test_smaller_hosts_have_one_adapter_at_least(text, links):
    system = load_system(text)
    assert system.name.casefold().endswith(text.casefold()[-3:])
    assert system.levels[-1].links_per_device == links
    assert system.devices_per_host == int(text.split("x")[1])
    assert system.provenance["devices_per_host"].note == "from the size asked for"


def test_whole_hosts_are_the_standard_system():
    whole, stated = load_system("16xH100"), load_system("2x8xH100")
    assert (whole.levels, whole.num_devices) == (stated.levels, stated.num_devices)


@pytest.mark.parametrize(
    ("chip", "gib"), [("RTX-4090", 24.0), ("RTX-3090", 24.0), ("RTX-A6000", 48.0), ("V100", 32.0)]
)
def test_memory_sold_in_gb_is_gib(chip, gib):
    assert load_chip(chip).main_memory.capacity_bytes == gib * 2**30


@pytest.mark.parametrize(
    ("spelling", "chip"),
    [
        ("RTX4090", "RTX-4090"),
        ("rtx 4090", "RTX-4090"),
        ("4090", "RTX-4090"),
        ("GeForce-RTX-3090", "RTX-3090"),
        ("A6000", "RTX-A6000"),
        ("rtx_a6000", "RTX-A6000"),
        ("A100-80GB", "A100"),
        ("a100 40gb", "A100-40GB"),
        ("H100-SXM", "H100"),
    ],
)
def test_usual_spellings_mean_the_chip(spelling, chip):
    assert load_chip(spelling).name == chip
    assert load_system(f"8x{spelling}").name == f"8x{chip}"


def test_every_spelling_means_one_chip():
    for name in chip_names():
        for spelling in (name, *load_chip(name).also_called):
            assert find_chip(spelling) == name
    assert find_chip("4080") is None


def test_origins_follow_their_level():
    system = load_system("tpu-v4-2x2x1")
    assert [level.name for level in system.levels] == ["y", "x"]
    assert system.provenance["levels[0].bandwidth"].source == "book"
    assert system.provenance["levels[0].size"].note == "from the size asked for"
    assert not any(path.startswith("levels[2]") for path in system.provenance)
    whole = load_system("8xH100")
    assert whole.provenance["levels[0].size"].source == "datasheet"


CHIP = """\
  name: toy
  vendor: nobody
  family: toy
  matmul_rate: {bf16: {value: 100 TFLOP/s, source: S}}
  memories: [{name: hbm, capacity: 10 GiB, bandwidth: 1 TB/s}]
"""
SYSTEM = """\
name: mine
num_devices: 6
dead_devices: [2]
speed_factors: {4: 0.5}
sources: {S: {title: a letter}}
levels: [{name: ring, kind: torus, size: 6, bandwidth: 10 GB/s, latency: 1 us}]
"""


def test_a_file_with_its_chip_inside(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{SYSTEM}chip:\n{CHIP}")
    system = load_system(str(path))
    assert (system.num_devices, system.num_alive) == (6, 5)
    assert system.speed_factors == {4: 0.5}
    assert system.chip.provenance["matmul_rate.bf16"].source == "S"
    assert system.chip.sources["S"].title == "a letter"


def test_a_file_that_names_its_chip(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SYSTEM + "chip: A100\nother_chips: {1: H100}\n")
    system = load_system(str(path))
    assert system.chip.name == "A100"
    assert system.other_chips[1].name == "H100"


def test_a_chip_file_next_to_the_system_file(tmp_path):
    (tmp_path / "toy.yaml").write_text(
        CHIP.replace(", source: S", ", assumed: true, range: [1 TFLOP/s, 1 PFLOP/s]")
        .replace("\n  ", "\n")
        .strip()
    )
    path = tmp_path / "mine.yaml"
    path.write_text(SYSTEM + "chip: ./toy.yaml\n")
    assert load_system(str(path)).chip.name == "toy"


def test_faults_of_the_chip_are_reported_with_those_of_the_system(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SYSTEM.replace("1 us", "1 m") + "chip: A101\nother_chips: {1: H101}\n")
    with pytest.raises(SpecError) as raised:
        load_system(str(path))
    faults = {fault.path: str(fault) for fault in raised.value.faults}
    assert set(faults) == {"chip", "other_chips[1]", "levels[0].latency"}
    assert "A100" in faults["chip"]


def test_two_levels_of_one_name(tmp_path):
    path = tmp_path / "mine.yaml"
    level = "  - {name: ring, kind: torus, size: 6, bandwidth: 10 GB/s, latency: 1 us}\n"
    path.write_text(f"name: mine\nchip: A100\nnum_devices: 6\nlevels:\n{level}{level}")
    with pytest.raises(SpecError, match="two levels are called 'ring'"):
        load_system(str(path))


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("num_devices: 6", "num_devices: 7", "num_devices"),
        ("[2]", "[6]", "dead_devices"),
        ("{4: 0.5}", "{6: 0.5}", "speed_factors"),
        ("{4: 0.5}", "{4: -0.5}", "speed_factors[4]"),
        ("{4: 0.5}", "{four: 0.5}", "speed_factors.four"),
        ("{4: 0.5}", "{4: yes}", "speed_factors[4]"),
        ("name: mine", "name: mine\ndead_links: [[0, 9]]", "dead_links"),
        ("name: mine", "name: mine\nother_chips: {7: H100}", "other_chips"),
        ("kind: torus", "kind: torus, through_io_dies: true", "levels"),
        ("kind: torus", "kind: mesh, through_io_dies: true", "levels"),
        ("name: mine", "name: mine\ngrid: {dims: 2, shapes: [2x3]}", "levels"),
        ("name: mine", "name: mine\ngrid: {dims: 1, shapes: [2x3]}", "grid.shapes"),
        ("name: mine", "name: mine\ngrid: {dims: 1, shapes: []}", "grid.shapes"),
    ],
)
def test_faults_across_fields(tmp_path, old, new, path):
    file = tmp_path / "mine.yaml"
    file.write_text(SYSTEM.replace(old, new) + "chip: A100\n")
    with pytest.raises(SpecError) as raised:
        load_system(str(file))
    assert [fault.path for fault in raised.value.faults] == [path]


def test_a_grid_whose_links_fill_the_memory_is_refused():
    system = load_system("wafer-6x8")
    data = system.model_dump(exclude={"levels"})
    levels = (system.levels[0], system.levels[1].model_copy(update={"size": 2**31}))
    with pytest.raises(ValueError, match="a grid of 17179869184 devices, at most 1048576"):
        type(system).model_validate({**data, "levels": levels})
