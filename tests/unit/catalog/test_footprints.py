"""Files of measured layers: three formats, two ways to write a unit, all faults at once."""

import json

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.footprint_files import load_footprints

YAML = """
name: small
layers:
  - {name: front, size: 2 MB, output: 16 KiB, time: 500 ms}
  - {name: block, repeat: 3, weights: 1 MB, kv_cache: 200 kB, activations: 50 kB, buffers: 10 kB,
     output: 16 KiB, time: 250 ms}
"""
CSV = """name,repeat,size_bytes,weights,kv_cache_bytes,activations_bytes,buffers,output_bytes,time_s
front,1,2e6,,,,,16384,0.5

block,3,,1 MB,200000,50000,10 kB,16384,0.25
"""


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_three_formats_say_the_same(written):
    layers = [
        {"name": "front", "size_bytes": 2000000, "output_bytes": 16384, "time": "0.5 s"},
        {"name": "block", "repeat": 3, "weights_bytes": 1e6, "kv_cache": "200 kB",
         "activations_bytes": 50000, "buffers_bytes": 10000.0, "output_bytes": 16384,
         "time_s": 0.25},
    ]  # fmt: skip
    files = {
        "small.yaml": YAML,
        "small.csv": CSV,
        "small.json": json.dumps({"name": "small", "layers": layers}),
    }
    read = [load_footprints(written(name, text)) for name, text in files.items()]
    assert read[0] == read[1] == read[2]
    assert [layer.name for layer in read[0].rows] == ["front", "block", "block", "block"]
    assert read[0].rows[3].weights_bytes == 1e6
    assert read[0].rows[0].size_bytes == 2e6


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("name: x\nlayers: []", ["at least one layer"]),
        ("name: x\nlayers: [{name: a, size: 875000000}]", ["has no unit"]),
        (
            "name: x\nlayers:\n  - {name: a, seize: 3 MB}\n  - {size_bytes: -3}\n"
            "  - {name: c, size_bytes: big, repeat: 0}",
            ["layers[0].seize: unknown field", "did you mean size", "layers[1].name: is missing",
             "layers[1].size: must be larger than 0", "expected a number, found 'big'",
             "layers[2].repeat"],
        ),
        ("name: x\nlayers: [{name: a, size: 1 MB, weights: 1 MB}]", ["either it, or parts"]),
        ("name: x\nlayers: [{name: a}]", ["either it, or parts"]),
        ("name: x\nlayers: [{name: a, size: 1 MB, size_bytes: 5}]", ["stated twice"]),
        ("name: x\nlayers: [{name: a, size: 1 B, time: 1 s}, {name: b, size: 1 B}]",
         ["'b' has no time"]),
        ("name: x\nlayers: [{name: a, size: 1 B, repeat: 200000}]", ["at most 100000"]),
        ("name: x\nlayers: 7", ["layers"]),
    ],
)  # fmt: skip
def test_faults_of_a_file_are_reported_at_once(written, text, faults):
    with pytest.raises(SpecError) as raised:
        load_footprints(written("bad.yaml", text))
    assert [part for part in faults if part not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["empty"]),
        ("name,weigths_bytes,time,time_s\na,1,2 s,2\nb,1\n",
         ["'weigths_bytes': unknown field (did you mean weights?)", "'time': occurs twice",
          "line 3: 2 cells under 4 columns"]),
        ("name,size_bytes\na,nan\nb,x\n", ["size_bytes: found nan", "found 'x'"]),
        ("name,size\na,12\n", ["'12' has no unit", "line 2"]),
        ("name,size,repeat\na,1 MB,x\n", ["repeat"]),
    ],
)  # fmt: skip
def test_faults_of_a_table_name_line_and_column(written, text, faults):
    with pytest.raises(SpecError) as raised:
        load_footprints(written("bad.csv", text))
    assert [part for part in faults if part not in str(raised.value)] == []


def test_a_cell_of_any_length_is_told(written):
    with pytest.raises(SpecError, match="not CSV: field larger than field limit"):
        load_footprints(written("layers.csv", "name,size\n" + "a" * 200_000 + ",1 GB\n"))
