"""Values of a declaration with unit and origin, for readers and for programs."""

import pytest

from meshwright.catalog.files import load_text
from meshwright.catalog.systems import load_chip, load_system
from meshwright.show.declared import declared
from meshwright.spec.system import ChipSpec
from meshwright.view.declared_values import (
    declared_values,
    origin_text,
    unit_of,
    value_text,
)
from meshwright.view.registry import page_of
from meshwright.view.terminal import text_of


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("bandwidth_bytes_per_s", "B/s"),
        ("capacity_bytes", "B"),
        ("energy_j_per_flop", "J/FLOP"),
        ("rent_usd_per_hour", "USD/hour"),
        ("weight_bytes_per_param", "B/parameter"),
        ("max_link_length_m", "m"),
        ("num_cores", ""),
        ("speed_factors", ""),
    ],
)
def test_units_by_name(name, unit):
    assert unit_of(name) == unit


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (80 * 2**30, "B", "80.0 GiB"),
        (2e-7, "s", "200 ns"),
        (4e-11, "J/B", "40 pJ/B"),
        (30000.0, "USD", "30,000 USD"),
        (132, "", "132"),
        (None, "USD", "unknown"),
        ("switch", "", "switch"),
    ],
)
def test_values_as_text(value, unit, text):
    assert value_text(value, unit) == text


def by_path(declaration):
    return {entry.path: entry for entry in declared_values(declaration, declaration.provenance)}


def test_a_chip_value_by_value():
    values = by_path(load_chip("H100"))
    assert values["memories[hbm].bandwidth"].value == 3.35e12
    assert origin_text(values["memories[hbm].bandwidth"]) == "accelerators"
    assert origin_text(values["idle_power"]).startswith("assumed, 70 W to 140 W: ")
    assert origin_text(values["memories[hbm].capacity"]).startswith("derived from accelerators: ")
    assert "vendor" not in values


def test_unknown_prices_are_told():
    values = by_path(load_chip("V100"))
    assert values["price"].value is None
    assert value_text(values["price"].value, values["price"].unit) == "unknown"


def test_what_a_file_leaves_out_is_a_default_and_what_has_no_source_is_told():
    chip = load_text(
        ChipSpec,
        "name: x\nvendor: y\nfamily: z\nmatmul_rate: {bf16: 1 TFLOP/s}\n"
        "memories: [{name: hbm, capacity: 1 GiB, bandwidth: 1 TB/s}]\n",
    )
    values = by_path(chip)
    assert origin_text(values["tile_rows"]) == "default"
    assert origin_text(values["matmul_rate.bf16"]) == "no source stated"


def test_long_origins_wrap_beside_their_value():
    system = load_system("wafer-6x8")
    page = page_of(declared(system, {}, "wafer-6x8", system.sources))
    lines = text_of(page, detail=True).splitlines()
    assert max(map(len, lines)) <= 100
    start = next(i for i, line in enumerate(lines) if "levels[columns].bandwidth" in line)
    indent = lines[start].index("assumed")
    assert lines[start + 1][:indent].isspace()


def test_the_record_is_in_si_units_with_its_sources():
    system = load_system("64xH100")
    record = declared(system, {"name": system.name}, "", system.sources).data()
    values = {entry["field"]: entry for entry in record["values"]}
    latency = values["levels[nvlink].latency"]
    assert latency == {
        "field": "levels[nvlink].latency",
        "value": pytest.approx(1.9e-6),
        "unit": "s",
        "origin": "cited",
        "source": "nccl",
        "note": "",
        "low": pytest.approx(0.5e-6),
        "high": pytest.approx(3.4e-6),
    }
    assert values["levels[nvlink].oversubscription"]["origin"] == "default"
    assert record["sources"]["nccl"]["repo"] == "NVIDIA/nccl"
