"""Winners of ordinary questions start, as far as each framework goes without devices.

``python tests/frameworks/test_starts.py FOLDER [--limit-s 300]`` with ``tests`` on the path writes
the list once it is whole. It keeps plans and outcomes in the folder and goes on from there; what is
not done within the limit is left for the next call.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from framework_questions import NUMBERS, QUESTIONS, starts_at_all, winners
from real_parsers import MEANT, READERS, told

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_bytes
from meshwright.frameworks.registry import exporters
from meshwright.train.answer import Verified
from meshwright.train.plan_file import PLAN_FILE
from meshwright.train.writing import TARGETS

RUN_DRY = ("torchtitan", "accelerate", "fsdp", "megatron")
"""Frameworks with a program that runs dry."""
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

Where the framework has a program that runs dry, a whole step of it ran too, shortened and on fake
tensors. Peaks are those of the tensors on the fullest rank, executed and priced; a plan fits where
they fit together with what lies beside tensors, as priced. Seconds are those of the CPU.

| framework | model | system | plan | built, or read | starts | executed | priced | fits | CPU s |
|---|---|---|---|---|---|---|---|---|---|
"""


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
    plans = winners(name, number)
    assert len(plans) >= least
    failed = [
        (plan.best.text, answer["error"])
        for plan, answer in zip(plans, started(name, plans, tmp_path), strict=True)
        if "error" in answer
    ]
    assert failed == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUN_DRY)
@pytest.mark.parametrize("number", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_winners_start_and_fit_in_a_dry_run(name, number):
    """Frameworks that are not installed here, and plans that no program has, say so."""
    from meshwright.run.dry.verify import verdict

    found = [verdict(plan) for plan in winners(name, number)]
    assert [one for one in found if not one.is_kept] == []
    assert any(one.starts for one in found)


def winner(path, name, question):
    """Return the best plan of a question, asked once and kept in a file; None: it has none."""
    model, system, tokens, batch, rest = question
    if not path.exists():
        asked = {"on": system, "seq": tokens, "global_batch": batch, "framework": name}
        precision = rest.get("precision", "bf16")
        try:
            text = ""
            if starts_at_all(name, model, system, precision):
                text = PLAN_FILE.to_json(mw.plan(model, **asked, **rest))
        except InfeasibleError:
            pass
        path.write_text(text, "utf-8")
    text = path.read_text("utf-8")
    return PLAN_FILE.from_json(text) if text else None


def outcome(path, plan):
    """Return the outcome of a dry run with its CPU seconds, run once and kept in a file."""
    from meshwright.run.dry.verify import verdict

    if not path.exists():
        start_s = time.process_time()
        found = asdict(verdict(plan)) | {"cpu_s": time.process_time() - start_s}
        path.write_text(json.dumps(found), "utf-8")
    held = json.loads(path.read_text("utf-8"))
    cpu_s = held.pop("cpu_s")
    return Verified(**held), cpu_s


def cells(found, cpu_s):
    """Return the cells of a dry run: starts, executed and priced peak, fits, seconds."""
    if found is None:
        return "not yet | | | |"
    if not found.starts:
        word = "no" if found.starts is False else "not run"
        return f"{word}: {found.reason} | | | |"
    peaks = f"{format_bytes(found.peak_bytes)} | {format_bytes(found.priced_bytes)}"
    return f"yes | {peaks} | {'yes' if found.fits else 'no'} | {cpu_s:.0f} |"


def written(folder, limit_s):
    """Return the rows of the list; what is not known at the limit is done in the next call."""
    start_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(MEANT, key=lambda name: name not in RUN_DRY)
    cases = [
        (name, question, folder / f"{name}-{at}.json")
        for at, question in enumerate(QUESTIONS) for name in names
    ]  # fmt: skip
    plans, outcomes, built = {}, {}, {}

    def may(kept):
        return kept.exists() or time.monotonic() - start_s < limit_s

    for name, question, path in cases:
        if may(path) and (plan := winner(path, name, question)) is not None:
            plans[path] = plan
            if may(dry := path.with_suffix(".dry")):
                outcomes[path] = outcome(dry, plan)
    for name, _, path in cases:
        if path in plans and may(kept := path.with_suffix(".built")):
            if not kept.exists():
                of_name = {other: plans[other] for each, _, other in cases
                           if each == name and other in plans}  # fmt: skip
                with tempfile.TemporaryDirectory() as files:
                    answers = started(name, of_name.values(), files)
                for other, answer in zip(of_name, answers, strict=True):
                    other.with_suffix(".built").write_text(json.dumps(answer), "utf-8")
            built[path] = json.loads(kept.read_text("utf-8"))
    for order in MEANT:
        for name, (model, system, _, _, rest), path in cases:
            if name == order and path in plans:
                title = exporters[TARGETS[name]].table.written
                model = ", ".join([model, *rest.values()])
                yield (
                    f"| {title} | {model} | {system} | `{plans[path].best.text}` | "
                    f"{read_or_built(built.get(path))} | {cells(*outcomes.get(path, (None, 0)))}\n"
                )


def read_or_built(answer):
    """Return what the code of a framework made of the files, in a cell."""
    if answer is None:
        return "not yet"
    if "error" in answer:
        return answer["error"].splitlines()[-1]
    parts = [f"{axis} {size}" for axis, size in answer.get("groups", {}).items()] or ["one rank"]
    if "num_params" in answer:
        parts.append(f"{answer['num_params']:,} parameters")
    return "; ".join(parts)


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("folder", type=Path, help="plans and outcomes so far")
    words.add_argument("--limit-s", type=float, default=float("inf"))
    chosen = words.parse_args()
    rows = list(written(chosen.folder, chosen.limit_s))
    num_left = len(QUESTIONS) * len(MEANT) - len(list(chosen.folder.glob("*.json")))
    if num_left := num_left + sum("not yet" in row for row in rows):
        sys.exit(f"{num_left} rows are left; the same command goes on")
    RESULTS.write_text(HEAD + "".join(rows), "utf-8")
