"""docs/reference/plan_json.md against real output of the commands, and the declared fields."""

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from meshwright.base.errors import Fault
from meshwright.catalog.calibration import RowsErrorRecord
from meshwright.cli.main import main
from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.loop import answer as loop_plans
from meshwright.loop.lengths import AnswerLengths
from meshwright.loop.question import Sharing, Work
from meshwright.search.exhaustive import Coverage
from meshwright.serve import answer as serving_plans
from meshwright.serve.price import SERVING_MEMORY_PARTS, SERVING_TIME_PARTS
from meshwright.serve.traffic import answer as traffic_plans
from meshwright.sharding.strategy import PlanOptions, StrategyOf
from meshwright.spec import declaration as provenance
from meshwright.spec import model, system, workload
from meshwright.spec import system as chip
from meshwright.spec.traffic import Traffic
from meshwright.train import answer as operators
from meshwright.train.answer import (
    Candidate,
    Deadline,
    Estimate,
    FrameworkPrice,
    HotLink,
    Placement,
    Plan,
    Replan,
    Robustness,
    SizeTried,
    Trials,
    Verified,
    WhyNot,
)
from meshwright.train.measured import factors
from meshwright.train.measured.diagnose import Diagnosis, Improvement, Loss
from meshwright.train.robustness import Change

