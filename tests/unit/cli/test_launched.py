"""Launch scripts of Megatron-LM: what we export is read back as the same plan."""

import json

import pytest

from meshwright.cli.main import main
from meshwright.options.launch_script import options_of_script

QUESTION = ["llama3-8b", "--on", "64xH100", "--seq", "8192", "--global-batch", "128"]
PLANS = [
    ["--tp", "4", "--pp", "2", "--recompute", "full"],
    ["--tp", "2", "--pp", "4", "--vpp", "2", "--dp-overlap", "off"],
    ["--zero", "3", "--mbs", "2", "--precision", "fp8"],
    ["--tp", "8", "--cp", "2", "--recompute", "selective", "--async-tp", "--cuda-graphs"],
    ["--cp", "2", "--cp-kind", "ulysses", "--zero", "0", "--dropout"],
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
        main(["estimate", *QUESTION, *options, "--out", str(plan)])
        printed(capsys, 0, "export", str(plan), "megatron", "--out", str(tmp_path))
        return str(tmp_path / "pretrain_gpt.sh")

    return export


@pytest.mark.slow
@pytest.mark.parametrize("options", PLANS, ids=" ".join)
def test_what_is_exported_is_read_back(capsys, script, options):
    path = script(options)
    words = ["--measured", "20 s", "--json"]
    by_script = printed(capsys, 0, "explain", *QUESTION[:3], "--script", path, *words)
    assert by_script == printed(capsys, 0, "explain", *QUESTION, *options, *words)


def test_jobs_of_a_file_may_name_scripts(capsys, script, tmp_path):
    path = tmp_path / "jobs.yaml"
    entry = f"{{model: llama3-8b, on: 64xH100, script: {script(PLANS[0])}, measured: 20 s}}"
    path.write_text(f"jobs:\n  - {entry}\n", encoding="utf-8")
    words = ["estimate", *QUESTION, "--tp", "2", "--measured", str(path), "--json"]
    assert json.loads(printed(capsys, 0, *words))["factors"]["num_measurements"] == 1


def test_what_stands_twice_is_refused(capsys, script):
    path = script(PLANS[0])
    words = ["explain", *QUESTION, "--tp", "4", "--script", path, "--measured", "1s", "--json"]
    found = json.loads(printed(capsys, 2, *words))["error"]["faults"]
    assert {fault["path"] for fault in found} == {"--tp", "--seq", "--global-batch"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 1", "no script of Megatron-LM"),
        ("", "no script of Megatron-LM"),
        ("echo 'half a quote", "no shell script"),
        ("pretrain_gpt.py --tensor-model-parallel-size 2 --use-tp-pp-dp-mapping", "is not read"),
    ],
)
def test_what_is_no_such_script_is_refused(capsys, tmp_path, text, words):
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    assert main(["explain", *QUESTION[:3], "--script", str(path), "--measured", "1s"]) == 2
    assert words in capsys.readouterr().err
    assert main(["explain", *QUESTION[:3], "--script", "nowhere.sh", "--measured", "1s"]) == 2
    assert main(["explain", "plan.json", "--script", str(path)]) == 2


def test_variables_of_a_script_are_told(capsys, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("train --tensor-model-parallel-size=$TP --micro-batch-size 2 # --bf16\n")
    found = options_of_script(path)
    assert found["tp"] == "$TP"
    assert found["micro_batch_size"] == "2"
    assert found["precision"] == "fp32"
    assert found["dropout"] is True
    words = [*QUESTION, "--script", str(path), "--measured", "1s"]
    assert main(["explain", *words]) == 2
    assert "--tp: found '$TP'" in capsys.readouterr().err
