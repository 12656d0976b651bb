"""Spellings of earlier versions answer with the whole command as it is spelled now."""

import shlex

import pytest

from meshwright.cli.main import main
from meshwright.cli.moved import respelled

MOVED = {
    "plan llama3-70b --on 8xH100 --decode --batch 64 --context 4k":
    "serve llama3-70b --on 8xH100 --batch 64 --context 4k",
    "plan m --decode --prefill --prompt 2k --answer 8 --batch 4 --server vllm":
    "serve m --prompt 2k --answer 8 --batch 4 --framework vllm",
    "plan --graph dlrm-a --on 8xA100 --global-batch 16": "map dlrm-a --on 8xA100 --passes 16",
    "estimate m --decode --batch 4 --context 1k": "estimate m --batch 4 --context 1k",
    "plan m --dropout --stage-layers 7+8*2 --tp 2": "plan m --with dropout --with "
    "'stage_layers=7+8*2' --tp 2",
    "fit m --cp-kind=ulysses": "fit m --with cp_kind=ulysses",
}  # fmt: skip


@pytest.mark.parametrize(("before", "now"), MOVED.items())
def test_an_old_command_is_told_as_it_is_now(capsys, before, now):
    assert main(shlex.split(before)) == 2
    told = capsys.readouterr().err
    assert f"meshwright {now}" in told
    assert told.count("\n") == 1


def test_what_is_spelled_right_stays():
    for words in (*MOVED.values(), "show model llama3-8b", "partition m --prefill", "--version"):
        assert respelled(shlex.split(words)) is None
