"""Faults of a chip file as a user sees them: all at once, by the path and line in the file."""

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.files import load_file, load_text
from meshwright.catalog.systems import load_chip
from meshwright.spec.system import ChipSpec
from meshwright.spec.workload import Prefill

GOOD = """\
name: toy
vendor: nobody
family: toy
matmul_rate: {bf16: 100 TFLOP/s}
memories:
  - {name: hbm, capacity: 10 GiB, bandwidth: 1 TB/s}
price: unknown
"""


def faults_of(text, model=ChipSpec):
    with pytest.raises(SpecError) as raised:
        load_text(model, text, origin="toy.yaml")
    return {fault.path: str(fault) for fault in raised.value.faults}


def test_a_file_of_seven_lines_is_a_chip():
    chip = load_text(ChipSpec, GOOD)
    assert chip.matmul_flops_per_s == {"bf16": 1e14}
    assert chip.main_memory.capacity_bytes == 10 * 2**30
    assert chip.price_usd is None


def test_all_faults_come_at_once():
    text = GOOD.replace("1 TB/s", "1 TB").replace("vendor", "wendor").replace("100 T", "-100 T")
    faults = faults_of(text)
    assert set(faults) == {"memories[0].bandwidth", "wendor", "vendor", "matmul_rate.bf16"}
    assert "'1 TB' is no bytes_per_s" in faults["memories[0].bandwidth"]
    assert "(line 6)" in faults["memories[0].bandwidth"]
    assert "did you mean vendor" in faults["wendor"]
    assert "required here: name, vendor, family" in faults["vendor"]
    assert "larger than 0" in faults["matmul_rate.bf16"]


@pytest.mark.parametrize(
    ("old", "new", "path", "part"),
    [
        ("10 GiB", "10", "memories[0].capacity", "has no unit"),
        ("10 GiB", "unknown", "memories[0].capacity", "cannot be `unknown`"),
        (
            "10 GiB",
            "[10 GiB]",
            "memories[0].capacity",
            "expected a quantity of bytes, found ['10 GiB']",
        ),
        ("10 GiB", "1e999 B", "memories[0].capacity", "beyond 1e+30"),
        ("capacity", "capacity_bytes", "memories[0].capacity_bytes", "did you mean capacity"),
        ("bf16", "bf61", "matmul_rate.bf61", "did you mean bf16"),
        ("toy\nvendor", "[toy]\nvendor", "name", "expected text, found ['toy']"),
        ("toy\nvendor", "3\nvendor", "name", "expected text, found 3"),
        ("price: unknown", "price: 0 USD", "price", "larger than 0"),
        ("price: unknown", "num_cores: 2.5", "num_cores", "whole number"),
        ("price: unknown", "num_cores: true", "num_cores", "whole number"),
        ("price: unknown", "provenance: {}", "provenance", "unknown field"),
        ("price: unknown", "tile_rows: unknown", "tile_rows", "cannot be `unknown`"),
        (
            "  - {name: hbm, capacity: 10 GiB, bandwidth: 1 TB/s}",
            "  []",
            "memories",
            "at least one",
        ),
        ("{bf16: 100 TFLOP/s}", "{}", "matmul_rate", "at least one type"),
        ("{bf16: 100 TFLOP/s}", "100 TFLOP/s", "matmul_rate", "mapping"),
        ("price: unknown", "sources: {S: {url: x}}", "sources.S.title", "missing"),
    ],
)
def test_one_fault(old, new, path, part):
    assert old in GOOD
    faults = faults_of(GOOD.replace(old, new, 1))
    assert path in faults
    assert part in faults[path]


def test_numbers_without_units_are_not_text_or_truth():
    text = "kind: prefill\nbatch_size: 4\nprompt_length: 8\nexpert_load_imbalance: true\n"
    assert "expected a number, found True" in faults_of(text, Prefill)["expert_load_imbalance"]
    text = text.replace("true", "'2'")
    assert "expected a number" in faults_of(text, Prefill)["expert_load_imbalance"]


def test_a_missing_file_names_its_neighbour(tmp_path):
    (tmp_path / "mychip.yaml").write_text(GOOD)
    with pytest.raises(SpecError, match=r"mychp\.yaml: there is no such file.*mychip\.yaml"):
        load_file(ChipSpec, tmp_path / "mychp.yaml")


def test_unreadable_files_are_faults(tmp_path):
    with pytest.raises(SpecError, match=r"cannot be read: Is a directory$"):
        load_file(ChipSpec, tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SpecError, match=r"cannot be read: not UTF-8 text$"):
        load_file(ChipSpec, tmp_path / "x.yaml")


def test_names_are_found_whatever_their_case():
    assert load_chip("h100") is load_chip("H100")
    with pytest.raises(UnknownNameError, match="did you mean H100"):
        load_chip("H1000")
