"""Each chip and system of the catalog: it loads, its numbers have a source and are plausible.

A new YAML file is tested here without an edit.
"""

import math

import pytest
from sampled import one_in

from meshwright.catalog.files import data_names
from meshwright.catalog.systems import (
    chip_names,
    load_chip,
    load_system,
    load_system_file,
    system_names,
)
from meshwright.show.declared import declared
from meshwright.spec.system import ChipSpec, SystemSpec
from meshwright.view.declared_values import declared_values
from meshwright.view.registry import page_of
from meshwright.view.terminal import text_of

BANDS = {
    # field name without indices -> lowest and highest plausible value [SI]
    "matmul_rate": (5e13, 3e16),
    "matmul_rate.fp64": (1e12, 3e14),
    "matmul_rate.fp32": (1e13, 1e16),  # by six passes in 16 bits on TPUs, an eighth of the rate
    "matmul_rate.tf32": (1e13, 3e15),  # half of the 16-bit rate; by three passes on TPUs
    "best_matmul_rate": (1e14, 3e16),
    "vector_rate": (1e12, 3e14),
    "num_cores": (1, 1e4),
    "tile_rows": (1, 512),
    "tile_columns": (8, 512),
    "peak_power": (50, 30e3),
    "idle_power": (10, 10e3),
    "area": (100, 50e3),
    "price": (1e3, 5e6),
    "rent": (0.1, 100),
    "energy": (1e-13, 1e-10),
}


@pytest.mark.parametrize("name", chip_names())
class TestChip:
    def test_its_name_is_that_of_its_file(self, name):
        assert load_chip(name).name == name

    def test_each_number_has_its_source(self, name):
        chip = load_chip(name)
        for entry in declared_values(chip, chip.provenance):
            stated = isinstance(entry.value, int | float) and not entry.is_default
            assert not stated or entry.origin is not None, entry.path
            if entry.origin is not None and entry.origin.source is not None:
                assert entry.origin.source in chip.sources
            if entry.origin is not None and entry.origin.kind == "assumed":
                assert entry.origin.low <= entry.value <= entry.origin.high

    def test_no_source_is_idle(self, name):
        chip = load_chip(name)
        used = {entry.source for entry in chip.provenance.values()}
        assert set(chip.sources) <= used

    def test_its_numbers_are_plausible(self, name):
        chip = load_chip(name)
        for entry in declared_values(chip, chip.provenance):
            key = entry.path.split(".")[0]
            if key in BANDS and isinstance(entry.value, int | float):
                low, high = BANDS.get(entry.path, BANDS[key])
                assert low <= entry.value <= high, entry.path

    def test_its_memories_go_from_near_and_fast_to_far_and_large(self, name):
        chip = load_chip(name)
        for memory in chip.memories:
            assert 1e6 <= memory.capacity_bytes <= 2e12
            assert 1e11 <= memory.bandwidth_bytes_per_s <= 1e17
        for near, far in zip(chip.memories, chip.memories[1:], strict=False):
            assert near.capacity_bytes < far.capacity_bytes
            assert near.bandwidth_bytes_per_s > far.bandwidth_bytes_per_s

    def test_narrow_types_are_not_slower_and_measured_rates_stay_below_the_peak(self, name):
        rates = load_chip(name).matmul_flops_per_s
        order = [rates[kind] for kind in ("bf16", "fp8", "fp4") if kind in rates]
        assert order == sorted(order)
        for kind, best in load_chip(name).best_matmul_flops_per_s.items():
            assert 0.4 * rates[kind] <= best <= rates[kind]

    def test_its_powers_are_ordered_and_known_together(self, name):
        chip = load_chip(name)
        assert (chip.peak_power_w is None) == (chip.idle_power_w is None)
        if chip.peak_power_w is not None:
            assert 0.05 * chip.peak_power_w <= chip.idle_power_w <= 0.5 * chip.peak_power_w

    def test_its_ridge_is_plausible(self, name):
        chip = load_chip(name)
        rate = max(chip.matmul_flops_per_s.values())
        assert 0.1 <= rate / chip.main_memory.bandwidth_bytes_per_s <= 3000

    def test_it_survives_a_round_trip(self, name):
        chip = load_chip(name)
        assert ChipSpec.model_validate(chip.model_dump()) == chip
        assert ChipSpec.model_validate_json(chip.model_dump_json()) == chip

    def test_its_standard_system_is_made_of_it(self, name):
        standard = load_chip(name).standard_system
        if standard is not None:
            path = data_names("systems")[standard]
            assert load_system_file(path).chip.name == name
            natural = load_system(standard).num_devices
            assert load_system(f"{natural}x{name}").num_devices == natural

    def test_its_text_fits_the_screen(self, name):
        chip = load_chip(name)
        page = page_of(declared(chip, {}, chip.name, chip.sources))
        lines = text_of(page, detail=True).splitlines()
        assert max(map(len, lines)) <= 100


