"""The job of AutoParallel in torchtitan: its own parser reads it, and the solver gets the bound."""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torchtitan")

import torch
from real_parsers import start
from torchtitan.config import ConfigManager

import meshwright as mw
from meshwright.frameworks.registry import export

MODULE = "torchtitan_autoparallel"
pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings of torchtitan's own modules, on import."""


@pytest.fixture(params=["llama3-8b", "llama3.2-1b"])
def exported(request, tmp_path, monkeypatch):
    """Return the script of a model that torchtitan ships, or does not; its module is importable."""
    plan = mw.fit(request.param, on="8xH100", framework="torchtitan", tp=2, dp=4, zero=3, mbs=1,
                  seq=1024, global_batch=4, recompute="full")  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield export(plan, "torchtitan-autoparallel", tmp_path)[0]
    sys.modules.pop(MODULE, None)


def test_torchtitan_reads_the_job(exported):
    config = ConfigManager().parse_args(start(exported).of_program)
    assert config.compile.enable_autoparallel
    assert (config.compile.mode, config.compile.memory_policy) == ("aot_fx_trace", "full")
    assert config.parallelism.data_parallel_shard_degree == 4
    assert config.parallelism.tensor_parallel_degree == 2
    with torch.device("meta"):
        assert config.model_spec.model.build().layers


def test_the_solver_gets_the_bound_and_its_solution_is_written(exported, tmp_path, monkeypatch):
    told = {}

    class Graph:
        gm = SimpleNamespace(graph=SimpleNamespace(nodes=[
            SimpleNamespace(op="placeholder", name=name) for name in ("weight", "tokens")
        ]))  # fmt: skip
        joint_with_descriptors = SimpleNamespace(params_spec=["weight"])
        sharding_optimizer = SimpleNamespace(get_json=lambda: {"nodes": []})

        def add_parameter_memory_constraint(self, low=None, high=None):
            told.update(low=low, high=high)

        def optimize_placement(self, verbose=True):
            return "placement"

    def parallelize(model, **settings):
        graph = theirs.AutoParallelGraph()
        graph.add_parameter_memory_constraint(low=None, high=None)
        return model, graph.optimize_placement(verbose=False), settings

    name = "torchtitan.experiments.graph_trainer.llama3.parallelize_autoparallel"
    theirs = ModuleType(name)
    theirs.AutoParallelGraph, theirs.parallelize_autoparallel_llama = Graph, parallelize
    package = importlib.import_module(name.rpartition(".")[0])
    monkeypatch.setitem(sys.modules, name, theirs)
    monkeypatch.setattr(package, "parallelize_autoparallel", theirs, raising=False)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(MODULE)
    assert module.parallelize("model", dims=1) == ("model", "placement", {"dims": 1})
    assert told == {"low": 0.0, "high": module.PARAMETER_SHARE}
    assert 1 / 8 <= module.PARAMETER_SHARE < 0.126
    written = json.loads((tmp_path / "solution.json").read_text())
    assert written["parameters"] == ["weight"]
