"""Chakra as an export target: one file for each rank, groups as JSON, refusals with fixes."""

import json

import pytest
from chakra_traces import read_trace
from small_problems import model

from meshwright.base.errors import UnsupportedError
from meshwright.cli.main import main
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
    paths = export(plan, "chakra", tmp_path)
    assert [path.name for path in paths] == [
        "comm_groups.json",
        *(f"step.{rank}.et" for rank in range(8)),
    ]
    groups = json.loads((tmp_path / "comm_groups.json").read_text())
    named = set()
    for rank, path in enumerate(paths[1:]):
        nodes = read_trace(path.read_bytes())
        assert [node.number for node in nodes] == list(range(1, len(nodes) + 1))
        mine = {n.attributes["pg_name"] for n in nodes if n.type == "collective"}
        assert all(rank in groups[name] for name in mine)
        named |= mine
        ends = [n.attributes for n in nodes if n.type in ("send", "receive")]
        assert all(rank in (end["comm_src"], end["comm_dst"]) for end in ends)
        assert all(n.attributes["num_ops"] > 0 for n in nodes if n.type == "compute")
    assert named == set(groups)


def test_writing_again_finds_the_same_files(plan, tmp_path):
    export(plan, "chakra", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    export(plan, "chakra", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("degrees", "structure", "path", "fix"),
    [
        (
            {"tatp": 4},
            {"offload": Offload.OPTIMIZER, "streamed": Streamed.WEIGHTS},
            "structure.offload",
            "offload=none",
        ),
        ({"tatp": 4}, {"streamed": Streamed.INPUTS}, "structure.streamed", "streamed=weights"),
        ({"tatp": 4}, {"streamed": Streamed.AUTO}, "structure.streamed", "streamed=weights"),
        (
            {"tp": 2, "tatp": 2},
            {"streamed": Streamed.BOTH, "sequence_parallel": True},
            "structure.streamed",
            "streamed=weights",
        ),
    ],
)
def test_refused(make_plan, degrees, structure, path, fix):
    plan = make_plan(degrees, structure, model=model(), system="wafer-4x8", batch=4)
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
    assert "are no text: --out FOLDER" in capsys.readouterr().err
    assert main(["export", str(path), "chakra", "--out", str(tmp_path / "traces")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
