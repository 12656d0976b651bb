"""Systems like others: fields changed by a file, and every fault of it at once."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_system, system_names


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_system(str(path))


@pytest.mark.parametrize("name", ["wafer-4x8", "2xwafer-6x8", "64xH100", "mesh-3x7"])
def test_a_file_without_changes_is_the_same_system(tmp_path, name):
    base = load_system(name)
    same = written(tmp_path, f"like: {name}\n")
    assert same == base.model_copy(update={"name": "mine"})


def test_changes_of_a_level_and_their_origin(tmp_path):
    text = """like: wafer-4x8
sources: {data: {title: my data sheet}}
levels:
  rows: {bandwidth: {value: 1 TB/s, source: data}, latency: 15 ns}
dead_devices: [5]
max_power: 20 kW
"""
    system = written(tmp_path, text)
    base = load_system("wafer-4x8")
    assert system.levels[0] == base.levels[0]
    rates = {"bandwidth_bytes_per_s": 1e12, "latency_s": 15 * 1e-9}
    assert system.levels[1] == base.levels[1].model_copy(update=rates)
    assert (system.num_alive, system.max_power_w) == (31, 20e3)
    assert system.provenance["levels[1].bandwidth"].source == "data"
    assert "levels[1].latency" not in system.provenance
    assert system.provenance["levels[1].energy"] == base.provenance["levels[1].energy"]
    assert set(system.sources) == {"data", "paper"}


def test_all_faults_with_their_lines(tmp_path):
    text = """like: wafer-4x8
num_devices: 3
levels:
  row: {bandwidth: 1 TB/s}
  rows: {bandwidth: 1}
  columns: {kind: torus}
"""
    with pytest.raises(SpecError) as found:
        written(tmp_path, text)
    for part in (
        "num_devices: follows from `like` (line 2)",
        "no level 'row' (line 4) (did you mean rows?)",
        "the bare number 1 has no unit (bytes_per_s expected) (line 5)",
        "levels.columns.kind: follows from `like` (line 6)",
    ):
        assert part in str(found.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like: wafer-4x9x2\n", "like: .*cannot have the shape"),
        ("like: 3\n", "expected the name of a system, found 3"),
        ("like: wafer-4x8\nlevels: [1]\n", "expected changes by level"),
        ("like: wafer-4x8\nlevels: {rows: 3}\n", "expected the fields that change"),
        ("like: wafer-4x8\ndead_device: [3]\n", "unknown field.*dead_devices"),
        ("like: ./mine.yaml\n", "expected the name of a system"),
    ],
)
def test_files_that_are_like_nothing(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        written(tmp_path, text)


@pytest.mark.parametrize("name", ["wafer-20x20", "wafer-1x64", "mesh-1x2", "mesh-100x7"])
def test_any_rows_and_columns(name):
    rows, columns = map(int, name.split("-")[1].split("x"))
    system = load_system(name)
    assert system.num_devices == rows * columns
    assert [level.size for level in system.levels] == [n for n in (columns, rows) if n > 1]


def test_a_number_of_dies_still_means_a_wafer_that_can_be_made():
    assert load_system("108xTEMP-die").name == "108xTEMP-die"
    assert [level.size for level in load_system("108xTEMP-die").levels] == [9, 6, 2]
    with pytest.raises(SpecError, match="at most 64x64"):
        load_system("wafer-65x2")
    assert "mesh-4x4" in system_names()
