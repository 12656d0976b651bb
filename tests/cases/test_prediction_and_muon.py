"""Layers that predict further tokens, and orthogonal updates: read from files, and priced."""

from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright.audit.work import ModelWork
from meshwright.catalog.models import load_model
from meshwright.cost.memory import orthogonal_flops
from meshwright.graph.flops import step_flops
from meshwright.graph.transformer import build_graph

RANKS = Path(__file__).parent / "train" / "megatron_ranks.sh"


def job(more, *, on="8xH100", tp=2):
    stated = [f"MORE={more}", "RANKS=8", f"TP={tp}"]
    return mw.estimate(from_=str(RANKS), on=on, set=stated).best.estimate


def test_each_depth_computes_logits_and_loss_again():
    """Section 2.2 of the report on DeepSeek-V3 (arXiv 2412.19437): one shared output head.

    2 h V FLOP a token forward: 2 x 4,096 x 128,256 of Llama 3 8B are 1.0507e9.
    """
    plain = load_model("llama3-8b")
    deep = plain.model_copy(update={"prediction_depths": 2})
    forward, weights = [], []
    for model in (plain, deep):
        graph = build_graph(model)
        forward.append(step_flops(graph, num_tokens=1, sequence_length=4096).forward)
        weights.append([weight.dims for weight in graph.head.weights if len(weight.dims) == 2])
    assert forward[1] - forward[0] == pytest.approx(2 * 1.0507e9, rel=1e-4)
    assert ModelWork(deep).head_flops == pytest.approx(3 * 1.0507e9, rel=1e-4)
    assert weights[0] == weights[1]  # one output head for all depths


def test_a_depth_costs_more_than_the_layer_that_it_is():
    """32 layers and one of prediction, with 32,000 words: 6 h V T / 8 devices are 1.93e13 FLOP."""
    plain, deep = job(""), job("--mtp-num-layers 1")
    layer_s = plain.time_parts_s["compute_s"] / 33.0
    head_s = 6 * 4096 * 32000 * 48 * 4096 / 8 / 989e12
    added_s = deep.time_parts_s["compute_s"] - plain.time_parts_s["compute_s"]
    assert added_s > 0.9 * layer_s + head_s
    assert deep.memory_bytes > plain.memory_bytes


def test_an_orthogonal_update_by_hand():
    """n = 4,096, m = 11,008: 4 n^2 m = 7.3874e11, 2 n^3 = 1.3744e11; five steps 4.3809e12."""
    assert orthogonal_flops(4096.0, 11008.0, 5) == pytest.approx(4.3809e12, rel=1e-4)
    columns = orthogonal_flops(np.array([11008.0, 4096.0]), np.array([4096.0, 11008.0]), 5)
    assert columns == pytest.approx([4.3809e12] * 2, rel=1e-4)


def test_ranks_share_matrices_under_zero_alone():
    """megatron-core, optimizer/layer_wise_optimizer.py: whole matrices are dealt to ranks of dp.

    The script has ``--use-distributed-optimizer``, which is that for Muon (training/arguments.py).
    With tp 1 every rank of 8 makes an eighth: 32 layers of 4 x 2.0616e12 (n = m = 4,096) and
    3 x 4.3809e12 FLOP are 6.844e14, 0.0865 s at the peak of an H100.
    """
    adam, muon = (job(more, tp=1).time_parts_s["optimizer_s"]
                  for more in ("", "--optimizer muon"))  # fmt: skip
    assert 6.844e14 / 8 / 989e12 < muon - adam < 2.0 * 6.844e14 / 8 / 989e12


def test_muon_is_an_optimizer_by_name():
    asked = {"on": "8xH100", "seq": 4096, "global_batch": 64}
    whole, dealt = (
        mw.estimate("llama3.2-1b", optimizer="muon", zero=stage, **asked).best.estimate
        for stage in ("0", "1")
    )
    assert whole.time_parts_s["optimizer_s"] > 4.0 * dealt.time_parts_s["optimizer_s"]


def test_a_layout_says_which_stage_predicts(tmp_path):
    """megatron-core, ``pipeline_parallel_layer_layout.py``: m is a layer of prediction.

    As in the layouts that Megatron Bridge ships for DeepSeek-V3: m, and then the loss alone.
    """
    text = RANKS.read_text("utf-8").replace("${MORE}", "--pipeline-model-parallel-size 2 "
        "--pipeline-model-parallel-layout 'Et*13|t*10|t*9m|L' --mtp-num-layers 1")  # fmt: skip
    (tmp_path / "job.sh").write_text(text, "utf-8")
    plan = mw.estimate(from_=str(tmp_path / "job.sh"), on="8xH100", set=["RANKS=8", "TP=2"])
    assert plan.best.plan_options.stage_layers == (13, 10, 10, 0)
    assert plan.model.num_layers == 33
