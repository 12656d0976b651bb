"""Every family of transformers: what is read has its parameters, and each named one is answered."""

import importlib.util
import json
from pathlib import Path

import pytest

from meshwright.cli.main import main

PATH = Path(__file__).parents[2] / "benchmarks" / "model_families.py"
FOUND = importlib.util.spec_from_file_location("model_families", PATH)
families = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(families)

NAMED = [
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
    "minimax_m2",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "deepseek_v32",
    "deepseek_v4",
    "glm4_moe",
    "glm_moe_dsa",
    "kimi_linear",
    "falcon_h1",
    "granitemoehybrid",
    "ernie4_5",
    "ernie4_5_moe",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "lfm2",
    "lfm2_moe",
    "smollm3",
    "olmo3",
    "seed_oss",
    "exaone4",
    "exaone_moe",
]
REST = sorted({*families.CAUSAL, *families.OTHERS} - set(NAMED))


@pytest.mark.parametrize(
    "name", [NAMED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMED[1:])]
)
def test_a_named_family_is_read_exactly_and_answered(name, tmp_path, capsys):
    assert families.row(name)[-1] == "equal"
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(families.stated_config(name)[1]))
    serving = ["--on", "16xH200", "--batch", "32", "--context", "8k", "--json"]
    training = ["--on", "256xH100", "--seq", "4k", "--global-batch", "512", "--json"]
    assert main(["serve", str(file), *serving]) == 0
    assert main(["plan", str(file), *training]) == 0
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_a_family_is_read_with_its_parameters_or_refused(name):
    assert not families.row(name)[-1].startswith("WRONG")
