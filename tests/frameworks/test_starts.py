"""Winners of ordinary questions start: each framework builds their groups in a world of its ranks.

``python tests/frameworks/test_starts.py`` with ``tests`` on the path writes the list.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from framework_questions import QUESTIONS, starts_at_all
from real_parsers import MEANT, READERS, told

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.frameworks.registry import TARGETS, exporters

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "starts.md"
HEAD = """\
# Which winners start

Each row is the best plan of a question that names a framework, exported, and started by the code
of that framework without devices: its parser and its checks, then its process groups (its mesh)
for every rank of the plan. torchtitan also builds its model on the device `meta`, Megatron deals
the layers over all stages, JAX traces a whole step. Kernels, weights and networks take no part.

| framework | model | system | plan | what it built |
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
def test_every_winner_starts(tmp_path, name):
    plans = [plan for _, _, plan in winners(name)]
    assert len(plans) >= 7
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
        title = exporters[TARGETS[name]].title
        yield f"| {title} | {model} | {system} | `{plan.best.text}` | {said} |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written = [row for name in MEANT for row in rows(name, Path(folder) / name)]
    RESULTS.write_text(HEAD + "".join(written), "utf-8")
