"""Chakra as an export target: one file for each rank, groups as JSON, refusals with fixes."""

import gzip
import json

import pytest
from chakra_traces import read_trace, records
from small_problems import model

from meshwright.base.errors import UnsupportedError
from meshwright.cli.main import main
from meshwright.frameworks.chakra.step_program import StepProgram
from meshwright.frameworks.chakra.wire import SharedTrace
from meshwright.frameworks.programs.chakra import _problem
from meshwright.frameworks.registry import export, rendered
from meshwright.sharding.strategy import Offload, Recompute, Streamed
from meshwright.train.plan_file import save


@pytest.fixture
def plan(make_plan):
    """Return a plan for eight dies of a wafer: two stages of a stream over four."""
    return make_plan(
        {"tatp": 4, "pp": 2}, {"recompute": Recompute.SELECTIVE, "streamed": Streamed.WEIGHTS},
        model=model(), system="wafer-4x8", batch=2, length=256, optimizer="temp-12",
    )  # fmt: skip


def test_a_file_for_each_rank_and_the_groups(plan, tmp_path):
    written = {path.name: path for path in export(plan, "chakra", tmp_path)}
    names = [f"step.{rank}.et" for rank in range(8)]
    assert written.keys() == {*names, "comm_groups.json"}
    groups = json.loads((tmp_path / "comm_groups.json").read_text())
    named = set()
    for rank, name in enumerate(names):
        nodes = read_trace(gzip.decompress(written[name].read_bytes()))
        assert [node.number for node in nodes] == list(range(1, len(nodes) + 1))
        mine = {n.attributes["pg_name"] for n in nodes if n.type == "collective"}
        assert all(rank in groups[name] for name in mine)
        named |= mine
        ends = [n.attributes for n in nodes if n.type in ("send", "receive")]
        assert all(rank in (end["comm_src"], end["comm_dst"]) for end in ends)
        assert all(n.attributes["num_ops"] > 0 for n in nodes if n.type == "compute")
    assert named == set(groups)


@pytest.mark.parametrize(
    ("degrees", "plan_options"),
    [
        ({"tatp": 4, "pp": 2}, {"streamed": Streamed.WEIGHTS}),
        ({"tp": 2, "pp": 2, "dp_shard": 2}, {"sequence_parallel": True, "zero_stage": 2}),
        ({"tp": 2, "cp": 2, "pp": 2}, {"sequence_parallel": True}),
        ({"dp_shard": 2, "dp_replicate": 2}, {"zero_stage": 3}),
        ({"pp": 128}, {}),
    ],
)
def test_shared_programs_are_those_of_each_rank(make_plan, degrees, plan_options):
    """A trace that was made from another rank is the one that the rank itself would write."""
    plan = make_plan(
        degrees, plan_options, model=model(num_layers=max(2, degrees.get("pp", 1))),
        system="128xH100" if degrees.get("pp", 1) > 8 else "wafer-4x8", batch=4, length=256,
    )  # fmt: skip
    files = rendered(plan, "chakra")
    program = StepProgram(_problem(plan), plan.best.plan_options, plan.best.strategy)
    groups = json.loads(files["comm_groups.json"])
    for name in files:
        if name.endswith(".et"):
            rank = int(name.split(".")[1])
            shared = read_trace(gzip.decompress(files[name]))
            nodes = program.nodes(rank)
            kept = {name: name for name in program.mesh.names.values()}
            ranks = {other: other for other in range(program.num_ranks)}
            own = read_trace(SharedTrace(nodes).of(kept, ranks))
            for ours, theirs in zip(shared, own, strict=True):
                named = [n.attributes.pop("pg_name", None) for n in (ours, theirs)]
                assert ours == theirs
                if named[0]:
                    members = {v: k for k, v in program.mesh.names.items()}
                    assert tuple(groups[named[0]]) == members[int(named[1])]


def test_compressed_traces_are_small(make_plan):
    """A node takes 116 bytes, and 10 of them on the disk: most of it repeats."""
    plan = make_plan(
        {"tp": 2, "pp": 2, "dp_shard": 2}, {"sequence_parallel": True},
        model=model(num_layers=16), system="8xH100", batch=64, length=256,
    )  # fmt: skip
    files = rendered(plan, "chakra")
    for rank in range(8):
        content = files[f"step.{rank}.et"]
        num_nodes = len(records(gzip.decompress(content))) - 1
        assert len(content) < 11 * num_nodes


def test_progress_counts_the_files(plan, tmp_path):
    seen = []
    export(plan, "chakra", tmp_path, progress=lambda *counts: seen.append(counts))
    assert seen == [(number, 9) for number in range(1, 10)]


def test_writing_again_finds_the_same_files(plan, tmp_path):
    export(plan, "chakra", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    export(plan, "chakra", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("degrees", "plan_options", "path", "fix"),
    [
        (
            {"tatp": 4},
            {"offload": Offload.OPTIMIZER, "streamed": Streamed.WEIGHTS},
            "plan_options.offload",
            "offload=none",
        ),
        ({"tatp": 4}, {"streamed": Streamed.INPUTS}, "plan_options.streamed", "streamed=weights"),
        ({"tatp": 4}, {"streamed": Streamed.AUTO}, "plan_options.streamed", "streamed=weights"),
        (
            {"tp": 2, "tatp": 2},
            {"streamed": Streamed.BOTH, "sequence_parallel": True},
            "plan_options.streamed",
            "streamed=weights",
        ),
    ],
)
def test_refused(make_plan, degrees, plan_options, path, fix):
    plan = make_plan(degrees, plan_options, model=model(), system="wafer-4x8", batch=4)
    with pytest.raises(UnsupportedError) as caught:
        rendered(plan, "chakra")
    assert [(fault.path, fault.fix) for fault in caught.value.faults] == [(path, fix)]


def test_a_batch_that_does_not_divide_is_refused(make_plan):
    with pytest.raises(UnsupportedError, match="not divisible by dp 4"):
        rendered(make_plan({"dp_shard": 4}, batch=30), "chakra")


def test_traces_are_written_and_not_printed(make_plan, tmp_path, capsys):
    path = tmp_path / "plan.json"
    save(make_plan({"tp": 2}, model=model(), batch=1, length=128), path)
    assert main(["export", str(path), "chakra", "--print"]) == 2
    assert "are not text: --out FOLDER" in capsys.readouterr().err
    assert main(["export", str(path), "chakra", "--out", str(tmp_path / "traces")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
