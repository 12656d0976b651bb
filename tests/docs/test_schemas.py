"""Published schemas: what commands print keeps to them, and they are those of this version."""

import json
from pathlib import Path

import jsonschema
import pytest

from meshwright.cli.main import main
from meshwright.cli.show import SCHEMAS
from meshwright.report.answer_file import FORMAT

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
TRAIN = ["gpt2-medium", "--on", "8xH100", "--seq", "1024", "--global-batch", "64"]
PRINTED = [
    ("plan", ["plan", *TRAIN]),
    ("plan", ["estimate", *TRAIN, "--tp", "2", "--offload", "optimizer"]),
    ("plan", ["plan", "gpt3-6.7b", "--on", "wafer-4x8", "--seq", "2048", "--global-batch", "32",
              "--simulated", "0"]),
    ("serving-plan", ["plan", "llama3-8b", "--on", "8xH100", "--decode", "--batch", "64",
                      "--context", "4k"]),
    ("serving-plan", ["plan", "llama3-8b", "--on", "8xH100", "--prefill", "--batch", "8",
                      "--prompt", "4k"]),
    ("partition-plan", ["partition", "llama3-8b", "--on", "4xWSE-3", "--seq", "4096"]),
]  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_published_schemas_are_those_of_this_version(name, capsys):
    assert main(["show", "schema", name]) == 0
    text = capsys.readouterr().out
    assert (FOLDER / f"{name}.json").read_text("utf-8") == text
    assert json.loads(text)["$id"] == f"urn:meshwright:{name}:{FORMAT}"
    assert {path.stem for path in FOLDER.iterdir()} == set(SCHEMAS)


@pytest.mark.parametrize(("name", "words"), PRINTED)
def test_answers_keep_to_their_schema(name, words, capsys):
    assert main([*words, "--json"]) in (0, 3)
    answer = json.loads(capsys.readouterr().out)
    schema = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(answer, schema)
    broken = answer | {"version": 1.5}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)
