"""Inputs of Timeloop: they keep the rules of its front end, and hold the work of a device."""

from math import prod

import pytest
import yaml
from dataflow_graphs import mixer

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_chip, load_system
from meshwright.dataflow.energy import local_kernels
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright.frameworks.timeloop import architecture, clock_hz, reference_table, timeloop_files
from meshwright.graph.kernels.kernel import Unit

BUFFERS = ("DRAM", "SRAM", "regfile", "smartbuffer", "storage")
COMPUTES = ("mac", "intmac", "fpmac", "compute")
STORAGE = {"datawidth", "width", "depth", "shared_bandwidth"}
"""Words of ``timeloopfe/v4/arch.py``: classes, and attributes of storage that are written."""


class Loader(yaml.SafeLoader):
    """A loader that keeps the tags of nodes."""


for _tag in ("Component", "Container"):
    Loader.add_constructor(
        f"!{_tag}",
        lambda loader, node, tag=_tag: {"tag": tag, **loader.construct_mapping(node, deep=True)},
    )


def read(text):
    """Return a file as data, with the tag of each node."""
    return yaml.load(text, Loader)


@pytest.fixture(scope="module")
def planned():
    graph, machine = mixer(4096), calibrated_system("wafer-4x8")
    return graph, machine, plan_dataflow(graph, machine, allowed={"tp": (32,)}).best


def test_an_architecture_keeps_the_rules_of_the_front_end(planned):
    found = read(timeloop_files(*planned)["architecture.yaml"])["architecture"]
    assert found["version"] == 0.4
    names = [node["name"] for node in found["nodes"]]
    assert names == ["chip", "hbm", "sram", "core", "mac"]
    assert len(set(names)) == len(names)
    for node in found["nodes"]:
        if node["tag"] == "Component":
            assert any(word in node["class"] for word in (*BUFFERS, *COMPUTES))
        if node.get("class") in BUFFERS:
            assert set(node["attributes"]) <= STORAGE
            assert {"datawidth", "depth"} <= set(node["attributes"])
    meshes = [node["spatial"] for node in found["nodes"] if "spatial" in node]
    assert prod(mesh["meshX"] * mesh["meshY"] for mesh in meshes) == 110 * 64 * 64


def test_memories_have_the_bytes_and_rates_of_the_chip():
    chip = load_chip("SN10")
    ddr, sram = (node for node in read(architecture(chip))["architecture"]["nodes"]
                 if node.get("class") in ("DRAM", "SRAM"))  # fmt: skip
    assert clock_hz(chip) == pytest.approx(1.302e9, rel=1e-3)  # 320e12 / (2 640 32 6)
    for node, memory in ((sram, chip.memories[0]), (ddr, chip.memories[1])):
        held = node["attributes"]
        assert held["depth"] * held["width"] / 8 == memory.capacity_bytes
        rate = held["shared_bandwidth"] * held["datawidth"] / 8 * clock_hz(chip)
        assert rate == pytest.approx(memory.bandwidth_bytes_per_s, rel=1e-4)


def test_problems_hold_the_products_of_a_device(planned):
    graph, machine, plan = planned
    files = timeloop_files(graph, machine, plan)
    work, named = 0.0, []
    for name, text in files.items():
        if name.startswith("problem"):
            found = read(text)["problem"]
            kernels = text.splitlines()[0].removeprefix("# ").split(", ")
            named += kernels
            work += len(kernels) * 2.0 * prod(found["instance"].values())
            shape = found["shape"]
            assert set(found["instance"]) == set(shape["dimensions"])
            assert [space.get("read_write", False) for space in shape["data_spaces"]] == [
                False, False, True,
            ]  # fmt: skip
            used = {dim for space in shape["data_spaces"] for [[dim]] in space["projection"]}
            assert used == set(shape["dimensions"])
    products = [(k, s) for k, s in local_kernels(graph, machine, plan) if k.unit is Unit.MATRIX]
    assert sorted(named) == sorted(kernel.name for kernel, _ in products)
    assert work == sum(kernel.flops(sizes) for kernel, sizes in products)


def test_energies_are_written_where_all_are_stated():
    chip = load_system("wafer-4x8").chip
    assert reference_table(chip) is None  # no energy of its SRAM is known
    sram, hbm = chip.memories
    known = (sram.model_copy(update={"energy_j_per_byte": 1e-12}), hbm)
    tables = read(reference_table(chip.model_copy(update={"memories": known})))["ERT"]["tables"]
    energies = {table["name"]: {a["name"]: a["energy"] for a in table["actions"]}
                for table in tables}  # fmt: skip
    word = {"read": 96.0, "write": 96.0, "update": 96.0, "leak": 0.0}  # 6 pJ a bit, 16 bits
    assert energies["system_top_level.hbm[1..1]"] == word
    assert energies["system_top_level.sram[1..1]"]["read"] == 2.0  # 1 pJ a byte
    assert energies["system_top_level.mac[1..450560]"]["compute"] == 1.0  # two FLOPs of 0.5 pJ


def test_the_command_writes_them_and_refuses_unknown_arrays(tmp_path):
    mw.map("llama3-8b.head", on="8xSN10", tp=8, timeloop=str(tmp_path))
    assert (tmp_path / "architecture.yaml").is_file()
    with pytest.raises(SpecError, match="states no arrays of its cores"):
        mw.map("dlrm-a", on="128xA100", timeloop=str(tmp_path))
