"""Scripts that we write for Megatron-LM: read back they have the price of the options."""

import json

import pytest

from meshwright.cli.main import main

QUESTION = ["llama3-8b", "--on", "64xH100", "--seq", "8192", "--global-batch", "128"]
MEGATRON = ["--framework", "megatron"]
PLANS = [
    ["--tp", "4", "--pp", "2", "--recompute", "full"],
    ["--tp", "2", "--pp", "4", "--vpp", "2", "--with", "dp_overlap=off"],
    ["--zero", "3", "--mbs", "2", "--precision", "fp8"],
    ["--tp", "8", "--cp", "2", "--recompute", "selective", "--with", "async_tp", "--cuda-graphs"],
    ["--tp", "2", "--pp", "4", "--with", "axis_order=tp-cp-pp-dp"],
    ["--cp", "2", "--with", "cp_kind=ulysses", "--zero", "0", "--with", "dropout"],
    ["--tp", "2", "--offload", "optimizer", "--optimizer", "megatron-adam-bf16-gradients"],
]


def printed(capsys, status, *words):
    """Return what a command prints, after checking its status."""
    assert main(list(words)) == status, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.fixture
def script(tmp_path, capsys):
    """Return a way to export a strategy and name its script."""

    def export(options):
        plan = tmp_path / "plan.json"
        main(["estimate", *QUESTION, *MEGATRON, *options, "--out", str(plan)])
        printed(capsys, 0, "export", str(plan), "megatron", "--out", str(tmp_path))
        return str(tmp_path / "pretrain_gpt.sh")

    return export


@pytest.mark.slow
@pytest.mark.parametrize("options", PLANS, ids=" ".join)
def test_what_is_exported_is_read_back(capsys, script, options):
    path = script(options)
    words = ["--measured", "20 s", "--json"]
    by_script = printed(capsys, 0, "explain", path, *QUESTION[1:3], *words)
    assert by_script == printed(capsys, 0, "explain", *QUESTION, *MEGATRON, *options, *words)


def test_jobs_of_a_file_may_name_scripts(capsys, script, tmp_path):
    path = tmp_path / "jobs.yaml"
    entry = f"{{on: 64xH100, from: {script(PLANS[0])}, measured: 20 s}}"
    path.write_text(f"jobs:\n  - {entry}\n", encoding="utf-8")
    words = ["estimate", *QUESTION, "--tp", "2", "--measured", str(path), "--json"]
    assert json.loads(printed(capsys, 0, *words))["factors"]["num_measurements"] == 1


def test_files_that_are_not_there_are_told(capsys):
    assert main(["explain", "--from", "nowhere.sh", "--on", "8xH100"]) == 2
    assert "nowhere.sh: there is no such file" in capsys.readouterr().err
