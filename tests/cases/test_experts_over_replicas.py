"""vLLM with data-parallel replicas and without expert parallelism: experts are split inside.

Source: vLLM 0.33, ``model_executor/layers/fused_moe/config.py``: ``FusedMoEParallelConfig.make``
flattens tp over dp, so that each of tp x dp ranks holds a part of every expert.
"""

import pytest

import meshwright as mw
from meshwright.frameworks.deployment import served

JOB = (
    "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --data-parallel-size 4 "
    "--max-model-len 8192 --max-num-seqs 64"
)


@pytest.fixture
def priced(tmp_path):
    def price(more):
        path = tmp_path / "job.sh"
        path.write_text(f"{JOB} {more}\n", "utf-8")
        return mw.estimate(from_=str(path), on="8xH100")

    return price


def test_every_rank_holds_a_part_of_every_expert(priced):
    """Qwen3-30B-A3B: 28,991,029,248 parameters of experts, an eighth of them on each rank."""
    inside, whole = priced(""), priced("--enable-expert-parallel")
    assert (inside.best.strategy.ep, inside.best.strategy.etp) == (1, 8)
    assert (whole.best.strategy.ep, whole.best.strategy.etp) == (8, 1)
    held = [plan.best.estimate.memory_parts_bytes["weights_bytes"] for plan in (inside, whole)]
    assert held[0] == pytest.approx(held[1])
    assert held[0] > 2 * 28_991_029_248 / 8
    # All rows go to all ranks, not each to those of its experts.
    assert inside.best.estimate.latency_s > whole.best.estimate.latency_s


def test_it_is_written_as_it_was_read(priced, tmp_path):
    plan = priced("")
    text = served(plan, "vllm")["vllm.sh"]
    assert "--data-parallel-size 4" in text
    assert "--enable-expert-parallel" not in text
    (tmp_path / "written.sh").write_text(text, "utf-8")
    again = mw.estimate("qwen3-30b-a3b", from_=str(tmp_path / "written.sh"), on="8xH100")
    assert again.best.strategy == plan.best.strategy