pytestmark = pytest.mark.usefixtures("kept_answers")

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "plan_json.md").read_text(
    encoding="utf-8"
)
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.*?)\|", re.MULTILINE)
LINK = re.compile(r"\[([\w -]+)\]\(#([\w-]+)\)")
SECTIONS = {
    head.strip(): {name: LINK.sub(r"\1", holds) for name, holds, _ in ROW.findall(body)}
    for head, body in re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
"""The fields of each section, and what the page says they hold."""
UNITS = {
    head.strip(): {name: unit.strip() for name, _, unit in ROW.findall(body)}
    for head, body in re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
DECLARED = {
    "Plan": (Plan, "proof"),
    "Candidate": (Candidate, "plan", "launches_with"),
    "FrameworkPrice": FrameworkPrice,
    "Placement": Placement,
    "Hot link": HotLink,
    "Strategy": StrategyOf,
    "PlanOptions": PlanOptions,
    "Estimate": Estimate,
    "Time parts": tuple(TimePart),
    "Memory parts": tuple(MemoryPart),
    "Coverage": Coverage,
    "Robustness": Robustness,
    "Trials": Trials,
    "Factors": factors.Factors,
    "Verdict": factors.Verdict,
    "Factor": factors.Factor,
    "Diagnosis": Diagnosis,
    "Loss": Loss,
    "Improvement": Improvement,
    "Why not": WhyNot,
    "Replan": Replan,
    "Deadline": (Deadline, "run_s", "is_in_time"),
    "Size tried": SizeTried,
    "Verified": Verified,
    "Change": Change,
    "Operators": operators.OperatorPlan,
    "Operator option": operators.OperatorOption,
    "Operator run": operators.OperatorRun,
    "Recipe": operators.BestOfRecipe,
    "Fault": Fault,
    "Serving plan": serving_plans.ServingPlan,
    "Errors of rows": RowsErrorRecord,
    "Serving candidate": (serving_plans.ServingCandidate, "plan"),
    "Serving estimate": serving_plans.ServingEstimate,
    "Serving time parts": SERVING_TIME_PARTS,
    "Serving memory parts": SERVING_MEMORY_PARTS,
    "Serving front": serving_plans.ServingFront,
    "Disaggregated plan": serving_plans.DisaggregatedPlan,
    "Deployment": (serving_plans.Deployment, "plan"),
    "Worker pool": serving_plans.WorkerPool,
    "Traffic plan": traffic_plans.TrafficPlan,
    "Fleet": (traffic_plans.Fleet, "plan"),
    "Times": traffic_plans.Times,
    "Traffic": Traffic,
    "Loop plan": loop_plans.LoopPlan,
    "Loop step": (loop_plans.LoopStep, "plan"),
    "Phase memory": loop_plans.PhaseMemory,
    "Loop work": Work,
    "Answer lengths": AnswerLengths,
    "Sharing": Sharing,
    "Model": model.ModelSpec,
    "Layer": model.LayerSpec,
    "Side": model.SideSpec,
    "Attention": model.AttentionSpec,
    "Recurrence": model.RecurrenceSpec,
    "Feed-forward": model.FeedForwardSpec,
    "Experts": model.ExpertSpec,
    "Weight format": model.WeightFormat,
    "System": system.SystemSpec,
    "Network level": system.NetworkLevel,
    "Host": system.HostLink,
    "IO dies": system.IoDies,
    "Power region": system.PowerRegion,
    "Cooling": system.Cooling,
    "Chip": chip.ChipSpec,
    "Core mesh": chip.CoreMesh,
    "Memory level": chip.MemoryLevel,
    "Source": provenance.Source,
    "Provenance": provenance.Provenance,
    "Training": workload.Training,
    "Serving workload": (workload.Prefill, *workload.Decode.model_fields),
    "Speculation": workload.Speculation,
    "Precision": workload.Precision,
    "Optimizer": workload.OptimizerPreset,
    "Software": workload.SoftwareStack,
    "Adapters": workload.Adapters,
    "Batch ramp": workload.BatchRamp,
    "Launches": workload.Launches,
    "Switches": workload.Switches,
}
"""Sections whose fields are declared: a type, its parts by name, or a type and further names."""
ONLY_PRINTED = {
    "Front",
    "Comparison",
    "Fit",
    "Check",
    "Broken rule",
    "Explanation",
    "Failure",
    "Error",
}
"""Sections that a command puts together; their fields are all in its output."""
QUESTION = ["gpt2-medium", "--on", "8xH100", "--seq", "1024", "--global-batch", "64"]
UNIT_OF_SUFFIX = {
    "_k_per_w": "K/W", "_celsius": "C", "_flops_per_s": "FLOP/s", "_bytes_per_s": "B/s",
    "_usd_per_hour": "USD/h", "_j_per_byte": "J/B",
    "_j_per_flop": "J/FLOP", "tokens_per_s": "tokens/s", "requests_per_s": "1/s",
    "rate_per_s": "1/s",
    "tokens_per_j": "tokens/J", "_per_million_tokens": None, "_s": "s", "_bytes": "B", "_j": "J",
    "_usd": "USD", "_w": "W", "_mm2": "mm2", "_m": "m", "_fraction": "fraction",
}  # fmt: skip


def declared_names(kind):
    """Return the names of a type, of a tuple of names, or of a type and further names."""
    if isinstance(kind, tuple):
        return {n for entry in kind for n in ([entry] if isinstance(entry, str)
                                              else declared_names(entry))}  # fmt: skip
    return {f.name for f in fields(kind)} if is_dataclass(kind) else set(kind.model_fields)


def faults_of(value, holds, path, seen):
    """Return where a value is not what the page says; ``seen`` collects documented fields."""
    if holds.endswith(" or null"):
        return [] if value is None else faults_of(value, holds.removesuffix(" or null"), path, seen)
    if holds == "anything":
        return []
    if holds.startswith("list of "):
        inner = holds.removeprefix("list of ")
        if not isinstance(value, list):
            return [f"{path}: no list"]
        return [f for i, v in enumerate(value) for f in faults_of(v, inner, f"{path}[{i}]", seen)]
    if holds.startswith("map to "):
        inner = holds.removeprefix("map to ")
        return [f for k, v in value.items() for f in faults_of(v, inner, f"{path}.{k}", seen)]
    if holds in SECTIONS:
        return section_faults(value, holds, path, seen)
    return [] if is_plain(value, holds) else [f"{path}: {value!r} is no {holds}"]


def is_plain(value, holds):
    """Return whether a value is the number, text or flag that the page says."""
    if holds == "flag" or isinstance(value, bool):
        return holds == "flag" and isinstance(value, bool)
    kinds = {"text": str, "whole number": int, "number": (int, float)}
    return isinstance(value, kinds[holds])


def section_faults(value, section, path, seen):
    documented = SECTIONS[section]
    seen |= {(section, name) for name in value}
    faults = [f"{path}.{name}: not documented" for name in value if name not in documented]
    for name in value:
        if name in documented:
            faults += faults_of(value[name], documented[name], f"{path}.{name}", seen)
    return faults


@pytest.fixture
def printed(capsys):
    """Return a way to run a command with ``--json``."""

    def run(*words):
        status = main([*words, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_plan_has_all_fields_and_no_others(printed):
    status, data = printed("plan", *QUESTION)
    seen = set()
    assert status == 0
    assert faults_of(data, "Plan", "plan", seen) == []
    always = (
        "Plan", "Candidate", "Strategy", "PlanOptions", "Estimate", "Time parts",
        "Memory parts", "Coverage", "Robustness",
    )  # fmt: skip
    for section in always:
        assert {name for s, name in seen if s == section} == set(SECTIONS[section]), section


def test_a_fault_is_noticed(printed):
    _, data = printed("plan", *QUESTION)
    data["best"]["estimate"]["step_time_s"] = "soon"
    data["coverage"]["extra_s"] = 1.0
    found = faults_of(data, "Plan", "plan", set())
    assert found == [
        "plan.best.estimate.step_time_s: 'soon' is no number",
        "plan.coverage.extra_s: not documented",
    ]


@pytest.mark.parametrize(
    ("section", "expected", "words"),
    [
        ("Plan", 0, ["estimate", *QUESTION, "--tp", "2"]),
        ("Front", 0, ["plan", *QUESTION, "--pareto"]),
        ("Diagnosis", 0, ["explain", *QUESTION, "--tp", "2", "--measured", "130ms"]),
        ("Fit", 0, ["fit", *QUESTION]),
        ("Fit", 3, ["fit", "llama3-70b", "--on", "8xH100", "--seq", "8k", "--global-batch", "8"]),
        ("Check", 0, ["check", *QUESTION]),
        ("Comparison", 0, ["compare", *QUESTION, "--against", "fsdp"]),
        ("Check", 2, ["check", *QUESTION, "--tp", "3", "--sp", "off"]),
        ("Failure", 2, ["plan", "gpt2-medium", "--on", "8xH100"]),
        ("Failure", 2, ["plan", "no-such-model", *QUESTION[1:]]),
        pytest.param(
            "Plan", 0,
            ["plan", "gpt2-medium", "--on", "wafer-4x4", *QUESTION[3:], "--with", "per_operator"],
            marks=pytest.mark.slow,
        ),
        ("Serving plan", 0,
         ["serve", *QUESTION[:3], "--batch", "8", "--context", "1024"]),
        ("Serving plan", 0,
         ["serve", "gpt2-xl", *QUESTION[1:3], "--batch", "8", "--context", "512",
          "--speculative-model", "gpt2-medium", "--speculative-tokens", "2", "--acceptance",
          "0.6"]),
        ("Serving plan", 0,
         ["serve", *QUESTION[:3], "--batch", "8", "--prompt", "1024"]),
        ("Disaggregated plan", 0,
         ["serve", *QUESTION[:3], "--disaggregated", "--batch", "8",
          "--prompt", "512", "--answer", "64", "--max-ttft", "1s"]),
        ("Traffic plan", 0,
         ["serve", *QUESTION[:3], "--rate", "5", "--prompt", "512", "--answer", "64",
          "--max-ttft", "1s"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_commands_print_what_is_documented(printed, section, expected, words):
    status, data = printed(*words)
    seen = set()
    assert status == expected
    assert faults_of(data, section, section, seen) == []
    if section in ONLY_PRINTED:
        assert {name for s, name in seen if s == section} == set(SECTIONS[section])


@pytest.mark.slow
def test_plan_files_are_explained_and_replanned(printed, tmp_path):
    path = str(tmp_path / "plan.json")
    assert printed("plan", *QUESTION, "--out", path)[0] == 0
    for section, words in (
        ("Explanation", ["explain", path]),
        ("Replan", ["plan", "--from", path, "--without", "1"]),
    ):
        status, data = printed(*words)
        seen = set()
        assert status == 0
        assert faults_of(data, section, section, seen) == []
        assert {name for s, name in seen if s == section} == set(SECTIONS[section])
    file = json.loads(Path(path).read_text(encoding="utf-8"))
    assert faults_of(file, "Plan", "file", set()) == []


@pytest.mark.parametrize("section", DECLARED)
def test_documented_fields_are_the_declared_ones(section):
    assert set(SECTIONS[section]) == declared_names(DECLARED[section])


def test_every_section_is_checked():
    assert set(SECTIONS) == set(DECLARED) | ONLY_PRINTED


def test_units_follow_the_names():
    for section, units in UNITS.items():
        for name, unit in units.items():
            suffix = next((s for s in UNIT_OF_SUFFIX if name.endswith(s)), None)
            if suffix and UNIT_OF_SUFFIX[suffix]:
                assert unit == UNIT_OF_SUFFIX[suffix], f"{section}: {name}"


def test_links_lead_to_sections():
    anchors = {head.lower().replace(" ", "-") for head in SECTIONS}
    assert [anchor for _, anchor in LINK.findall(PAGE) if anchor not in anchors] == []
