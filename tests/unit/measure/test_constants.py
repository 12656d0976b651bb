"""Rows made by formulas with known constants give these constants back; figures by hand."""

import math

import pytest

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_chip, load_system, load_system_file
from meshwright.measure.constants import chip_of, fitted, made_system
from meshwright.measure.files import calibration_text, system_text
from meshwright.spec.measured import Machine, Measured, Timing

H100 = Machine(
    device="NVIDIA H100 80GB HBM3", kind="cuda", num_devices=8, devices_per_host=8,
    memory_bytes=80e9, num_units=132, host_cores=96, torch="2.13.0", library="nccl",
)  # fmt: skip


def row(kernel, shape, seconds, dtype="bf16", **fields):
    return Timing(kernel=kernel, dtype=dtype, shape=shape, median_s=seconds, p25_s=seconds,
                  p75_s=seconds, num_samples=5, **fields)  # fmt: skip


def machine(**fields):
    return H100.model_copy(update=fields)


def measured(*rows, about=H100):
    return Measured(machine=about, taken_s=1.0, rows=rows)


def constants(*rows, system="8xH100", about=H100):
    spec = load_system(system) if isinstance(system, str) else system
    found, unexplained = fitted(
        measured(*rows, about=about), spec, load_calibration(spec.chip.family)
    )
    return {entry.name: entry.value for entry in found}, unexplained


@pytest.mark.parametrize(
    ("device", "gigabytes", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", 85, "H100"),
        ("NVIDIA H100 PCIe", 85, "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", 85, "A100"),
        ("NVIDIA A100-SXM4-40GB", 42, "A100-40GB"),
        ("NVIDIA H200", 150, "H200"),
        ("NVIDIA L4", 23, "L4"),
        ("NVIDIA GeForce RTX 4090", 25, "RTX-4090"),
        ("Tesla T4", 15.6, "T4"),
        ("AMD Instinct MI300X", 206, "MI300X"),
        ("AMD EPYC", 12, None),
        ("NVIDIA H100 MIG 1g.10gb", 10, None),
    ],
)
def test_a_driver_names_a_chip(device, gigabytes, chip):
    found = chip_of(machine(device=device, memory_bytes=gigabytes * 1e9))
    assert (found.name if found else None) == chip


def test_products_over_whole_waves_give_their_share():
    """11 x 12 tiles of 128 x 256 are one wave of 132 cores: nothing is lost to the shape."""
    chip = load_chip("H100")
    size = (11 * 128, 4096, 12 * 256)
    best = chip.best_matmul_flops_per_s["bf16"]
    found, unexplained = constants(row("matmul", size, 2 * math.prod(size) / (0.8 * best)))
    assert found == {"matmul_sustained_efficiency": pytest.approx(0.8)}
    assert unexplained is None


def test_attention_and_traffic_are_shares_of_the_data_sheet():
    chip = load_chip("H100")
    bandwidth, peak = chip.main_memory.bandwidth_bytes_per_s, chip.matmul_flops_per_s["bf16"]
    length, number = 4096, 2**28
    flops = 4 * 8 * 128 * length * (length + 1) / 2  # two products over the scores that are seen
    found, _ = constants(
        row("attention_forward", (1, 8, length, 128), flops / (0.6 * peak)),
        row("attention_backward", (1, 8, length, 128), 2.5 * flops / (0.5 * peak)),
        row("copy", (number,), 2 * 2 * number / (0.9 * bandwidth)),
        row("update", (number,), 28 * number / (0.9 * bandwidth), dtype="fp32"),
        row("norm_backward", (number,), 3 * 2 * number / (0.7 * bandwidth)),
        row("eager_gated_forward", (number,), 3 * 2 * number / (0.7 * bandwidth) * 1.5),
        row("launch", (64,), 4e-6),
    )
    assert found == pytest.approx({
        "attention_forward_efficiency": 0.6, "attention_backward_efficiency": 0.5,
        "memory_efficiency": 0.9, "elementwise_efficiency": 0.7, "eager_traffic_factor": 1.5,
        "launch_s": 4e-6,
    })  # fmt: skip


def test_collectives_give_their_start_and_their_share_of_the_links():
    """A ring of eight: 14 messages, 7/4 of the bytes on each link of a direction."""
    system = load_system("8xH100")
    level = system.levels[0].model_copy(update={"in_network_reduction": False})
    system = system.model_copy(update={"levels": (level, *system.levels[1:])})
    rate = level.bandwidth_bytes_per_s * level.links_per_device
    message_s = level.latency_s + level.message_half_bytes / rate
    moving_s = 1.75 * 2**28 / (0.75 * rate)
    found, _ = constants(
        row("all_gather", (8,), 8e-6 + 7 * message_s, "fp32", group=8),
        row("all_reduce", (2**28,), 8e-6 + 14 * message_s + moving_s, "fp32", group=8),
        system=system,
    )  # fmt: skip
    assert found["collective_launch_s"] == pytest.approx(8e-6, rel=0.01)
    assert found["fast_network_efficiency"] == pytest.approx(0.75, rel=0.01)


