"""Files are written whole or not at all, and nothing of the user's is replaced unasked."""

import json
import os
from pathlib import Path

import pytest

from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.cli.main import main
from meshwright.frameworks.programs.servers import SERVERS
from meshwright.frameworks.registry import export, exporters, rendered
from meshwright.train.plan_file import save


@pytest.fixture
def plan(make_plan):
    return make_plan({"tp": 8, "dp_shard": 8}, {"zero_stage": 3})


@pytest.fixture
def saved(plan, tmp_path):
    """Return the path of the plan as a file."""
    path = tmp_path / "plan.json"
    save(plan, path)
    return str(path)


def test_files_are_what_was_rendered(plan, tmp_path):
    folder = tmp_path / "a" / "b"
    (path,) = export(plan, "megatron", folder)
    assert path == folder / "pretrain_gpt.sh"
    assert path.read_text("utf-8") == rendered(plan, "megatron")["pretrain_gpt.sh"]
    assert os.access(path, os.X_OK)
    assert [entry.name for entry in folder.iterdir()] == ["pretrain_gpt.sh"]


def test_same_content_may_be_written_again(plan, tmp_path):
    assert export(plan, "torch", tmp_path) == export(plan, "torch", tmp_path)


def test_other_content_is_kept_without_force(plan, tmp_path):
    mine = tmp_path / "torchtitan.sh"
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(SpecError, match=r"torchtitan.sh: exists already \(--force"):
        export(plan, "torchtitan", tmp_path)
    assert mine.read_text("utf-8") == "mine"
    export(plan, "torchtitan", tmp_path, force=True)
    assert mine.read_text("utf-8").startswith("#!")


def test_a_folder_in_the_way_is_no_file(plan, tmp_path):
    (tmp_path / "torchtitan.sh").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        export(plan, "torchtitan", tmp_path)


def test_refused_plan_writes_nothing(make_plan, tmp_path):
    with pytest.raises(UnsupportedError):
        export(make_plan({"tatp": 8}), "torch", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_failed_move_leaves_no_partial_file(plan, tmp_path, monkeypatch):
    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        export(plan, "torch", tmp_path)
    assert not list(tmp_path.iterdir())


def test_command_writes_and_tells(saved, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["export", saved, "megatron", "--out", str(folder)]) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'pretrain_gpt.sh'}\n"
    assert (folder / "pretrain_gpt.sh").is_file()


def test_command_as_json(saved, tmp_path, capsys):
    assert main(["export", saved, "torch", "--out", str(tmp_path), "--json"]) == 0
    record = {"target": "torch", "files": [str(tmp_path / "device_mesh.py")], "warning": ""}
    assert json.loads(capsys.readouterr().out) == record


def test_command_prints_without_writing(saved, plan, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert main(["export", saved, "torchtitan", "--print", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == rendered(plan, "torchtitan")["torchtitan.sh"]
    assert sorted(tmp_path.iterdir()) == before


def test_command_lists_the_targets(capsys):
    assert main(["export", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {*exporters, *SERVERS}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("megatorn", "did you mean megatron"),
        (None, f"one of {', '.join([*sorted(exporters), *SERVERS])}"),
    ],
)
def test_command_with_a_wrong_target(saved, capsys, target, message):
    assert main(["export", saved, *([target] if target else [])]) == 2
    assert message in capsys.readouterr().err


def test_command_refuses_with_faults_as_data(make_plan, tmp_path, capsys):
    path = tmp_path / "plan.json"
    save(make_plan({"tatp": 8}), path)
    assert main(["export", str(path), "torch", "--out", str(tmp_path), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "unsupported"
    assert {"path": "strategy.tatp", "fix": "tatp=1 dp_shard=8"}.items() <= error["faults"][
        0
    ].items()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(("tp", "zero", "is_told"), [(2, 0, True), (2, 3, False), (1, 0, False)])
def test_the_mesh_says_that_replicas_hide_split_parameters(make_plan, tp, zero, is_told):
    plan = make_plan({"tp": tp, "dp_shard": 2}, {"zero_stage": zero})
    text = rendered(plan, "torch")["device_mesh.py"]
    assert ("# tp: list model.parameters() before the first pass" in text) is is_told
    assert ('device_mesh=groups["gradients"]' in text) is (zero < 2)  # takes local parts of weights