def test_every_system_file_is_reached_by_a_name():
    reached = {name for name in data_names("systems") for full in system_names() if name in full}
    assert reached == set(data_names("systems"))


@pytest.mark.parametrize("name", one_in(4, system_names()))
class TestSystem:
    def test_its_levels_hold_its_devices(self, name):
        system = load_system(name)
        assert system.name == name
        assert math.prod(level.size for level in system.levels) == system.num_devices
        assert len({level.name for level in system.levels}) == len(system.levels)

    def test_it_survives_a_round_trip(self, name):
        system = load_system(name)
        assert SystemSpec.model_validate(system.model_dump()) == system
        assert SystemSpec.model_validate_json(system.model_dump_json()) == system

    def test_its_text_fits_the_screen(self, name):
        system = load_system(name)
        page = page_of(declared(system, {}, system.name, system.sources))
        lines = text_of(page, detail=True).splitlines()
        assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("path", data_names("systems").values(), ids=lambda path: path.stem)
class TestSystemFile:
    """The file with its levels at their largest, where most of them have no device yet."""

    def test_its_name_is_that_of_its_file(self, path):
        assert load_system_file(path).name == path.stem

    def test_each_number_has_its_source(self, path):
        file = load_system_file(path)
        for entry in declared_values(file, file.provenance):
            stated = isinstance(entry.value, int | float) and not entry.is_default
            is_structure = entry.path == "num_devices" or entry.path.startswith("grid.")
            assert not stated or is_structure or entry.origin is not None, entry.path
            if entry.origin is not None and entry.origin.source is not None:
                assert entry.origin.source in file.sources

    def test_no_source_is_idle(self, path):
        file = load_system_file(path)
        assert set(file.sources) <= {entry.source for entry in file.provenance.values()}

    def test_its_links_are_plausible(self, path):
        for level in load_system_file(path).levels:
            rate = level.bandwidth_bytes_per_s * level.links_per_device
            assert 1e9 <= rate <= 1e13
            assert 5e-8 <= level.latency_s <= 5e-5
            # half of the bandwidth is reached by messages of a few round trips
            assert level.message_half_bytes <= 20 * max(level.latency_s, 1e-6) * rate

    def test_its_network_gets_thinner_outwards(self, path):
        levels = load_system_file(path).levels
        rates = [level.bandwidth_bytes_per_s * level.links_per_device for level in levels]
        assert rates == sorted(rates, reverse=True)

    def test_host_memory_is_slower_than_that_of_the_device(self, path):
        file = load_system_file(path)
        if file.host is not None:
            memory = file.chip.main_memory
            assert file.host.bandwidth_bytes_per_s < memory.bandwidth_bytes_per_s
            assert 1e9 <= file.host.capacity_bytes <= 1e14

    def test_only_data_parallelism_crosses_between_slices_unless_they_are_wafers(self, path):
        file = load_system_file(path)
        if file.grid is not None:
            for level in file.levels[file.grid.dims :]:
                assert level.data_parallel_only != level.through_io_dies


def test_a_new_chip_is_one_file(tmp_path):
    chip = tmp_path / "newcomer.yaml"
    chip.write_text(
        "name: newcomer\nvendor: nobody\nfamily: hopper\n"
        "sources: {S: {title: a data sheet}}\nsource: S\n"
        "matmul_rate: {bf16: 500 TFLOP/s}\n"
        "memories: [{name: hbm, capacity: 48 GiB, bandwidth: 2 TB/s}]\n"
    )
    loaded = load_chip(str(chip))
    assert loaded.price_usd is None
    assert loaded.peak_power_w is None
    system = tmp_path / "newcomers.yaml"
    system.write_text(
        "name: newcomers\nchip: ./newcomer.yaml\nnum_devices: 16\n"
        "levels:\n"
        "  - {name: link, kind: switch, size: 4, bandwidth: 100 GB/s, latency: 1 us}\n"
        "  - {name: net, kind: switch, size: 4, bandwidth: 10 GB/s, latency: 5 us}\n"
    )
    assert load_system(str(system)).chip == loaded
