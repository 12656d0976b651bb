"""``show graph``: the table, the data, and the graph as a file."""

import json

import pytest

from meshwright.cli.main import main


def output(capsys, *words):
    assert main(["show", "graph", *words]) == 0
    return capsys.readouterr().out


def test_without_a_name_the_catalog_is_listed(capsys):
    assert output(capsys).split() == ["dlrm-a", "dlrm-f", "fft-1g", "gpt3-175b-layer"]


@pytest.mark.parametrize("words", [["gpt3-175b-layer"], ["deepseek-v3.layer1"], ["hpl-512x64"]])
def test_table_has_a_row_for_each_kernel_and_fits(capsys, monkeypatch, words):
    assert max(map(len, output(capsys, *words).splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "160")  # wide enough for every name
    lines = output(capsys, *words).splitlines()
    table = lines[lines.index("What does each kernel do?") :]
    kernels = json.loads(output(capsys, *words, "--json"))["kernels"]
    named = [line.split()[0] for line in table if line.startswith("  ") and line.split()]
    names = [kernel["name"] for kernel in kernels]
    assert [name for name in named if name in set(names)][: len(names)] == names


def test_data_is_in_si_units(capsys):
    record = json.loads(output(capsys, "gpt3-175b-layer", "--json"))
    (add, *_) = record["kernels"]
    assert (record["num_kernels"], record["num_tensors"], record["repeats"]) == (18, 21, 96)
    assert add["written_bytes"] == 2 * 2048 * 12288
    assert add["splits"] == ["tokens", "hidden"]


def test_a_graph_is_printed_in_one_form(capsys):
    assert main(["show", "graph", "dlrm-a", "--yaml", "--json"]) == 2
    assert (
        "--json: has no effect with --yaml"
        in json.loads(capsys.readouterr().out)["error"]["message"]
    )


def test_a_long_name_has_a_line_of_its_own(capsys):
    lines = output(capsys, "deepseek-v3.layer1", "--training").splitlines()
    assert max(map(len, lines)) <= 100
    alone = [number for number, line in enumerate(lines) if line.endswith("residual.network.input")]
    assert all(lines[number + 1].startswith(" ") for number in alone)


def test_one_kernel_is_told_as_one(capsys):
    assert "embedding: 1 kernel, 0 tensors" in output(capsys, "llama3-8b.embedding")
    assert "embedding-training: 2 kernels" in output(capsys, "llama3-8b.embedding", "--training")


def test_what_it_prints_is_a_file_that_it_reads(capsys, tmp_path):
    path = tmp_path / "layer.yaml"
    path.write_text(output(capsys, "llama3-8b", "--tokens", "1k", "--training", "--yaml"))
    record = json.loads(output(capsys, str(path), "--json"))
    again = json.loads(output(capsys, "llama3-8b", "--tokens", "1k", "--training", "--json"))
    assert record == again
