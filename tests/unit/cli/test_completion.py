"""Scripts of shells complete commands, options, values and names, tried in these shells."""

import shutil
import subprocess

import pytest

from meshwright.cli.completion import INSTALL, script
from meshwright.cli.main import main

ASKED = {
    "pl": {"plan", "place"},
    "show mod": {"model"},
    "plan llama3-8": {"llama3-8b"},
    "plan llama3-8b --on 64xH20": {"64xH20", "64xH200"},
    "plan llama3-8b --framework megatron-b": {"megatron-bridge"},
    "plan llama3-8b --recompute s": {"selective"},
    "plan llama3-8b --global-ba": {"--global-batch"},
    "show schema serving": {"serving-plan"},
    "export plan.json deep": {"deepspeed"},
    "export plan.json vl": {"vllm"},
}
"""What is typed, and what completes it."""
BASH = """source "$1"
while read -r line; do
  COMP_WORDS=(meshwright $line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _shtab_meshwright; echo "${COMPREPLY[@]}"
done"""
FISH = """source $argv[1]
while read line; echo (complete -C "meshwright $line" | cut -f 1); end"""
CALLS = {"bash": ["-c", BASH, "bash"], "fish": ["--no-config", "-c", FISH]}


@pytest.mark.parametrize("shell", CALLS)
def test_a_shell_completes(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    path = tmp_path / "script"
    path.write_text(script(shell))
    found = subprocess.run(
        [shell, *CALLS[shell], str(path)], input="\n".join(ASKED) + "\n", text=True,
        capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert found.stderr == ""
    assert [set(line.split()) for line in found.stdout.splitlines()] == list(ASKED.values())


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_a_shell_reads_its_script(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    path = tmp_path / "script"
    path.write_text(script(shell))
    call = ["-n", str(path)] if shell == "zsh" else ["-f", "-c", f"source {path}; complete"]
    found = subprocess.run([shell, *call], text=True, capture_output=True, check=True)
    assert found.stderr == ""
    assert shell == "zsh" or "meshwright" in found.stdout


def test_where_scripts_belong_is_told(capsys):
    assert main(["show", "completion"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(INSTALL)
    assert main(["show", "completion", "bsh"]) == 2
    assert "did you mean bash" in capsys.readouterr().err
