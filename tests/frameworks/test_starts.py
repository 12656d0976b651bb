"""Winners of ordinary questions start, as far as each framework goes without devices.

``python tests/frameworks/test_starts.py`` with ``tests`` on the path writes the list.
"""

import json
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from framework_questions import NUMBERS, QUESTIONS, starts_at_all
from real_parsers import MEANT, READERS, told

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.frameworks.registry import exporters
from meshwright.train.writing import TARGETS

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "starts.md"
HEAD = """\
# Which winners start

Each row is the best plan of a question that names a framework, exported, and given to the code of
that framework on a machine without devices. How far that code goes differs:

* torchtitan reads its arguments, builds its meshes over a process group without peers, and builds
  its model on the device `meta`; it does not shard the model.
* Megatron-LM reads its arguments, initializes the process groups of rank 0, and deals its layers
  over all stages. It builds no model: its layers need Transformer Engine.
* Megatron Bridge applies the overrides to its vanilla recipe and initializes the groups of
  megatron-core; it builds no model.
* Accelerate reads its launcher, plugins and the options of the Trainer, and builds its mesh where
  the plan has one.
* The PyTorch script builds its mesh and its groups.
* DeepSpeed reads its configuration and checks the batch against the ranks, MaxText reads its
  configuration and checks it against the devices; neither builds groups.

Kernels, weights and networks take no part: a plan of this list can still fail where they do.

| framework | model | system | plan | what it built, or read |
|---|---|---|---|---|
"""


def winners(name):
    """Return question and plan of all that the framework has and that fit."""
    for model, system, tokens, batch, rest in QUESTIONS:
        if starts_at_all(name, model, system, rest.get("precision", "bf16")):
            asked = {"on": system, "seq": tokens, "global_batch": batch, "framework": name}
            try:
                yield model, system, mw.plan(model, **asked, **rest)
            except InfeasibleError:
                continue


def started(name, plans, folder):
    """Return what a framework builds of each plan."""
    cases = [told(name, plan, Path(folder) / f"{number}") for number, plan in enumerate(plans)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(READERS / "starting.py"), name],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MEANT)
@pytest.mark.parametrize(("number", "least"), NUMBERS)
def test_every_winner_starts(tmp_path, name, number, least):
    plans = [plan for _, _, plan in islice(winners(name), number)]
    assert len(plans) >= least
    failed = [
        (plan.best.text, answer["error"])
        for plan, answer in zip(plans, started(name, plans, tmp_path), strict=True)
        if "error" in answer
    ]
    assert failed == []


def rows(name, folder):
    """Yield the rows of the list for one framework."""
    found = list(winners(name))
    answers = started(name, [plan for _, _, plan in found], folder)
    for (model, system, plan), answer in zip(found, answers, strict=True):
        said = "; ".join(f"{axis} {size}" for axis, size in answer.get("groups", {}).items())
        if "num_params" in answer:
            said = f"{said or 'one rank'}; {answer['num_params']:,} parameters"
        said = answer["error"].splitlines()[-1] if "error" in answer else said or "one rank"
        title = exporters[TARGETS[name]].table.written
        yield f"| {title} | {model} | {system} | `{plan.best.text}` | {said} |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written = [row for name in MEANT for row in rows(name, Path(folder) / name)]
    RESULTS.write_text(HEAD + "".join(written), "utf-8")