@pytest.mark.parametrize(
    ("together_s", "slowdown"), [(10e-3, 0.0), (12e-3, 0.5), (14e-3, 0.99), (20e-3, 0.99)]
)
def test_overlap_is_what_both_together_take_longer(together_s, slowdown):
    """10 ms of products over 4 ms of a sum: hidden, half lost, one after the other."""
    shape = (2048, 2048, 2048, 8, 2**24)
    found, _ = constants(
        row("all_reduce", (2**24,), 4e-3, group=8, dtype="fp32"),
        row("matmuls_alone", shape, 10e-3, group=8),
        row("matmuls_overlapped", shape, together_s, group=8),
    )
    assert found["overlap_slowdown"] == pytest.approx(slowdown)


CPU = machine(
    device="Some CPU", kind="cpu", num_devices=4, devices_per_host=4, memory_bytes=8e9,
    num_units=2, host_cores=4, library="gloo",
)  # fmt: skip
CPU_ROWS = (
    row("matmul", (1024, 1024, 1024), 2.0**31 / 100e9, "fp32"),
    row("matmul", (2048, 1024, 1024), 2.0**32 / 80e9, "fp32"),
    row("copy", (2**26,), 2 * 4 * 2**26 / 10e9, "fp32"),
    row("send", (1024,), 50e-6, "fp32", group=2),
    row("send", (2**24,), 2**24 / 2e9, "fp32", group=2),
    row("all_reduce", (2**24,), 1.5 * 2**24 / 1e9, "fp32", group=4),
)


def test_a_machine_without_a_data_sheet_has_its_best_rates():
    system = made_system(measured(*CPU_ROWS, about=CPU))
    assert system.chip.matmul_flops_per_s == pytest.approx({"fp32": 100e9})
    assert system.chip.main_memory.bandwidth_bytes_per_s == pytest.approx(10e9)
    assert system.levels[0].bandwidth_bytes_per_s == pytest.approx(2e9)
    assert system.levels[0].latency_s == 50e-6
    assert "8 threads" not in system.notes[0]
    assert "a thread has 0.5 of one" in system.notes[0]  # eight threads on four cores


def test_groups_over_hosts_measure_the_network_between_them():
    """Four devices on hosts of two: a group of neighbours is inside, one of every second is not."""
    about = CPU.model_copy(update={"devices_per_host": 2})
    apart = (
        row("send", (1024,), 90e-6, "fp32", group=2, stride=2),
        row("send", (2**24,), 2**24 / 1e9, "fp32", group=2, stride=2),
    )
    inside, outside = made_system(measured(*CPU_ROWS, *apart, about=about)).levels
    assert (inside.latency_s, outside.latency_s) == (50e-6, 90e-6)
    assert outside.bandwidth_bytes_per_s == pytest.approx(1e9)


def test_files_hold_what_was_found(tmp_path):
    rows = measured(*CPU_ROWS, about=CPU)
    system = made_system(rows)
    base = load_calibration("cpu", "calibrated")
    found, unexplained = fitted(rows, system, base)
    rows = rows.model_copy(update={"unexplained": unexplained})
    text = calibration_text("mine", "cpu", "calibrated", found, rows, "meshwright measure")
    path, system_path = tmp_path / "mine.yaml", tmp_path / "mine.system.yaml"
    path.write_text(text)
    system_path.write_text(system_text(system, "meshwright measure"))
    loaded = load_calibration("cpu", str(path))
    assert loaded.is_calibrated
    for entry in found:
        assert getattr(loaded, entry.name) == pytest.approx(entry.value, rel=1e-3)
        assert loaded.intervals[entry.name] == pytest.approx((entry.low, entry.high), rel=1e-3)
    assert loaded.jitter == base.jitter
    again = load_system_file(system_path)
    assert again.chip.matmul_flops_per_s == pytest.approx(dict(system.chip.matmul_flops_per_s))
    assert again.levels[0].size == 4


def spread_of(path, family, *rows, unexplained):
    about = measured(*rows).model_copy(update={"unexplained": unexplained})
    path.write_text(calibration_text("mine", family, "calibrated", [], about, "measure"))
    return load_calibration(family, str(path)).spread.slower.distance


def test_an_interval_holds_what_kernels_leave_open(tmp_path):
    """Of a chip that no row was of, until a step is measured; a chip that is known stays."""
    path = tmp_path / "mine.yaml"
    known = load_calibration("hopper", "calibrated").spread.slower.distance
    launch = row("launch", (64,), 4e-6)
    step = row("step", (2, 1024, 1), 0.1)
    assert spread_of(path, "cpu", launch, unexplained=0.3) == pytest.approx(math.hypot(known, 0.3))
    assert spread_of(tmp_path / "b.yaml", "hopper", launch, unexplained=0.3) == known
    assert spread_of(tmp_path / "c.yaml", "cpu", launch, step, unexplained=0.3) == known
