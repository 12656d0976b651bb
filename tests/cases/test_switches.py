"""First contact with switches and exports: hints that are right, files of earlier versions."""

import json

import pytest

from meshwright.cli.main import main

QUESTION = ["--on", "8xH100", "--seq", "1k", "--global-batch", "64"]
MODEL = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --vocab-size 50304 --bf16 --micro-batch-size 2 "
    "--global-batch-size 64"
)
TITAN = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'
)


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        # four hosts of eight processes: the job has 32 devices, of a chip that nobody names
        ("a.sh", f"torchrun --nnodes=4 --nproc_per_node=8 pretrain_gpt.py {MODEL}\n",
         "such as --on 32xCHIP"),
        ("b.sh", f"torchrun --nproc_per_node=2 pretrain_gpt.py {MODEL}\n", "such as --on 2xCHIP"),
        # neither is stated
        ("c.toml", TITAN, "such as --on NxCHIP"),
    ],
)  # fmt: skip
def test_the_hint_states_the_devices_of_the_job(capsys, tmp_path, name, text, hint):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert main(["estimate", str(path)]) == 2
    assert hint in capsys.readouterr().err


def test_chips_that_a_cluster_is_asked_for_need_no_hint(tmp_path):
    path = tmp_path / "job.sh"
    head = "#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:8\n"
    path.write_text(f"{head}srun torchrun --nproc_per_node=8 pretrain_gpt.py {MODEL}\n")
    assert main(["estimate", str(path)]) == 0


def test_a_file_behind_a_model_is_pointed_to_its_option(capsys, tmp_path):
    path = tmp_path / "job.sh"
    path.write_text(f"torchrun --nproc_per_node=8 pretrain_gpt.py {MODEL}\n", encoding="utf-8")
    assert main(["check", "gpt2-medium", str(path)]) == 2
    assert f"did you mean --from {path}?" in capsys.readouterr().err
    assert main(["check", "gpt2-medium", "--from", str(path), "--on", "8xH100"]) == 0


@pytest.mark.parametrize(("fused", "loss"), [(True, "linear"), (False, "plain")])
def test_a_plan_file_with_fused_loss_is_read(tmp_path, fused, loss):
    """The field of earlier versions said that logits are never whole: ``linear`` says it now."""
    from meshwright.train.plan_file import load

    path = tmp_path / "plan.json"
    assert main(["estimate", "gpt2-medium", *QUESTION, "--out", str(path)]) == 0
    data = json.loads(path.read_text(encoding="utf-8"))
    software = data["workload"].setdefault("software", {})
    software.pop("loss", None)
    path.write_text(json.dumps(data | {"workload": data["workload"] | {
        "software": software | {"fused_loss": fused}}}), encoding="utf-8")  # fmt: skip
    assert load(path).workload.software.loss == loss


def test_a_workload_file_with_fused_loss_is_told_the_present_name(capsys, tmp_path):
    path = tmp_path / "work.yaml"
    path.write_text(
        "kind: training\nglobal_batch_size: 64\nsequence_length: 1024\n"
        "optimizer: megatron-adam\nsoftware: {fused_loss: true}\n", encoding="utf-8",
    )  # fmt: skip
    words = ["estimate", "gpt2-medium", "--on", "8xH100", "--workload", str(path)]
    assert main(words) == 2
    assert "software.fused_loss: unknown field (line 5) (did you mean head_in_loss or loss?)" in (
        capsys.readouterr().err
    )
