"""``measure`` against training that really runs: a small transformer under DDP, with gloo.

As many processes as train measure the machine, with one thread each; where they are more than the
cores, each has its share of one. Steps run before and after, because other work on the machine
comes and goes. Their middle is held against an interval of twice the width: one in five lies
outside of the stated one by right. Where the other work disturbed a round, the next one counts.
"""

import json
import math
import os
import subprocess
import sys

import pytest
from real_parsers import READERS
from sampled import sampled

import meshwright as mw

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip

ROUNDS = 3
MOST_WIDTH = math.log(4.0)


def started(processes, folder, *words):
    command = [sys.executable, "-P", "-m", "torch.distributed.run",
               f"--nproc-per-node={processes}", *map(str, words)]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def step_s(processes, folder):
    return float(started(processes, folder, READERS / "train_small.py", folder / "config.json"))


@pytest.mark.parametrize("processes", sampled([2, 4], 1))
def test_a_step_that_runs_is_in_its_interval(processes, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = []
    for _ in range(ROUNDS):
        before_s = step_s(processes, tmp_path)
        started(
            processes, tmp_path,
            "-m", "meshwright", "measure", "--quick", "--out", "node.yaml", "--force",
        )  # fmt: skip
        after_s = step_s(processes, tmp_path)
        price = mw.estimate(
            str(tmp_path / "config.json"), on=str(tmp_path / "node.system.yaml"),
            calibration=str(tmp_path / "node.yaml"), framework="fsdp", seq=512,
            global_batch=processes, dp=processes, zero=0, precision="fp32", optimizer="adam-fp32",
        ).best.estimate  # fmt: skip
        width = 2.0 * math.log(price.interval_s[1] / price.step_time_s)
        error = math.log(math.sqrt(before_s * after_s) / price.step_time_s)
        if abs(error) <= width < MOST_WIDTH:
            return
        found.append((before_s, after_s, price.interval_s, price.time_parts_s))
    pytest.fail(f"steps before and after, interval and parts, each time: {found}")
